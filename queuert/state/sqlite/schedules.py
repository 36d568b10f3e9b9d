"""Recurring schedules and pauses, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from queuert.errors import ScheduleOverlapError
from queuert.ids import new_id
from queuert.limits import PausedType
from queuert.schedules import Overlap, check_owners, tick_of
from queuert.state.records import SCHEDULE, places
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import execute, fetch_one, now_us, run
from queuert.state.sqlite.listing import first_job
from queuert.state.sqlite.writes import created_next, write_job
from queuert.state.types import DueSchedules, NewJob, ScheduleDelay, ScheduleRecord, StartedJob

Connection = sqlite3.Connection


def put(connection: Connection, schedules: Sequence[ScheduleRecord]) -> None:
    """Write schedules by name. The first tick of each schedule is the next one after now."""
    now = rows.moment(now_us())
    ticks = [one.spec.next_after(now) for one in schedules]
    for one, next_at in zip(schedules, ticks, strict=True):
        check_owners({one.name: one.owner}, run(connection, "schedule_owner", name=one.name))
        run(connection, "put_schedule", **rows.schedule_values(one, next_at))


def delete(connection: Connection, names: Sequence[str], owner: str | None) -> int:
    """Delete schedules, with an owner only those of the owner; return how many were deleted."""
    return sum(execute(connection, "delete_schedule", name=one, owner=owner) for one in set(names))


def listed(connection: Connection) -> list[ScheduleRecord]:
    """Return all schedules, by name."""
    return [rows.schedule(row) for row in run(connection, "list_schedules")]


def set_paused(connection: Connection, names: Sequence[str], paused: bool) -> int:
    """Pause or resume schedules and return how many exist."""
    return sum(execute(connection, "pause_schedule", name=one, paused=int(paused)) for one in set(names))


_NEXT_AT, _NAME = places(SCHEDULE, "next_at", "name")


def due(connection: Connection, types: Sequence[str], limit: int) -> DueSchedules:
    """Return the schedules of these job types whose next tick has come, the longest due first."""
    now = now_us()
    found, upcoming = [], []
    for type in dict.fromkeys(types):
        found += run(connection, "due_schedules", type=type, now=now, limit=limit)
        [(tick,)] = run(connection, "next_tick", type=type, now=now)
        if tick is not None:
            upcoming.append((tick - now) / 1_000_000)
    found.sort(key=lambda row: (row[_NEXT_AT], row[_NAME]))
    next_in = 0.0 if len(found) >= limit else min(upcoming, default=None)
    return DueSchedules(rows.moment(now), [rows.schedule(row) for row in found[:limit]], next_in)


def delays(connection: Connection) -> list[ScheduleDelay]:
    """The schedules of all types that are due, the longest due first."""
    now = now_us()
    found = run(connection, "schedule_delays", now=now)
    return [ScheduleDelay(name, type, (now - tick) / 1_000_000) for name, type, tick in found]


def fire(
    connection: Connection, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
) -> list[StartedJob] | None:
    """Start the chains of a due schedule and advance it; None if its next tick is another one.

    Raises:
        ScheduleOverlapError: its open chain must be cancelled first.
    """
    found = fetch_one(connection, "find_due_schedule", name=name, tick=rows.microseconds(tick))
    if found is None:
        return None
    _, policy, last_chain_id = found
    overlap = _overlap(connection, policy, last_chain_id, jobs) if jobs else None
    if overlap is Overlap.CANCEL:
        raise ScheduleOverlapError(name, last_chain_id)
    fired = () if overlap is Overlap.SKIP else jobs
    last = max((tick_of(job.id) for job in fired), default=None)
    times = {"next_at": next_at, "last_at": last}
    params = {what: None if moment is None else rows.microseconds(moment) for what, moment in times.items()}
    execute(connection, "advance_schedule", name=name, **params)
    return _start_as_last(connection, name, fired)


def run_now(connection: Connection, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
    """Start chains of a schedule out of turn; None if it does not exist, or its open chain must be cancelled first."""
    found = fetch_one(connection, "find_schedule", name=name)
    if found is None:
        return None
    type, policy, last_chain_id = found
    if type != jobs[0].type:
        return None
    if overlap:
        return _start(connection, jobs)
    held = _overlap(connection, policy, last_chain_id, jobs)
    if held is not None:
        return None if held is Overlap.CANCEL else []
    return _start_as_last(connection, name, jobs)


def _start_as_last(connection: Connection, name: str, jobs: Sequence[NewJob]) -> list[StartedJob]:
    """Start chains; the last of them that did not exist is the one that the schedule started last."""
    started = _start(connection, jobs)
    if new := [one.id for one in started if not one.existing]:
        execute(connection, "set_last_chain", name=name, last_chain_id=new[-1])
    return started


def _overlap(connection: Connection, stored: str, last_chain_id: str | None, jobs: Sequence[NewJob]) -> Overlap | None:
    """The policy of a schedule if the chain that it started last is open, and it allows no other. It says nothing of
    ticks that come again, and whose chains all exist."""
    policy = Overlap(stored)
    if policy is Overlap.ALLOW or last_chain_id is None or not fetch_one(connection, "chain_is_open", id=last_chain_id):
        return None
    found = [first_job(connection, job.id) for job in jobs]
    again = all(
        one is not None and rows.existing_job(one).type == job.type for one, job in zip(found, jobs, strict=True)
    )
    return None if again else policy


def _start(connection: Connection, jobs: Sequence[NewJob]) -> list[StartedJob]:
    now = now_us()
    created = created_next(connection, now)
    return [_tick(connection, job, now, created + index) for index, job in enumerate(jobs)]


def _tick(connection: Connection, job: NewJob, now: int, created: int) -> StartedJob:
    found = first_job(connection, job.id)
    if found is None:
        return write_job(connection, job, now, created)
    existing = rows.existing_job(found)
    if existing.type == job.type:
        return existing
    return write_job(connection, replace(job, id=new_id()), now, created)


def pause(connection: Connection, types: Sequence[str], reason: str | None, by: str | None) -> None:
    """Stop all claims of these job types."""
    for type in types:
        run(connection, "pause_type", type=type, reason=reason, by=by, now=now_us())


def resume(connection: Connection, types: Sequence[str]) -> list[str]:
    """Allow claims of these job types again; return those that were paused, by name."""
    return [type for type in sorted(set(types)) if execute(connection, "resume_type", type=type)]


def paused(connection: Connection) -> list[PausedType]:
    """Return the paused job types, by name."""
    return [rows.paused_type(row) for row in run(connection, "list_paused_job_types")]
