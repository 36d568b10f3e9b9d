"""The operations of a store on recurring schedules and pauses. ``sync_recurrence.py`` is generated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from queuert.state.adapter import NewJob, StartedJob
from queuert.state.recurrence import DueSchedules, PausedType, ScheduleRecord


class AsyncRecurrenceStore(Protocol):
    """Schedules have no leader: whoever sees a tick first writes its chain, and the others find it written."""

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. One that is there keeps its pause; if its times are the same, also its next tick."""
        ...

    async def delete_schedules(self, names: Sequence[str]) -> int:
        """Delete schedules; how many there were. Their chains stay."""
        ...

    async def list_schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        ...

    async def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause schedules, or let them go on; how many there are of these names. Ticks meanwhile count as missed."""
        ...

    async def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """The schedules of these job types whose next tick has come, and is not paused, the longest due first."""
        ...

    async def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and move it on, if its next tick still is ``tick``.

        Chains that exist (their ids are those of their ticks) are left as they are. But a job of another type that has
        the id does not stand for the tick: its chain is started under a new id. One answer for each of the jobs, in
        their order. None: somebody else fired it, it was changed or deleted; nothing was written.
        """
        ...

    async def pause_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Claim no more jobs of these types, anywhere. Running ones go on. Idempotent."""
        ...

    async def resume_types(self, types: Sequence[str]) -> list[str]:
        """Claim jobs of these types again; those that were paused."""
        ...

    async def paused_types(self) -> list[PausedType]:
        """The paused types, by name."""
        ...
