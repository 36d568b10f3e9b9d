"""The event log: rows of its statements, and the maintenance of its partitions. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum

from queuert.event_log import EventFilter, EventLevel, EventLog, EventPartition, JobEvent
from queuert.jobs import JobStatus
from queuert.state.paging import Page, PageRequest
from queuert.state.postgres.event_cursors import EventCursor, LogState
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.stored_json import job_error

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
