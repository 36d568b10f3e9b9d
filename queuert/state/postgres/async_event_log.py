"""The event log on Postgres. ``sync_event_log.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from psycopg import AsyncConnection
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
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch
from queuert.state.postgres.bounds import async_bounded
from queuert.state.postgres.event_log import LogState, Step, Task


class AsyncPostgresEventLog(AsyncPostgresBase):
    """Reads and maintains the event log."""

    async def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """List events by ``(tx, seq)``; with ``oldest_first`` only those before which no other can be committed."""
        statement = self._sql.list_events_oldest_first if page.oldest_first else self._sql.list_events
        params = event_log.page(filter, page)
        cursor = event_log.read_on(page)
        async with self._connections.connection() as connection:
            found = await fetch(connection, statement, params)
            # Read last: retention may have dropped events, or a standby been promoted, while the page was read.
            log = LogState.of((await fetch(connection, self._sql.read_log, event_log.log_params(cursor)))[0])
        log.check_owner()
        if cursor is not None:
            cursor.check(log, follows=page.oldest_first)
        return event_log.events(found, page.limit, log)

    async def event_log_end(self) -> EventLogEnd:
        """Return the end of the event log: readers are shown what is below the horizon."""
        [found] = await self._fetch(self._sql.read_log_end, event_log.log_params(None))
        return event_log.end(found)

    async def get_event_log(self) -> EventLog:
        """Return the settings of the log, and its partitions."""
        levels = await self._fetch(self._sql.event_levels)
        [(lag,)] = await self._fetch(self._sql.event_lag)
        return event_log.log(levels, await self._fetch(self._sql.list_partitions), lag)

    async def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or the default; None removes the level of the types."""
        if types is None:
            await self._fetch(self._sql.set_event_default, {"level": level, "days": None})
        elif level is None:
            await self._fetch(self._sql.delete_event_levels, {"types": list(types)})
        else:
            await self._fetch(self._sql.set_event_levels, {"level": level, "types": sorted(set(types))})

    async def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how many days events are kept."""
        refuse_max_events(max_events)
        if days is not None:
            await self._fetch(self._sql.set_event_default, {"level": None, "days": checked_keep(days)})

    async def maintain_event_log(self) -> EventLogMaintenance:
        """Create the partitions of the days to come and drop old ones, each step in a transaction of its own."""
        done: dict[Task, list[date]] = {task: [] for task in Task}
        postponed: list[date] = []
        more = True
        async with self._connections.connection() as connection:
            for _ in range(event_log.STEPS):
                try:
                    step = await self._tend(connection, postponed)
                except (LockNotAvailable, CheckViolation):
                    # The step was postponed: another transaction locks the partition, or the default partition has rows
                    # of its day.
                    step = event_log.next_step(await fetch(connection, self._sql.list_partitions), postponed)
                    postponed += [step.day] if step else []
                    continue
                if step is None:
                    more = False
                    break
                done[step.task].append(step.day)
            deleted, more_strays = await self._forget_strays(connection)
        made, dropped = tuple(done[Task.MAKE]), tuple(done[Task.DROP])
        # If all steps were postponed, another call now would find the same locks.
        return EventLogMaintenance(
            made, dropped, tuple(postponed), deleted, more_strays or (more and any(done.values()))
        )

    async def _tend(self, connection: AsyncConnection[Any], postponed: Sequence[date]) -> Step | None:
        """Do the next step. None if there is none, or if another process is maintaining the log."""
        async with async_bounded(connection):
            [(mine, _)] = await fetch(connection, self._sql.try_maintenance_lock)
            step = event_log.next_step(await fetch(connection, self._sql.list_partitions), postponed) if mine else None
            for statement in step.statements(self._settings.schema) if step else ():
                await connection.execute(statement)
            return step

    async def _forget_strays(self, connection: AsyncConnection[Any]) -> tuple[int, bool]:
        """Delete old events in the default partition. Returns how many, and whether there may be more."""
        if not event_log.has_strays(await fetch(connection, self._sql.list_partitions)):
            return 0, False
        deleted = 0
        for _ in range(event_log.STEPS):
            async with async_bounded(connection):
                [(mine, _)] = await fetch(connection, self._sql.try_maintenance_lock)
                params = {"limit": event_log.CHUNK}
                found = await fetch(connection, self._sql.delete_events, params) if mine else []
            deleted += len(found)
            if len(found) < event_log.CHUNK:
                return deleted, False
        return deleted, True
