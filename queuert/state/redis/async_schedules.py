"""Recurring schedules and pauses on Redis. ``sync_schedules.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from queuert.schedules import check_owners, tick_of
from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import AsyncRedisBase
from queuert.state.types import DueSchedules, NewJob, PausedType, ScheduleDelay, ScheduleRecord, StartedJob


class AsyncRedisSchedules(AsyncRedisBase):
    """Operations on recurring schedules and on pauses of job types."""

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name."""
        if schedules:
            now, *_ = await self._run("list_schedules", [])
            refused = await self._commit("put_schedules", encode.schedules(schedules, decode.moment(now)))
            owners = {schedule.name: schedule.owner for schedule in schedules}
            if refused:
                name, *owner = map(decode.text, refused)
                check_owners(owners, [(name, owner[0] if owner else None)])

    async def delete_schedules(self, names: Sequence[str], *, owner: str | None = None) -> int:
        """Delete schedules, with ``owner`` only those of the owner; return how many were deleted."""
        params = {"names": list(names), **({} if owner is None else {"owner": owner})}
        return int(await self._commit("delete_schedules", encode.plain(params)))

    async def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        _, *found = await self._run("list_schedules", [])
        return sorted(map(decode.schedule, found), key=lambda one: one.name)

    async def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist."""
        params = {"names": list(dict.fromkeys(names)), "paused": paused}
        return int(await self._commit("pause_schedules", encode.plain(params)))

    async def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules whose next tick has come."""
        return decode.due_schedules(await self._run("list_schedules", []), types, limit)

    async def schedule_delays(self) -> list[ScheduleDelay]:
        """The schedules of all types that are due, the longest due first."""
        return decode.schedule_delays(await self._run("list_schedules", []))

    async def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it."""
        last_at = max((tick_of(job.id) for job in jobs), default=None)
        answer = await self._run("fire_schedule", encode.fire(name, tick, next_at, last_at, jobs))
        return None if answer == 0 else [decode.started(one) for one in decode.unpacked(answer)]

    async def run_schedule(self, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
        """Start chains of a schedule out of turn."""
        answer = await self._commit("fire_schedule", encode.run_schedule(name, jobs, overlap=overlap))
        return None if answer == 0 else [decode.started(one) for one in decode.unpacked(answer)]

    async def pause_job_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Stop all claims of these job types."""
        why = [] if reason is None else [reason]
        await self._commit("pause_job_types", [*encode.plain(list(types)), *why])

    async def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        return sorted(map(decode.text, await self._commit("resume_job_types", encode.plain(list(types)))))

    async def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        flat = await self._run("list_paused_job_types", [])
        found = [decode.paused_type(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]
        return sorted(found, key=lambda one: one.type)
