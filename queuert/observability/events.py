"""What happened, as values: one class an event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeAlias, TypedDict

from queuert.jobs import AbortReason, ChainStatus, JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """An event: a value that says what happened."""

    level: ClassVar[str] = "info"
    """Of the log entry: debug, info, warning or error. The highest that an event of the class may have."""

    @property
    def own_level(self) -> str:
        """The level of this event: that of its class, or a lower one."""
        return self.level


def _level_of_failure(level: str, failures: int) -> str:
    """Return the level of a failure that may be one of many in a row: the 1st, 2nd, 4th, 8th and so on have ``level``,
    so that an outage does not fill the log. The others are debug."""
    return "debug" if failures & (failures - 1) else level


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
    """The job is ready again and the attempt does not count: the shutdown timeout of a stopping worker is over, or the
    lease expired before the handler could begin."""

    level: ClassVar[str] = "warning"
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWaiting(_AttemptEvent):
    """The job waits for other chains and runs again when they have closed; the attempt does not count."""

    duration: float
    blockers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSnoozed(_AttemptEvent):
    """The attempt ended in order to go on in ``due_in`` seconds: it was snoozed, sleeps, or waits for an event. It does
    not count."""

    duration: float
    due_in: float
    """Of a wait for an event: until it times out."""
    awaited_event: str | None = None
    """The name of the event for which it waits, and goes on when that is sent; None of a snooze or sleep."""


class PhaseIdentity(TypedDict):
    """The fields that name a phase, to be handed to its events."""

    phase: str
    number: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseEvent(_AttemptEvent):
    level: ClassVar[str] = "debug"
    phase: str
    number: int
    """1 for the first phase that the job type declares, of ``count``."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted(_PhaseEvent):
    """A phase of a job was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCompleted(_PhaseEvent):
    """A phase of a job was completed, and its result is stored."""

    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFailed(_PhaseEvent):
    """The function of a phase raised. An attempt that has not caught that fails next, and says so by an event of its
    own."""

    duration: float
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAborted(_AttemptEvent):
    """The handler was told to stop, for a lease that is lost or a timeout; nothing of it will be committed."""

    level: ClassVar[str] = "warning"
    reason: AbortReason

    @property
    def own_level(self) -> str:
        """A cancelled chain is no trouble: somebody wanted it."""
        return "info" if self.reason is AbortReason.CANCELLED else self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerKilled(_AttemptEvent):
    """The process of the handler was killed: out of time, or told to stop a moment ago and still there."""

    level: ClassVar[str] = "warning"
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRejected(_AttemptEvent):
    """A finish was not written, because the lease no longer held the job."""

    level: ClassVar[str] = "warning"
    reason: AbortReason

    @property
    def own_level(self) -> str:
        """A cancelled chain is no trouble: somebody wanted it."""
        return "info" if self.reason is AbortReason.CANCELLED else self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAfterCompletion(_AttemptEvent):
    """The handler raised after ``complete()`` had committed. The job stays completed."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterAttemptFailed(_AttemptEvent):
    """``after_attempt`` raised, or left what cannot be written. The finish is written as it was without it."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishFailed(_AttemptEvent):
    """The finish of an attempt could not be written. Its lease will expire, and the job be run again."""

    level: ClassVar[str] = "error"
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerWaits(_AttemptEvent):
    """The handler waits, in its slot, for a chain that stands at a job of a type that its own worker runs.

    Handlers in all slots that do so wait for ever, unless another worker runs that type. ``attempt.wait_for`` holds no
    slot. Once for each pair of types, whatever the number of jobs.
    """

    level: ClassVar[str] = "warning"
    waits_for: str
    """The type of the job that the chain stands at."""
    slots: int
    """How many slots the worker has."""


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


# --- worker -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(BaseEvent):
    """A worker connected and begins to claim."""

    worker: str
    types: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(BaseEvent):
    """A worker claims no more; what runs may finish within ``shutdown_timeout`` seconds."""

    worker: str
    running: int
    shutdown_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(BaseEvent):
    """A worker has stopped; ``abandoned`` handlers (threads that would not end) are left to the end of the process."""

    worker: str
    abandoned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFailed(BaseEvent):
    """A loop of a worker raised. It is started again after ``retry_in`` seconds; ``failures`` counts those in a row.

    Of many in a row, the 1st, 2nd, 4th, 8th and so on have the level ``error``, and the others ``debug``.
    """

    level: ClassVar[str] = "error"
    worker: str
    loop: str
    error: str
    failures: int
    retry_in: float

    @property
    def own_level(self) -> str:
        """The level of the class, or debug: see there."""
        return _level_of_failure(self.level, self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoopBlocked(BaseEvent):
    """The event loop of a worker has not run for ``seconds``: something in it blocks, and ``stack`` shows what.

    ``job_id`` and ``type`` are those of the handler that runs in the loop; None if it is another task. Leases are
    renewed by a thread meanwhile. Call blocking code in a plain function, which runs in a thread.
    """

    level: ClassVar[str] = "error"
    worker: str
    seconds: float
    job_id: str | None
    type: str | None
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoopUnblocked(BaseEvent):
    """The event loop runs again, after ``seconds``."""

    level: ClassVar[str] = "warning"
    worker: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(BaseEvent):
    """A loop works again, or an operation of which ``StoreCallFailed`` was emitted, after ``failures`` in a row."""

    worker: str
    loop: str
    failures: int


# --- chains and jobs --------------------------------------------------------------------------------------------------


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
class ChainsWritten(BaseEvent):
    """One call of a client wrote ``count`` chains, duplicates included, in ``duration`` seconds."""

    level: ClassVar[str] = "debug"
    count: int
    duration: float


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
class TickSkipped(BaseEvent):
    """A tick started no chain, since the schedule has ``overlap="skip"``, and ``open_chain_id`` is open.

    It is the chain that the schedule started last.
    """

    level: ClassVar[str] = "info"
    worker: str
    schedule: str
    tick: datetime
    open_chain_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesRemoved(BaseEvent):
    """A worker that starts removed schedules of an owner which its code does not have any more.

    Their chains remain.
    """

    level: ClassVar[str] = "warning"
    worker: str
    owner: str
    schedules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTypeUnhandled(BaseEvent):
    """No live worker handles a type with which jobs continue, or for which they wait: of a type that this worker
    handles, or that clients complete.

    Each such chain stands still at that job until one does. A worker looks once, a minute after its start.
    """

    level: ClassVar[str] = "warning"
    worker: str
    type: str
    needed_by: str
    """The type of the jobs that continue with it, or wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainClosed(BaseEvent):
    """A chain was closed, ``duration`` seconds after it was started, by the store's clock.

    It was closed by an attempt of one of its jobs, by a client, or by a worker that found the lease of its last attempt
    expired (:class:`JobReaped` with ``failed`` comes before). ``duration`` is None only if the answer to an attempt's
    finish was lost, and the store said later that it had been written. With ``committed=False`` the event stands if the
    caller's transaction commits, see :class:`ChainStarted`.
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
class EventSent(BaseEvent):
    """A client sent an event to a chain. If it is ``committed``: see :class:`ChainStarted`."""

    level: ClassVar[str] = "debug"
    chain_id: str
    type: str
    """The type of the chain's first job."""
    name: str
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsDeleted(BaseEvent):
    """A client deleted chains. If it is ``committed``: see :class:`ChainStarted`."""

    count: int
    in_callers_transaction: bool
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorActed(BaseEvent):
    """Somebody asked for a change, over the dashboard or over HTTP.

    ``change`` is the route, such as ``/chain/cancel``, and ``target`` what it is of, such as ``id=order-21``, without
    payloads. ``outcome`` is ``done``, ``refused`` (``user`` may not do this) or ``failed``, with the code of the
    ``error``. ``user`` is the principal of the access, if it has one.
    """

    user: str | None
    interface: str
    change: str
    target: str
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReaped(BaseEvent):
    """A lease of ``holder`` had expired: the attempt counts as failed. ``failed`` says that it was the last, and that
    the job has failed with its chain: a :class:`ChainClosed` follows."""

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
    """A worker released jobs that it had claimed and not started."""

    worker: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedJobsReleased(BaseEvent):
    """``count`` jobs that waited for nothing any more were released: a bug, or a statement by hand, had left them so.

    ``job_ids`` names the first ten.
    """

    level: ClassVar[str] = "warning"
    worker: str
    count: int
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsPruned(BaseEvent):
    """A worker deleted ``count`` chains: they had expired, or the retention of their type does not keep them.

    ``chain_ids`` names the first ten.
    """

    worker: str
    count: int
    chain_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainsBecameStale(BaseEvent):
    """A worker marked ``count`` closed chains as stale: the retention of their type will delete them.

    ``chain_ids`` names the first ten; the event log names all.
    """

    worker: str
    count: int
    chain_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionHookFailed(BaseEvent):
    """``before_stale`` or ``before_delete`` raised, or took too long. The chain stays as it is until the next round."""

    level: ClassVar[str] = "error"
    worker: str
    hook: str
    chain_id: str
    type: str
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingCleaned(BaseEvent):
    """A worker dropped staging tables of bulk writes whose drivers died, or forgot ``forgotten`` old bulk writes."""

    worker: str
    dropped: tuple[str, ...]
    forgotten: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingCleanupFailed(BaseEvent):
    """The worker's role has no right to look after the staging of bulk writes. Told once."""

    worker: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogMaintained(BaseEvent):
    """A worker made or dropped days of the event log (ISO dates), or deleted ``deleted`` old events that had no day."""

    worker: str
    made: tuple[str, ...]
    dropped: tuple[str, ...]
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogMaintenancePostponed(BaseEvent):
    """Days of the event log could not be made or dropped now: a transaction is in the way, which is not waited for."""

    level: ClassVar[str] = "debug"
    worker: str
    days: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogMaintenanceFailed(BaseEvent):
    """A worker cannot look after the event log, mostly since its role does not own the tables.

    Events are written all the same. Run ``queuert events maintain`` daily with a role that owns them.
    """

    level: ClassVar[str] = "warning"
    worker: str
    error: str


