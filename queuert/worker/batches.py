"""Batched handlers: attempts of one job type that are there together share one call.

Each attempt keeps its own lease, abort signal, middlewares and finish; only the call of the handler is shared. Nobody
waits for a batch to fill: what one claim brought goes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from queuert.errors import BatchMismatchError
from queuert.worker.attempt import Attempt
from queuert.worker.prefetch import Prefetch
from queuert.worker.processors import Processor
from queuert.worker.threads import HandlerThreads

BatchCall: TypeAlias = Callable[[Sequence[Attempt[Any, Any]]], Awaitable[Any]]
"""Calls the handler, in the event loop or in a thread."""

_Member = tuple[Attempt[Any, Any], "asyncio.Future[Any]"]


class Batches:
    """The batched handlers of one worker."""

    def __init__(self, threads: HandlerThreads, prefetch: Prefetch) -> None:
        self._threads = threads
        self._prefetch = prefetch
        self._collectors: dict[str, BatchCollector] = {}

    async def call(self, processor: Processor, attempt: Attempt[Any, Any]) -> Any:
        """Let an attempt take part in the next call of its handler; returns its outcome."""
        name = processor.job_type.name
        if name not in self._collectors:
            assert processor.batch_size is not None
            self._collectors[name] = BatchCollector(name, processor.batch_size, self._caller(processor), self._prefetch)
        return await self._collectors[name].join(attempt)

    def _caller(self, processor: Processor) -> BatchCall:
        handler: Callable[[Any], Any] = processor.handler

        async def call(attempts: Sequence[Attempt[Any, Any]]) -> Any:
            if processor.is_coroutine:
                return await handler(attempts)
            return await self._threads.run(lambda: handler(attempts))

        return call


class BatchCollector:
    """Gathers the attempts of one job type in one worker into calls of at most ``size``."""

    def __init__(self, job_type: str, size: int, call: BatchCall, prefetch: Prefetch) -> None:
        self._job_type = job_type
        self._size = size
        self._call = call
        self._prefetch = prefetch
        self._waiting: list[_Member] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def join(self, attempt: Attempt[Any, Any]) -> Any:
        """Take part in the next call; returns this attempt's outcome.

        Raises:
            BatchMismatchError: the handler did not return one outcome for each attempt.
            Exception: what the handler raised; it is raised for every attempt of the call.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((attempt, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._go_when_all_are_here)
        elif len(self._waiting) >= self._size:
            self._go()
        return await future

    def _go_when_all_are_here(self) -> None:
        # The attempts of one claim begin one after the other, each when the one before waits.
        if self._prefetch.more_to_start:
            asyncio.get_running_loop().call_soon(self._go_when_all_are_here)
        else:
            self._go()

    def _go(self) -> None:
        members = [one for one in self._waiting[: self._size] if not one[1].done()]
        del self._waiting[: self._size]
        if members:
            task = asyncio.create_task(self._run(members))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            for _, future in members:
                future.add_done_callback(lambda _: self._cancel_if_deserted(task, members))
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go)

    @staticmethod
    def _cancel_if_deserted(task: asyncio.Task[None], members: Sequence[_Member]) -> None:
        # One that is aborted leaves the others alone; when all are, nobody wants the outcome.
        if all(future.cancelled() for _, future in members):
            task.cancel()

    async def _run(self, members: Sequence[_Member]) -> None:
        try:
            outcomes = self._checked(await self._call([attempt for attempt, _ in members]), len(members))
        except asyncio.CancelledError:
            _settle(members, error=RuntimeError("the batched handler was cancelled from within"))
        except BaseException as error:
            _settle(members, error=error)
        else:
            _settle(members, outcomes)

    def _checked(self, outcomes: Any, count: int) -> Sequence[Any]:
        if isinstance(outcomes, Sequence) and not isinstance(outcomes, str | bytes) and len(outcomes) == count:
            return outcomes
        got = f"{len(outcomes)} outcomes" if isinstance(outcomes, Sequence) else type(outcomes).__name__
        raise BatchMismatchError(f"the batched handler of {self._job_type!r} got {count} attempts and returned {got}")


def _settle(members: Sequence[_Member], outcomes: Sequence[Any] = (), error: BaseException | None = None) -> None:
    for index, (_, future) in enumerate(members):
        if future.done():
            continue
        if error is None:
            future.set_result(outcomes[index])
        elif isinstance(error, Exception):
            future.set_exception(error)
        else:
            # A future cannot carry what would end the event loop.
            future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}: {error}"))
