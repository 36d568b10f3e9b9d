"""Heartbeats of workers, and what they did: parameters and rows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from queuert.activity import Activity, ActivityFilter, ActivityReport
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.workers import WorkerHeartbeat


def beat(reported: WorkerHeartbeat, ttl: float, activity: ActivityReport | None) -> Parameters:
    """Return the parameters of ``record_heartbeat``."""
    return {
        **removed(reported.id, activity),
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
        # An order admits one job of a key, as this limit does: ``demand`` need not know of it.
        "per_keys": [1 if limits.ordered else limits.per_key for limits in reported.limits.values()],
        "rates": [None if limits.rate is None else limits.rate.count for limits in reported.limits.values()],
        "windows": [None if limits.rate is None else limits.rate.seconds for limits in reported.limits.values()],
        "fair": [limits.fair for limits in reported.limits.values()],
        "ordered": [limits.ordered for limits in reported.limits.values()],
        "traits": [one.type for one in reported.traits],
        "by_clients": [one.completed_by_client for one in reported.traits],
        "overdue": [one.overdue_after for one in reported.traits],
        "closing": [one.closes_with_parent for one in reported.traits],
        "known_types": [*reported.known_types, *reported.job_types, *(one.type for one in reported.traits)],
    }


def answer(row: Row) -> tuple[bool, datetime]:
    """Decode the row of ``record_heartbeat``: whether heartbeats of others have expired, and the time."""
    others_are_over, now = row
    return others_are_over, now


def removed(worker_id: str, activity: ActivityReport | None) -> Parameters:
    """Return the parameters of ``remove_worker``."""
    minutes = () if activity is None else activity.minutes
    return {
        "id": worker_id,
        "report": 0 if activity is None else activity.number,
        "minutes": [one.begins_at for one in minutes],
        "counted_types": [one.type for one in minutes],
        "counts": [_array(one.counts) for one in minutes],
        "waits": [_array(one.wait.buckets) for one in minutes],
        "runs": [_array(one.run.buckets) for one in minutes],
    }


def _array(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def activity_filter(filter: ActivityFilter) -> Parameters:
    """Return the parameters of ``get_activity``."""
    return {
        "since": filter.since,
        "until": filter.until,
        "types": None if filter.types is None else list(filter.types),
        "by_hour": filter.by == "hour",
        "per_worker": filter.per_worker,
        "per_type": filter.per_type,
        "workers": None if filter.workers is None else list(filter.workers),
    }


def activity(row: Row) -> Activity:
    """Decode a row of ``get_activity``."""
    begins_at, seconds, type, worker_id, *counts, wait, run = row
    return Activity.of(begins_at, seconds, type, worker_id, [*counts, *wait, *run])
