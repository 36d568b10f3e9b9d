"""The event log: what happened to jobs, transition by transition, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from queuert.errors import ConfigurationError, QueuertError, StateError
from queuert.jobs import JobError, JobStatus

LONGEST_KEEP = 36_500
"""Days: a hundred years."""


class EventsLostError(QueuertError):
    """Events that a reader of the log has not read are gone, or may be; the message says why.

    Retention took them, or a failover (or a restore) lost transactions: what the reader read last is not in the log any
    more, and new events may have lower numbers than that. Begin anew without a cursor, which reads all that the log
    has; or go on from ``cursor`` and miss what the message says. A stream of Spark begins with a new checkpoint, or
    goes on with the option ``failOnDataLoss=false``; a batch is read again, of what is left.
    """

    cursor: str | None = None
    """For ``list_events``: from here on the log can be read again. After a failover it is the same number, now on the
    new timeline, and new events with lower numbers are left out. None where a stream or a DataFrame was read."""


class DatabaseMovedError(StateError):
    """The database was dumped and restored, or replicated, into another cluster, whose transactions count anew.

    So the numbers of the log and of closed chains mean nothing here, and readers would miss what happens. Jobs go on
    meanwhile. Stop the workers and run ``queuert migrate adopt``.
    """


class EventKind(StrEnum):
    """What happened to a job. The result of it is the event's status. Later versions may add kinds."""

    CREATED = "created"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    STARTED = "started"
    """An attempt was claimed."""
    RELEASED = "released"
    """A claim was released before the handler began; the next attempt has the same number."""
    COMPLETED = "completed"
    CONTINUED = "continued"
    RETRIED = "retried"
    """The attempt failed, and there is to be another."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The job was released: its worker stops, or the lease was over before the attempt could begin."""
    WAITING = "waiting"
    """The attempt ended to wait for other chains."""
    LEASE_EXPIRED = "lease_expired"
    """Nobody renewed the lease. The job is to be tried again, or has FAILED: see the status."""
    TRIGGERED = "triggered"
    """A scheduled job was made due."""
    RETRIED_BY_HAND = "retried_by_hand"
    """Its chain had failed or was cancelled, and was opened again."""
    DELETED = "deleted"
    """Its chain was deleted by hand; retention writes no events. The status is that before."""


class EventLevel(StrEnum):
    """How much of a job type is written to the log."""

    ALL = "all"
    TERMINAL = "terminal"
    """What ends a job, and what takes that back: retries by hand, deletions."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One transition of one job. Times are UTC.

    All of the log is read by ``(tx, seq)``; the events of one job happened in the order of ``seq``.
    """

    tx: int
    """The transaction that made the transition."""
    seq: int
    happened_at: datetime
    kind: str
    """An :class:`EventKind`, or one that a newer version has written."""
    status: JobStatus
    """What the job is since then."""
    job_id: str
    chain_id: str
    chain_index: int
    type: str
    chain_type: str
    attempt: int
    """The attempt that it is about, or the last one before it; 0 before the first."""
    scheduled_at: datetime | None
    """When the job became due, or becomes due next."""
    started_at: datetime | None
    """When that attempt began."""
    worker: str | None
    """Whose attempt it is; None for what came from outside."""
    error: JobError | None
    cursor: str = field(repr=False)
    """The place behind this event, for lists of events that go on from here."""

    @property
    def closes_chain(self) -> bool:
        """Whether the chain ended with it."""
        ends = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
        return self.status in ends and self.kind != EventKind.DELETED


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: all that fit every field that is set."""

    types: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    chain_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventPartition:
    """A day of the log, or (no day) what is outside of all days."""

    name: str
    day: date | None
    size: int
    """Bytes, with indexes."""


@dataclass(frozen=True, slots=True)
class EventLog:
    """What is written to the log, how long it is kept, and what there is."""

    level: EventLevel
    """Of the types that have none of their own."""
    levels: Mapping[str, EventLevel] = field(hash=False)
    """By job type."""
    keep_days: int
    partitions: tuple[EventPartition, ...]
    """The oldest day first; last what has no day."""


@dataclass(frozen=True, slots=True)
class EventLogMaintenance:
    """What one look after the log has done. ``postponed`` are days that somebody's transaction was in the way of."""

    made: tuple[date, ...] = ()
    dropped: tuple[date, ...] = ()
    postponed: tuple[date, ...] = ()
    deleted: int = 0
    """Old events that had no day."""
    more: bool = False
    """It has done as much as it does in one go, and something is left: look again at once."""


def checked_keep(days: int) -> int:
    """The number of days, if the log can be kept so long.

    Raises:
        ConfigurationError: it cannot.
    """
    if type(days) is not int or not 1 <= days <= LONGEST_KEEP:
        raise ConfigurationError(f"days is {days!r}: a whole number from 1 to {LONGEST_KEEP:,}")
    return days


def checked_level(level: EventLevel | str) -> EventLevel:
    """The level of this name.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        return EventLevel(level)
    except ValueError:
        raise ConfigurationError(f"{level!r} is no level of events: use {', '.join(EventLevel)}") from None
