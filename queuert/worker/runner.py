"""Runs one attempt from its claim to its ending."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from queuert.errors import LeaseLostError, StateUnavailableError
from queuert.job_types import JobType
from queuert.jobs import AbortReason, Blocker
from queuert.observability import context
from queuert.state.adapter import ClaimedJob, Finish, Lease
from queuert.worker import blockers, endings
from queuert.worker.attempt import Attempt
from queuert.worker.attempt_runtime import AttemptRuntime
from queuert.worker.executors import Executor, HandlerCrashedError, HandlerKilledError
from queuert.worker.middleware import wrapped
from queuert.worker.processors import Processor
from queuert.worker.services import Services
from queuert.worker.timeouts import timer


class AttemptRunner:
    """One attempt: decode, run the handler inside its middlewares, write the ending, tell."""

    def __init__(self, services: Services, processor: Processor, job: ClaimedJob, sent_at: float) -> None:
        self._services = services
        self._processor = processor
        self._job = job
        self._job_type: JobType[Any, Any] = processor.job_type
        self._runtime = AttemptRuntime(services, processor, job, sent_at)
        self._abort = self._runtime.signal
        self._reports = self._runtime.reports
        self._given_up = False
        self._in_thread = False
        self._handler: asyncio.Task[None] | None = None
        """This attempt's task, while its handler runs in it."""
        self._event_loop = asyncio.get_running_loop()
        self._abort.on_abort(self._on_abort)

    @property
    def job(self) -> ClaimedJob:
        """The job, as it was claimed."""
        return self._job

    @property
    def lease(self) -> Lease:
        """What it holds its job by."""
        return self._job.lease

    def forget(self) -> None:
        """It is not to be started: its lease is looked after no more."""
        self._runtime.concluding = True
        self._runtime.over()

    # --- telling it to stop -------------------------------------------------------------------------------------------

    def abort(self, reason: AbortReason) -> None:
        """Tell the handler to stop. From any thread."""
        self._runtime.abort(reason)

    def _on_abort(self) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the handler with it.
            self._event_loop.call_soon_threadsafe(self._cancel_handler)

    def _cancel_handler(self) -> None:
        # A thread cannot be stopped: its slot is taken until it ends by itself, since it has been told.
        if self._handler is not None and not self._in_thread:
            self._handler.cancel()

    def _out_of_time(self) -> None:
        self.abort(AbortReason.TIMEOUT)
        if self._runtime.ended is not None:
            # It is not told, since its ending stands; but it need not go on.
            self._cancel_handler()

    def give_up(self) -> Finish:
        """Let go of an attempt that does not end, when the worker stops: its ending, to be written over its head."""
        self._runtime.concluding = self._given_up = True
        return self._timed_out() if self._abort.reason is AbortReason.TIMEOUT else endings.interrupted(self._job)

    # --- the attempt --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the attempt. Whatever happens in it, this does not raise."""
        job = self._job
        context.enter(self._services.worker, job.id, job.chain_id, job.type, job.attempt)
        try:
            self._reports.started()
            finish = await self._outcome()
            self._services.handled(job, self._reports.duration)
            await self._conclude(finish)
        except Exception as error:
            # Nothing is lost by it: the lease expires and the job is run again.
            self._reports.broken(error)
        finally:
            self._runtime.over()

    async def _outcome(self) -> Finish | None:
        """What the attempt comes to; None where nothing is left to be written."""
        try:
            outcome = await self._handled_in_time()
        except asyncio.CancelledError:
            return await self._after_cancel()
        except BaseException as error:
            return self._after_error(error)
        if self._runtime.ended is not None:
            return None
        if self._abort.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        return self._ending_or_failure(outcome)

    async def _handled_in_time(self) -> Any:
        """Run the handler in this task, which an abort cancels meanwhile, and not any more afterwards."""
        task = self._handler = asyncio.current_task()
        try:
            if self._processor.timeout is None:
                return await self._handle()
            with timer(self._processor.timeout, self._out_of_time):
                return await self._handle()
        finally:
            self._handler = None
            while task is not None and task.cancelling():
                task.uncancel()

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
            blockers=await self._blockers(),
            runtime=self._runtime,
            middlewares=self._processor.middlewares,
        )

    async def _blockers(self) -> Sequence[Blocker]:
        records = await self._services.store.get_blockers(self._job.id) if self._job.blocker_count else ()
        blockers.check_there(records, self._job.blocker_count)
        if not self._processor.runs_on_blocker_failure:
            blockers.check_completed(records)
        return blockers.decoded(self._services.job_types, self._job_type, records)

    async def _call(self, attempt: Attempt[Any, Any]) -> Any:
        handler = self._processor.handler
        if self._processor.executor is Executor.PROCESS:
            self._in_thread = True  # The call itself sees to its end.
            return await self._services.processes.call(self._processor, attempt, self._runtime)
        if self._processor.batch_size is not None:
            return await self._services.batches.call(self._processor, attempt)
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

    # --- what it comes to ---------------------------------------------------------------------------------------------

    async def _after_cancel(self) -> Finish | None:
        await self._runtime.until_closed()
        if self._runtime.ended is not None:
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return endings.interrupted(self._job)
        if self._abort.reason is AbortReason.TIMEOUT:
            return self._timed_out()
        if self._abort.reason is not None:
            return None
        # The handler was cancelled by its own doing: a timeout of its own, a cancelled group of tasks.
        return self._failure(RuntimeError("the handler was cancelled from within"))

    def _after_error(self, error: BaseException) -> Finish | None:
        if self._runtime.ended is not None:
            self._reports.ignored(error)
            return None
        if self._abort.reason is AbortReason.WORKER_STOPPING:
            return endings.interrupted(self._job)
        if self._abort.reason is AbortReason.TIMEOUT and not _is_loss(error):
            return self._failure(error) if isinstance(error, HandlerCrashedError) else self._timed_out(error)
        if self._abort.reason is not None or isinstance(error, LeaseLostError):
            return self._after_loss(error)
        return self._failure(error)

    def _timed_out(self, error: BaseException | None = None) -> Finish:
        killed = isinstance(error, HandlerKilledError)
        seconds = self._processor.hard_timeout if killed else self._processor.timeout
        return endings.timed_out(self._job, self._processor.retry, seconds or 0.0, killed=killed)

    def _after_loss(self, error: BaseException) -> Finish | None:
        if isinstance(error, LeaseLostError):
            self._reports.refused(AbortReason(error.reason))
        return None

    def _failure(self, error: BaseException) -> Finish:
        return endings.failed(self._job, self._processor.retry, error)

    def _ending_or_failure(self, outcome: Any) -> Finish:
        try:
            return self._runtime.ending(outcome)
        except Exception as error:
            return self._failure(error)

    async def _conclude(self, finish: Finish | None) -> None:
        if await self._runtime.resolve_doubt() or finish is None or self._runtime.concluding:
            return
        self._runtime.concluding = True
        finish = await self._runtime.amended(finish)
        if self._given_up:
            return
        try:
            result = await self._services.completer.finish(finish)
        except StateUnavailableError:
            raise
        except Exception as error:
            # The store refuses what the handler returned: that is a failed attempt.
            finish = await self._runtime.amended(self._failure(error))
            result = await self._services.completer.finish(finish)
        self._reports.ended(finish, result)


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, LeaseLostError) and error.reason != AbortReason.TIMEOUT
