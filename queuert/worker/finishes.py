"""Makes the finish of an attempt from what its handler returned or raised: pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from queuert.errors import (
    BatchInterruptedError,
    BlockerFailedError,
    CompletionMisuseError,
    PayloadDecodeError,
    RetryLater,
    StateError,
    UndeclaredContinuationError,
    Unrecoverable,
)
from queuert.ids import new_id
from queuert.job_types import JobType
from queuert.jobs import JobError
from queuert.outcomes import Cancel, ContinueWith, Fail, Retry, Snooze, WaitFor, _ChainStart, _Finished, pause
from queuert.policies import RetryPolicy, is_programming_error
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult, NewJob
from queuert.texts import safe_text
from queuert.worker.executors import HandlerCrashedError, remote_cause
from queuert.worker.tracebacks import left_the_worker, text_of

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 10_000
"""The most characters of an error that are stored."""

OUTCOME_CLASSES = (ContinueWith, WaitFor, Retry, Snooze, Fail, Cancel, _Finished)
"""What a handler may return besides an output."""


def finish(job: ClaimedJob, job_type: JobType[Any, Any], retry: RetryPolicy, outcome: Any) -> Finish:
    """Return the finish of an attempt whose handler returned ``outcome``.

    Raises:
        PayloadError: the output is not valid for the job type.
        ConfigurationError: the pause before a retry is out of range.
        UndeclaredContinuationError: the job type does not declare this continuation.
        CompletionMisuseError: the handler returned the result of a ``complete()`` block that did not commit.
    """
    if not isinstance(outcome, OUTCOME_CLASSES):
        return Finish(job, FinishKind.COMPLETE, job_type.encode_output(outcome))
    match outcome:
        case ContinueWith():
            check_continuation(job_type, outcome.job_type)
            return Finish(job, FinishKind.CONTINUE, output=outcome.output, continuation=_continuation(job, outcome))
        case WaitFor():
            return _waiting(job, outcome)
        case Retry():
            return retried(job, retry, JobError("retry", safe_text(outcome.reason, MAX_MESSAGE)), outcome.after)
        case Snooze():
            return Finish(job, FinishKind.SNOOZE, run_at=outcome.run_at, waits_for_event=outcome.waits_for_event)
        case Fail():
            return Finish(job, FinishKind.FAIL, error=JobError("fail", safe_text(outcome.reason, MAX_MESSAGE)))
        case Cancel():
            return Finish(job, FinishKind.CANCEL, error=JobError("cancel", safe_text(outcome.reason, MAX_MESSAGE)))
        case _:
            raise CompletionMisuseError("the handler returned the result of a complete() block that did not commit")


def check_continuation(job_type: JobType[Any, Any], name: str) -> None:
    """Raise UndeclaredContinuationError unless ``job_type`` declares to continue with the job type of that name."""
    if name not in job_type.continuations:
        allowed = ", ".join(map(repr, job_type.continuations)) or "nothing"
        raise UndeclaredContinuationError(
            f"job type {job_type.name!r} declares to continue with {allowed}, not with {name!r}"
        )


def _continuation(job: ClaimedJob, outcome: ContinueWith[Any]) -> NewJob:
    return NewJob(
        id=outcome.id or new_id(),
        type=outcome.job_type,
        input=outcome.input,
        priority=job.priority if outcome.priority is None else outcome.priority,
        run_at=outcome.run_at,
        blockers=outcome.blockers,
        id_chosen=outcome.id is not None,
        trace_context=job.attempt_trace_context or job.trace_context,
        limit_key=outcome.limit_key,
        inherit_limit_key=outcome.inherit_limit_key,
    )


def _waiting(job: ClaimedJob, outcome: WaitFor) -> Finish:
    chains = [_new_job(job, chain) if isinstance(chain, _ChainStart) else chain for chain in outcome.chains]
    return Finish(
        job,
        FinishKind.WAIT,
        starts=tuple(chain for chain in chains if isinstance(chain, NewJob)),
        blockers=tuple(chain.id if isinstance(chain, NewJob) else chain for chain in chains),
    )


def _new_job(job: ClaimedJob, start: _ChainStart) -> NewJob:
    return NewJob(
        id=start.id or new_id(),
        type=start.job_type,
        input=start.input,
        priority=start.priority,
        run_at=start.run_at,
        id_chosen=start.id is not None,
        trace_context=job.attempt_trace_context or job.trace_context,
        limit_key=start.limit_key,
        result_ttl=start.result_ttl,
        attributes=start.attributes,
        max_attempts=start.max_attempts,
        inherit_limit_key=start.inherit_limit_key,
        inherit_attributes=start.inherit_attributes,
    )


def retried(
    job: ClaimedJob, retry: RetryPolicy, error: JobError, after: float | None = None, *, crashed: bool = False
) -> Finish:
    """Return the finish of a failed attempt: a retry if the policy allows another attempt, else a failed job."""
    crashes = job.lease_expirations + 1 if crashed else 0
    if not retry.allows_another(job.counted_attempts, crashes, max_attempts=job.max_attempts):
        return Finish(job, FinishKind.FAIL, error=error, crashed=crashed)
    delay = retry.delay(job.counted_attempts) if after is None else pause(after)
    return Finish(job, FinishKind.RETRY, error=error, delay=delay, crashed=crashed)


def failed(job: ClaimedJob, retry: RetryPolicy, exception: BaseException) -> Finish:
    """Return the finish of an attempt that raised: the policy decides by the class of the exception and by counts."""
    if isinstance(exception, BlockerFailedError):
        error = error_of(exception, "blocker_failed")
        # Usually raised before the handler is called: then all frames are the worker's.
        return Finish(
            job, FinishKind.FAIL, error=error if left_the_worker(exception) else replace(error, traceback=None)
        )
    if isinstance(exception, HandlerCrashedError):
        return retried(job, retry, JobError("crashed", safe_text(str(exception), MAX_MESSAGE)), crashed=True)
    remote = remote_cause(exception)
    error = error_of(exception) if remote is None else remote.error
    if isinstance(exception, RetryLater):
        return retried(job, retry, error, exception.after)
    may_retry = retry.allows_after(exception) if remote is None else remote.may_retry
    return retried(job, retry, error) if may_retry else Finish(job, FinishKind.FAIL, error=error)


def timed_out(job: ClaimedJob, retry: RetryPolicy, seconds: float, *, killed: bool) -> Finish:
    """Return the finish of an attempt that exceeded its timeout."""
    action = "its process was killed" if killed else "it was told to stop"
    return retried(job, retry, JobError("timeout", f"the handler ran for longer than {seconds:g} seconds: {action}"))


def interrupted(job: ClaimedJob) -> Finish:
    """Return the finish of an attempt that a stopping worker releases."""
    return Finish(job, FinishKind.INTERRUPT, error=JobError("worker_stopping", "the worker stopped before it was done"))


def cut_off(job: ClaimedJob, retry: RetryPolicy, *, killed: bool) -> Finish:
    """Return the finish of an attempt whose handler had begun, and did not end when its worker stopped.

    A deployment must not use up the attempts of a job.
    """
    action = "its process was killed" if killed else "it was left"
    advice = "Let it end when attempt.abort is set, work in steps, or have a longer shutdown timeout"
    return _crashed_at_stop(job, retry, f"the worker stopped, the handler did not end in time, and {action}", advice)


def all_cancelled(job: ClaimedJob, retry: RetryPolicy) -> Finish:
    """Return the finish of an attempt that was cancelled with all tasks of the event loop, perhaps by its handler."""
    advice = "Stop the worker before its event loop ends, and let no handler cancel the tasks of others"
    return _crashed_at_stop(job, retry, "somebody cancelled all tasks of the event loop, so the worker stopped", advice)


def _crashed_at_stop(job: ClaimedJob, retry: RetryPolicy, happened: str, advice: str) -> Finish:
    """It counts as a crash alone, since a job that stops its workers would otherwise do so for ever.

    The first time it is due at once, as after any stop.
    """
    crashes = job.lease_expirations + 1
    message = f"{happened}: crash {crashes} of max_crashes={retry.max_crashes}. {advice}"
    error = JobError("worker_stopping", message)
    if crashes >= retry.max_crashes:
        return Finish(job, FinishKind.FAIL, error=error, crashed=True)
    delay = 0.0 if job.lease_expirations == 0 else retry.delay(job.counted_attempts)
    return Finish(job, FinishKind.RETRY, error=error, delay=delay, crashed=True)


def late(job: ClaimedJob) -> Finish:
    """Return the finish of an attempt whose lease expired before it began: released, and not counted."""
    return Finish(job, FinishKind.INTERRUPT, error=JobError("late", "its lease was over before it could begin"))


def beside(job: ClaimedJob, error: BatchInterruptedError) -> Finish:
    """Return the finish of an attempt of a batch that ended with another one: released, and not counted."""
    return Finish(job, FinishKind.INTERRUPT, error=JobError("batch_interrupted", str(error)))


def presumed(finish: Finish, result: FinishResult, types: Iterable[str]) -> FinishResult:
    """Return the result of a finish that was sent again, and may have been written before.

    In that case the store no longer returns which jobs became due by it, and without a notification these would wait
    for a poll. So the types that may be due are added: when the chain closes, all ``types`` of the worker, since a
    dependent may be of any of them.
    """
    if not result.written:
        return result
    due_types = [start.type for start in finish.starts]
    if finish.kind.closes_chain:
        due_types += types
    else:
        due_types.append(finish.job.type if finish.continuation is None else finish.continuation.type)
    return replace(result, due_types=tuple({*result.due_types, *due_types}))


def error_of(exception: BaseException, kind: str = "handler") -> JobError:
    """Return an exception as it is stored: text that any store accepts, of bounded length."""
    if isinstance(exception, PayloadDecodeError):
        kind = "decode"
    elif isinstance(exception, StateError) and kind == "handler":
        kind = "store"
    elif is_programming_error(exception):
        kind = "programming"
    elif isinstance(exception, Unrecoverable):
        kind = "fail"
    elif isinstance(exception, RetryLater):
        kind = "retry"
    name = f"{type(exception).__module__}.{type(exception).__qualname__}".removeprefix("builtins.")
    return JobError(
        kind=kind,
        message=safe_text(_message(exception), MAX_MESSAGE),
        type=safe_text(name, 200),
        traceback=safe_text(_traceback(exception), MAX_TRACEBACK),
    )


def _message(exception: BaseException) -> str:
    try:
        return str(exception)
    except BaseException as error:
        return f"<{type(error).__name__} while reading the message>"


def _traceback(exception: BaseException) -> str:
    try:
        return text_of(exception, MAX_TRACEBACK)
    except BaseException as error:
        return f"<{type(error).__name__} while formatting the traceback>"
