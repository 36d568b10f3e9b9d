"""The ``after_attempt`` hook: called before an attempt is written that completed its job, or failed for good."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from queuert.errors import ConfigurationError, DefinitionError
from queuert.job_types import JobType
from queuert.jobs import JobError, JobStatus
from queuert.policies import checked_ttl
from queuert.state.types import ClaimedJob, Finish, FinishKind
from queuert.texts import safe_text
from queuert.worker.finishes import MAX_MESSAGE, MAX_TRACEBACK

_STATUS = {FinishKind.COMPLETE: JobStatus.COMPLETED, FinishKind.FAIL: JobStatus.FAILED}


@dataclass(slots=True)
class EndedAttempt:
    """The argument of ``after_attempt``: an attempt that is about to close its chain, completed or failed.

    The hook may change ``output``, ``error`` and ``result_ttl``, in place or by assignment; they are written as it
    leaves them. Other changes are ignored.
    """

    job_id: str
    chain_id: str
    type: str
    chain_type: str
    attempt: int
    """1 for the first."""
    max_attempts: int
    """What the start of the job allows, or else the retry policy."""
    status: JobStatus
    """COMPLETED or FAILED."""
    worker: str
    created_at: datetime
    """When the job was created, UTC, by the store's clock."""
    started_at: datetime
    """When the job was claimed, UTC, by the store's clock."""
    finished_at: datetime
    """Now, UTC, by the worker's clock."""
    duration: float
    """Seconds since the attempt began."""
    output: Any = field(repr=False)
    """The output of a completed attempt, in the model of its job type; None for a failed one."""
    error: JobError | str | None
    """The error of a failed attempt; a string replaces its message."""
    result_ttl: float | None
    """Seconds for which the chain will be kept; None: it has no TTL."""


AfterAttempt: TypeAlias = Callable[[EndedAttempt], Awaitable[None] | None]
"""``async def`` runs in the event loop, a plain ``def`` in a thread."""


def checked(hook: object) -> AfterAttempt | None:
    """Return the hook.

    Raises:
        DefinitionError: it cannot be called.
    """
    if hook is not None and not callable(hook):
        raise DefinitionError(f"after_attempt must be a function of an EndedAttempt, got {hook!r}")
    return cast("AfterAttempt | None", hook)


def is_coroutine(hook: AfterAttempt) -> bool:
    """Whether the hook runs in the event loop."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


def concerns(finish: Finish) -> bool:
    """Whether the hook is called for this finish."""
    return finish.kind in _STATUS


def ended_attempt(
    finish: Finish, job_type: JobType[Any, Any], *, worker: str, max_attempts: int, duration: float
) -> EndedAttempt:
    """Return the argument of the hook for a finish."""
    job: ClaimedJob = finish.job
    completed = finish.kind is FinishKind.COMPLETE
    return EndedAttempt(
        job_id=job.id,
        chain_id=job.chain_id,
        type=job.type,
        chain_type=job.chain_type,
        attempt=job.attempt,
        max_attempts=job.max_attempts or max_attempts,
        status=_STATUS[finish.kind],
        worker=worker,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=datetime.now(UTC),
        duration=duration,
        output=job_type.decode_output(finish.output or "null") if completed else None,
        error=finish.error,
        result_ttl=job.result_ttl,
    )


def apply_after_attempt(finish: Finish, job_type: JobType[Any, Any], ended: EndedAttempt) -> Finish:
    """Return the finish with the changes of the hook.

    Raises:
        PayloadError: the output is not valid for the job type.
        ConfigurationError: the error or the TTL is not valid.
    """
    kept = ended.result_ttl
    ttl = None if kept == finish.job.result_ttl else checked_ttl("result_ttl", kept, zero=True)
    if finish.kind is FinishKind.COMPLETE:
        return replace(finish, output=job_type.encode_output(ended.output), result_ttl=ttl)
    return replace(finish, error=_error(finish.error, ended.error), result_ttl=ttl)


def _error(before: JobError | None, after: object) -> JobError:
    if isinstance(after, str) and before is not None:
        return replace(before, message=safe_text(after, MAX_MESSAGE))
    texts = (after.kind, after.message) if isinstance(after, JobError) else ()
    if not isinstance(after, JobError) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"error must be a JobError, or a text for its message, got {type(after).__name__}")
    return JobError(
        kind=safe_text(after.kind, 200),
        message=safe_text(after.message, MAX_MESSAGE),
        type=None if after.type is None else safe_text(after.type, 200),
        traceback=None if after.traceback is None else safe_text(after.traceback, MAX_TRACEBACK),
    )