# --- leases, store, notify --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(BaseEvent):
    """One statement extended ``count`` leases; ``lost`` more could not be.

    The one that was nearest to its end had ``slack`` seconds left when the store had answered; None if the store was
    not asked. Little slack means that a short outage of the database will cost leases.
    """

    level: ClassVar[str] = "debug"
    worker: str
    count: int
    lost: int
    slack: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsClaimed(BaseEvent):
    """One claim took ``count`` jobs, or none, in ``duration`` seconds."""

    level: ClassVar[str] = "debug"
    worker: str
    count: int
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishesWritten(BaseEvent):
    """The store decided about ``count`` finishes, sent together, in ``duration`` seconds."""

    level: ClassVar[str] = "debug"
    worker: str
    count: int
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCallFailed(BaseEvent):
    """The store was out of reach, or refused; the worker tries again. ``failures`` counts those in a row.

    Of many in a row, the 1st, 2nd, 4th, 8th and so on have the level ``warning``, and the others ``debug``.
    """

    level: ClassVar[str] = "warning"
    worker: str
    operation: str
    error: str
    failures: int = 1

    @property
    def own_level(self) -> str:
        """The level of the class, or debug: see there."""
        return _level_of_failure(self.level, self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWarningRaised(BaseEvent):
    """A store may lose what it acknowledged, or give it away; ``advice`` says what to do. Told at opening."""

    level: ClassVar[str] = "warning"
    adapter: str
    risk: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LifespanFailed(BaseEvent):
    """The lifespan of a worker's processors raised when it was left, did not end in time, or ended before it was left.

    In the last case (``early``) the worker stops, since its handlers have no resources any more.
    """

    level: ClassVar[str] = "error"
    worker: str
    lifespan: str
    early: bool
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFailing(BaseEvent):
    """Nothing could be delivered to a webhook for ``seconds``; it is disabled if this goes on. Emitted once."""

    level: ClassVar[str] = "warning"
    webhook: str
    seconds: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDisabled(BaseEvent):
    """A webhook was disabled by a worker: its receiver is gone, or nothing could be delivered for days."""

    level: ClassVar[str] = "error"
    webhook: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEventsLost(BaseEvent):
    """The event log lost events before webhooks were told of them: by retention, a failover or a restore."""

    level: ClassVar[str] = "error"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEventSkipped(BaseEvent):
    """An event of a job was told to no webhook, since no delivery could be made of it; the others go on."""

    level: ClassVar[str] = "error"
    chain_id: str
    job_id: str
    kind: str
    error: JobError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionInUse(BaseEvent):
    """How long a worker keeps the closed chains of these types. Emitted when it starts, once for each policy."""

    worker: str
    types: tuple[str, ...]
    kept: str


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
class NotificationDropped(BaseEvent):
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
