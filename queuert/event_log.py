"""Values of the event log, which records each transition of each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from queuert.errors import ConfigurationError
from queuert.jobs import JobError, JobStatus

LONGEST_KEEP = 36_500
"""The longest event retention, in days: a hundred years."""


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
    RETRIED_BY_HAND = "retried_by_hand"
    """A client or the command line retried the failed or cancelled chain."""
    DELETED = "deleted"
    """A client or the command line deleted the chain; retention writes no events. The status is the one before."""


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
    cursor: str = field(repr=False)
    """The cursor after this event, from which ``list_events`` continues."""

    @property
    def closes_chain(self) -> bool:
        """Whether the event closed the chain."""
        ends = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
        return self.status in ends and self.kind != EventKind.DELETED


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects the events that match every field that is set."""

    types: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    chain_id: str | None = None


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


def checked_level(level: EventLevel | str) -> EventLevel:
    """Return the event level of this name.

    Raises:
        ConfigurationError: there is no such level.
    """
    try:
        return EventLevel(level)
    except ValueError:
        raise ConfigurationError(f"event level must be one of {', '.join(EventLevel)}, got {level!r}") from None
