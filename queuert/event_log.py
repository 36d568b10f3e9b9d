"""Values of the event log, which records each transition of each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from queuert.errors import ConfigurationError
from queuert.jobs import JobError, JobProgress, JobStatus

LONGEST_KEEP = 36_500
"""The longest event retention, in days: a hundred years."""

MOST_KEPT = 1_000_000_000
"""The largest bound of the number of events."""


class EventKind(StrEnum):
    """What happened to a job; the event's status says the result. Later versions may add kinds.

    >>> EventKind("started") is EventKind.STARTED
    True
    """

    CREATED = "created"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    STARTED = "started"
    """An attempt was claimed."""
    RELEASED = "released"
    """A claimed job was released before its handler began; the next attempt has the same number."""
    PROGRESSED = "progressed"
    """The attempt recorded progress. Of progress that is recorded often, only some becomes an event."""
    PHASE_STARTED = "phase_started"
    """The attempt began a phase; ``progress.phase`` says which."""
    PHASE_COMPLETED = "phase_completed"
    """The attempt completed a phase, and its result is stored."""
    COMPLETED = "completed"
    CONTINUED = "continued"
    RETRIED = "retried"
    """The attempt failed and will be retried."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The job was released: its worker stopped, or the lease expired before the attempt could begin."""
    WAITING = "waiting"
    """The attempt ended in order to wait for other chains."""
    SNOOZED = "snoozed"
    """The attempt ended in order to go on later: it returned a snooze, or slept. The job is due again at a time."""
    LEASE_EXPIRED = "lease_expired"
    """The lease expired without renewal. The job will be retried, or has FAILED: see the status."""
    DEBOUNCED = "debounced"
    """A start of the same deduplication key gave the waiting job its input, and a later due time."""
    TRIGGERED = "triggered"
    """A scheduled job was made due."""
    RESCHEDULED = "rescheduled"
    """A client or the command line gave the waiting job another due time."""
    REPRIORITIZED = "reprioritized"
    """A client or the command line gave the waiting job another priority."""
    EDITED = "edited"
    """A client or the command line gave the waiting job another input."""
    RETRIED_BY_HAND = "retried_by_hand"
    """A client or the command line retried the failed or cancelled chain."""
    DELETED = "deleted"
    """A client or the command line deleted the chain, or retention deleted a stale one; of others that it deletes it
    writes no events. The status is the one before."""
    STALE = "stale"
    """Retention found that the closed chain is no longer kept, and will delete it. The job is its first one."""


