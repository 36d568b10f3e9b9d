"""What stands behind one attempt in its worker: its lease, its abort signal, and the transactions of its blocks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from queuert.errors import ClosedError, CompletionMisuseError, LeaseLostError, StateUnavailableError
from queuert.job_types import JobTypes
from queuert.jobs import AbortReason
from queuert.observability.events import StoreCallFailed
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.sync_store import StoreTransaction
from queuert.state.types import ClaimedJob, Finish, FinishResult
from queuert.worker import after_attempt, finishes
from queuert.worker.abort import AbortSignal
from queuert.worker.context import WorkerContext
from queuert.worker.lease_clock import lease_time
from queuert.worker.leases import HeldLease
from queuert.worker.processors import Processor
from queuert.worker.telemetry import Ended

_DOUBT = Backoff(initial_delay=0.05, max_delay=1.0)


class AttemptState:
    """The standing of one attempt.

    Attributes:
        signal: the abort signal.
        held: its lease.
        began: when its handler did (by the lease clock).
        concluding: its finish is known, so there is nothing left to stop.
        ended: what its own ``complete()`` committed.
        in_doubt: what was to be committed when its block, or its child process, was last heard of.
    """

    __slots__ = (
        "_closing",
        "_job",
        "_processor",
        "_services",
        "_stop",
        "began",
        "ended",
        "finishing",
        "held",
        "indeterminate",
        "signal",
    )  # fmt: skip

    def __init__(
        self, services: WorkerContext, processor: Processor, job: ClaimedJob, sent_at: float, stop: Callable[[], None]
    ) -> None:
        """``stop`` is called when the handler is to be stopped, from any thread."""
        self.signal = AbortSignal(job.id)
        self.held = HeldLease(job, processor.lease.renewal_interval, sent_at, self)
        self.began = sent_at
        self.finishing = False
        self.ended: FinishResult | None = None
        self._services = services
        self._processor = processor
        self._job = job
        self._stop = stop
        self.indeterminate: tuple[Finish, FinishResult] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def duration(self) -> float:
        """Seconds since the handler began."""
        return lease_time() - self.began

    @property
    def job_types(self) -> JobTypes:
        """The job types of the worker's client."""
        return self._services.job_types

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        # Once the finish is known there is nothing left to stop: it is written, or refused.
        if self.finishing or not self.signal.set(reason):
            return
        self._stop()
        if reason is not AbortReason.WORKER_STOPPING:
            self._services.reports.aborted(self._job, reason)

    def killed(self, reason: AbortReason) -> None:
        """The process of the handler is killed."""
        self._services.reports.killed(self._job, reason)

    def over(self) -> None:
        """The attempt is over, however it ended."""
        self._services.book.remove(self.held)
        # The ways back to the attempt would make cycles of references, and leave it to the garbage collector.
        self.held.holder = None
        self.signal.forget_callbacks()
        self._stop = _nothing

    # --- asked by the blocks of the attempt ---------------------------------------------------------------------------

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        if asyncio.get_running_loop() is not self._services.event_loop:
            raise CompletionMisuseError("in an event loop of your own, use: with attempt.complete() as tx, in a thread")

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self._services.stopping()

    def progressed(self, progress: str) -> None:
        """Have the progress written with the next renewals, which come soon. From any thread."""
        if self._services.book.tell(self.held, progress):
            self._services.renew_now([])

    def finish(self, outcome: Any) -> Finish:
        """How the attempt ends with this outcome."""
        if self.signal.reason is AbortReason.TIMEOUT:
            self.signal.raise_if_set()
        return finishes.finish(self._job, self._processor.job_type, self._processor.retry, outcome)

    async def apply_after_attempt(self, finish: Finish) -> Finish:
        """The finish as ``after_attempt`` leaves it; as it was, if that fails."""
        hook, job_type = self._processor.after_attempt, self._processor.job_type
        if hook is None or not after_attempt.concerns(finish):
            return finish
        try:
            ended = after_attempt.ended_attempt(
                finish,
                job_type,
                worker=self._services.worker,
                max_attempts=self._processor.retry.max_attempts,
                duration=self.duration,
            )
            await self._call_hook(hook, ended)
            return after_attempt.apply_after_attempt(finish, job_type, ended)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            self._services.reports.unheeded(self._job, error)
            return finish

    async def _call_hook(self, hook: after_attempt.AfterAttempt, ended: after_attempt.EndedAttempt) -> None:
        in_loop = after_attempt.is_coroutine(hook)
        result: Any = hook(ended) if in_loop else await self._services.threads.run(lambda: hook(ended))
        if inspect.isawaitable(result):
            await result

    def amended_in_thread(self, finish: Finish) -> Finish:
        """The same for a thread, which waits for it.

        Raises:
            ClosedError: the thread has outlived the event loop.
        """
        if self._processor.after_attempt is None:
            return finish
        amending = self.apply_after_attempt(finish)
        try:
            apply_after_attempt = asyncio.run_coroutine_threadsafe(amending, self._services.event_loop)
        except RuntimeError as error:
            amending.close()
            raise ClosedError("the worker has stopped") from error
        return apply_after_attempt.result()

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """A transaction that holds the job, for a coroutine."""
        return self._services.store.transaction(self._job)

    def begin_in_thread(self) -> AbstractContextManager[StoreTransaction]:
        """A transaction that holds the job, for a thread."""
        return self._services.thread_store().transaction(self._job)

    # --- told by them -------------------------------------------------------------------------------------------------

    def hold(self, cut: Callable[[], None]) -> None:
        """The transaction has the row locked: it can neither be taken nor renewed until it ends."""
        self.held.cut = cut

    def closing(self, task: asyncio.Task[None]) -> None:
        """An asynchronous block ends in this task."""
        self._closing = task

    def committing(self, finish: Finish, result: FinishResult) -> None:
        """A child process commits this next; if it dies, only the store knows whether it did."""
        self.indeterminate = finish, result

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish stands."""
        self.indeterminate = None
        self.ended = result
        self.finishing = True
        self.over()
        self._services.reports.ended([Ended(finish, result, self.duration)])

    def end_block(self, doubtful: Finish | None) -> None:
        """The transaction is over and the job has no finish, or one in doubt: the lease is renewed at once."""
        self.indeterminate = None if doubtful is None else (doubtful, self._presumed(doubtful))
        self.held.cut = None
        self._services.renew_now([self._job.id])

    # --- asked by the runner ------------------------------------------------------------------------------------------

    async def wait_block_closed(self) -> None:
        """Wait for the end of a block that is under way: a commit is carried through, and only its end tells."""
        closing = self._closing
        if closing is None:
            return
        if not closing.done():
            await asyncio.wait([closing])
        if not closing.cancelled() and (error := closing.exception()) is not None:
            # The handler was cancelled before it could hear of it.
            self._failed(f"{type(error).__name__}: {error}")

    async def resolve_commit(self) -> bool:
        """Whether a finish in doubt stands; if so, that is told. The store is asked for as long as the lease lasts."""
        failures = 0
        while self.indeterminate is not None:
            try:
                stands = await self._commit_stands()
            except StateUnavailableError as error:
                failures += 1
                self._failed(str(error))
                if lease_time() >= self.held.deadline:
                    return False
                await asyncio.sleep(_DOUBT.delay(failures))
            else:
                if stands:
                    self.committed(*self.indeterminate)
                return stands
        return False

    def _presumed(self, finish: Finish) -> FinishResult:
        return finishes.presumed(finish, FinishResult(self._job.id), self._services.job_types.names)

    def _failed(self, error: str) -> None:
        self._services.observers.emit(StoreCallFailed(worker=self._services.worker, operation="complete", error=error))

    async def _commit_stands(self) -> bool:
        # The transaction waits until the store has ended that of the dead process.
        try:
            async with self._services.store.transaction(self._job):
                return False
        except LeaseLostError:
            return (await self._services.store.lost_reasons([self._job.lease]))[0] is None


def _nothing() -> None:
    """An attempt that is over is not stopped."""
