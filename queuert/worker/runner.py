"""Runs one attempt from its claim to its finish."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import partial
from sys import getsizeof
from typing import Any

from queuert.errors import ClosedError, CompletionMisuseError, LeaseLostError, PayloadDecodeError, StateUnavailableError
from queuert.job_types import JobTypes
from queuert.jobs import AbortReason, Blocker
from queuert.observability import context
from queuert.observability.events import StoreCallFailed
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.sync_store import StoreTransaction
from queuert.state.types import ClaimedJob, Finish, FinishResult
from queuert.worker import after_attempt, blocker_outputs, finishes
from queuert.worker.attempt import AbortSignal, Attempt
from queuert.worker.context import WorkerContext
from queuert.worker.executors import Executor, HandlerCrashedError, HandlerKilledError
from queuert.worker.leases import HeldLease, lease_time
from queuert.worker.middleware import wrapped
from queuert.worker.prefetch import SMALL
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


class AttemptRunner:
    """One attempt: decode, run the handler inside its middlewares, have the finish written, tell."""

    __slots__ = (
        "_abort", "_cancelled", "_given_up", "_handler", "_in_thread", "_processor", "_refused", "_runtime",
        "_services", "duration", "held", "input_bytes", "job",
    )  # fmt: skip

    def __init__(self, services: WorkerContext, processor: Processor, job: ClaimedJob, sent_at: float) -> None:
        self.job = job
        """As it was claimed."""
        self.input_bytes = 0 if len(job.input) < SMALL else getsizeof(job.input)
        """Of the memory that the worker's jobs may take; 0 once it is over."""
        self.duration = 0.0
        """Seconds that the handler ran."""
        self._services = services
        self._processor = processor
        self._runtime = AttemptState(services, processor, job, sent_at, self._stop)
        self.held: HeldLease = self._runtime.held
        """What it holds its job by."""
        self._abort = self._runtime.signal
        self._given_up = False
        self._in_thread = False
        self._refused = False
        self._cancelled = False
        """Its task was cancelled, by an abort or from within."""
        self._handler: asyncio.Task[Any] | None = None
        """This attempt's task, while its handler runs in it."""

    def fields(self) -> dict[str, object]:
        """What log records of its handler say."""
        job = self.job
        return {
            "worker": self._services.worker,
            "job_id": job.id,
            "chain_id": job.chain_id,
            "type": job.type,
            "attempt": job.attempt,
        }

    def forget(self) -> None:
        """It is not to be started: its lease is looked after no more."""
        self._runtime.finishing = True
        self._runtime.over()

    # --- telling it to stop -------------------------------------------------------------------------------------------

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        self._runtime.abort(reason)

    def _stop(self) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the handler with it.
            self._services.event_loop.call_soon_threadsafe(self._cancel_handler)

    def _cancel_handler(self) -> None:
        # A thread cannot be stopped: its slot is taken until it ends by itself, since it has been told.
        if self._handler is not None and not self._in_thread:
            self._cancelled = True
            self._handler.cancel()

    def _out_of_time(self) -> None:
        self.abort(AbortReason.TIMEOUT)
        if self._runtime.ended is not None:
            # It is not told, since its finish stands; but it need not go on.
            self._cancel_handler()

    def give_up(self) -> Finish:
        """Let go of an attempt that does not end, when the worker stops: its finish, to be written from a client."""
        self._runtime.finishing = self._given_up = True
        self.duration = self._runtime.duration
        return self._timed_out() if self._abort.reason is AbortReason.TIMEOUT else finishes.interrupted(self.job)

    # --- the attempt --------------------------------------------------------------------------------------------------

    async def run(self, task: asyncio.Task[None]) -> bool:
        """Run the attempt in this task, until its handler has ended. Whatever happens in it, this does not raise.

        Its finish is written later. Returns whether the task may run another attempt.
        """
        context.enter(self)
        runtime, services = self._runtime, self._services
        begun = False
        try:
            runtime.began = lease_time()
            services.reports.started(self.job)
            if runtime.began >= self.held.deadline:
                # The answer to its claim came late, or the worker stood still: somebody else may have the job by now.
                # If nobody has, it need not wait for the reaper.
                finish: Finish | None = finishes.late(self.job)
            else:
                begun = True
                finish = await self._outcome(task)
            ended = lease_time()
            self.duration = ended - runtime.began
            services.handled(self)
            if (
                finish is None
                or runtime.finishing
                or runtime.indeterminate
                or self._processor.after_attempt is not None
            ):
                await self._conclude(finish)
            else:
                runtime.finishing = True
                self.held.finish_since = ended
                services.submit(finish, self)
        except Exception as error:
            # Nothing is lost by it: the job is released, or, once it has begun, its lease expires; it is run again.
            if not begun:
                services.give_back(self)
            self._break(error)
        except BaseException:
            self.over()
            raise
        return not self._cancelled

    def _break(self, error: Exception) -> None:
        # First, since telling may fail as well, for want of memory: a lease that nobody looks after must run out.
        self.over()
        self._services.reports.broken(self.job, error)

    def over(self) -> None:
        """Nothing is left to be done."""
        self._runtime.over()
        self._services.over(self)

    async def _outcome(self, task: asyncio.Task[None]) -> Finish | None:
        """What the attempt comes to; None where nothing is left to be written."""
        try:
            outcome = await self._handled(task)
        except asyncio.CancelledError:
            return await self._after_cancel()
        except BaseException as error:
            return self._after_error(error)
        if self._runtime.ended is not None:
            return None
        if self._abort.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        try:
            return finishes.finish(self.job, self._processor.job_type, self._processor.retry, outcome)
        except Exception as error:
            return self._failure(error)

    async def _handled(self, task: asyncio.Task[None]) -> Any:
        """Decode, and run the handler in this task, which an abort cancels meanwhile, and not any more afterwards.

        Its exceptions pass, except those that would end the event loop.
        """
        processor = self._processor
        clock = None if processor.timeout is None else self._clock(processor.timeout)
        self._handler = task
        try:
            self._abort.raise_if_set()
            attempt = self._prepared(await self._blockers() if self.job.blocker_count else ())
            if processor.middlewares:
                return await wrapped(processor.middlewares, attempt, partial(self._called, attempt))()
            return await self._called(attempt)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error
        finally:
            if clock is not None:
                clock.cancel()
            self._handler = None
            while task.cancelling():
                self._cancelled = True
                task.uncancel()

    def _clock(self, seconds: float) -> asyncio.TimerHandle:
        return self._services.event_loop.call_later(seconds, self._out_of_time)

    def _prepared(self, waited_for: Sequence[Blocker]) -> Attempt[Any, Any]:
        processor, job = self._processor, self.job
        job_type = processor.job_type
        if job.fault is not None:
            raise PayloadDecodeError(job_type=job_type.name, field="job", path="row", reason=job.fault)
        # By position: with names it takes twice as long to make, and there is one for each job.
        return Attempt(
            job_type,
            job,
            job_type.decode_input(job.input),
            self._services.worker,
            self._abort,
            waited_for,
            self._runtime,
            processor.middlewares,
        )

    async def _blockers(self) -> Sequence[Blocker]:
        records = await self._services.store.get_blockers(self.job.id)
        blocker_outputs.check_there(records, self.job.blocker_count)
        if not self._processor.runs_on_blocker_failure:
            blocker_outputs.check_completed(records)
        return blocker_outputs.decoded(self._services.job_types, self._processor.job_type, records)

    def _called(self, attempt: Attempt[Any, Any]) -> Any:
        """Call the handler where it belongs; what to wait for."""
        processor = self._processor
        if processor.executor is Executor.PROCESS:
            self._in_thread = True  # The call itself sees to its end.
            return self._services.processes.call(processor, attempt, self._runtime)
        if processor.batch_size is not None:
            return self._services.batches.call(processor, attempt)
        if processor.is_coroutine:
            return processor.handler(attempt)
        return self._called_in_thread(attempt)

    async def _called_in_thread(self, attempt: Attempt[Any, Any]) -> Any:
        handler = self._processor.handler
        self._in_thread = True
        try:
            result = await self._services.threads.run(lambda: handler(attempt))
        finally:
            self._in_thread = False
        # A plain function may still return an awaitable: a partial, or a callable object.
        return await result if asyncio.iscoroutine(result) else result

    # --- what it comes to ---------------------------------------------------------------------------------------------

    async def _after_cancel(self) -> Finish | None:
        await self._runtime.wait_block_closed()
        if self._runtime.ended is not None:
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return finishes.interrupted(self.job)
        if self._abort.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        if self._abort.reason is not None:
            return None
        # The handler was cancelled by its own doing: a timeout of its own, a cancelled group of tasks.
        return self._failure(RuntimeError("the handler was cancelled from within"))

    def _after_error(self, error: BaseException) -> Finish | None:
        if self._runtime.ended is not None:
            self._services.reports.ignored(self.job, error)
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return finishes.interrupted(self.job)
        if self._abort.reason is AbortReason.TIMEOUT and not _is_loss(error):
            return self._failure(error) if isinstance(error, HandlerCrashedError) else self._timed_out(error)
        if self._abort.reason is not None or isinstance(error, LeaseLostError):
            return self._after_loss(error)
        return self._failure(error)

    def _timed_out(self, error: BaseException | None = None) -> Finish:
        killed = isinstance(error, HandlerKilledError)
        seconds = self._processor.hard_timeout if killed else self._processor.timeout
        return finishes.timed_out(self.job, self._processor.retry, seconds or 0.0, killed=killed)

    def _after_loss(self, error: BaseException) -> Finish | None:
        if isinstance(error, LeaseLostError):
            self._services.reports.refused(self.job, AbortReason(error.reason))
        return None

    def _failure(self, error: BaseException) -> Finish:
        return finishes.failed(self.job, self._processor.retry, error)

    async def _conclude(self, finish: Finish | None) -> None:
        runtime = self._runtime
        if (runtime.indeterminate and await runtime.resolve_commit()) or finish is None or runtime.finishing:
            self.over()
            return
        runtime.finishing = True
        if self._processor.after_attempt is not None:
            finish = await runtime.apply_after_attempt(finish)
        if self._given_up:
            self.over()
        else:
            self._submit(finish)

    def _submit(self, finish: Finish) -> None:
        """Hand the finish on. Should nobody write it, the lease is not renewed for ever."""
        self.held.finish_since = lease_time()
        self._services.submit(finish, self)

    def on_retry(self) -> None:
        """The store could not decide about the finish, and will be asked again: nothing stands still."""
        self.held.finish_since = lease_time()

    def refused(self, finish: Finish, error: Exception) -> None:
        """The finish was not written: the store does not take what the handler returned. That is a failed attempt."""
        if isinstance(error, StateUnavailableError) or self._refused or self._given_up:
            self._break(error)
        else:
            self._refused = True
            self.held.finish_since = None
            self._services.spawn(self._fail_instead(error))

    async def _fail_instead(self, error: Exception) -> None:
        try:
            self._submit(await self._runtime.apply_after_attempt(self._failure(error)))
        except Exception as unwritable:
            self._break(unwritable)


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, LeaseLostError) and error.reason != AbortReason.TIMEOUT
