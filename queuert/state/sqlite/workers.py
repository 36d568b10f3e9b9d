"""Heartbeats of workers."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

from queuert.limits import Limits, Rate
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, fetch_one, now_us, run
from queuert.workers import WorkerHeartbeat, WorkerRecord, WorkerState

Connection = sqlite3.Connection


def beat(connection: Connection, reported: WorkerHeartbeat, ttl: float) -> None:
    """Record that a worker is alive."""
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


def stored_limits(connection: Connection, type: str) -> Limits | None:
    """The limits that the last worker with a handler of the type recorded."""
    row = fetch_one(connection, "read_limits", type=type)
    if row is None:
        return None
    fields = json.loads(row[0])
    rate = fields["rate"]
    return Limits(fields["concurrency"], fields["per_key"], None if rate is None else Rate(**rate))


def workers(connection: Connection) -> list[WorkerRecord]:
    """Return the workers whose heartbeat has not expired, the longest running first."""
    return [_worker(row) for row in run(connection, "list_workers", now=now_us())]


def _worker(row: Row) -> WorkerRecord:
    return WorkerRecord(
        id=row[0],
        name=row[1],
        host=row[2],
        pid=row[3],
        version=row[4],
        job_types=tuple(json.loads(row[5])),
        concurrency=row[6],
        running=row[7],
        state=WorkerState(row[8]),
        started_at=rows.moment(row[9]),
        seen_at=rows.moment(row[10]),
    )
