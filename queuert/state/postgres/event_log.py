"""The event log: rows of its statements, cursors of its readers, and the maintenance of its partitions. Pure functions.

Transaction numbers belong to one history of one cluster. After a failover to a standby that had not received all, or
after a restore, numbers that readers have passed are given again, and readers would skip the events that get them. So a
cursor names the cluster, the timeline, and the event that was read last: as long as the log has that event, each number
up to it was given before, and nothing can come in below it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum

from queuert.errors import InvalidCursorError
from queuert.event_log import (
    DatabaseMovedError,
    EventFilter,
    EventLevel,
    EventLog,
    EventPartition,
    EventsLostError,
    JobEvent,
)
from queuert.jobs import JobStatus
from queuert.state.paging import Page, PageRequest, Position
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.records import job_error

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEHIND = re.compile(r"(\d{1,19})(?::(\d{1,20}):(\d{1,10}):(\d{1,18})?)?", re.ASCII)
_LAST_SEQ = 2**63 - 1

RESTART = "begin anew without a cursor, which shows all that the log has, or go on from the cursor of this error"


@dataclass(frozen=True, slots=True)
class LogState:
    """How the log stands on the server that was asked.

    Attributes:
        horizon: all transactions below it are over.
        next_tx: no transaction has this number yet, or a higher one.
        dropped: the newest of which retention has taken events.
        owner: the cluster whose numbers the log has.
        system: the cluster that the server is of.
        timeline: which history of the cluster: a standby that is promoted begins the next.
        standby: whether the server follows another one, which may be further.
        known: whether the log has the event that was asked for.
    """

    horizon: int
    next_tx: int
    dropped: int
    owner: str
    system: str
    timeline: int
    standby: bool
    known: bool

    @classmethod
    def of(cls, row: Row) -> LogState:
        """The row of ``read_log``."""
        horizon, next_tx, dropped, owner, system, timeline, standby, known = row
        return cls(int(horizon), int(next_tx), int(dropped), owner, system, timeline, standby, known)

    def check_owner(self) -> None:
        """Refuse to read by numbers that are another cluster's.

        Raises:
            DatabaseMovedError: they are.
        """
        check_owner(self.owner, self.system)


def check_owner(owner: str, system: str) -> None:
    """Refuse a database whose transaction numbers are another cluster's.

    Raises:
        DatabaseMovedError: they are.
    """
    if owner != system:
        raise DatabaseMovedError(moved_text(owner, system))


def moved_text(owner: str, system: str) -> str:
    """What is wrong with a database that was moved, and what to do."""
    return (
        f"the event log and the jobs have transaction numbers of another cluster ({owner}; this is {system}): the "
        "database was moved here. Stop the workers and run queuert migrate adopt"
    )


@dataclass(frozen=True, slots=True)
class EventCursor:
    """A place behind an event.

    Attributes:
        tx: its transaction.
        seq: its number.
        happened_at: when it happened; None where the event itself is not meant, but only the numbers.
        system: the cluster; None for a cursor of an earlier version, which names no cluster and no timeline.
        timeline: which history of it; 0 where that is not known.
    """

    tx: int
    seq: int
    happened_at: datetime | None = None
    system: str | None = None
    timeline: int = 0

    @classmethod
    def decode(cls, text: str) -> EventCursor:
        """Read what :meth:`encode` made, or an earlier version.

        Raises:
            InvalidCursorError: it is something else.
        """
        position = Position.decode(text)
        behind = _BEHIND.fullmatch(position.id)
        tx = int(position.key) if re.fullmatch(r"\d{1,20}", position.key, re.ASCII) else 2**64
        if behind is None or tx >= 2**64 or int(behind[1]) > _LAST_SEQ:
            raise InvalidCursorError(text)
        seq, system, timeline, micros = behind.groups()
        try:
            moment = None if micros is None else moment_of(int(micros))
        except OverflowError:
            raise InvalidCursorError(text) from None
        return cls(tx, int(seq), moment, system, int(timeline or 0))

    def encode(self) -> str:
        """The opaque text."""
        if self.system is None:
            return Position(str(self.tx), str(self.seq)).encode()
        micros = "" if self.happened_at is None else micros_of(self.happened_at)
        return Position(str(self.tx), f"{self.seq}:{self.system}:{self.timeline}:{micros}").encode()

    def check(self, log: LogState, *, follows: bool) -> None:
        """Make sure that the log of this server goes on from here. ``follows``: nothing behind it may be missing.

        Raises:
            EventsLostError: it does not.
        """
        lost = self._reason(log, follows=follows)
        if lost is None:
            return
        reason, tx, seq = lost
        error = EventsLostError(f"{reason}: {RESTART}")
        error.cursor = EventCursor(tx, seq, None, log.system, log.timeline).encode()
        raise error

    def _reason(self, log: LogState, *, follows: bool) -> tuple[str, int, int] | None:
        """Why the log does not go on from here, and from where it does; None if it does from here."""
        if follows and log.dropped > self.tx:
            taken = f"retention took events up to transaction {log.dropped}, and those behind {self.tx} were not read"
            return taken, log.dropped, _LAST_SEQ
        if self.system is not None and self.system != log.system:
            return f"the cursor is of another cluster ({self.system}; this is {log.system})", 0, 0
        reason = lost_events(self, log)
        return None if reason is None else (reason, self.tx, self.seq)


def lost_events(place: EventCursor, log: LogState) -> str | None:
    """Why events behind a place of this cluster may be missing from what a reader goes on with; None if none can be.

    ``log`` was asked for the event of the place.
    """
    if place.timeline == 0:
        # Of an earlier version: it names neither a timeline nor an event.
        ahead = place.tx > log.next_tx and not log.standby
        return f"the log has not come to transaction {place.tx}, so that was read elsewhere" if ahead else None
    same = place.timeline == log.timeline
    if log.known or (same and (place.happened_at is None or log.dropped >= place.tx)):
        return None
    if log.standby and place.tx >= log.horizon:
        # It has not received them yet, and what it has is before them.
        return None
    change = (
        f"on timeline {log.timeline}"
        if same
        else f"the reader has read on timeline {place.timeline}, and this server has gone on as timeline {log.timeline}"
    )
    return (
        f"the log does not have the last event that was read (transaction {place.tx}) any more: {change}, after a "
        "failover or a restore that did not keep all. Events of that time are lost, and new ones have got their numbers"
    )


def log_params(place: EventCursor | None) -> Parameters:
    """The parameters of ``read_log``."""
    if place is None or place.happened_at is None:
        return {"tx": "0", "seq": 0, "happened_at": None}
    return {"tx": str(place.tx), "seq": place.seq, "happened_at": place.happened_at.isoformat()}


def micros_of(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """The moment of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


