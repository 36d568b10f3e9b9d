"""Runs one attempt, from its claim to its finish.

The path of a job in its worker::

    Claimer._claim             claims jobs; WorkerRuntime.make_runners makes a runner of each
    Prefetch.put               keeps the runners until a slot is free
    Slots._work                takes the next runner
    AttemptRunner.run          decodes the input, runs the handler inside its middlewares, makes the finish
    Completer.submit           writes the finish together with others
    AttemptReporter.finished   emits events and notifies, once the store has answered
    AttemptRunner.cleanup      ends the renewal of the lease
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from queuert.errors import (
    BatchInterruptedError,
    ClosedError,
    CompletionMisuseError,
    LeaseLostError,
    PayloadDecodeError,
    StateUnavailableError,
    StepMisuseError,
)
from queuert.job_types import JobTypes
from queuert.jobs import AbortReason, Blocker, Job
from queuert.observability.context import current_attempt, fields_of
from queuert.observability.tracing import AttemptTrace
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.paging import PageRequest
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.sync_store import StoreTransaction
from queuert.state.types import ClaimedJob, Finish, FinishResult
from queuert.worker import after_attempt, blocker_outputs, finishes, forks, handler_signature
from queuert.worker.attempt import AbortSignal, Attempt
from queuert.worker.executors import Executor, HandlerCrashedError, HandlerKilledError
from queuert.worker.leases import HeldLease, lease_time
from queuert.worker.middleware import BlockMiddlewares, compose
from queuert.worker.modes import Unawaited
from queuert.worker.phases import PhaseReport
from queuert.worker.prefetch import SMALL
from queuert.worker.processors import Processor
from queuert.worker.start_options import StartOptions, start_options
from queuert.worker.steps import sleeping_in

if TYPE_CHECKING:
    from queuert.client import AsyncClient, Client
    from queuert.worker.runtime import WorkerRuntime

_RENEWAL_PAUSE = 0.005
"""Seconds between two looks whether a renewal that writes progress has been answered."""

_RESOLVE_BACKOFF = Backoff(initial_delay=0.05, max_delay=1.0)
"""The pauses between two queries whether a commit whose answer was lost has happened."""


class AttemptState:
    """The lease, the abort signal and the blocks of one attempt. Blocks and child processes call it, from any thread.

    Attributes:
        began: whether its handler, or a middleware around it, has begun; of a process, there.
        signal: the abort signal.
        held: the lease.
        began_at: when the attempt began (by the lease clock).
        finishing: whether its finish is known, so that there is nothing left to abort.
        finished: the result of the finish that its ``complete()`` block committed.
        indeterminate: a finish of its block, or of its child process, of which only the store knows whether it was
            committed.
        trace: its spans; None without a tracing middleware.
    """

    __slots__ = (
        "_closing", "_job", "_processor", "_runner", "_worker", "began", "began_at", "finished", "finishing", "held",
        "indeterminate", "signal", "trace",
    )  # fmt: skip

    def __init__(self, worker: WorkerRuntime, runner: AttemptRunner, processor: Processor, sent_at: float) -> None:
        job = runner.job
        self.signal = AbortSignal(job.id)
        self.held = HeldLease(job, processor.lease.renewal_interval, sent_at, self)
        self.began = False
        self.began_at = sent_at
        self.finishing = False
        self.finished: FinishResult | None = None
        self.indeterminate: tuple[Finish, FinishResult] | None = None
        self.trace: AttemptTrace | None = None
        self._worker = worker
        self._runner: AttemptRunner | None = runner
        self._processor = processor
        self._job = job
        self._closing: asyncio.Task[None] | None = None

    @property
    def duration(self) -> float:
        """Seconds since the attempt began."""
        return lease_time() - self.began_at

    @property
    def job_types(self) -> JobTypes:
        """The job types of the worker's client."""
        return self._worker.job_types

    def resources(self) -> Any:
        """Return what the lifespan of the processors has yielded."""
        return self._worker.lifespans.resources(self._processor.lifespan)

    def client(self) -> AsyncClient | Client:
        """Return the worker's client."""
        return self._worker.client

    async def read_start(self) -> StartOptions:
        """Read the attributes of the chain and the limit key of the job."""
        store, job = self._worker.store, self._job
        [chain], [stored] = await store.get_chains([job.chain_id]), await store.get_jobs([job.id])
        return start_options(job.id, chain, stored)

    def read_start_in_thread(self) -> StartOptions:
        """``read_start`` in a thread."""
        store, job = self._worker.thread_store.get(), self._job
        [chain], [stored] = store.get_chains([job.chain_id]), store.get_jobs([job.id])
        return start_options(job.id, chain, stored)

    async def read_chain_jobs(self, page: PageRequest) -> Sequence[Job]:
        """Read jobs of the chain, the earliest first."""
        return (await self._worker.store.list_chain_jobs(self._job.chain_id, page)).items[::-1]

    def read_chain_jobs_in_thread(self, page: PageRequest) -> Sequence[Job]:
        """``read_chain_jobs`` in a thread."""
        return self._worker.thread_store.get().list_chain_jobs(self._job.chain_id, page).items[::-1]

    async def get_steps(self) -> list[StepRecord]:
        """Read the recorded steps of the job."""
        return await self._worker.store.get_steps(self._job.id)

    def get_steps_in_thread(self) -> list[StepRecord]:
        """``get_steps`` in a thread."""
        return self._worker.thread_store.get().get_steps(self._job.id)

    async def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job under the lease."""
        if step.progress is not None:
            await self._withdraw_progress()
        return await self._worker.store.record_step(self._job.lease, step)

    def record_step_in_thread(self, step: NewStep) -> StepRecord:
        """``record_step`` in a thread."""
        if step.progress is not None:
            self._withdraw_progress_in_thread()
        return self._worker.thread_store.get().record_step(self._job.lease, step)

    async def get_progress(self) -> str | None:
        """Read the progress of the job as it is stored."""
        return await self._worker.store.get_progress(self._job.id)

    def get_progress_in_thread(self) -> str | None:
        """``get_progress`` in a thread."""
        return self._worker.thread_store.get().get_progress(self._job.id)

    async def begin_phase(self, progress: str) -> datetime:
        """Store the progress of a phase that begins, under the lease."""
        await self._withdraw_progress()
        return await self._worker.store.begin_phase(self._job.lease, progress)

    def begin_phase_in_thread(self, progress: str) -> datetime:
        """``begin_phase`` in a thread."""
        self._withdraw_progress_in_thread()
        return self._worker.thread_store.get().begin_phase(self._job.lease, progress)

    async def _withdraw_progress(self) -> None:
        """Withdraw what the renewing thread has not written yet, and let it write what it is writing: it is older."""
        # The renewing thread has no event loop, and it is rare that it is writing just now.
        while self._worker.leases.withdraw_progress(self.held):  # noqa: ASYNC110
            await asyncio.sleep(_RENEWAL_PAUSE)

    def _withdraw_progress_in_thread(self) -> None:
        while self._worker.leases.withdraw_progress(self.held):
            time.sleep(_RENEWAL_PAUSE)

    def report_phase(self, report: PhaseReport) -> None:
        """Report a phase to the observers."""
        self._worker.reporter.phase(self._job, report)

    def waits_for(self, job_types: Collection[str]) -> None:
        """Take note that the handler waits for chains that stand at jobs of these types, and keeps its slot."""
        # A task that the handler has left behind holds no slot; a process that it has forked is not the worker.
        if not self.finishing and forks.generation == self._worker.generation:
            self._worker.warn_of_waits(self._job, job_types)

    async def wait_for_event(self, wait: EventWait) -> StepRecord:
        """Record a wait of the job under the lease, and try to answer it."""
        return await self._worker.store.wait_for_event(self._job.lease, wait)

    def wait_for_event_in_thread(self, wait: EventWait) -> StepRecord:
        """``wait_for_event`` in a thread."""
        return self._worker.thread_store.get().wait_for_event(self._job.lease, wait)

    def check_sleep(self) -> None:
        """Raise StepMisuseError in a batched handler."""
        if self._processor.batch_size is not None:
            raise StepMisuseError(
                "a batched handler cannot sleep or wait for an event, since its attempts share one call: return "
                "attempt.snooze(...)"
            )

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        # Once the finish is known there is nothing to stop: the finish is written, or rejected.
        if self.finishing or not self.signal.set(reason):
            return
        runner = self._runner
        if runner is not None:
            runner.stop_handler()
        if reason is not AbortReason.WORKER_STOPPING:
            self._worker.reporter.aborted(self._job, reason)

    def handler_began(self) -> None:
        """The handler has begun, in its process."""
        self.began = True

    def killed(self, reason: AbortReason) -> None:
        """Report that the process of the handler was killed."""
        self._worker.reporter.killed(self._job, reason)

    def cleanup(self) -> None:
        """End the renewal of the lease, since the attempt is over. Idempotent."""
        self._worker.leases.remove(self.held)
        # References back to the attempt would be cycles, which only the garbage collector frees.
        self.held.owner = None
        self.signal.forget_callbacks()
        self._runner = None

    # --- what the blocks of the attempt need --------------------------------------------------------------------------

    def check_process(self) -> None:
        """Raise CompletionMisuseError in a process that the handler forked."""
        forks.check_process(self._worker.generation)

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError unless the worker's own event loop runs here."""
        self.check_process()
        if asyncio.get_running_loop() is not self._worker.event_loop:
            raise CompletionMisuseError("in an event loop of your own, use: with attempt.complete() as tx, in a thread")

    def in_event_loop(self) -> bool:
        """Whether the worker's own event loop runs here."""
        try:
            return asyncio.get_running_loop() is self._worker.event_loop
        except RuntimeError:
            return False

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self._worker.stopping

    def record_progress(self, progress: str) -> None:
        """Write the progress with the next renewals, which are made soon. From any thread."""
        self.check_process()
        # What runs after its finish is known, such as a handler that was left, has nothing more to tell.
        if not self.finishing and self._worker.leases.set_progress(self.held, progress):
            self._worker.renewer.write_progress()

    def with_progress(self, finish: Finish) -> Finish:
        """Return the finish with the last progress of the attempt, if that is not written yet.

        Renewals still write it. If the finish is not written, as that of a block that is rolled back, it is not lost.
        """
        progress = self.held.unlogged_progress
        return finish if progress is None else replace(finish, progress=progress)

    async def with_last_progress(self, finish: Finish) -> Finish:
        """``with_progress`` of a handler that has ended: what the renewing thread is writing is waited for."""
        while (taken := self._worker.leases.take_progress(self.held))[0]:  # noqa: ASYNC110  (see _withdraw_progress)
            await asyncio.sleep(_RENEWAL_PAUSE)
        return finish if taken[1] is None else replace(finish, progress=taken[1])

    def finish(self, outcome: Any) -> Finish:
        """Return the finish for an outcome."""
        if self.signal.reason is AbortReason.TIMEOUT:
            self.signal.raise_if_set()
        return finishes.finish(self._job, self._processor.job_type, self._processor.retry, outcome)

    async def apply_after_attempt(self, finish: Finish) -> Finish:
        """Return the finish with the changes of ``after_attempt``; without them, if that raises."""
        hook, job_type = self._processor.after_attempt, self._processor.job_type
        if hook is None or not after_attempt.concerns(finish):
            return finish
        try:
            ended = after_attempt.ended_attempt(
                finish,
                job_type,
                worker=self._worker.name,
                max_attempts=self._processor.retry.max_attempts,
                duration=self.duration,
            )
            await self._call_hook(hook, ended)
            return after_attempt.apply_after_attempt(finish, job_type, ended)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            self._worker.reporter.after_attempt_failed(self._job, error)
            return finish

    async def _call_hook(self, hook: after_attempt.AfterAttempt, ended: after_attempt.EndedAttempt) -> None:
        in_loop = after_attempt.is_coroutine(hook)
        with forks.no_way_back():
            result: Any = hook(ended) if in_loop else await self._worker.threads.run(lambda: hook(ended))
            if inspect.isawaitable(result):
                await result

    async def finish_to_write(self, finish: Finish) -> Finish:
        """Return the finish of a block with the changes of ``after_attempt``, and the last progress of the attempt."""
        return self.with_progress(await self.apply_after_attempt(finish))

    def finish_to_write_in_thread(self, finish: Finish) -> Finish:
        """``finish_to_write`` for a thread, which waits for it. It raises ClosedError if the event loop has closed."""
        if self._processor.after_attempt is None:
            return self.with_progress(finish)
        applying = self.finish_to_write(finish)
        try:
            future = asyncio.run_coroutine_threadsafe(applying, self._worker.event_loop)
        except RuntimeError as error:
            applying.close()
            raise ClosedError("the worker has stopped: nothing of this attempt can be written any more") from error
        return future.result()

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """Return a transaction that locks the job, for a coroutine."""
        return self._worker.store.transaction(self._job)

    def begin_in_thread(self) -> AbstractContextManager[StoreTransaction]:
        """Return a transaction that locks the job, for a thread."""
        return self._worker.thread_store.get().transaction(self._job)

    # --- what the blocks of the attempt report ------------------------------------------------------------------------

    def pause_renewal(self, abort_transaction: Callable[[], None]) -> None:
        """A transaction has locked the row: until it ends, nobody can claim the job or renew its lease."""
        self.held.abort_transaction = abort_transaction

    def closing(self, task: asyncio.Task[None]) -> None:
        """An asynchronous block is being closed by this task."""
        self._closing = task

    def committing(self, finish: Finish, result: FinishResult) -> None:
        """A child process commits this finish next; if it dies, only the store knows whether it was committed."""
        self.indeterminate = finish, result

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish is committed. Idempotent."""
        if self.finished is not None:
            return
        self.indeterminate = None
        self.finished = result
        self.finishing = True
        if self.trace is not None:
            self.trace.committed = finish
        self.cleanup()
        self._worker.reporter.finished([(finish, result, self.duration, self.held.claimed_at, None)])

    def trace_context(self) -> str | None:
        """Return the trace context of this attempt, if it is sampled."""
        return None if self.trace is None else self.trace.context()

    def settling(self, finish: Finish) -> AbstractContextManager[Any]:
        """Return a context manager that traces the write of a finish in a block."""
        tracing = self._worker.tracing
        return nullcontext() if tracing is None or self.trace is None else tracing.settling([self.trace], [finish])

    def end_block(self, indeterminate: Finish | None) -> None:
        """The transaction has ended without a finish, or with an indeterminate one. The lease is renewed at once."""
        self.indeterminate = None if indeterminate is None else (indeterminate, self._presumed(indeterminate))
        self.held.abort_transaction = None
        self._worker.renewer.renew_now([self._job.id])

    # --- what the runner needs ----------------------------------------------------------------------------------------

    async def wait_block_closed(self) -> None:
        """Wait until a block that is being closed has ended: its commit is not cancelled, and decides the finish."""
        closing = self._closing
        if closing is None:
            return
        if not closing.done():
            await asyncio.wait([closing])
        if not closing.cancelled() and (error := closing.exception()) is not None:
            # The handler was cancelled before the block could raise it there.
            self._worker.reporter.block_failed(f"{type(error).__name__}: {error}", 1)

    async def resolve_commit(self) -> bool:
        """Return whether an indeterminate finish was committed; if so, report it. It queries while the lease lasts."""
        failures = 0
        while not self.finishing and (indeterminate := self.indeterminate) is not None:
            try:
                committed = await self._is_committed(indeterminate[0])
            except StateUnavailableError as error:
                failures += 1
                self._worker.reporter.block_failed(str(error), failures)
                if lease_time() >= self.held.deadline:
                    return False
                await asyncio.sleep(_RESOLVE_BACKOFF.delay(failures))
            else:
                self._worker.reporter.commit_known(failures)
                # The stop of the worker may have written instead, which may look like this finish, or have asked first.
                committed = committed and not self.finishing
                if committed:
                    self.committed(*indeterminate)
                return committed
        return False

    def _presumed(self, finish: Finish) -> FinishResult:
        return finishes.presumed(finish, FinishResult(self._job.id), self._worker.job_types.names)

    async def _is_committed(self, finish: Finish) -> bool:
        # The transaction waits until the server has ended that of the lost connection.
        try:
            async with self._worker.store.transaction(self._job):
                return False
        except LeaseLostError:
            # The lease has ended, by this finish or another, such as that of a stop: nothing is written any more.
            [result] = await self._worker.store.finish([finish])
            return result.lost is None


class AttemptRunner:
    """One attempt: decodes the input, runs the handler inside its middlewares, passes the finish to the completer."""

    __slots__ = (
        "_abandoned", "_cancelled", "_handler_task", "_in_thread", "_processor", "_rejected", "_signal", "_state",
        "_worker", "context", "duration", "held", "input_bytes", "job",
    )  # fmt: skip

    def __init__(self, worker: WorkerRuntime, processor: Processor, job: ClaimedJob, sent_at: float) -> None:
        self.job = job
        """The job, as it was claimed."""
        self.input_bytes = 0 if len(job.input) < SMALL else getsizeof(job.input)
        """Memory of the input, counted by :class:`Prefetch`; 0 once the attempt is over."""
        self.duration = 0.0
        """Seconds that the handler ran."""
        self._worker = worker
        self._processor = processor
        self._state = AttemptState(worker, self, processor, sent_at)
        self.held: HeldLease = self._state.held
        """The lease of the job."""
        self._signal = self._state.signal
        self._abandoned = False
        self._in_thread = False
        self._rejected = False
        """Whether the store could not write its finish, so that a failure is written instead."""
        self._cancelled = False
        """Whether its task was cancelled, by an abort or by the handler itself."""
        self._handler_task: asyncio.Task[Any] | None = None
        """The task of the attempt, while its handler runs in it."""
        self.context: Context | None = None
        """The context of its handler, while that is suspended; afterwards only if anything was bound in it."""

    def fields(self) -> dict[str, object]:
        """Return the fields of the log records of its handler."""
        return fields_of(self._worker.name, self.job)

    def keep_context(self, context: Context) -> None:
        """Keep the context of its handler until the attempt is over."""
        if self.held.owner is not None:
            self.context = context

    def copied_context(self) -> Context:
        """Return a copy of the context of its handler, which may be entered just now."""
        return self._copy_of(self.context)

    def _copy_of(self, kept: Context | None) -> Context:
        if kept is not None:
            return kept.copy()
        context = copy_context()
        context.run(current_attempt.set, self)
        return context

    def waits_for(self, job_types: Collection[str]) -> None:
        """Take note that its handler waits for chains that stand at jobs of these types, and keeps its slot."""
        self._state.waits_for(job_types)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task in which its handler runs; None while it does not."""
        return self._handler_task

    def release(self) -> None:
        """Release the job, since its handler was not started. No attempt is counted."""
        self._state.finishing = True
        # First, since the rest may fail: a lease that is renewed for nobody would never expire.
        self.cleanup()
        self._worker.releases.put(self.job.type, self.held.lease, self.held.deadline)

    # --- aborting it --------------------------------------------------------------------------------------------------

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        self._state.abort(reason)

    def stop_handler(self) -> None:
        """Cancel the handler, if it is a coroutine. From any thread."""
        with suppress(RuntimeError):  # The loop is closed, so the handler has ended.
            self._worker.event_loop.call_soon_threadsafe(self._cancel_handler)

    def _cancel_handler(self) -> None:
        # A thread cannot be stopped: its slot stays taken until the function returns.
        if self._handler_task is not None and not self._in_thread:
            self._cancelled = True
            self._handler_task.cancel()

    def _on_timeout(self) -> None:
        self.abort(AbortReason.TIMEOUT)
        if self._state.finished is not None:
            # Its finish is committed, so it is not aborted; but the handler need not go on.
            self._cancel_handler()

    @property
    def has_ended(self) -> bool:
        """Whether its handler has ended, and only the store is awaited: its finish is in doubt, or on its way."""
        state = self._state
        in_doubt = self._handler_task is None and state.indeterminate is not None and not state.finishing
        return in_doubt or self.held.finish_since is not None

    async def has_finish(self) -> bool:
        """Return whether its finish turns out to be committed, or on its way, though its handler has not ended.

        What a stop wrote instead, under the same lease, could not be told from it.
        """
        state = self._state
        if state.indeterminate is None or state.finishing:
            return False
        try:
            return await state.resolve_commit() or state.finishing
        except BaseException:
            # The caller leaves the job to the reaper: no finish of its handler is written now.
            state.finishing = self._abandoned = True
            raise

    @property
    def is_abandoned(self) -> bool:
        """Whether a stop has left its handler behind."""
        return self._abandoned

    def abandon(self) -> Finish:
        """Leave a handler that does not end when the worker stops. Return the finish to write instead of its own."""
        self._state.finishing = self._abandoned = True
        self.duration = self._state.duration
        if self._signal.reason is AbortReason.TIMEOUT:
            finish = self._timed_out()
        elif self._handler_task is None and self._state.indeterminate is not None:
            finish = finishes.interrupted(self.job)  # Its handler has ended, and only the store knows its commit.
        else:
            finish = self._cut_off(killed=False)
        finish = self._state.with_progress(finish)
        self._worker.leases.withdraw_progress(self.held)
        self._end_trace(finish)
        return finish

    def _cut_off(self, *, killed: bool) -> Finish:
        """Return the finish of an attempt that the stop of the worker has ended: it counts only if it has begun."""
        if self._state.began:
            return finishes.cut_off(self.job, self._processor.retry, killed=killed)
        return finishes.interrupted(self.job)

    # --- the attempt --------------------------------------------------------------------------------------------------

    async def run(self, task: asyncio.Task[None]) -> bool:
        """Run the attempt in this task, until its handler has ended. It does not raise what the handler raises.

        Its finish is written later. Return whether the task may run another attempt.
        """
        current_attempt.set(self)
        worker, state, held = self._worker, self._state, self.held
        handler_began = False
        try:
            worker.attempts.add(self)
            state.began_at = began_at = lease_time()
            worker.reporter.started(self.job)
            if began_at >= held.deadline:
                # The claim was answered late, or the process was suspended: another worker may have the job by now. If
                # none has, this finish releases it at once, before the reaper.
                finish: Finish | None = finishes.late(self.job)
            else:
                handler_began = True
                if worker.tracing is not None:
                    state.trace = worker.tracing.begin_attempt(self.job, worker.name)
                finish = await self._outcome(task)
            ended_at = lease_time()
            self.duration = ended_at - began_at
            if held.unlogged_progress is not None and finish is not None:
                held.finish_since = ended_at  # Its handler has ended: a worker that stops must not cut it off.
                finish = await state.with_last_progress(finish)
                held.finish_since = None
            worker.on_handler_ended(self)
            if finish is None or state.finishing or state.indeterminate or self._processor.after_attempt is not None:
                await self._finish(finish)
            else:
                state.finishing = True
                held.finish_since = ended_at
                if state.trace is not None:
                    self._end_trace(finish)
                worker.completer.submit(finish, self)
        except Exception as error:
            # The job is run again: it is released, or, if its handler has begun, its lease expires.
            if not handler_began:
                self.release()
            self._leave_to_reaper(error)
        except BaseException:
            if state.indeterminate is not None and not state.finishing:
                self._leave_to_reaper(StateUnavailableError("the worker stopped before a commit in doubt was known"))
            else:
                self.cleanup()
            raise
        return not self._cancelled

    @property
    def trace(self) -> AttemptTrace | None:
        """Its spans; None without a tracing middleware."""
        return self._state.trace

    def _leave_to_reaper(self, error: Exception) -> None:
        """Let the lease expire, since the finish cannot be written."""
        kept = self.context
        # First, since the rest may fail for lack of memory: a lease that is renewed for nobody would never expire.
        self.cleanup()
        self._copy_of(kept).run(self._worker.reporter.finish_failed, self.job, error)

    def cleanup(self) -> None:
        """Remove the attempt from the parts of the worker, since it is over. Idempotent."""
        if self._state.trace is not None:
            self._end_trace(None)
        self._state.cleanup()
        self.context = None  # It refers back to this.
        self._worker.on_attempt_over(self)

    def _end_trace(self, finish: Finish | None) -> None:
        if (trace := self._state.trace) is not None:
            trace.end(finish or trace.committed, self._signal.reason)

    async def _outcome(self, task: asyncio.Task[None]) -> Finish | None:
        """Run the handler, and return the finish of the attempt; None if nothing is to be written."""
        try:
            outcome = await self._run_handler(task)
        except asyncio.CancelledError:
            return await self._after_cancel()
        except BaseException as error:
            sleeping = sleeping_in(error)
            if sleeping is None:
                return self._after_error(error)
            outcome = sleeping.outcome
        if self._state.finished is not None:
            return None
        if self._signal.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        try:
            return finishes.finish(self.job, self._processor.job_type, self._processor.retry, outcome)
        except Exception as error:
            if self._state.trace is not None:
                self._state.trace.error = error
            return self._failure(error)

    async def _run_handler(self, task: asyncio.Task[None]) -> Any:
        """Decode the input, and run the handler in this task. Only meanwhile an abort cancels the task.

        It raises what the handler raises, but a RuntimeError instead of exceptions that would end the event loop.
        """
        processor = self._processor
        timer = None if processor.timeout is None else self._start_timer(processor.timeout)
        self._handler_task = task
        generation = forks.generation
        try:
            self._signal.raise_if_set()
            attempt = self._make_attempt(await self._blockers() if self.job.blocker_count else ())
            self._state.began = processor.executor is not Executor.PROCESS
            try:
                if processor.middlewares:
                    outcome = await compose(processor.middlewares, attempt, partial(self._call_guarded, attempt))()
                else:
                    outcome = await self._call_handler(attempt)
                if attempt._unawaited is not None:
                    _check_awaited(attempt._unawaited)
                return outcome
            except BaseException as error:
                if attempt._unawaited is not None:
                    _check_awaited(attempt._unawaited, error)
                raise
            finally:
                if forks.generation != generation:
                    forks.end_child()
        except (SystemExit, KeyboardInterrupt, GeneratorExit, RuntimeError) as error:
            # A batch, whose call is in a task of its own, cannot raise it here.
            raised = error.__cause__ if isinstance(error, RuntimeError) else error
            if isinstance(raised, KeyboardInterrupt) and self._worker.stopping:
                # The second Ctrl-C, which asyncio raises wherever it hits.
                self.abort(AbortReason.WORKER_STOPPING)
                raise asyncio.CancelledError from error
            if isinstance(error, RuntimeError):
                raise
            raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            self._handler_task = None
            while task.cancelling():
                self._cancelled = True
                task.uncancel()

    def _start_timer(self, seconds: float) -> asyncio.TimerHandle:
        return self._worker.event_loop.call_later(seconds, self._on_timeout)

    def _make_attempt(self, blockers: Sequence[Blocker]) -> Attempt[Any, Any]:
        processor, job = self._processor, self.job
        job_type = processor.job_type
        if job.fault is not None:
            raise PayloadDecodeError(job_type=job_type.name, field="job", path="row", reason=job.fault)
        # By position, which takes half the time of keywords, for each job.
        return Attempt(
            job_type,
            job,
            job_type.decode_input(job.input),
            self._worker.name,
            self._signal,
            blockers,
            self._state,
            partial(BlockMiddlewares, processor.middlewares) if processor.middlewares else None,
        )

    async def _blockers(self) -> Sequence[Blocker]:
        records = await self._worker.store.get_blockers(self.job.id)
        if self._state.trace is not None:
            self._state.trace.link(record.attempt_trace_context for record in records)
        blocker_outputs.check_not_deleted(records, self.job.blocker_count)
        if not self._processor.runs_on_blocker_failure:
            blocker_outputs.check_completed(records)
        return blocker_outputs.decoded(self._worker.job_types, self._processor.job_type, records)

    def _call_handler(self, attempt: Attempt[Any, Any]) -> Any:
        """Call the handler in its executor, and return what to await."""
        processor = self._processor
        if processor.executor is Executor.PROCESS:
            self._in_thread = True  # An abort ends the process, not this task.
            return self._worker.processes.call(processor, attempt, self._state)
        if processor.batch_size is not None:
            return self._call_batched(attempt)
        if processor.is_coroutine:
            return processor.handler(attempt)
        return self._call_in_thread(attempt)

    async def _call_guarded(self, attempt: Attempt[Any, Any]) -> Any:
        """``_call_handler`` inside middlewares: children that the handler forks do not return to them."""
        generation = forks.generation
        try:
            outcome = await self._call_handler(attempt)
            if attempt._unawaited is not None:
                _check_awaited(attempt._unawaited)
            return outcome
        except BaseException as error:
            if attempt._unawaited is not None:
                _check_awaited(attempt._unawaited, error)
            raise
        finally:
            if forks.generation != generation:
                forks.end_child()

    async def _call_batched(self, attempt: Attempt[Any, Any]) -> Any:
        # A call in a thread cannot be stopped: the slots of its attempts stay taken until it returns.
        self._in_thread = not self._processor.is_coroutine
        try:
            return await self._worker.batches.call(self._processor, attempt)
        finally:
            self._in_thread = False

    async def _call_in_thread(self, attempt: Attempt[Any, Any]) -> Any:
        handler = self._processor.handler
        self._in_thread = True
        try:
            result = await self._worker.threads.run(lambda: handler(attempt))
        finally:
            self._in_thread = False
        # A plain function may still return an awaitable: a partial, or a callable object.
        return await result if asyncio.iscoroutine(result) else result

    # --- its finish ---------------------------------------------------------------------------------------------------

    async def _after_cancel(self) -> Finish | None:
        task = asyncio.current_task()
        # Before Python 3.13 a cancellation that was taken back is still raised by the next await, if none has been yet.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while task is not None and task.cancelling():
            task.uncancel()
        await self._state.wait_block_closed()
        if self._state.finished is not None:
            return None
        if self._signal.reason is AbortReason.WORKER_STOPPING:
            return finishes.interrupted(self.job)
        if self._signal.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        if self._signal.reason is not None:
            return None
        if self._worker.tasks_cancelled:
            return self._cancelled_with_all()
        # The handler has cancelled itself, for example by a timeout of its own or a task group.
        return self._failure(RuntimeError("the handler was cancelled from within"))

    def _cancelled_with_all(self) -> Finish:
        """Return the finish of an attempt that somebody has cancelled with all tasks of the event loop."""
        self.abort(AbortReason.WORKER_STOPPING)  # A thread goes on.
        if self._worker.cancelled_unasked and self._state.began:
            return finishes.all_cancelled(self.job, self._processor.retry)
        return finishes.interrupted(self.job)

    def _after_error(self, error: BaseException) -> Finish | None:
        if self._state.trace is not None:
            self._state.trace.error = error
        if self._state.finished is not None:
            self._worker.reporter.error_after_completion(self.job, error)
            return None
        if self._signal.reason is AbortReason.WORKER_STOPPING:
            if isinstance(error, HandlerKilledError):
                return self._cut_off(killed=True)
            if isinstance(error, HandlerCrashedError) and self._state.began:
                return self._failure(error)  # By itself.
            return finishes.interrupted(self.job)
        # Of this job: a batched handler may raise that of another.
        lost = error.reason if isinstance(error, LeaseLostError) and error.job_id == self.job.id else None
        if self._signal.reason is AbortReason.TIMEOUT and lost in (None, AbortReason.TIMEOUT):
            return self._failure(error) if isinstance(error, HandlerCrashedError) else self._timed_out(error)
        if self._signal.reason is not None or lost is not None:
            if lost is not None:
                self._worker.reporter.finish_rejected(self.job, AbortReason(lost))
            return None
        if isinstance(error, BatchInterruptedError):
            return finishes.beside(self.job, error)
        if self._cancelled and self._worker.tasks_cancelled:
            return self._cancelled_with_all()  # The handler has made another exception of it, as drivers do.
        return self._failure(error)

    def _timed_out(self, error: BaseException | None = None) -> Finish:
        killed = isinstance(error, HandlerKilledError)
        seconds = self._processor.hard_timeout if killed else self._processor.timeout
        return finishes.timed_out(self.job, self._processor.retry, seconds or 0.0, killed=killed)

    def _failure(self, error: BaseException) -> Finish:
        error = handler_signature.call_error(self.job.type, self._processor.handler, error) or error
        return finishes.failed(self.job, self._processor.retry, error)

    async def _finish(self, finish: Finish | None) -> None:
        """Submit a finish that may be missing, committed already, indeterminate, or changed by ``after_attempt``."""
        state = self._state
        if (state.indeterminate and await state.resolve_commit()) or finish is None or state.finishing:
            self.cleanup()
            return
        state.finishing = True
        if self._processor.after_attempt is not None:
            finish = await state.apply_after_attempt(finish)
        self._end_trace(finish)
        if self._abandoned:
            self.cleanup()
        else:
            self._submit(finish)

    def _submit(self, finish: Finish) -> None:
        """Pass the finish to the completer. From now on the lease is renewed for a limited time only."""
        self.held.finish_since = lease_time()
        self._worker.completer.submit(finish, self)

    def on_finish_waits(self) -> None:
        """The finish is sent again, or waits while others are written: the lease is renewed further."""
        self.held.finish_since = lease_time()

    def on_rejected(self, finish: Finish, error: Exception) -> None:
        """The store cannot write this finish: write a failed attempt instead, once."""
        if isinstance(error, StateUnavailableError) or self._rejected or self._abandoned:
            self._leave_to_reaper(error)
        else:
            self._rejected = True
            self.held.finish_since = None
            task = self._worker.spawn(self._fail_instead(error, finish.progress))
            task.add_done_callback(self._after_failing_instead)

    async def _fail_instead(self, error: Exception, progress: str | None) -> None:
        try:
            finish = await self._state.apply_after_attempt(replace(self._failure(error), progress=progress))
            if self._state.trace is not None:
                self._state.trace.rejected(error, finish)
            self._submit(finish)
        except Exception as second_error:
            self._leave_to_reaper(second_error)

    def _after_failing_instead(self, task: asyncio.Task[None]) -> None:
        # A handler that cancels all tasks of the loop: the lease would be renewed for as long as the worker runs.
        if task.cancelled():
            self._leave_to_reaper(RuntimeError("the failure that replaces a rejected finish was cancelled"))


def _check_awaited(unawaited: Unawaited, error: BaseException | None = None) -> None:
    """The handler has returned, or raised ``error``: raise StepMisuseError if it has forgotten an ``await``."""
    # The attempt that a sleep ends has done nothing wrong either, and would forget the same the next time.
    unawaited.check(None if error is None or sleeping_in(error) is not None else error)
