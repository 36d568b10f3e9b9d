"""Claims under limits by key: the best jobs of all keys together, of each key no more than its limit allows."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Sequence

from queuert.limits import Limits
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, run

Connection = sqlite3.Connection

MAX_KEYS = 1_000
"""The largest number of keys of a type that one claim reads."""

MAX_PROMOTED = 1_000
"""The largest number of due scheduled jobs of a type that one claim makes ready."""

_NO_LIMIT = 1 << 30


class KeyCursors:
    """The key at which the next claim begins, for each type with more keys than one claim reads."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def cursor(self, type: str) -> str:
        """Return the key after which to begin."""
        return self._places.get(type, "")

    def ended(self, type: str, last: str | None) -> None:
        """Record the last key that was read; None for the end of the keys."""
        if last is None:
            self._places.pop(type, None)
        else:
            self._places[type] = last


def admitted(
    connection: Connection, type: str, limits: Limits, count: int, now: int, rounds: KeyCursors, *, first_rank: int
) -> Iterator[Row]:
    """Return the rows of the best ready jobs from a rank on, best first, at most ``count``."""
    params = {"type": type, "first_rank": first_rank}
    run(connection, "promote_due", type=type, now=now, limit=MAX_PROMOTED)
    queues = [
        (_order(row), key, capacity)
        for key, capacity in _capacities(connection, type, limits, now, rounds)
        if capacity > 0
        for row in run(connection, "next_of_key", key=key, limit=1, **params)
    ]
    # Only the best job of each key was read so far. The next one is read when that is taken.
    heapq.heapify(queues)
    following: list[tuple[tuple[int, int, int], Row]] = []
    while count > 0 and (queues or following):
        if queues and (not following or queues[0][0] <= following[0][0]):
            _, key, capacity = heapq.heappop(queues)
            for row in run(connection, "next_of_key", key=key, limit=min(count, capacity), **params):
                heapq.heappush(following, (_order(row), row))
        count -= 1
        yield heapq.heappop(following)[1]


def _order(row: Row) -> tuple[int, int, int]:
    return row[1], row[2], row[3]


def _capacities(
    connection: Connection, type: str, limits: Limits, now: int, rounds: KeyCursors
) -> Iterator[tuple[str | None, int]]:
    """Return the keys, including None, and how many more attempts of each may begin now."""
    rate = limits.rate
    since = 0 if rate is None else now - rows.microseconds_of(rate.seconds)
    begun = 0
    if rate is not None:
        [(begun,)] = run(connection, "count_unkeyed_starts", type=type, since=since)
    yield None, _left(limits, 0, begun, keyless=True)
    params = {"per_key": limits.per_key is not None, "rated": rate is not None, "since": since}
    for key, running, begun in _keys(connection, type, rounds, **params):
        yield key, _left(limits, running, begun)


def capacities(
    connection: Connection, type: str, limits: Limits, now: int, *, others: Sequence[str]
) -> Iterator[tuple[str | None, int]]:
    """The first keys with ready jobs, None among them, and these others: how many more attempts of each may begin."""
    found = dict(_capacities(connection, type, limits, now, KeyCursors()))
    yield from found.items()
    rate = limits.rate
    since = 0 if rate is None else now - rows.microseconds_of(rate.seconds)
    for key in others:
        if key not in found:
            [(running, begun)] = run(connection, "use_of_key", type=type, key=key, since=since)
            yield key, _left(limits, running, begun)


def _left(limits: Limits, running: int, begun: int, *, keyless: bool = False) -> int:
    left = _NO_LIMIT
    if limits.per_key is not None and not keyless:
        left = limits.per_key - running
    if limits.rate is not None:
        left = min(left, limits.rate.count - begun)
    return left


def _keys(connection: Connection, type: str, rounds: KeyCursors, **params: object) -> list[Row]:
    """Return the keys with ready jobs, or the next part of them if there are too many for one claim, so that none
    starves."""
    begin = rounds.cursor(type)
    found = run(connection, "ready_keys", type=type, limit=MAX_KEYS, **{"from": begin}, **params)
    last = found[-1][0] if len(found) == MAX_KEYS else None
    if begin and last is None:
        again = run(connection, "ready_keys", type=type, limit=MAX_KEYS - len(found), **{"from": ""}, **params)
        others = [row for row in again if row[0] <= begin]
        last = others[-1][0] if len(found) + len(others) == MAX_KEYS else None
        found += others
    rounds.ended(type, last)
    return found
