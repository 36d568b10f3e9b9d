# Generated from queuert/state/postgres/async_schedules.py, do not edit: see scripts/unasync.py
"""Recurring schedules and pauses on Postgres. ``sync_recurrence.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from psycopg import Connection

from queuert.state import records
from queuert.state.postgres import schedules as schedule_rows
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import DueSchedules, NewJob, PausedType, ScheduleRecord, StartedJob


class PostgresSchedules(PostgresBase):
    """Recurring schedules and pauses."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. One that is there keeps its pause; if its times are the same, also its next tick."""
        if schedules:
            [[now]] = self._fetch(self._sql.now)
            self._fetch(self._sql.put_schedules, schedule_rows.put(schedules, now))

    def delete_schedules(self, names: Sequence[str]) -> int:
        """Delete schedules; how many there were. Their chains stay."""
        return len(self._fetch(self._sql.delete_schedules, {"names": list(names)})) if names else 0

    def list_schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        return [records.schedule(row) for row in self._fetch(self._sql.list_schedules)]

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause schedules, or let them go on; how many there are of these names. Ticks meanwhile count as missed."""
        params = {"names": list(names), "paused": paused}
        return len(self._fetch(self._sql.pause_schedules, params)) if names else 0

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """The schedules of these job types whose next tick has come, and is not paused, the longest due first."""
        params = {"types": list(types), "limit": limit}
        return schedule_rows.due(self._fetch(self._sql.due_schedules, params), limit)

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and move it on, if its next tick still is ``tick``."""
        with self._transaction() as connection:
            if not fetch(connection, self._sql.fire_schedule, schedule_rows.fire(name, tick, next_at, jobs)):
                return None
            return self._start_ticks(connection, jobs) if jobs else []

    def _start_ticks(self, connection: Connection[Any], jobs: Sequence[NewJob]) -> list[StartedJob]:
        found = schedule_rows.started(fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(jobs)))
        if unseen := [job for job in jobs if job.id not in found]:
            # Somebody has committed them since the statement began: the next one sees them.
            found |= schedule_rows.started(fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(unseen)))
        if moved := schedule_rows.moved(jobs, found):
            rows = fetch(connection, self._sql.start_scheduled, schedule_rows.ticks(list(moved.values())))
            beside = schedule_rows.started(rows)
            found |= {id: beside[job.id] for id, job in moved.items()}
        return [found[job.id] for job in jobs]

    # --- pauses -------------------------------------------------------------------------------------------------------

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Claim no more jobs of these types, anywhere. Running ones go on. Idempotent."""
        if types:
            self._fetch(self._sql.pause_job_types, {"types": sorted(set(types)), "reason": reason})

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Claim jobs of these types again; those that were paused."""
        if not types:
            return []
        return sorted(row[0] for row in self._fetch(self._sql.resume_job_types, {"types": list(types)}))

    def list_paused_job_types(self) -> list[PausedType]:
        """The paused types, by name."""
        return [schedule_rows.paused_type(row) for row in self._fetch(self._sql.list_paused_job_types)]
