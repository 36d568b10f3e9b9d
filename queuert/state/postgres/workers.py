"""Heartbeats of workers: parameters and rows. Pure functions."""

from __future__ import annotations

from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.workers import WorkerHeartbeat, WorkerRecord, WorkerState


def beat(reported: WorkerHeartbeat, ttl: float) -> Parameters:
    """Return the parameters of ``record_heartbeat``."""
    return {
        "id": reported.id,
        "name": reported.name,
        "host": reported.host,
        "pid": reported.pid,
        "version": reported.version,
        "job_types": list(reported.job_types),
        "concurrency": reported.concurrency,
        "running": reported.running,
        "state": reported.state.value,
        "uptime": reported.uptime,
        "ttl": ttl,
        "limited": list(reported.limits),
        "concurrencies": [limits.concurrency for limits in reported.limits.values()],
        "per_keys": [limits.per_key for limits in reported.limits.values()],
        "rates": [None if limits.rate is None else limits.rate.count for limits in reported.limits.values()],
        "windows": [None if limits.rate is None else limits.rate.seconds for limits in reported.limits.values()],
    }


def worker(row: Row) -> WorkerRecord:
    """Decode a row of ``list_workers``."""
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
