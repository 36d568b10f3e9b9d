"""Runs one attempt from its claim to its ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any, TypeVar

from queuert.errors import (
    BlockerFailedError,
    CompletionMisuseError,
    LeaseLostError,
    StateUnavailableError,
)
from queuert.job_types import JobType, JobTypes
from queuert.jobs import AbortReason, Blocker, ChainStatus
from queuert.observability import context
from queuert.state.adapter import BlockerRecord, ClaimedJob, Finish, FinishKind, FinishResult
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.sync_store import StoreTransaction
from queuert.worker import endings
from queuert.worker.abort import AbortSignal
from queuert.worker.attempt import Attempt
from queuert.worker.completion import Completion
from queuert.worker.lease_book import HeldLease
from queuert.worker.middleware import wrapped
from queuert.worker.processors import Processor
from queuert.worker.reports import AttemptReports
from queuert.worker.services import Services

R = TypeVar("R")


class AttemptRunner:
    """One attempt: decode, run the handler inside its middlewares, write the ending, tell.

    Also the runtime behind ``attempt.complete()``.
    """

    def __init__(self, services: Services, processor: Processor, job: ClaimedJob, sent_at: float) -> None:
        self._services = services
        self._processor = processor
        self._job = job
        self._job_type: JobType[Any, Any] = processor.job_type
        self._reports = AttemptReports(services, job)
        self._abort = AbortSignal(job.id)
        self._abort.on_abort(self._on_abort)
        self._completion: Completion[Any] | None = None
        self._committed: FinishResult | None = None
        self._concluding = False
        self._given_up = False
        self._in_thread = False
        self._handler: asyncio.Task[Any] | None = None
        self._event_loop = asyncio.get_running_loop()
        self._held: HeldLease = services.book.add(job, processor.lease, sent_at, self.abort)

    # --- telling it to stop -------------------------------------------------------------------------------------------

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        # Once the ending is known there is nothing left to stop: it is written, or refused.
        if not self._concluding and self._abort.set(reason) and reason is not AbortReason.WORKER_STOPPING:
            self._reports.aborted(reason)

    def _on_abort(self) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the handler with it.
            self._event_loop.call_soon_threadsafe(self._cancel_handler)

    def _cancel_handler(self) -> None:
        # A thread cannot be stopped: its slot is taken until it ends by itself, since it has been told.
        if self._handler is not None and not self._in_thread:
            self._handler.cancel()

    def give_up(self) -> Finish:
        """Let go of an attempt that does not end, when the worker stops: its ending, to be written over its head."""
        self._concluding = self._given_up = True
        return endings.interrupted(self._job)

    # --- the attempt --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the attempt. Whatever happens in it, this does not raise."""
        with context.bind(
            worker=self._services.worker,
            job_id=self._job.id,
            chain_id=self._job.chain_id,
            type=self._job.type,
            attempt=self._job.attempt,
        ):
            try:
                self._reports.started()
                await self._conclude(await self._outcome())
            except Exception as error:
                # Nothing is lost by it: the lease expires and the job is run again.
                self._reports.broken(error)
            finally:
                self._services.book.remove(self._held)

    async def _outcome(self) -> Finish | None:
        """What the attempt comes to; None where nothing is left to be written."""
        self._handler = asyncio.create_task(self._handle())
        try:
            outcome = await self._handler
        except asyncio.CancelledError:
            return await self._after_cancel()
        except BaseException as error:
            return self._after_error(error)
        if self._committed is not None:
            return None
        return self._ending_or_failure(outcome)

    async def _handle(self) -> Any:
        """Decode, and run the handler. Its exceptions pass, except those that would end the event loop."""
        try:
            self._abort.raise_if_set()
            attempt = await self._prepared()
            return await wrapped(self._processor.middlewares, attempt, lambda: self._call(attempt))()
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error

    async def _prepared(self) -> Attempt[Any, Any]:
        return Attempt(
            job_type=self._job_type,
            claimed=self._job,
            input=self._job_type.decode_input(self._job.input),
            worker=self._services.worker,
            abort=self._abort,
            blockers=await self._blockers() if self._job.blocker_count else (),
            runtime=self,
        )

    async def _call(self, attempt: Attempt[Any, Any]) -> Any:
        handler = self._processor.handler
        if self._processor.is_coroutine:
            result: Any = handler(attempt)
            return await result
        self._in_thread = True
        try:
            result = await self._services.threads.run(lambda: handler(attempt))
        finally:
            self._in_thread = False
        # A plain function may still return an awaitable: a partial, or a callable object.
        return await result if asyncio.iscoroutine(result) else result

    async def _blockers(self) -> Sequence[Blocker]:
        records = await self._services.store.get_blockers(self._job.id)
        for record in records:
            if record.status is not ChainStatus.COMPLETED:
                reason = str(record.error) if record.error else "without a reason"
                raise BlockerFailedError(f"chain {record.chain_id!r}, which it waited for, {record.status}: {reason}")
        return [_blocker(self._services.job_types, record) for record in records]

    # --- what it comes to ---------------------------------------------------------------------------------------------

    async def _after_cancel(self) -> Finish | None:
        closing = None if self._completion is None else self._completion.closing
        if closing is not None and not closing.done():
            # The commit is under way and is carried through: only its end tells what happened.
            await asyncio.wait([closing])
        if self._committed is not None:
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return endings.interrupted(self._job)
        if self._abort.reason is not None:
            return None
        # The handler was cancelled by its own doing: a timeout of its own, a cancelled group of tasks.
        return self._failure(RuntimeError("the handler was cancelled from within"))

    def _after_error(self, error: BaseException) -> Finish | None:
        if self._committed is not None:
            self._reports.ignored(error)
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return endings.interrupted(self._job)
        if self._abort.reason is not None or isinstance(error, LeaseLostError):
            return self._after_loss(error)
        return self._failure(error)

    def _after_loss(self, error: BaseException) -> Finish | None:
        if isinstance(error, LeaseLostError):
            self._reports.refused(AbortReason(error.reason))
        return None

    def _failure(self, error: BaseException) -> Finish:
        if isinstance(error, BlockerFailedError):
            return Finish(self._job, FinishKind.FAIL, error=endings.error_of(error, "blocker_failed"))
        return endings.retried(self._job, self._processor.retry, endings.error_of(error))

    def _ending_or_failure(self, outcome: Any) -> Finish:
        try:
            return self.ending(outcome)
        except Exception as error:
            return self._failure(error)

    async def _conclude(self, finish: Finish | None) -> None:
        if finish is None or self._given_up:
            return
        self._concluding = True
        try:
            result = await self._services.completer.finish(finish)
        except StateUnavailableError:
            raise
        except Exception as error:
            # The store refuses what the handler returned: that is a failed attempt.
            finish = self._failure(error)
            result = await self._services.completer.finish(finish)
        self._reports.ended(finish, result)

    # --- the runtime of complete() ------------------------------------------------------------------------------------

    def completion(self, attempt: Attempt[Any, R]) -> Completion[R]:
        """The one completion of the attempt."""
        if self._completion is not None:
            raise CompletionMisuseError("attempt.complete() was called twice")
        self._abort.raise_if_set()
        completion: Completion[R] = Completion(self)
        self._completion = completion
        return completion

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        if asyncio.get_running_loop() is not self._event_loop:
            raise CompletionMisuseError("in an event loop of your own, use: with attempt.complete() as tx, in a thread")

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self._services.stopping()

    def ending(self, outcome: Any) -> Finish:
        """How the attempt ends with this outcome."""
        return endings.ending(self._job, self._job_type, self._processor.retry, outcome)

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """A transaction that holds the job, for a coroutine."""
        return self._services.store.transaction(self._job)

    def begin_in_thread(self) -> AbstractContextManager[StoreTransaction]:
        """A transaction that holds the job, for a thread."""
        return self._services.thread_store().transaction(self._job)

    def hold(self, cut: Callable[[], None]) -> None:
        """The transaction has the row locked: it can neither be taken nor renewed until it ends."""
        self._held.cut = cut

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The ending stands."""
        self._committed = result
        self._concluding = True
        self._services.book.remove(self._held)
        self._reports.ended(finish, result)

    def rolled_back(self) -> None:
        """Nothing was written: the lease counts again, and is renewed at once."""
        self._held.cut = None
        self._services.hasten([self._job.id])


def _blocker(job_types: JobTypes, record: BlockerRecord) -> Blocker:
    output = None if record.output is None else job_types.decode_output(record.tail_type, record.output)
    return Blocker(record.chain_id, record.tail_type, record.status, output, record.error)
