"""The event log: rows of its statements, cursors of its readers, and the maintenance of its partitions. Pure functions.

Transaction numbers belong to one history of one cluster. After a failover to a standby that had not received
everything, or after a restore, numbers that readers have passed are assigned again, and readers would skip the events
with them. So a cursor contains the cluster, the timeline, and the event that was read last. As long as the log has that
event, each number up to it was assigned before, and no event can be added before it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum

from queuert.errors import DatabaseMovedError, EventsLostError, InvalidCursorError
from queuert.event_log import EventFilter, EventLevel, EventLog, EventLogEnd, EventPartition, JobEvent
from queuert.state import records
from queuert.state.paging import Page, PageRequest, Position
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEHIND = re.compile(r"(?P<seq>\d{1,19})(?::(\d{1,20}):(\d{1,10}):(\d{1,18})?)?", re.ASCII)
_LAST_SEQ = 2**63 - 1

RESTART = "begin anew without a cursor, which shows all that the log has, or go on from the cursor of this error"


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of the log on the server that was queried.

    Attributes:
        horizon: all transactions below it have ended.
        next_tx: the next transaction number to be assigned.
        dropped: the newest transaction of which retention has dropped events.
        owner: the cluster that assigned the numbers in the log.
        system: the cluster that the server belongs to.
        timeline: the number of the cluster's history; a promoted standby begins the next.
        standby: whether the server replicates another one, which may be ahead of it.
        known: whether the log has the event of the query's parameters.
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
        """Decode the row of ``read_log``."""
        horizon, next_tx, dropped, owner, system, timeline, standby, known = row
        return cls(int(horizon), int(next_tx), int(dropped), owner, system, timeline, standby, known)

    def check_owner(self) -> None:
        """Check that the numbers in the log belong to the cluster of the server.

        Raises:
            DatabaseMovedError: they belong to another cluster; see :func:`moved_text`.
        """
        check_owner(self.owner, self.system)


def check_owner(owner: str, system: str) -> None:
    """Check that the transaction numbers of the database belong to its cluster.

    Raises:
        DatabaseMovedError: they belong to another cluster; see :func:`moved_text`.
    """
    if owner != system:
        raise DatabaseMovedError(moved_text(owner, system))


def moved_text(owner: str, system: str) -> str:
    """Return the text that says what is wrong with a moved database, and what to do."""
    return (
        f"the event log and the jobs have transaction numbers of another cluster ({owner}; this is {system}): the "
        "database was moved here. Stop the workers and run queuert migrate adopt"
    )


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The position after an event in the log.

    Attributes:
        tx: the transaction of the event.
        seq: the number of the event.
        happened_at: the time of the event; None if the cursor has only the numbers and no event.
        system: the cluster; None for a cursor of an earlier version, which names no cluster and no timeline.
        timeline: the timeline of the cluster; 0 if unknown.
    """

    tx: int
    seq: int
    happened_at: datetime | None = None
    system: str | None = None
    timeline: int = 0

    @classmethod
    def decode(cls, text: str) -> EventCursor:
        """Decode a cursor of :meth:`encode`, of this version or an earlier one.

        Raises:
            InvalidCursorError: the text is not a cursor of the event log.
        """
        position = Position.decode(text)
        behind = _BEHIND.fullmatch(position.id)
        tx = int(position.key) if re.fullmatch(r"\d{1,20}", position.key, re.ASCII) else 2**64
        if behind is None or tx >= 2**64 or int(behind["seq"]) > _LAST_SEQ:
            raise InvalidCursorError(text)
        seq, system, timeline, micros = behind.groups()
        try:
            moment = None if micros is None else moment_of(int(micros))
        except OverflowError:
            raise InvalidCursorError(text) from None
        return cls(tx, int(seq), moment, system, int(timeline or 0))

    def encode(self) -> str:
        """Return the cursor as opaque text."""
        if self.system is None:
            return Position(str(self.tx), str(self.seq)).encode()
        micros = "" if self.happened_at is None else micros_of(self.happened_at)
        return Position(str(self.tx), f"{self.seq}:{self.system}:{self.timeline}:{micros}").encode()

    def check(self, log: LogState, *, follows: bool) -> None:
        """Check that the log of this server continues from here. With ``follows``, no event after the cursor may be
        missing.

        Raises:
            EventsLostError: it does not; the error has the cursor to continue from.
        """
        lost = self._reason(log, follows=follows)
        if lost is None:
            return
        reason, tx, seq = lost
        error = EventsLostError(f"{reason}: {RESTART}")
        error.cursor = EventCursor(tx, seq, None, log.system, log.timeline).encode()
        raise error

    def _reason(self, log: LogState, *, follows: bool) -> tuple[str, int, int] | None:
        """Return why the log does not continue from here, and where it does; None if it continues."""
        if follows and log.dropped > self.tx:
            taken = f"retention took events up to transaction {log.dropped}, and those behind {self.tx} were not read"
            return taken, log.dropped, _LAST_SEQ
        if self.system is not None and self.system != log.system:
            return f"the cursor is of another cluster ({self.system}; this is {log.system})", 0, 0
        reason = lost_events(self, log)
        return None if reason is None else (reason, self.tx, self.seq)


