"""What happened, as values. Each is told after it is durable, never before; durations are seconds.

Names follow the words of the design: a *job* is durable, an *attempt* is one claim of it by one worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from queuert.jobs import ChainStatus
from queuert.observability.attempt_events import AfterAttemptFailed as AfterAttemptFailed
from queuert.observability.attempt_events import AttemptAborted as AttemptAborted
from queuert.observability.attempt_events import AttemptBroken as AttemptBroken
from queuert.observability.attempt_events import AttemptCancelled as AttemptCancelled
from queuert.observability.attempt_events import AttemptCompleted as AttemptCompleted
from queuert.observability.attempt_events import AttemptContinued as AttemptContinued
from queuert.observability.attempt_events import AttemptFailed as AttemptFailed
from queuert.observability.attempt_events import AttemptInterrupted as AttemptInterrupted
from queuert.observability.attempt_events import AttemptRetried as AttemptRetried
from queuert.observability.attempt_events import AttemptStarted as AttemptStarted
from queuert.observability.attempt_events import AttemptWaiting as AttemptWaiting
from queuert.observability.attempt_events import CommitRefused as CommitRefused
from queuert.observability.attempt_events import ErrorAfterCompletion as ErrorAfterCompletion
from queuert.observability.attempt_events import HandlerKilled as HandlerKilled
from queuert.observability.attempt_events import Identity as Identity
from queuert.observability.attempt_events import SparkProgressed as SparkProgressed
from queuert.observability.attempt_events import SparkUnreachable as SparkUnreachable
from queuert.observability.base_event import BaseEvent

# --- worker ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(BaseEvent):
    """A worker connected and begins to claim."""

    worker: str
    types: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(BaseEvent):
    """A worker claims no more; what runs may finish within ``grace`` seconds."""

    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(BaseEvent):
    """A worker has stopped; ``abandoned`` handlers (threads that would not end) are left to the end of the process."""

    worker: str
    abandoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFailed(BaseEvent):
    """A loop of a worker raised. It is started again after ``retry_in`` seconds; ``failures`` counts those in a row."""

    level: ClassVar[str] = "error"
    worker: str
    loop: str
    error: str
    failures: int
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(BaseEvent):
    """A loop works again."""

    worker: str
    loop: str
    failures: int


# --- chains and jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStarted(BaseEvent):
    """A client wrote a new chain.

    Within a caller's own transaction it is told when that has committed, where its library says so (Django's
    connections, SQLAlchemy's sessions). Otherwise it is told at once, with ``committed=False``: it stands if the caller
    commits, and nobody says whether. So it is with all events of what clients do.
    """

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TickIdTaken(BaseEvent):
    """A job of another type had the id of a tick's chain: the tick was not lost, its chain has a new id.

    Whoever may start chains can take such an id, by mistake or to keep a schedule from running.
    """

    level: ClassVar[str] = "warning"
    worker: str
    schedule: str
    taken_id: str
    chain_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainClosed(BaseEvent):
    """A chain was closed, by an attempt of one of its jobs or from outside, ``duration`` seconds after it was started.

    With ``committed=False`` it stands if the caller's transaction commits, see :class:`ChainStarted`.
    """

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    status: ChainStatus
    duration: float | None
    in_callers_transaction: bool = False
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContinued(BaseEvent):
    """A client ended a chain's last job by a continuation. If it is ``committed``: see :class:`ChainStarted`."""

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    next_type: str
    next_job_id: str
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRetried(BaseEvent):
    """A client opened a closed chain again. If it is ``committed``: see :class:`ChainStarted`."""

    chain_id: str
    type: str
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTriggered(BaseEvent):
    """A client made scheduled jobs due. If it is ``committed``: see :class:`ChainStarted`."""

    level: ClassVar[str] = "debug"
    count: int
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsDeleted(BaseEvent):
    """A client deleted chains. If it is ``committed``: see :class:`ChainStarted`."""

    count: int
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReaped(BaseEvent):
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
class JobsReleased(BaseEvent):
    """A worker gave back jobs that it had claimed and not started."""

    worker: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSwept(BaseEvent):
    """``count`` jobs that waited for nothing any more were released: a bug, or a statement by hand, had left them so.

    ``job_ids`` names the first ten.
    """

    level: ClassVar[str] = "warning"
    worker: str
    count: int
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsRetired(BaseEvent):
    """A worker deleted ``count`` chains: they had expired, or the retention of their type does not keep them.

    ``chain_ids`` names the first ten.
    """

    worker: str
    count: int
    chain_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTended(BaseEvent):
    """A worker dropped staging tables of bulk writes whose drivers died, or forgot ``forgotten`` old bulk writes."""

    worker: str
    dropped: tuple[str, ...]
    forgotten: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingNotTended(BaseEvent):
    """The worker's role has no right to look after the staging of bulk writes. Told once."""

    worker: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogTended(BaseEvent):
    """A worker made or dropped days of the event log (ISO dates), or deleted ``deleted`` old events that had no day."""

    worker: str
    made: tuple[str, ...]
    dropped: tuple[str, ...]
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogPostponed(BaseEvent):
    """Days of the event log could not be made or dropped now: a transaction is in the way, which is not waited for."""

    level: ClassVar[str] = "debug"
    worker: str
    days: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogNotTended(BaseEvent):
    """A worker cannot look after the event log, mostly since its role does not own the tables.

    Events are written all the same. Run ``queuert events upkeep`` daily with a role that owns them.
    """

    level: ClassVar[str] = "warning"
    worker: str
    error: str


# --- leases, store, notify -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(BaseEvent):
    """One statement extended ``count`` leases; ``lost`` more could not be."""

    level: ClassVar[str] = "debug"
    worker: str
    count: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFailed(BaseEvent):
    """The store was out of reach, or refused; the worker tries again."""

    level: ClassVar[str] = "warning"
    worker: str
    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAtRisk(BaseEvent):
    """A store may lose what it acknowledged, or give it away; ``advice`` says what to do. Told at opening."""

    level: ClassVar[str] = "warning"
    adapter: str
    risk: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionMissing(BaseEvent):
    """Chains of these types are kept for ever, in memory: nothing says when they may go. Told at a worker's start."""

    level: ClassVar[str] = "warning"
    worker: str
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLost(BaseEvent):
    """Notifications do not arrive; waiting falls back to polling until they do. Tried again in ``retry_in`` seconds."""

    level: ClassVar[str] = "warning"
    adapter: str
    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRestored(BaseEvent):
    """Notifications arrive again; everybody who waits looks once for what was missed."""

    adapter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDropped(BaseEvent):
    """A notification could not be sent. Whoever waits for it finds out by polling."""

    level: ClassVar[str] = "warning"
    adapter: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFailed(BaseEvent):
    """An observability adapter raised; the others, and the work, go on."""

    level: ClassVar[str] = "error"
    adapter: str
    event: str
    error: str


Event: TypeAlias = BaseEvent
"""Any of the events of this module."""
