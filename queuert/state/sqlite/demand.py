"""What an autoscaler reads of the jobs in SQLite, and what decides whether one of them can be claimed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

from queuert.limits import Limits
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import fetch_one, now_us, run
from queuert.state.sqlite.limits import capacities
from queuert.state.sqlite.workers import stored_limits
from queuert.state.types import COUNTED_WAIT, TypeDemand, WaitFacts

Connection = sqlite3.Connection


def demand(connection: Connection, types: Sequence[str] | None, most: int) -> list[TypeDemand]:
    """The demand of these types, or of all; those without due and running jobs are left out."""
    now = now_us()
    names = [row[0] for row in run(connection, "types")] if types is None else sorted(set(types))
    found = (_of_type(connection, type, most, now) for type in names)
    return [one for one in found if one.wanted + one.held_back > 0]


def _of_type(connection: Connection, type: str, most: int, now: int) -> TypeDemand:
    [(running,)] = run(connection, "count_type_up_to", type=type, status="running", limit=most)
    [(found_ready,)] = run(connection, "count_type_up_to", type=type, status="ready", limit=most)
    due_keys = [row[0] for row in run(connection, "due_keys", type=type, now=now, limit=most)]
    limits = stored_limits(connection, type)
    free = most * 2 if limits is None or limits.concurrency is None else max(0, limits.concurrency - running)
    if run(connection, "is_paused", type=type):
        free = 0
    ready, due = found_ready, len(due_keys)
    if limits is not None and (limits.per_key, limits.rate) != (None, None):
        ready, due = _admitted_by_keys(connection, type, limits, due_keys, most, now)
    ready = min(ready, free, found_ready)
    due = min(due, free - ready, len(due_keys))
    held_back = found_ready + len(due_keys) - ready - due
    return TypeDemand(type, ready, due, running, held_back, _oldest_seconds(connection, type, now))


def _admitted_by_keys(
    connection: Connection, type: str, limits: Limits, due_keys: Sequence[str | None], most: int, now: int
) -> tuple[int, int]:
    """How many ready and due jobs the limits of their keys admit."""
    due_of = Counter(due_keys)
    ready = due = 0
    for key, left in capacities(connection, type, limits, now, others=[key for key in due_of if key is not None]):
        [(of_key,)] = run(connection, "count_ready_of_key", type=type, key=key, limit=max(0, min(left, most)))
        ready += of_key
        due += min(due_of[key], max(0, left - of_key))
    return ready, due


def _oldest_seconds(connection: Connection, type: str, now: int) -> float | None:
    [(_, due_since)] = run(connection, "count_due", type=type, now=now)
    [(ready_since,)] = run(connection, "oldest_ready", type=type)
    moments = [moment for moment in (due_since, ready_since) if moment is not None]
    return max(0.0, (now - min(moments)) / 1_000_000) if moments else None


def wait_facts(connection: Connection, job_id: str) -> WaitFacts | None:
    """What decides whether a job can be claimed now; None if it does not exist."""
    found = fetch_one(connection, "place_of_job", id=job_id)
    if found is None:
        return None
    type, key, rank, scheduled_at, place = found
    now, most = now_us(), COUNTED_WAIT
    limits = stored_limits(connection, type)
    rate = None if limits is None else limits.rate
    window = 0 if rate is None else rows.microseconds_of(rate.seconds)
    began = []
    if rate is not None:
        params = {"type": type, "key": key, "since": now - window, "limit": rate.count}
        began = [row[0] for row in run(connection, "newest_starts", **params)]
    used_up = rate is not None and len(began) >= rate.count
    [(running,)] = run(connection, "count_type_up_to", type=type, status="running", limit=most)
    [(running_of_key, _)] = run(connection, "use_of_key", type=type, key=key, since=now)
    [(ahead,)] = run(
        connection, "count_ahead", type=type, rank=rank, scheduled_at=scheduled_at, place=place, limit=most
    )
    return WaitFacts(
        now=rows.moment(now),
        limits=limits,
        running=running,
        running_of_key=running_of_key,
        begun=len(began),
        rate_free_at=rows.moment(min(began) + window) if used_up else None,
        ahead=ahead,
    )
