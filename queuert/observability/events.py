"""What happened, as values. Each is told after it is durable, never before; durations are seconds.

Names follow the words of the design: a *job* is durable, an *attempt* is one claim of it by one worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypedDict

from queuert.jobs import AbortReason, ChainStatus, JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    level: ClassVar[str] = "info"
    """Of the log entry: debug, info, warning or error."""


# --- worker ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(_Event):
    """A worker connected and begins to claim."""

    worker: str
    types: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(_Event):
    """A worker claims no more; what runs may finish within ``grace`` seconds."""

    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(_Event):
    """A worker has stopped; ``abandoned`` handlers (threads that would not end) are left to the end of the process."""

    worker: str
    abandoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFailed(_Event):
    """A loop of a worker raised. It is started again after ``retry_in`` seconds; ``failures`` counts those in a row."""

    level: ClassVar[str] = "error"
    worker: str
    loop: str
    error: str
    failures: int
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(_Event):
    """A loop works again."""

    worker: str
    loop: str
    failures: int


# --- chains and jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStarted(_Event):
    """A client wrote a new chain. On a caller's own connection: it stands if the caller commits."""

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    in_callers_transaction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainClosed(_Event):
    """A chain was closed, by an attempt of one of its jobs or from outside, ``duration`` seconds after it was started.

    On a caller's own connection: it stands if the caller commits.
    """

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    status: ChainStatus
    duration: float | None
    in_callers_transaction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContinued(_Event):
    """A client ended a chain's last job by a continuation. On a caller's own connection: it stands if that commits."""

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    next_type: str
    next_job_id: str
    in_callers_transaction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRetried(_Event):
    """A client opened a closed chain again. On a caller's own connection: it stands if the caller commits."""

    chain_id: str
    type: str
    in_callers_transaction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTriggered(_Event):
    """A client made scheduled jobs due. On a caller's own connection: it stands if the caller commits."""

    level: ClassVar[str] = "debug"
    count: int
    in_callers_transaction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsDeleted(_Event):
    """A client deleted chains. On a caller's own connection: it stands if the caller commits."""

    count: int
    in_callers_transaction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReaped(_Event):
    """A lease of ``holder`` had expired: the attempt counts as failed. ``failed`` says that it was the last."""

    level: ClassVar[str] = "warning"
    worker: str
    job_id: str
    chain_id: str
    type: str
    attempt: int
    holder: str | None
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsReleased(_Event):
    """A worker gave back jobs that it had claimed and not started."""

    worker: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSwept(_Event):
    """``count`` jobs that waited for nothing any more were released: a bug, or a statement by hand, had left them so.

    ``job_ids`` names the first ten.
    """

    level: ClassVar[str] = "warning"
    worker: str
    count: int
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsRetired(_Event):
    """A worker deleted ``count`` chains: they had expired, or the retention of their type does not keep them.

    ``chain_ids`` names the first ten.
    """

    worker: str
    count: int
    chain_ids: tuple[str, ...]


class Identity(TypedDict):
    """The fields that name an attempt, to be handed to its events."""

    worker: str
    job_id: str
    chain_id: str
    type: str
    attempt: int


# --- attempts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptEvent(_Event):
    worker: str
    job_id: str
    chain_id: str
    type: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(_AttemptEvent):
    """A job was claimed and its handler begins, ``waited`` seconds after it became due."""

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
    """The worker stops, the grace is over: the job is given back, and the attempt does not count."""

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


# --- leases, store, notify -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(_Event):
    """One statement extended ``count`` leases; ``lost`` more could not be."""

    level: ClassVar[str] = "debug"
    worker: str
    count: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFailed(_Event):
    """The store was out of reach, or refused; the worker tries again."""

    level: ClassVar[str] = "warning"
    worker: str
    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAtRisk(_Event):
    """A store may lose what it acknowledged, as its server is set; ``advice`` says what to do. Told at opening."""

    level: ClassVar[str] = "warning"
    adapter: str
    risk: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLost(_Event):
    """Notifications do not arrive; waiting falls back to polling until they do. Tried again in ``retry_in`` seconds."""

    level: ClassVar[str] = "warning"
    adapter: str
    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRestored(_Event):
    """Notifications arrive again; everybody who waits looks once for what was missed."""

    adapter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDropped(_Event):
    """A notification could not be sent. Whoever waits for it finds out by polling."""

    level: ClassVar[str] = "warning"
    adapter: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFailed(_Event):
    """An observability adapter raised; the others, and the work, go on."""

    level: ClassVar[str] = "error"
    adapter: str
    event: str
    error: str


Event: TypeAlias = _Event
"""Any of the events of this module."""
