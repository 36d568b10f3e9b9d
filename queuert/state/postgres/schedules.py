"""Recurring schedules: parameters of the statements, and their rows. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from queuert.ids import new_id
from queuert.jobs import JobStatus
from queuert.limits import PausedType
from queuert.schedules import tick_of
from queuert.state import records
from queuert.state.postgres.parameters import Parameters, array
from queuert.state.postgres.rows import Row
from queuert.state.types import DueSchedules, NewJob, ScheduleRecord, StartedJob


def put(schedules: Sequence[ScheduleRecord], now: datetime) -> Parameters:
    """Return the parameters of ``put_schedules``. The first tick of each schedule is the next one after ``now``."""
    return {"schedules": array(_row(schedule, schedule.spec.next_after(now)) for schedule in schedules)}


def _row(schedule: ScheduleRecord, next_at: datetime | None) -> str:
    fields = {
        "name": schedule.name,
        "type": schedule.type,
        "cron": schedule.cron,
        "every": schedule.every,
        "time_zone": schedule.time_zone,
        "missed": schedule.missed.value,
        "priority": schedule.priority,
        "limit_key": schedule.limit_key,
        "paused": schedule.paused,
        "next_at": None if next_at is None else next_at.isoformat(),
        "owner": schedule.owner,
        "overlap": schedule.overlap.value,
        "jitter": schedule.jitter,
        "starts_at": None if schedule.starts_at is None else schedule.starts_at.isoformat(),
        "ends_at": None if schedule.ends_at is None else schedule.ends_at.isoformat(),
        "attributes": schedule.attributes or None,
        "result_ttl": schedule.result_ttl,
    }
    # The input is JSON text already and is copied as it is.
    return f'{json.dumps(fields)[:-1]}, "input": {schedule.input}}}'


def due(rows: Sequence[Row], limit: int) -> DueSchedules:
    """Decode the rows of ``due_schedules``."""
    found = [records.schedule((name, *others)) for name, *others, _, _ in rows if name is not None]
    *_, now, next_in = rows[0]
    return DueSchedules(now=now, due=found, next_in=0.0 if len(found) >= limit else next_in)


def advance(name: str, next_at: datetime | None, jobs: Sequence[NewJob], started: Sequence[StartedJob]) -> Parameters:
    """Return the parameters of ``advance_schedule``."""
    last_at = max((tick_of(job.id) for job in jobs), default=None)
    return {"name": name, "next_at": next_at, "last_at": last_at, "last_chain_id": last_new(started)}


def last_new(started: Sequence[StartedJob]) -> str | None:
    """Return the last of these chains that did not exist; None if all did."""
    return next((one.id for one in reversed(started) if not one.existing), None)


def existing(rows: Sequence[Row]) -> dict[str, StartedJob]:
    """Decode the rows of ``find_ticks``, by id."""
    return {
        id: StartedJob(id, type, JobStatus(status), created_at, existing=True) for id, type, status, created_at in rows
    }


def moved(jobs: Sequence[NewJob], found: Mapping[str, StartedJob]) -> dict[str, NewJob]:
    """Return jobs with new ids for those whose ids belong to jobs of other types, by the original ids."""
    return {job.id: replace(job, id=new_id()) for job in jobs if job.id not in found or found[job.id].type != job.type}


def paused_type(row: Row) -> PausedType:
    """Decode a row of ``list_paused_job_types``."""
    type, paused_at, reason, by = row
    return PausedType(type, paused_at, reason, by)
