"""Recurring schedules: parameters and rows of their statements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from queuert.ids import new_id
from queuert.jobs import JobStatus
from queuert.schedules import tick_of
from queuert.state import records
from queuert.state.postgres.parameters import Parameters, array, quoted
from queuert.state.postgres.rows import Row
from queuert.state.types import DueSchedules, NewJob, PausedType, ScheduleRecord, StartedJob


def put(schedules: Sequence[ScheduleRecord], now: datetime) -> Parameters:
    """Parameters of ``put_schedules``: the first tick of each is the next after ``now``."""
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
    }
    # The input is JSON text already, and goes in as it is.
    return f'{json.dumps(fields)[:-1]}, "input": {schedule.input}}}'


def due(rows: Sequence[Row], limit: int) -> DueSchedules:
    """The rows of ``due_schedules``."""
    found = [records.schedule(row) for row in rows if row[0] is not None]
    return DueSchedules(now=rows[0][12], due=found, next_in=0.0 if len(found) >= limit else rows[0][13])


def fire(name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]) -> Parameters:
    """Parameters of ``fire_schedule``."""
    last_at = max((tick_of(job.id) for job in jobs), default=None)
    return {"name": name, "tick": tick, "next_at": next_at, "last_at": last_at}


def ticks(jobs: Sequence[NewJob]) -> Parameters:
    """Parameters of ``start_scheduled``."""
    rows = (
        f'{{"id":{quoted(job.id)},"type":{quoted(job.type)},"priority":{job.priority},"input":{job.input},'
        f'"limit_key":{quoted(job.limit_key)}}}'
        for job in jobs
    )
    return {"jobs": array(rows)}


def started(rows: Sequence[Row]) -> dict[str, StartedJob]:
    """The rows of ``start_scheduled``, by id."""
    return {row[0]: StartedJob(row[0], row[1], JobStatus(row[2]), row[3], existing=row[4]) for row in rows}


def moved(jobs: Sequence[NewJob], found: Mapping[str, StartedJob]) -> dict[str, NewJob]:
    """Under new ids, by the ids of their ticks: jobs whose ids are taken by jobs of other types."""
    return {job.id: replace(job, id=new_id()) for job in jobs if job.id not in found or found[job.id].type != job.type}


def paused_type(row: Row) -> PausedType:
    """A row of ``list_paused_job_types``."""
    return PausedType(type=row[0], paused_at=row[1], reason=row[2])
