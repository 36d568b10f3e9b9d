# Generated from queuert/state/postgres/async_event_log.py, do not edit: see scripts/unasync.py
"""The event log on Postgres. ``sync_event_log.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from psycopg import Connection
from psycopg.errors import CheckViolation, LockNotAvailable

from queuert.event_log import (
    EventFilter,
    EventLevel,
    EventLog,
    EventLogEnd,
    EventLogMaintenance,
    JobEvent,
    checked_keep,
    refuse_max_events,
)
from queuert.state.paging import Page, PageRequest
from queuert.state.postgres import event_log
from queuert.state.postgres.bounds import sync_bounded
from queuert.state.postgres.event_log import LogState, Step, Task
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch


class PostgresEventLog(PostgresBase):
    """Reads and maintains the event log."""

    def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """List events by ``(tx, seq)``; with ``oldest_first`` only those before which no other can be committed."""
        statement = self._sql.list_events_oldest_first if page.oldest_first else self._sql.list_events
        params = event_log.page(filter, page)
        cursor = event_log.read_on(page)
        with self._connections.connection() as connection:
            found = fetch(connection, statement, params)
            # Read last: retention may have dropped events, or a standby been promoted, while the page was read.
            log = LogState.of((fetch(connection, self._sql.read_log, event_log.log_params(cursor)))[0])
        log.check_owner()
        if cursor is not None:
            cursor.check(log, follows=page.oldest_first)
        return event_log.events(found, page.limit, log)

    def event_log_end(self) -> EventLogEnd:
        """Return the end of the event log: readers are shown what is below the horizon."""
        [found] = self._fetch(self._sql.read_log_end, event_log.log_params(None))
        return event_log.end(found)

    def get_event_log(self) -> EventLog:
        """Return the settings of the log, and its partitions."""
        levels = self._fetch(self._sql.event_levels)
        [(lag,)] = self._fetch(self._sql.event_lag)
        return event_log.log(levels, self._fetch(self._sql.list_partitions), lag)

    def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or the default; None removes the level of the types."""
        if types is None:
            self._fetch(self._sql.set_event_default, {"level": level, "days": None})
        elif level is None:
            self._fetch(self._sql.delete_event_levels, {"types": list(types)})
        else:
            self._fetch(self._sql.set_event_levels, {"level": level, "types": sorted(set(types))})

    def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how many days events are kept."""
        refuse_max_events(max_events)
        if days is not None:
            self._fetch(self._sql.set_event_default, {"level": None, "days": checked_keep(days)})

    def maintain_event_log(self) -> EventLogMaintenance:
        """Create the partitions of the days to come and drop old ones, each step in a transaction of its own."""
        done: dict[Task, list[date]] = {task: [] for task in Task}
        postponed: list[date] = []
        more = True
        with self._connections.connection() as connection:
            for _ in range(event_log.STEPS):
                try:
                    step = self._tend(connection, postponed)
                except (LockNotAvailable, CheckViolation):
                    # The step was postponed: another transaction locks the partition, or the default partition has rows
                    # of its day.
                    step = event_log.next_step(fetch(connection, self._sql.list_partitions), postponed)
                    postponed += [step.day] if step else []
                    continue
                if step is None:
                    more = False
                    break
                done[step.task].append(step.day)
            deleted, more_strays = self._forget_strays(connection)
        made, dropped = tuple(done[Task.MAKE]), tuple(done[Task.DROP])
        # If all steps were postponed, another call now would find the same locks.
        return EventLogMaintenance(
            made, dropped, tuple(postponed), deleted, more_strays or (more and any(done.values()))
        )

    def _tend(self, connection: Connection[Any], postponed: Sequence[date]) -> Step | None:
        """Do the next step. None if there is none, or if another process is maintaining the log."""
        with sync_bounded(connection):
            [(mine, _)] = fetch(connection, self._sql.try_maintenance_lock)
            step = event_log.next_step(fetch(connection, self._sql.list_partitions), postponed) if mine else None
            for statement in step.statements(self._settings.schema) if step else ():
                connection.execute(statement)
            return step

    def _forget_strays(self, connection: Connection[Any]) -> tuple[int, bool]:
        """Delete old events in the default partition. Returns how many, and whether there may be more."""
        if not event_log.has_strays(fetch(connection, self._sql.list_partitions)):
            return 0, False
        deleted = 0
        for _ in range(event_log.STEPS):
            with sync_bounded(connection):
                [(mine, _)] = fetch(connection, self._sql.try_maintenance_lock)
                params = {"limit": event_log.CHUNK}
                found = fetch(connection, self._sql.delete_events, params) if mine else []
            deleted += len(found)
            if len(found) < event_log.CHUNK:
                return deleted, False
        return deleted, True
