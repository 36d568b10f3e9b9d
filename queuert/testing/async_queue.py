"""A queue for asynchronous tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import BuiltinFunctionType, TracebackType
from typing import Any, Self

from queuert.client import AsyncClient
from queuert.client.arguments import decoded_job
from queuert.client.entering import AsyncEntered
from queuert.client.middleware import ClientMiddleware
from queuert.errors import ClosedError, ConfigurationError, JobNotFoundError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import Job, JobStatus
from queuert.new_chain import ChainReference
from queuert.notify.in_process import InProcessNotify
from queuert.observability.adapter import ObservabilityAdapter
from queuert.observability.log import LogObservability
from queuert.observability.tracing import TracingMiddleware
from queuert.run_at import after
from queuert.state import AsyncStore, StateAdapter
from queuert.state.paging import JobFilter, PageRequest
from queuert.testing.attempts import RanAttempt, UnexpectedFailureError, ran_attempts, running_attempts
from queuert.testing.clock import StoredTimes, times_of
from queuert.testing.events import EventLog
from queuert.testing.idle import RanUntilIdle, is_idle, remaining_jobs
from queuert.testing.matching import check_fields, matching, story
from queuert.testing.single_job_state import OneJobState
from queuert.worker import InProcessWorker, Processors
from queuert.worker.processors import merged

_LOOK = 0.01
"""Seconds between two checks whether all is done, and between two claims if no notification wakes the worker."""

_PAGE = 500
_RUNNABLE = (JobStatus.READY, JobStatus.SCHEDULED)


class AsyncJobQueue(AsyncEntered):
    """A real queue that a test controls: jobs run, and time passes, only when the test calls a method.

    Args:
        state: an empty store: such as the fixture ``queuert_state`` gives, or ``SQLiteState()``, which needs no server.
        job_types: all job types that the test starts or runs.
        middlewares: the client's middlewares; tracing ones trace the attempts as well.
        times: moves stored times; only needed for a store that is not Queuert's.

    Attributes:
        client: starts chains; the program under test may use it, or one of its own on the same store.

    Example::

        async with AsyncJobQueue(queuert_state, job_types) as queue:
            await sign_up("ada@example.org", client=queue.client)
            await queue.assert_started(send_email, to="ada@example.org")
            await queue.run_until_idle(processors)
            await queue.advance(days=1)
            await queue.run_until_idle(processors)
            await queue.assert_started(send_reminder)
    """

    def __init__(
        self,
        state: StateAdapter,
        job_types: JobTypes,
        *,
        middlewares: Iterable[ClientMiddleware | TracingMiddleware] = (),
        times: StoredTimes | None = None,
    ) -> None:
        self._times = times
        given = tuple(middlewares)
        self._tracing = tuple(one for one in given if isinstance(one, TracingMiddleware))
        self.state = state
        self.job_types = job_types
        self.client = AsyncClient(
            state, job_types, notify=InProcessNotify(), observability=LogObservability(), middlewares=given
        )
        self._store: AsyncStore | None = None
        self._closed = False

    async def aclose(self) -> None:
        """Close all connections. Idempotent; the queue cannot be used afterwards."""
        self._closed = True
        store, self._store = self._store, None
        try:
            await self.client.aclose()
        finally:
            if store is not None:
                await store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- run ----------------------------------------------------------------------------------------------------------

    async def run_until_idle(
        self,
        processors: Processors | Sequence[Processors],
        *,
        allow_failures: bool = False,
        concurrency: int = 4,
        timeout: float = 30.0,
    ) -> RanUntilIdle:
        """Run a worker until no job of these processors can be claimed or runs, and all handlers have ended; return the
        attempts that ran.

        Jobs that are scheduled for later, including retries after a pause, are not run, nor are those that limits or a
        pause of their type hold back: see :meth:`advance`; nor those that a client is to complete. ``left`` of the
        returned list says what did not run, by job type::

            ran = await queue.run_until_idle(processors)
            assert [str(left) for left in ran.left] == ["send: 3 held back by limits"]

        Args:
            processors: the handlers.
            allow_failures: do not raise when a job fails or a handler raises.
            concurrency: handlers that run at once.
            timeout: seconds.

        Raises:
            UnexpectedFailureError: jobs failed, or handlers raised; nevertheless all ready jobs have run.
            ConfigurationError: the clock of the event loop is frozen, see the guide, *Test your jobs*.
            AssertionError: some jobs could still be claimed, or handlers ran, after ``timeout`` seconds.
        """
        store = await self._opened()
        types = list(merged(processors))
        async with self._working(self.state, processors, concurrency) as (worker, log):
            try:
                async with asyncio.timeout(timeout):
                    while not await is_idle(store, worker, log, types):  # noqa: ASYNC110 - only a look can tell
                        await asyncio.sleep(_LOOK)
            except TimeoutError:
                raise AssertionError(await self._unfinished(types, timeout, log)) from None
        ran = ran_attempts(log.events)
        wrong = [attempt for attempt in ran if attempt.went_wrong]
        if wrong and not allow_failures:
            raise UnexpectedFailureError(wrong)
        by_clients = [one.name for one in self.job_types if one.completed_by == "client"]
        return RanUntilIdle(ran, await remaining_jobs(store, types, by_clients))

    async def process_job(
        self, processors: Processors | Sequence[Processors], job: Job | ChainReference, *, timeout: float = 30.0
    ) -> RanAttempt:
        """Run one attempt of one job, even if it is scheduled for later, and nothing else; return the attempt.

        Args:
            processors: the handlers.
            job: a job, or a chain, whose last job it is then; or the id of either.
            timeout: seconds.

        Raises:
            JobNotFoundError: it does not exist.
            ConfigurationError: the clock of the event loop is frozen, see the guide, *Test your jobs*.
            AssertionError: it is not ready or scheduled, or did not end within ``timeout`` seconds.
        """
        store = await self._opened()
        found = await self._runnable(store, job)
        handled = merged(processors)
        if found.type not in handled:
            raise AssertionError(f"no handler for {found.type!r} among {', '.join(map(repr, handled))}")
        if found.status is JobStatus.SCHEDULED:
            await store.trigger_jobs([found.id])
        one = OneJobState(self.state, found.id, found.type)
        async with self._working(one, processors, 1) as (worker, log):
            try:
                async with asyncio.timeout(timeout):
                    # An attempt that was aborted has a result when its handler has ended.
                    while (not ran_attempts(log.events) and one.claimed is not False) or worker.running:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK)
            except TimeoutError:
                raise AssertionError(f"job {found.id!r} did not end in {timeout:g} s") from None
        ended = ran_attempts(log.events)
        if not ended:
            raise AssertionError(f"job {found.id!r} was not to be had: its type is paused, or a worker took it")
        return ended[-1]

    @asynccontextmanager
    async def _working(
        self, state: StateAdapter, processors: Processors | Sequence[Processors], concurrency: int
    ) -> AsyncIterator[tuple[InProcessWorker, EventLog]]:
        log = EventLog()
        reported: list[ObservabilityAdapter] = [log, LogObservability()]
        client = AsyncClient(
            state, self.job_types, notify=self.client.notify, observability=reported, middlewares=self._tracing
        )
        async with client:
            worker = InProcessWorker(
                client, processors, name="test", concurrency=concurrency, shutdown_timeout=0, poll_interval=_LOOK
            )
            async with worker:
                yield worker, log

    async def _runnable(self, store: AsyncStore, job: Job | ChainReference) -> Job:
        id = job if isinstance(job, str) else job.id
        if not isinstance(job, Job):
            [chain] = await store.get_chains([id])
            id = id if chain is None else chain.tail_id
        [found] = await store.get_jobs([id])
        if found is None:
            raise JobNotFoundError(id)
        if found.status not in _RUNNABLE:
            raise AssertionError(f"job {id!r} of type {found.type!r} is {found.status.value}: it cannot be run")
        return found

    async def _unfinished(self, types: Sequence[str], timeout: float, log: EventLog) -> str:
        jobs = [job for job in await self.jobs() if job.type in types]
        lines = [
            f"  {job.type} {job.id}: {job.status.value}, attempt {job.attempt}" for job in jobs if not job.status.final
        ]
        closed = {job.id: job for job in jobs if job.status.final}
        lines += [
            f"  {job.type} {job.id}: {job.status.value}, but the handler of attempt {number} still runs"
            for id, number in running_attempts(log.events)
            if (job := closed.get(id)) is not None
        ]
        return "\n".join([f"not idle after {timeout:g} s; these have not ended:", *lines])

    # --- look ---------------------------------------------------------------------------------------------------------

    async def jobs(self) -> list[Job]:
        """Return all jobs, the first one first."""
        return [decoded_job(self.job_types, job) for job in await self._stored()]

    async def _stored(self) -> list[Job]:
        store = await self._opened()
        jobs: list[Job] = []
        cursor: str | None = None
        while True:
            page = await store.list_jobs(JobFilter(), PageRequest(_PAGE, cursor, oldest_first=True))
            jobs += page.items
            cursor = page.next_cursor
            if cursor is None:
                return jobs

    async def assert_started(
        self,
        job_type: JobType[Any, Any],
        *,
        where: Callable[[Any], object] | None = None,
        count: int | None = 1,
        **fields: Any,
    ) -> list[Job]:
        """Assert that jobs of this type were started, as chains or as their continuations, and return them.

        Args:
            job_type: of the jobs.
            where: called with each input, in its model; says whether it is one of those.
            count: how many there must be; None means at least one.
            fields: values that fields of the input must have.

        Raises:
            AssertionError: there are more or fewer; the message lists what was started instead.
            TypeError: inputs of this type have no such field.
        """
        stored = await self._stored()
        check_fields(job_type, fields, stored)
        jobs = [decoded_job(self.job_types, job) for job in stored]
        ids = {job.id for job in matching(stored, job_type, where, fields)}
        found = [job for job in jobs if job.id in ids]
        if len(found) != count and not (count is None and found):
            expected = "at least 1 job" if count is None else f"{count} job{'' if count == 1 else 's'}"
            raise AssertionError(story(job_type, where, fields, expected, found, jobs))
        return found

    async def assert_not_started(
        self, job_type: JobType[Any, Any], *, where: Callable[[Any], object] | None = None, **fields: Any
    ) -> None:
        """Assert that no job of this type, or none with such an input, was started. See :meth:`assert_started`."""
        await self.assert_started(job_type, where=where, count=0, **fields)

    # --- between tests ------------------------------------------------------------------------------------------------

    async def clear(self) -> None:
        """Delete all chains and schedules, end all pauses, and let the windows of rates pass: for a store that several
        tests share, such as that of Django's ``TransactionTestCase``. No worker may run meanwhile.

        Raises:
            ConfigurationError: the times of this store cannot be moved.
        """
        store = await self._opened()
        await store.delete_chains(list(dict.fromkeys(job.chain_id for job in await self._stored())), cascade=True)
        await self.client.delete_schedules([schedule.name for schedule in await self.client.list_schedules()])
        await self.client.resume_job_types([paused.type for paused in await store.list_paused_job_types()])
        await self.advance(days=32)  # A window of a rate is at most 31 days long.

    # --- time ---------------------------------------------------------------------------------------------------------

    async def advance(
        self,
        delay: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        leases: bool = False,
    ) -> None:
        """Let time pass for the queue, without waiting: move all stored times into the past by this much.

        It moves the due times of scheduled jobs (and of retries), the windows of deduplication and of rates, the age of
        chains for retention, and the next ticks of recurring schedules. A schedule's later ticks are computed from the
        real clock again. It does not move the clock that handlers read. It moves the ends of leases only if ``leases``
        is true: then the lease of a running job has expired for the store, if it is not longer than this.

        Raises:
            ConfigurationError: it is negative, the times of this store cannot be moved, or one would be earlier than
                the store has times: 1970 on Redis, the year 2 on Postgres and SQLite.
        """
        seconds = after(delay, days=days, hours=hours, minutes=minutes, seconds=seconds).delay or 0.0
        times = times_of(self.state) if self._times is None else self._times
        await asyncio.to_thread(times.shift, seconds, leases=leases)

    def _found(self) -> AsyncStore | None:
        if self._closed:
            raise ClosedError("the queue is closed: make a new one")
        return self._store

    async def _opened(self) -> AsyncStore:
        _check_clock()
        found = self._found()
        if found is not None:
            return found
        store = self.state.async_store(max_connections=2)
        await store.open()
        if self._closed or self._found() is not None:
            # Meanwhile the queue was closed, or another call has opened it.
            await store.aclose()
            return await self._opened()
        self._store = store
        return store


def _check_clock() -> None:
    """Raise if the clock of the event loop, by which all here waits, was replaced by one that stands still."""
    loop = asyncio.get_running_loop()
    if type(loop).time is asyncio.BaseEventLoop.time and not isinstance(time.monotonic, BuiltinFunctionType):
        raise ConfigurationError(
            "the clock of the event loop must be the machine's, and is frozen: no wait would end. "
            "Use freeze_time(..., real_asyncio=True) of freezegun, or time_machine.travel(...)"
        )
