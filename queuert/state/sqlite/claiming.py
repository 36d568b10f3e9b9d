"""Which jobs a claim takes: the best due ones, within the limits of their types."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from queuert.limits import Limits
from queuert.state.adapter import ClaimedJob, ClaimRequest
from queuert.state.sqlite import rows
from queuert.state.sqlite.admitting import Rounds, admitted
from queuert.state.sqlite.link import Row, now_us, run

Connection = sqlite3.Connection

Head = tuple[int, int, int, str]
"""A job that can be claimed, as it is compared: rank, due since, row number, id."""


def claim(connection: Connection, request: ClaimRequest, rounds: Rounds) -> list[ClaimedJob]:
    """Lease the best due jobs, best first."""
    now = now_us()
    heads: list[tuple[Head, str]] = []
    for type in request.leases:
        if not run(connection, "is_paused", type=type):
            heads += [(head, type) for head in _heads(connection, request, type, now, rounds)]
    heads.sort()
    claimed: list[ClaimedJob] = []
    bytes_left = request.max_bytes
    for head, type in heads[: request.limit]:
        row = _take(connection, request, head, type, now)
        # The length of a text is known only when it is read. The first is taken whatever it measures.
        bytes_left -= len(row[11].encode()) if isinstance(row[11], str) else 0
        if bytes_left < 0 and claimed:
            run(connection, "release", id=row[0], token=request.token)
            break
        if _is_rated(request.limits.get(type)):
            run(connection, "insert_start", type=type, key=row[17], now=now)
        claimed.append(_made(row, request.token, request.leases[type]))
    return claimed


def _heads(connection: Connection, request: ClaimRequest, type: str, now: int, rounds: Rounds) -> list[Head]:
    limits = request.limits.get(type)
    if limits is None:
        return _best(connection, type, request.limit, now)
    count = request.limit
    if limits.concurrency is not None:
        [(running,)] = run(connection, "count_running", type=type)
        count = min(count, limits.concurrency - running)
    if count <= 0:
        return []
    if limits.rate is not None:
        run(connection, "forget_starts", type=type, since=now - rows.microseconds_of(limits.rate.seconds))
    if limits.per_key is None and limits.rate is None:
        return _best(connection, type, count, now)
    return [as_head(row) for row in admitted(connection, type, limits, count, now, rounds)]


def _best(connection: Connection, type: str, count: int, now: int) -> list[Head]:
    asked = {"type": type, "limit": count}
    found = run(connection, "head_ready", **asked) + run(connection, "head_due", now=now, **asked)
    return sorted(map(as_head, found))[:count]


def as_head(row: Row) -> Head:
    """A row of the ``head_`` statements."""
    return row[1], row[2], row[3], row[0]


def _take(connection: Connection, request: ClaimRequest, head: Head, type: str, now: int) -> Row:
    seconds = request.leases[type]
    asked = {"id": head[3], "now": now, "expires": now + rows.microseconds_of(seconds)}
    [row] = run(connection, "claim", token=request.token, holder=request.holder, **asked)
    return row


def _made(row: Row, token: str, lease_seconds: float) -> ClaimedJob:
    try:
        return rows.claimed_job(row, token, lease_seconds)
    except (TypeError, ValueError, OverflowError) as error:
        # Written by hand. It is one failed attempt, and does not cost its neighbours theirs.
        fault = f"{type(error).__name__}: {error}"
        return replace(rows.claimed_job(rows.readable(row), token, lease_seconds), fault=fault)


def _is_rated(limits: Limits | None) -> bool:
    return limits is not None and limits.rate is not None
