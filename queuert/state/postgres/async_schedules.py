"""Recurring schedules and pauses on Postgres. ``sync_schedules.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from queuert.errors import ScheduleOverlapError
from queuert.limits import PausedType
from queuert.schedules import Overlap, check_owners
from queuert.state import records
from queuert.state.postgres import schedules as schedule_rows
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch, insert_jobs
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.types import DueSchedules, NewJob, ScheduleDelay, ScheduleRecord, StartedJob


class AsyncPostgresSchedules(AsyncPostgresBase):
    """Operations on recurring schedules and on pauses of job types."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. An existing one stays paused, and keeps its next tick if its times are the same."""
        if not schedules:
            return
        owners = {schedule.name: schedule.owner for schedule in schedules}
        [[now]] = await self._fetch(self._sql.now)
        async with self._transaction() as connection:
            await fetch(connection, self._sql.put_schedules, schedule_rows.put(schedules, now))
            check_owners(owners, await fetch(connection, self._sql.schedule_owners, {"names": list(owners)}))

    async def delete_schedules(self, names: Sequence[str], *, owner: str | None = None) -> int:
        """Delete schedules, with ``owner`` only those of the owner; return how many were deleted."""
        params = {"names": list(names), "owner": owner}
        return len(await self._fetch(self._sql.delete_schedules, params)) if names else 0

    async def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        return [records.schedule(row) for row in await self._fetch(self._sql.list_schedules)]

    async def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist. Ticks during a pause count as missed."""
        params = {"names": list(names), "paused": paused}
        return len(await self._fetch(self._sql.pause_schedules, params)) if names else 0

    async def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules of these job types that are due and not paused, the longest due first."""
        params = {"types": list(types), "limit": limit}
        return schedule_rows.due(await self._fetch(self._sql.due_schedules, params), limit)

    async def schedule_delays(self) -> list[ScheduleDelay]:
        """The schedules of all types that are due, the longest due first."""
        return [ScheduleDelay(*row) for row in await self._fetch(self._sql.schedule_delays)]

    async def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it, if its next tick still is ``tick``."""
        async with self._transaction() as connection:
            found = await fetch(connection, self._sql.lock_due_schedule, {"name": name, "tick": tick})
            if not found:
                return None
            [(_, policy, last_chain_id)] = found
            overlap = await self._overlap(connection, policy, last_chain_id, jobs) if jobs else None
            if overlap is Overlap.CANCEL:
                raise ScheduleOverlapError(name, last_chain_id)
            started = [] if overlap is Overlap.SKIP else await self._start_ticks(connection, jobs)
            fired = jobs if started else ()
            await fetch(connection, self._sql.advance_schedule, schedule_rows.advance(name, next_at, fired, started))
            return started

    async def run_schedule(self, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
        """Start chains of a schedule out of turn."""
        async with self._transaction() as connection:
            found = await fetch(connection, self._sql.lock_schedule, {"name": name})
            if not found:
                return None
            [(type, policy, last_chain_id)] = found
            if type != jobs[0].type:
                return None
            if overlap:
                return await self._start_ticks(connection, jobs)
            held = await self._overlap(connection, policy, last_chain_id, jobs)
            if held is not None:
                return None if held is Overlap.CANCEL else []
            started = await self._start_ticks(connection, jobs)
            # A call that is repeated leaves the schedule as it is.
            if last := schedule_rows.last_new(started):
                await fetch(connection, self._sql.set_last_chain, {"name": name, "last_chain_id": last})
            return started

    async def _overlap(
        self, connection: AsyncAnyConnection, stored: str, last_chain_id: str | None, jobs: Sequence[NewJob]
    ) -> Overlap | None:
        """The policy of a locked schedule if the chain that it started last is open, and it allows no other. It says
        nothing of ticks that come again, and whose chains all exist."""
        policy = Overlap(stored)
        if policy is Overlap.ALLOW or last_chain_id is None:
            return None
        if not await fetch(connection, self._sql.chain_is_open, {"id": last_chain_id}):
            return None
        found = await fetch(connection, self._sql.find_ticks, {"ids": [job.id for job in jobs]})
        return policy if schedule_rows.moved(jobs, schedule_rows.existing(found)) else None

    async def _start_ticks(self, connection: AsyncAnyConnection, jobs: Sequence[NewJob]) -> list[StartedJob]:
        """Start the chains that do not exist. If a job of another type has the id of one, that one gets a new id."""
        if not jobs:
            return []
        found = await insert_jobs(connection, self._sql, self._sql.start_if_absent, jobs)
        if missing := [job.id for job in jobs if job.id not in found]:
            # A statement of its own sees those that other transactions have committed meanwhile.
            found |= schedule_rows.existing(await fetch(connection, self._sql.find_ticks, {"ids": missing}))
        if moved := schedule_rows.moved(jobs, found):
            beside = await insert_jobs(connection, self._sql, self._sql.start_if_absent, list(moved.values()))
            found |= {id: beside[job.id] for id, job in moved.items()}
        return [found[job.id] for job in jobs]

    # --- pauses -------------------------------------------------------------------------------------------------------

    async def pause_job_types(self, types: Sequence[str], *, reason: str | None = None, by: str | None = None) -> None:
        """Stop all claims of these job types. Running jobs keep running. Idempotent."""
        if types:
            params = {"types": sorted(set(types)), "reason": reason, "by": by}
            await self._fetch(self._sql.pause_job_types, params)

    async def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        if not types:
            return []
        return sorted(type for (type,) in await self._fetch(self._sql.resume_job_types, {"types": list(types)}))

    async def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        return [schedule_rows.paused_type(row) for row in await self._fetch(self._sql.list_paused_job_types)]
