"""Heartbeats of workers: parameters and rows. Pure functions."""

from __future__ import annotations

from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.workers import WorkerHeartbeat, WorkerRecord, WorkerState


def beat(told: WorkerHeartbeat, ttl: float) -> Parameters:
    """Parameters of ``record_heartbeat``."""
    return {
        "id": told.id,
        "name": told.name,
        "host": told.host,
        "pid": told.pid,
        "version": told.version,
        "job_types": list(told.job_types),
        "concurrency": told.concurrency,
        "running": told.running,
        "state": told.state.value,
        "uptime": told.uptime,
        "ttl": ttl,
    }


def worker(row: Row) -> WorkerRecord:
    """A row of ``list_workers``."""
    return WorkerRecord(
        id=row[0],
        name=row[1],
        host=row[2],
        pid=row[3],
        version=row[4],
        job_types=tuple(row[5]),
        concurrency=row[6],
        running=row[7],
        state=WorkerState(row[8]),
        started_at=row[9],
        seen_at=row[10],
    )