LOOKED_AT = 10_000
"""Entries that are looked at for one page, at most."""

_FIRST, _LAST = ("0", 0), (str(2**64 - 1), 0)


def page(filter: EventFilter, request: PageRequest) -> Parameters:
    """Parameters of ``list_events``.

    Raises:
        InvalidCursorError: the cursor is not one of its.
    """
    low, high = _FIRST, _LAST
    if request.cursor is not None:
        cursor = EventCursor.decode(request.cursor)
        here = (str(cursor.tx), cursor.seq)
        low, high = (here, high) if request.oldest_first else (low, here)
    return {
        "low": low[0],
        "low_seq": low[1],
        "high": high[0],
        "high_seq": high[1],
        "settled": request.oldest_first,
        "types": None if filter.types is None else list(filter.types),
        "kinds": None if filter.kinds is None else list(filter.kinds),
        "chain": filter.chain_id,
        "most": LOOKED_AT,
        "limit": request.limit + 1,
    }


def read_on(request: PageRequest) -> EventCursor | None:
    """Where the page begins; None: with the first event.

    Raises:
        InvalidCursorError: the cursor is not one of this listing.
    """
    return None if request.cursor is None else EventCursor.decode(request.cursor)


def events(found: Sequence[Row], limit: int, log: LogState) -> Page[JobEvent]:
    """The page that rows of ``list_events`` make."""
    entries = [row for row in found if row[3] is not None]
    ends = [row for row in found if row[3] is None]
    items = tuple(_event(row, log) for row in entries[:limit])
    if len(entries) > limit:
        return Page(items, items[-1].cursor)
    return Page(items, _cursor(ends[0], log) if ends else None)


