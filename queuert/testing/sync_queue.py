"""A queue for synchronous tests: each call runs the asynchronous one to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from queuert.client import Client
from queuert.client.entering import Entered
from queuert.client.middleware import ClientMiddleware
from queuert.errors import ConfigurationError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import Job
from queuert.new_chain import ChainReference
from queuert.notify.in_process import InProcessNotify
from queuert.observability.tracing import TracingMiddleware
from queuert.state import StateAdapter
from queuert.testing.async_queue import AsyncJobQueue
from queuert.testing.attempts import RanAttempt
from queuert.testing.clock import StoredTimes
from queuert.testing.idle import RanUntilIdle
from queuert.worker import Processors

T = TypeVar("T")


class JobQueue(Entered):
    """A real queue that a synchronous test controls: see :class:`AsyncJobQueue`.

    Coroutine handlers run in a new event loop for each call.

    Attributes:
        client: a :class:`~queuert.Client` that starts chains; the program under test may have one of its own.

    Example::

        def test_signing_up(queuert_state):
            with JobQueue(queuert_state, job_types) as queue:
                sign_up("ada@example.org", client=queue.client)
                queue.assert_started(send_email, to="ada@example.org")
                queue.run_until_idle(processors)
    """

    def __init__(
        self,
        state: StateAdapter,
        job_types: JobTypes,
        *,
        middlewares: Iterable[ClientMiddleware | TracingMiddleware] = (),
        times: StoredTimes | None = None,
    ) -> None:
        self.state = state
        self.job_types = job_types
        given = tuple(middlewares)
        self._tracing = tuple(one for one in given if isinstance(one, TracingMiddleware))
        self.client = Client(state, job_types, notify=InProcessNotify(), middlewares=given)
        self._times = times

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run_until_idle(
        self,
        processors: Processors | Sequence[Processors],
        *,
        allow_failures: bool = False,
        concurrency: int = 4,
        timeout: float = 30.0,
    ) -> RanUntilIdle:
        """Run a worker until no job of these processors can be claimed or runs. See the asynchronous one."""
        return self._run(
            lambda queue: queue.run_until_idle(
                processors, allow_failures=allow_failures, concurrency=concurrency, timeout=timeout
            )
        )

    def process_job(
        self, processors: Processors | Sequence[Processors], job: Job | ChainReference, *, timeout: float = 30.0
    ) -> RanAttempt:
        """Run one attempt of one job, and nothing else. See the asynchronous one."""
        return self._run(lambda queue: queue.process_job(processors, job, timeout=timeout))

    def jobs(self) -> list[Job]:
        """Return all jobs, the first one first."""
        return self._run(lambda queue: queue.jobs())

    def assert_started(
        self,
        job_type: JobType[Any, Any],
        *,
        where: Callable[[Any], object] | None = None,
        count: int | None = 1,
        **fields: Any,
    ) -> list[Job]:
        """Assert that jobs of this type were started, and return them. See the asynchronous one."""
        return self._run(lambda queue: queue.assert_started(job_type, where=where, count=count, **fields))

    def assert_not_started(
        self, job_type: JobType[Any, Any], *, where: Callable[[Any], object] | None = None, **fields: Any
    ) -> None:
        """Assert that no job of this type, or none with such an input, was started. See the asynchronous one."""
        self._run(lambda queue: queue.assert_not_started(job_type, where=where, **fields))

    def clear(self) -> None:
        """Delete all chains and schedules, and end all pauses, between two tests. See the asynchronous one."""
        self._run(lambda queue: queue.clear())

    def advance(
        self,
        delay: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        leases: bool = False,
    ) -> None:
        """Let time pass for the queue, without waiting. See the asynchronous one."""
        self._run(
            lambda queue: queue.advance(delay, days=days, hours=hours, minutes=minutes, seconds=seconds, leases=leases)
        )

    def _run(self, call: Callable[[AsyncJobQueue], Awaitable[T]]) -> T:
        async def once() -> T:
            async with AsyncJobQueue(self.state, self.job_types, middlewares=self._tracing, times=self._times) as queue:
                return await call(queue)

        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigurationError("JobQueue is for synchronous tests: use AsyncJobQueue in a coroutine")
        return asyncio.run(once())