class EventLevel(StrEnum):
    """Which events of a job type are written to the log.

    >>> EventLevel("terminal") is EventLevel.TERMINAL
    True
    """

    ALL = "all"
    """All events."""
    TERMINAL = "terminal"
    """Events that finish a job, and those that reopen or delete it."""
    OFF = "off"
    """No events."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One transition of one job. Times are UTC.

    The log is ordered by ``(tx, seq)``; the events of one job happened in the order of ``seq``.

        >>> "happened_at" in JobEvent.__slots__
        True
    """

    tx: int
    """The transaction that made the transition."""
    seq: int
    happened_at: datetime
    kind: str
    """An :class:`EventKind`, or a kind that a newer version has written."""
    status: JobStatus
    """The status of the job after the event."""
    job_id: str
    chain_id: str
    chain_index: int
    type: str
    chain_type: str
    attempt: int
    """The attempt that the event belongs to, or the last one before it; 0 before the first."""
    scheduled_at: datetime | None
    """When the job became due, or becomes due next."""
    started_at: datetime | None
    """When that attempt began."""
    worker: str | None
    """The worker of the attempt; None if a client or the command line made the transition."""
    error: JobError | None
    progress: JobProgress | None
    """What the attempt has recorded, for an event of the kind ``progressed``, ``phase_started`` or
    ``phase_completed``."""
    cursor: str = field(repr=False)
    """The cursor after this event, from which ``list_events`` continues."""

    @property
    def closes_chain(self) -> bool:
        """Whether the event closed the chain."""
        ends = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
        return self.status in ends and self.kind not in (EventKind.DELETED, EventKind.STALE)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects the events that match every field that is set."""

    types: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    chain_id: str | None = None

    def matches(self, event: JobEvent) -> bool:
        """Whether it selects the event."""
        return (
            (self.chain_id is None or event.chain_id == self.chain_id)
            and (self.types is None or event.type in self.types)
            and (self.kinds is None or event.kind in self.kinds)
        )


@dataclass(frozen=True, slots=True)
class EventLogEnd:
    """The end of the event log at one moment, for readers that begin there.

    >>> end = EventLogEnd(cursor="WyIxMCIsICIwIl0=", settled=10, written=12)
    >>> end.settled < end.written  # A transaction is open, whose events are not shown yet.
    True
    """

    cursor: str
    """Events that become visible to readers of the log after this moment are after it."""
    settled: int
    """All events with a lower ``tx`` are visible to readers of the log, or never will be."""
    written: int
    """No event that was committed before this moment has this ``tx`` or a higher one."""


@dataclass(frozen=True, slots=True)
class EventPartition:
    """The partition of one day, or (with ``day`` None) the default partition."""

    name: str
    day: date | None
    size: int
    """Size in bytes, with indexes."""


@dataclass(frozen=True, slots=True)
class EventLog:
    """The settings of the event log, and its partitions."""

    level: EventLevel
    """The level of job types without one of their own."""
    levels: Mapping[str, EventLevel] = field(hash=False)
    """The levels that were set for job types, by name."""
    keep_days: int
    """Days that events are kept."""
    partitions: tuple[EventPartition, ...]
    """The partitions, the oldest day first, the default partition last."""
    lag: float
    """Seconds since the oldest event that readers are not shown yet, as an older transaction is open; 0: none."""
    max_events: int | None = None
    """How many events are kept at most, which only Redis bounds."""


@dataclass(frozen=True, slots=True)
class EventLogMaintenance:
    """The result of one round of maintenance of the event log."""

    made: tuple[date, ...] = ()
    """Days whose partitions were created."""
    dropped: tuple[date, ...] = ()
    """Days whose partitions were dropped."""
    postponed: tuple[date, ...] = ()
    """Days whose partitions could not be created or dropped, because a transaction is open on them."""
    deleted: int = 0
    """The number of old events that were deleted from the default partition."""
    more: bool = False
    """Whether work is left after this round: run maintenance again at once."""


def checked_keep(days: int) -> int:
    """Return the number of days, if events can be kept for so long.

    Raises:
        ConfigurationError: it is not an integer between 1 and 36,500.
    """
    if type(days) is not int or not 1 <= days <= LONGEST_KEEP:
        raise ConfigurationError(f"days must be an integer between 1 and {LONGEST_KEEP:,}, got {days!r}")
    return days


def checked_max_events(number: int) -> int:
    """Return the number of events, if a log can be bounded by it.

    Raises:
        ConfigurationError: it is not an integer between 1,000 and a billion.
    """
    if type(number) is not int or not 1_000 <= number <= MOST_KEPT:
        raise ConfigurationError(f"max_events must be an integer between 1,000 and {MOST_KEPT:,}, got {number!r}")
    return number


def refuse_max_events(number: int | None) -> None:
    """Raise for a store whose log is bounded by days alone.

    Raises:
        ConfigurationError: a number was passed.
    """
    if number is not None:
        raise ConfigurationError(
            f"max_events must be None for this store, whose log is bounded by days, got {number!r}: only Redis, which "
            "keeps the log in memory, bounds the number of events"
        )


def checked_level(level: EventLevel | str) -> EventLevel:
    """Return the event level of this name.

    Raises:
        ConfigurationError: there is no such level.
    """
    try:
        return EventLevel(level)
    except ValueError:
        raise ConfigurationError(f"event level must be one of {', '.join(EventLevel)}, got {level!r}") from None
