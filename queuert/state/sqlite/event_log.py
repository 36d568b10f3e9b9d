"""The event log on SQLite: a table, whose rows are written in the transaction of the change.

One transaction writes at a time, so numbers are in the order of commits: when an event is visible, all before it are.
A cursor has the id of the log, and the time of the event that was read last: another file, or an older copy of this
one, does not have that event.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from queuert.event_log import (
    EventFilter,
    EventKind,
    EventLevel,
    EventLog,
    EventLogEnd,
    EventLogMaintenance,
    JobEvent,
    checked_keep,
    refuse_max_events,
)
from queuert.jobs import JobStatus
from queuert.state import records
from queuert.state.numbered_log import LogCursor, NumberedLog
from queuert.state.paging import Page, PageRequest
from queuert.state.sqlite import rows
from queuert.state.sqlite.base import SQLiteBase
from queuert.state.sqlite.connection import Row, execute, fetch_value, now_us, run

Connection = sqlite3.Connection

LOOKED_AT = 10_000
"""The largest number of events that are read for one page. Numbers have no gaps, so it is a range of them."""

CHUNK = 5_000
"""The number of old events that are deleted in one transaction."""

_DAY = 86_400_000_000


def add_event(
    connection: Connection, kind: EventKind, job_id: str, *, of_worker: bool = False, status: JobStatus | None = None
) -> None:
    """Write an event of a job as its row is now; ``of_worker`` names the holder of the job as its worker."""
    values = {"kind": kind.value, "id": job_id, "of_worker": of_worker}
    run(connection, "add_event", now=now_us(), status=None if status is None else status.value, **values)


_EVENT_TIMES = records.places(records.EVENT, "happened_at", "scheduled_at", "started_at")
_SEQ, _HAPPENED_AT = records.places(records.EVENT, "seq", "happened_at")


class SQLiteEventLog(SQLiteBase):
    """Reads and maintains the event log."""

    def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """List events by their numbers. What is visible was committed, and so was all before it."""
        cursor = None if page.cursor is None else LogCursor.decode(page.cursor)
        values = {
            "types": None if filter.types is None else json.dumps(filter.types),
            "kinds": None if filter.kinds is None else json.dumps(filter.kinds),
            "chain": filter.chain_id,
            "limit": page.limit + 1,
        }
        with self._reading() as connection:
            [(_, _, log, dropped, last)] = run(connection, "event_log")
            if cursor is not None:
                found_at = fetch_value(connection, "event_time", seq=cursor.seq)
                numbered = NumberedLog(log, dropped, last, "another file", "the file is an older copy")
                cursor.check(numbered, found_at, follows=page.oldest_first)
            if page.oldest_first:
                low = dropped if cursor is None else cursor.seq
                end = low + LOOKED_AT
                found = run(connection, "list_events_oldest_first", low=low, high=end + 1, **values)
                more = end < last
            else:
                high = last + 1 if cursor is None else cursor.seq
                end = high - LOOKED_AT
                found = run(connection, "list_events", low=end - 1, high=high, **values)
                more = end > dropped + 1
            end_time = fetch_value(connection, "event_time", seq=end)
        events = tuple(_event(row, log) for row in found[: page.limit])
        if len(found) > page.limit:
            return Page(events, events[-1].cursor)
        return Page(events, LogCursor(end, log, end_time).encode() if more else None)

    def event_log_end(self) -> EventLogEnd:
        """Return the end of the event log."""
        with self._reading() as connection:
            [(_, _, log, _, last)] = run(connection, "event_log")
            last_time = fetch_value(connection, "event_time", seq=last)
        cursor = LogCursor(last, log, last_time).encode()
        return EventLogEnd(cursor, settled=last + 1, written=last + 1)

    def get_event_log(self) -> EventLog:
        """Return the settings of the log, which has no partitions."""
        with self._reading() as connection:
            [(level, keep_days, _, _, _)] = run(connection, "event_log")
            levels = {type: EventLevel(one) for type, one in run(connection, "event_levels")}
        return EventLog(EventLevel(level), levels, keep_days, partitions=(), lag=0.0)

    def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or the default; None removes the level of the types."""
        with self._writing() as connection:
            if types is None:
                run(connection, "set_event_default", level=None if level is None else level.value, days=None)
            for type in types or ():
                if level is None:
                    run(connection, "delete_event_level", type=type)
                else:
                    run(connection, "set_event_level", type=type, level=level.value)

    def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how many days events are kept."""
        refuse_max_events(max_events)
        if days is not None:
            with self._writing() as connection:
                run(connection, "set_event_default", level=None, days=checked_keep(days))

    def maintain_event_log(self) -> EventLogMaintenance:
        """Delete events that are too old, some at a time."""
        with self._reading() as connection:
            [(_, days, _, _, _)] = run(connection, "event_log")
            oldest = fetch_value(connection, "oldest_event_time")
        # Whole days, as on Postgres: a day is deleted when it is older than those to keep.
        before = (now_us() // _DAY - days) * _DAY
        if oldest is None or oldest >= before:
            return EventLogMaintenance()
        with self._writing() as connection:
            [(last,)] = run(connection, "old_events", limit=CHUNK, before=before)
            deleted = 0 if last is None else execute(connection, "delete_old_events", seq=last)
            if deleted:
                run(connection, "set_dropped_events", seq=last)
        return EventLogMaintenance(deleted=deleted, more=deleted == CHUNK)


def _event(row: Row, log: str) -> JobEvent:
    return records.event(rows.with_times(row, _EVENT_TIMES), LogCursor(row[_SEQ], log, row[_HAPPENED_AT]).encode())