def _cursor(row: Row, log: LogState) -> str:
    return EventCursor(int(row[0]), row[1], row[2], log.system, log.timeline).encode()


def _event(row: Row, log: LogState) -> JobEvent:
    return JobEvent(
        tx=int(row[0]),
        seq=row[1],
        happened_at=row[2],
        kind=row[3],
        status=JobStatus(row[4]),
        job_id=row[5],
        chain_id=row[6],
        chain_index=row[7],
        type=row[8],
        chain_type=row[9],
        attempt=row[10],
        scheduled_at=row[11],
        started_at=row[12],
        worker=row[13],
        error=job_error(row[14]),
        cursor=_cursor(row, log),
    )


def log(levels: Sequence[Row], days: Sequence[Row]) -> EventLog:
    """The log as it is, from the rows of ``event_levels`` and ``list_partitions``."""
    [(level, keep_days)] = [row[1:] for row in levels if row[0] is None]
    return EventLog(
        level=EventLevel(level),
        levels={row[0]: EventLevel(row[1]) for row in sorted(levels, key=lambda row: row[0] or "") if row[0]},
        keep_days=keep_days,
        partitions=tuple(EventPartition(row[0], row[1], row[2]) for row in sorted(days, key=_by_day) if row[0]),
    )


def _by_day(row: Row) -> date:
    day: date | None = row[1]
    return day or date.max


STEPS = 40
"""What is done at most in one go."""

CHUNK = 5_000
"""Old events without a day that are deleted at a time."""

_REAL = "{} < pg_snapshot_xmax(pg_current_snapshot())"


class Task(Enum):
    """What can be done about a day."""

    MAKE = "make"
    EMPTY = "empty"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """Something to be done about a day."""

    task: Task
    day: date

    def statements(self, schema: str) -> list[bytes]:
        """The statements that do it. A new day is made apart and attached, which locks less than making it there."""
        log, table = f'"{schema}".job_event', f'"{schema}".job_event_{self.day:%Y%m%d}'
        if self.task is Task.EMPTY:
            # Who reads the log by transactions learns from it what is no longer there. A number that no transaction has
            # had yet was not written by a transition: it would tell all readers that all is lost, for good.
            newest = f"(SELECT tx FROM {table} WHERE {_REAL.format('tx')} ORDER BY tx DESC LIMIT 1)"
            before = f"CASE WHEN {_REAL.format('dropped_tx')} THEN dropped_tx ELSE '0' END"
            texts = [
                f'UPDATE "{schema}".event_log SET dropped_tx = greatest({before}, {newest})',
                f"TRUNCATE {table}",
            ]
        elif self.task is Task.DROP:
            texts = [f"DROP TABLE {table}"]
        else:
            bounds = f"FROM ('{self.day} 00:00:00+00') TO ('{self.day + timedelta(days=1)} 00:00:00+00')"
            texts = [
                f"CREATE TABLE {table} (LIKE {log} INCLUDING DEFAULTS INCLUDING INDEXES)",
                f"ALTER TABLE {log} ATTACH PARTITION {table} FOR VALUES {bounds}",
            ]
        return [text.encode() for text in texts]


def next_step(days: Sequence[Row], besides: Container[date]) -> Step | None:
    """What is to be done next, from the rows of ``list_partitions``; nothing about the days that are left out."""
    for _, day, _, filled, old, missing in days:
        if day is None or day in besides:
            continue
        if missing:
            return Step(Task.MAKE, day)
        if old:
            return Step(Task.EMPTY if filled else Task.DROP, day)
    return None


def has_strays(days: Sequence[Row]) -> bool:
    """Whether there may be events that have no day."""
    return any(day is None and filled for _, day, _, filled, _, _ in days)