def lost_events(cursor: EventCursor, log: LogState) -> str | None:
    """Return why events after a position of this cluster may be missing for its reader; None if none can be.

    ``log`` is the state of the log, queried for the event of the position.
    """
    if cursor.timeline == 0:
        # A cursor of an earlier version has neither a timeline nor an event.
        ahead = cursor.tx > log.next_tx and not log.standby
        return f"the log has not reached transaction {cursor.tx}, so the cursor is of another server" if ahead else None
    same = cursor.timeline == log.timeline
    if log.known or (same and (cursor.happened_at is None or log.dropped >= cursor.tx)):
        return None
    if log.standby and cursor.tx >= log.horizon:
        # The standby has not received the event yet, and all that it has is before it.
        return None
    change = (
        f"on timeline {log.timeline}"
        if same
        else f"the cursor is of timeline {cursor.timeline}, and this server is on timeline {log.timeline}"
    )
    return (
        f"the log no longer has the last event that was read (transaction {cursor.tx}): {change}, after a failover or "
        "a restore that did not keep all. Events of that time are lost, and new ones have got their numbers"
    )


def log_params(cursor: EventCursor | None) -> Parameters:
    """Return the parameters of ``read_log``."""
    if cursor is None or cursor.happened_at is None:
        return {"tx": "0", "seq": 0, "happened_at": None}
    return {"tx": str(cursor.tx), "seq": cursor.seq, "happened_at": cursor.happened_at.isoformat()}


def micros_of(moment: datetime) -> int:
    """Return the microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """Return the time that is so many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=micros)


LOOKED_AT = 10_000
"""The largest number of entries that are read for one page."""

_FIRST, _LAST = ("0", 0), (str(2**64 - 1), 0)


def page(filter: EventFilter, request: PageRequest) -> Parameters:
    """Return the parameters of ``list_events``.

    Raises:
        InvalidCursorError: the cursor is not one of this listing.
    """
    low, high = _FIRST, _LAST
    if request.cursor is not None:
        cursor = EventCursor.decode(request.cursor)
        here = (str(cursor.tx), cursor.seq)
        low, high = (here, high) if request.oldest_first else (low, here)
    (low_tx, low_seq), (high_tx, high_seq) = low, high
    return {
        "low": low_tx,
        "low_seq": low_seq,
        "high": high_tx,
        "high_seq": high_seq,
        "settled": request.oldest_first,
        "types": None if filter.types is None else list(filter.types),
        "kinds": None if filter.kinds is None else list(filter.kinds),
        "chain": filter.chain_id,
        "most": LOOKED_AT,
        "limit": request.limit + 1,
    }


def read_on(request: PageRequest) -> EventCursor | None:
    """Return the position after which the page begins; None for the first event.

    Raises:
        InvalidCursorError: the cursor is not one of this listing.
    """
    return None if request.cursor is None else EventCursor.decode(request.cursor)


