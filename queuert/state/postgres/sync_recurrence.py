# Generated from queuert/state/postgres/async_recurrence.py, do not edit: see scripts/unasync.py
"""Recurring schedules and pauses on Postgres. ``sync_recurrence.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from queuert.state.adapter import NewJob, StartedJob
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.recurrence import DueSchedules, PausedType, ScheduleRecord


class PostgresRecurrence(PostgresBase):
    """Recurring schedules and pauses."""

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. One that is there keeps its pause; if its times are the same, also its next tick."""
        raise NotImplementedError

    def delete_schedules(self, names: Sequence[str]) -> int:
        """Delete schedules; how many there were. Their chains stay."""
        raise NotImplementedError

    def list_schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        raise NotImplementedError

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause schedules, or let them go on; how many there are of these names. Ticks meanwhile count as missed."""
        raise NotImplementedError

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """The schedules of these job types whose next tick has come, and is not paused, the longest due first."""
        raise NotImplementedError

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and move it on, if its next tick still is ``tick``."""
        raise NotImplementedError

    def pause_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Claim no more jobs of these types, anywhere. Running ones go on. Idempotent."""
        raise NotImplementedError

    def resume_types(self, types: Sequence[str]) -> list[str]:
        """Claim jobs of these types again; those that were paused."""
        raise NotImplementedError

    def paused_types(self) -> list[PausedType]:
        """The paused types, by name."""
        raise NotImplementedError
