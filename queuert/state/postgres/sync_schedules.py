# Generated from queuert/state/postgres/async_schedules.py, do not edit: see scripts/unasync.py
"""Recurring schedules and pauses on Postgres. ``sync_schedules.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from queuert.state import records
from queuert.state.postgres import schedules as schedule_rows
from queuert.state.postgres.other_drivers import AnyConnection
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import DueSchedules, NewJob, PausedType, ScheduleDelay, ScheduleRecord, StartedJob


class PostgresSchedules(PostgresBase):
    """Operations on recurring schedules and on pauses of job types."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. An existing one stays paused, and keeps its next tick if its times are the same."""
        if schedules:
            [[now]] = self._fetch(self._sql.now)
            self._fetch(self._sql.put_schedules, schedule_rows.put(schedules, now))

    def delete_schedules(self, names: Sequence[str]) -> int:
        """Delete schedules and return how many existed. Their chains remain."""
        return len(self._fetch(self._sql.delete_schedules, {"names": list(names)})) if names else 0

    def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        return [records.schedule(row) for row in self._fetch(self._sql.list_schedules)]

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist. Ticks during a pause count as missed."""
        params = {"names": list(names), "paused": paused}
        return len(self._fetch(self._sql.pause_schedules, params)) if names else 0

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules of these job types that are due and not paused, the longest due first."""
        params = {"types": list(types), "limit": limit}
        return schedule_rows.due(self._fetch(self._sql.due_schedules, params), limit)

    def schedule_delays(self) -> list[ScheduleDelay]:
        """The schedules of all types that are due, the longest due first."""
        return [ScheduleDelay(*row) for row in self._fetch(self._sql.schedule_delays)]

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it, if its next tick still is ``tick``."""
        with self._transaction() as connection:
            if not fetch(connection, self._sql.advance_schedule, schedule_rows.fire(name, tick, next_at, jobs)):
                return None
            return self._start_ticks(connection, jobs) if jobs else []

    def _start_ticks(self, connection: AnyConnection, jobs: Sequence[NewJob]) -> list[StartedJob]:
        found = schedule_rows.started(fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(jobs)))
        if unseen := [job for job in jobs if job.id not in found]:
            # Other transactions committed these ids after the statement began: the next statement sees them.
            found |= schedule_rows.started(fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(unseen)))
        if moved := schedule_rows.moved(jobs, found):
            rows = fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(list(moved.values())))
            beside = schedule_rows.started(rows)
            found |= {id: beside[job.id] for id, job in moved.items()}
        return [found[job.id] for job in jobs]

    # --- pauses -------------------------------------------------------------------------------------------------------

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Stop all claims of these job types. Running jobs keep running. Idempotent."""
        if types:
            self._fetch(self._sql.pause_job_types, {"types": sorted(set(types)), "reason": reason})

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        if not types:
            return []
        return sorted(row[0] for row in self._fetch(self._sql.resume_job_types, {"types": list(types)}))

    def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        return [schedule_rows.paused_type(row) for row in self._fetch(self._sql.list_paused_job_types)]
