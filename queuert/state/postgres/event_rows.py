"""The event log: parameters and rows of its statements, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

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
    """The log as it is, from the rows of ``event_levels`` and ``event_days``."""
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
