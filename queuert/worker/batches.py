"""Batched handlers: attempts of one job type that begin together share one call.

Each attempt keeps its own lease, abort signal, middlewares and finish; only the call of the handler is shared. No
attempt waits for a batch to fill: the attempts of one claim share calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from queuert._error_copies import copy_of
from queuert.errors import BatchInterruptedError, BatchMismatchError, LeaseLostError
from queuert.worker import forks
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
        """Include an attempt in the next call of its handler, and return its outcome."""
        name = processor.job_type.name
        if name not in self._collectors:
            assert processor.batch_size is not None
            self._collectors[name] = BatchCollector(name, processor.batch_size, self._caller(processor), self._prefetch)
        return await self._collectors[name].join(attempt)

    def _caller(self, processor: Processor) -> BatchCall:
        handler: Callable[[Any], Any] = processor.handler

        async def call(attempts: Sequence[Attempt[Any, Any]]) -> Any:
            if processor.is_coroutine:
                return await forks.guarded(handler, attempts)
            return await self._threads.run(lambda: handler(attempts))

        return call


class BatchCollector:
    """Groups the attempts of one job type in one worker into calls of at most ``size``."""

    def __init__(self, job_type: str, size: int, call: BatchCall, prefetch: Prefetch) -> None:
        self._job_type = job_type
        self._size = size
        self._call = call
        self._prefetch = prefetch
        self._waiting: list[_Member] = []
        self._calls: dict[asyncio.Task[None], Sequence[_Member]] = {}

    async def join(self, attempt: Attempt[Any, Any]) -> Any:
        """Include an attempt in the next call, and return its outcome.

        Raises:
            BatchMismatchError: the handler did not return one outcome for each attempt.
            BatchInterruptedError: another attempt of the call has lost its lease, and the handler let that end it.
            Exception: what the handler raised; it is raised for every attempt of the call.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((attempt, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._start_when_complete)
        elif len(self._waiting) >= self._size:
            self._start_call()
        try:
            return await future
        except asyncio.CancelledError:
            # Its slot stays taken until the call returns, which goes on with this attempt in its list.
            calls = [task for task, members in self._calls.items() if any(one is future for _, one in members)]
            if calls:
                await asyncio.wait(calls)
            raise

    def _start_when_complete(self) -> None:
        # The attempts of one claim begin one after the other, each when the one before awaits something.
        if self._prefetch.more_to_start:
            asyncio.get_running_loop().call_soon(self._start_when_complete)
        else:
            self._start_call()

    def _start_call(self) -> None:
        members = [(attempt, future) for attempt, future in self._waiting[: self._size] if not future.done()]
        del self._waiting[: self._size]
        if members:
            task = asyncio.create_task(self._run(members))
            self._calls[task] = members
            task.add_done_callback(self._calls.pop)
            for _, future in members:
                future.add_done_callback(lambda _: self._cancel_if_all_cancelled(task, members))
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start_call)

    @staticmethod
    def _cancel_if_all_cancelled(task: asyncio.Task[None], members: Sequence[_Member]) -> None:
        # The abort of one attempt does not affect the others; when all are aborted, the outcomes are not needed.
        if all(future.cancelled() for _, future in members):
            task.cancel()

    async def _run(self, members: Sequence[_Member]) -> None:
        try:
            outcomes = self._checked_outcomes(await self._call([attempt for attempt, _ in members]), len(members))
        except asyncio.CancelledError:
            _set_outcomes(members, error=RuntimeError("the batched handler was cancelled from within"))
        except BaseException as error:
            _set_outcomes(members, error=error)
        else:
            _set_outcomes(members, outcomes)

    def _checked_outcomes(self, outcomes: Any, count: int) -> Sequence[Any]:
        got = type(outcomes).__name__
        if isinstance(outcomes, Sequence) and not isinstance(outcomes, str | bytes):
            # A sequence of another kind may raise when it is read, or be shorter: here that fails its attempts.
            read = outcomes if type(outcomes) is list else [*outcomes]
            if len(read) == count:
                return read
            got = f"{len(read)} outcomes"
        raise BatchMismatchError(f"the batched handler of {self._job_type!r} got {count} attempts and returned {got}")


def _set_outcomes(members: Sequence[_Member], outcomes: Sequence[Any] = (), error: BaseException | None = None) -> None:
    lost = None
    if isinstance(error, LeaseLostError) and any(attempt.job_id == error.job_id for attempt, _ in members):
        lost = error.job_id
    for index, (attempt, future) in enumerate(members):
        if future.done():
            continue
        if error is None:
            future.set_result(outcomes[index])
        elif lost is not None and attempt.job_id != lost:
            interrupted = BatchInterruptedError(lost)
            interrupted.__cause__ = error
            future.set_exception(interrupted)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(copy_of(error))  # What one attempt notes on it is not the failure of another.
        else:
            # A future can carry neither what would end the event loop, nor what would end the coroutine that awaits it.
            raised = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
            raised.__cause__ = error
            future.set_exception(raised)
