"""Claims: the best due jobs, within the limits of their types."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from queuert.event_log import EventKind
from queuert.limits import Limits
from queuert.state.records import CLAIMED, places
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.limits import KeyCursors, admitted
from queuert.state.types import ClaimedJob, ClaimRequest

Connection = sqlite3.Connection

Head = tuple[int, int, int, str]
"""A claimable job, as it is compared within its type: rank, due since, row number, id."""

_INPUT, _KEY = *places(CLAIMED, "input"), len(CLAIMED)
"""The columns of a claimed row with the input, and, behind the fields, with the limit key."""

_BEST = -(2**31)
"""A rank better than any."""


def claim(connection: Connection, request: ClaimRequest, rounds: KeyCursors) -> list[ClaimedJob]:
    """Lease the best due jobs, best first. If the request says so, jobs of a worse rank are claimed before them."""
    now = now_us()
    space = _Space(request.max_bytes)
    found: list[ClaimedJob] = []
    if request.after_rank is not None:
        found = _claim_from(connection, request, request.after_rank + 1, now, rounds, space)
        if space.full:
            return found
        request = replace(request, limit=request.limit - len(found))
    return found + _claim_from(connection, request, _BEST, now, rounds, space)


class _Space:
    """The bytes that the inputs of a claim may have together. The first job is claimed whatever its size."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._begun = False
        self.full = False
        """Whether a job did not fit: no more are claimed, of whatever rank."""

    def takes(self, size: int) -> bool:
        """Whether a job with an input of so many bytes is claimed."""
        self._left -= size
        self.full = self._left < 0 and self._begun
        self._begun = True
        return not self.full


def _claim_from(
    connection: Connection, request: ClaimRequest, first_rank: int, now: int, rounds: KeyCursors, space: _Space
) -> list[ClaimedJob]:
    if request.limit < 1:
        return []
    heads: list[tuple[tuple[int, int, int], Head, str]] = []
    for position, type in enumerate(request.leases):
        if run(connection, "is_paused", type=type):
            continue
        turns: Counter[int] = Counter()
        for head in _heads(connection, request, type, first_rank, now, rounds):
            # Within a rank, types take turns, in the order of the request.
            rank, _, _, _ = head
            turns[rank] += 1
            heads.append(((rank, turns[rank], position), head, type))
    heads.sort()
    claimed: dict[Head, ClaimedJob] = {}
    for _, head, type in heads[: request.limit]:
        _, _, _, id = head
        row = _take(connection, request, id, type, now)
        # The length of a text is known only after reading it.
        if not space.takes(len(row[_INPUT].encode()) if isinstance(row[_INPUT], str) else 0):
            run(connection, "release", id=id, token=request.token)
            break
        add_event(connection, EventKind.STARTED, id, of_worker=True)
        limits = request.limits.get(type)
        if limits is not None and limits.rate is not None:
            run(connection, "insert_start", type=type, key=row[_KEY], now=now)
        if limits is not None and limits.fair:
            rounds.ended(type, row[_KEY] or "", worse=first_rank > _BEST)
        claimed[head] = _made(row, request.token)
    return [claimed[head] for head in sorted(claimed)]


def _heads(
    connection: Connection, request: ClaimRequest, type: str, first_rank: int, now: int, rounds: KeyCursors
) -> Iterable[Head]:
    limits = request.limits.get(type)
    if limits is None:
        return _best(connection, type, request.limit, first_rank, now)
    count = request.limit
    if limits.concurrency is not None:
        [(running,)] = run(connection, "count_running", type=type)
        count = min(count, limits.concurrency - running)
    if count <= 0:
        return []
    if limits.rate is not None:
        run(connection, "prune_rate_window", type=type, since=now - rows.microseconds_of(limits.rate.seconds))
    if limits == Limits(limits.concurrency or 1):
        return _best(connection, type, count, first_rank, now)
    worse = first_rank > _BEST
    return map(as_head, admitted(connection, type, limits, count, now, rounds, first_rank=first_rank, worse=worse))


def _best(connection: Connection, type: str, count: int, first_rank: int, now: int) -> list[Head]:
    params = {"type": type, "limit": count}
    ready = map(as_head, run(connection, "next_ready", first_rank=first_rank, **params))
    # Scheduled jobs have no index by rank: they count as of the first rank at best.
    due = [
        (max(rank, first_rank), scheduled_at, place, id)
        for id, rank, scheduled_at, place in run(connection, "next_due_job", now=now, **params)
    ]
    return sorted([*ready, *due])[:count]


def as_head(row: Row) -> Head:
    """Decode a row of the statements ``next_ready`` and ``next_of_key``."""
    id, rank, scheduled_at, place = row
    return rank, scheduled_at, place, id


def _take(connection: Connection, request: ClaimRequest, id: str, type: str, now: int) -> Row:
    seconds = request.leases[type]
    params = {"id": id, "now": now, "expires": now + rows.microseconds_of(seconds), "seconds": seconds}
    [row] = run(connection, "claim", token=request.token, holder=request.holder, **params)
    return row


def _made(row: Row, token: str) -> ClaimedJob:
    try:
        return rows.claimed_job(row, token)
    except (TypeError, ValueError, OverflowError) as error:
        # A manual edit. Only this attempt fails, not those of the other jobs.
        fault = f"{type(error).__name__}: {error}"
        return replace(rows.claimed_job(rows.readable(row), token), fault=fault)
