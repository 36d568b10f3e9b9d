"""Heartbeats of workers, and what they did."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime

from queuert.activity import (
    HOUR,
    MINUTE,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
    numbers_of,
    shown_numbers,
    summed,
)
from queuert.limits import Limits, Rate, TypeTraits
from queuert.state import records
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, fetch_one, fetch_value, now_us, run
from queuert.workers import WorkerHeartbeat, WorkerRecord

Connection = sqlite3.Connection


def beat(connection: Connection, reported: WorkerHeartbeat, ttl: float) -> datetime:
    """Record that a worker is alive, and return the time."""
    now = now_us()
    run(connection, "delete_stale_workers", now=now)
    run(
        connection,
        "record_heartbeat",
        id=reported.id,
        name=reported.name,
        host=reported.host,
        pid=reported.pid,
        version=reported.version,
        job_types=json.dumps(reported.job_types),
        concurrency=reported.concurrency,
        running=reported.running,
        state=reported.state.value,
        started_at=now - rows.microseconds_of(reported.uptime),
        now=now,
        expires=now + rows.microseconds_of(ttl),
    )

    for type in reported.job_types:
        limits = reported.limits.get(type)
        if limits is None:
            run(connection, "delete_limits", type=type)
        else:
            run(connection, "record_limits", type=type, limits=json.dumps(asdict(limits)))
    for traits in reported.traits:
        run(connection, "record_traits", **asdict(traits))
    for type in {*reported.known_types, *reported.job_types}.difference(one.type for one in reported.traits):
        run(connection, "delete_traits", type=type)
    return rows.moment(now)


def type_traits(connection: Connection) -> list[TypeTraits]:
    """Return what is particular to job types, by name."""
    return [
        TypeTraits(type, bool(by_client), overdue, bool(closes))
        for type, by_client, overdue, closes in run(connection, "list_type_traits")
    ]


def stored_limits(connection: Connection, type: str) -> Limits | None:
    """The limits that the last worker with a handler of the type recorded."""
    stored = fetch_value(connection, "read_limits", type=type)
    if stored is None:
        return None
    fields = json.loads(stored)
    rate = fields["rate"]
    return Limits(**{**fields, "rate": None if rate is None else Rate(**rate)})


def workers(connection: Connection) -> list[WorkerRecord]:
    """Return the workers whose heartbeat has not expired, the longest running first."""
    return [_worker(row) for row in run(connection, "list_workers", now=now_us())]


def held(connection: Connection, holders: Sequence[str]) -> dict[str, int]:
    """Return how many jobs each of these workers has leased; those without any are left out."""
    wanted = set(holders)
    return {holder: count for holder, count in run(connection, "count_held") if holder in wanted}


_TYPES, *_TIMES = records.places(records.WORKER, "job_types", "started_at", "seen_at")


def _worker(row: Row) -> WorkerRecord:
    values = list(rows.with_times(row, tuple(_TIMES)))
    values[_TYPES] = json.loads(values[_TYPES])
    return records.worker(values)


def record_activity(connection: Connection, worker_id: str, report: ActivityReport) -> None:
    """Add a report of a worker to what it did, in each row once."""
    for one in report.minutes:
        _add(connection, one, worker_id, report.number)


def _add(connection: Connection, one: Activity, worker_id: str, report: int) -> None:
    key = {
        "seconds": one.seconds,
        "begins_at": rows.microseconds(one.begins_at),
        "type": one.type,
        "worker": worker_id,
    }
    numbers = one.numbers
    found = fetch_one(connection, "find_activity", **key)
    if found is not None:
        last_report, stored = found
        if report and last_report >= report:
            return
        numbers = [a + b for a, b in zip(numbers, numbers_of(stored), strict=True)]
    run(connection, "write_activity", **key, report=report, numbers=shown_numbers(numbers))


def activity(connection: Connection, filter: ActivityFilter) -> list[Activity]:
    """Return what workers did, by minute or hour."""
    since = rows.microseconds(filter.since)
    before = (1 << 63) - 1 if filter.until is None else rows.microseconds(filter.until)
    found = (
        _activity(row)
        for seconds in (MINUTE, HOUR)
        for row in run(connection, "get_activity", seconds=seconds, after=since - seconds * 1_000_000, before=before)
    )
    return summed((one for one in found if filter.selects(one)), filter.place)


def _activity(row: Row) -> Activity:
    begins_at, seconds, type, worker_id, numbers = row
    return Activity.of(rows.moment(begins_at), seconds, type, worker_id or None, numbers_of(numbers))


def maintain_activity(
    connection: Connection, limit: int, minutes_kept: float, hours_kept: float
) -> ActivityMaintenance:
    """Add minutes up to hours, and drop hours that are too old."""
    now = now_us()
    hour = HOUR * 1_000_000
    horizon = (now - rows.microseconds_of(minutes_kept)) // hour * hour
    minutes = run(connection, "find_old_activity", seconds=MINUTE, before=horizon, limit=limit)
    hours = ActivityFilter(rows.moment(0), by="hour")
    for one in summed(map(_activity, minutes), hours.place):
        _add(connection, one, "", 0)
    horizon = now - rows.microseconds_of(hours_kept)
    old = run(connection, "find_old_activity", seconds=HOUR, before=horizon, limit=limit)
    _delete(connection, minutes)
    _delete(connection, old)
    return ActivityMaintenance(len(minutes), len(old), max(len(minutes), len(old)) >= limit)


def _delete(connection: Connection, found: Iterable[Row]) -> None:
    for begins_at, seconds, type, worker_id, _ in found:
        run(connection, "delete_activity", begins_at=begins_at, seconds=seconds, type=type, worker=worker_id)