_TX, _SEQ, _HAPPENED_AT, _KIND = records.places(records.EVENT, "tx", "seq", "happened_at", "kind")


def events(found: Sequence[Row], limit: int, log: LogState) -> Page[JobEvent]:
    """Make a page of the rows of ``list_events``."""
    entries = [row for row in found if row[_KIND] is not None]
    ends = [row for row in found if row[_KIND] is None]
    items = tuple(_event(row, log) for row in entries[:limit])
    if len(entries) > limit:
        return Page(items, items[-1].cursor)
    return Page(items, _cursor(ends[0], log) if ends else None)


def end(row: Row) -> EventLogEnd:
    """Return the end of the log, before the transactions that have not ended, from the row of ``read_log_end``.

    The cursor names the last event below them, so that a reader who waits there goes on after a failover that has kept
    it. If the log has none, there is nothing to tell that by.

    Raises:
        DatabaseMovedError: the numbers in the log belong to another cluster.
    """
    *state, tx, seq, happened_at = row
    log = LogState.of(tuple(state))
    log.check_owner()
    # Retention may have dropped newer events than the last one, whose day was locked: a cursor there would be lost.
    if tx is None or int(tx) < log.dropped:
        cursor = EventCursor(log.horizon, 0, None, log.system, log.timeline)
    else:
        cursor = EventCursor(int(tx), seq, happened_at, log.system, log.timeline)
    return EventLogEnd(cursor.encode(), settled=log.horizon, written=log.next_tx)


def _cursor(row: Row, log: LogState) -> str:
    return EventCursor(int(row[_TX]), row[_SEQ], row[_HAPPENED_AT], log.system, log.timeline).encode()


def _event(row: Row, log: LogState) -> JobEvent:
    return records.event(row, _cursor(row, log))


def log(levels: Sequence[Row], days: Sequence[Row], lag: float) -> EventLog:
    """Make the description of the log from the rows of ``event_levels`` and ``list_partitions``, and ``event_lag``."""
    [(default, keep_days)] = [(level, keep_days) for type, level, keep_days in levels if type is None]
    own_levels = sorted((type, EventLevel(level)) for type, level, _ in levels if type is not None)
    partitions = [EventPartition(name, day, size) for name, day, size, _, _, _ in days if name is not None]
    return EventLog(
        level=EventLevel(default),
        levels=dict(own_levels),
        keep_days=keep_days,
        partitions=tuple(sorted(partitions, key=lambda part: part.day or date.max)),
        lag=lag,
    )


STEPS = 40
"""The largest number of steps of one round of maintenance."""

CHUNK = 5_000
"""The number of old events in the default partition that are deleted at a time."""

_REAL = "{} < pg_snapshot_xmax(pg_current_snapshot())"


class Task(Enum):
    """What maintenance can do with a partition."""

    MAKE = "make"
    EMPTY = "empty"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of maintenance."""

    task: Task
    day: date

    def statements(self, schema: str) -> list[bytes]:
        """Return the statements of the step. A partition is created apart and then attached, which needs weaker
        locks."""
        log, table = f'"{schema}".job_event', f'"{schema}".job_event_{self.day:%Y%m%d}'
        if self.task is Task.EMPTY:
            # Readers by transactions learn from this record which events were dropped. A number that no transaction has
            # had yet was not written by a transition: it would tell all readers for good that all their events are
            # lost.
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
    """Return the next step, from the rows of ``list_partitions``; None if there is none besides the excluded days."""
    for _, day, _, filled, old, missing in days:
        if day is None or day in besides:
            continue
        if missing:
            return Step(Task.MAKE, day)
        if old:
            return Step(Task.EMPTY if filled else Task.DROP, day)
    return None


def has_strays(days: Sequence[Row]) -> bool:
    """Whether the default partition may have events."""
    return any(day is None and filled for _, day, _, filled, _, _ in days)
