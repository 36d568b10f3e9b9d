"""What happened to attempts, as values: see :mod:`queuert.observability.events`, by which they are imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from queuert.jobs import AbortReason, JobError
from queuert.observability.base_event import BaseEvent


class Identity(TypedDict):
    """The fields that name an attempt, to be handed to its events."""

    worker: str
    job_id: str
    chain_id: str
    type: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptEvent(BaseEvent):
    worker: str
    job_id: str
    chain_id: str
    type: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_AttemptEvent):
    """A job was claimed and its attempt begins, ``waited`` seconds after it became due."""

    level: ClassVar[str] = "debug"
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCompleted(_AttemptEvent):
    """The job's output is stored and its chain completed."""

    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContinued(_AttemptEvent):
    """The job is done and its chain goes on with ``next_job_id``."""

    duration: float
    next_type: str
    next_job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRetried(_AttemptEvent):
    """The attempt did not complete the job; the next one is due in ``retry_in`` seconds."""

    level: ClassVar[str] = "warning"
    duration: float
    error: JobError
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(_AttemptEvent):
    """The job failed for good: a dead letter."""

    level: ClassVar[str] = "error"
    duration: float
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCancelled(_AttemptEvent):
    """The handler cancelled its chain."""

    duration: float
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInterrupted(_AttemptEvent):
    """The job is given back, and the attempt does not count: the worker stops and the grace is over, or the lease was
    over before the handler could begin."""

    level: ClassVar[str] = "warning"
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWaiting(_AttemptEvent):
    """The job waits for other chains and runs again when they have closed; the attempt does not count."""

    duration: float
    blockers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAborted(_AttemptEvent):
    """The handler was told to stop, for a lease that is lost or a timeout; nothing of it will be committed."""

    level: ClassVar[str] = "warning"
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerKilled(_AttemptEvent):
    """The process of the handler was killed: out of time, or told to stop a moment ago and still there."""

    level: ClassVar[str] = "warning"
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused(_AttemptEvent):
    """An ending was not written, because the lease no longer held the job."""

    level: ClassVar[str] = "warning"
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAfterCompletion(_AttemptEvent):
    """The handler raised after ``complete()`` had committed. The job stays completed."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterAttemptFailed(_AttemptEvent):
    """``after_attempt`` raised, or left what cannot be written. The ending is written as it was without it."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBroken(_AttemptEvent):
    """The ending of an attempt could not be written. Its lease will expire, and the job be run again."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkProgressed(_AttemptEvent):
    """Of the tasks that Spark knows of for this attempt, ``done`` are finished; ``fraction`` is at most 0.99."""

    level: ClassVar[str] = "debug"
    done: int
    known: int
    active: int
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkUnreachable(_AttemptEvent):
    """Spark could not be asked for an attempt's progress, or be told to cancel its jobs; it is tried again."""

    level: ClassVar[str] = "warning"
    operation: str
    error: str
