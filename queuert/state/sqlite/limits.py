"""Claims under limits by key: the best jobs of all keys together, of each key no more than its limit allows."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

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
    """The key after which the next claim begins: for types with more keys than one claim reads, and for those whose
    keys take turns. Claims that begin with worse ranks have cursors of their own, so that they come to each key, too.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, bool], str] = {}

    def cursor(self, type: str, *, worse: bool = False) -> str:
        """Return the key after which to begin."""
        return self._places.get((type, worse), "")

    def ended(self, type: str, last: str | None, *, worse: bool = False) -> None:
        """Record the last key that was read or served; None for the end of the keys."""
        if last is None:
            self._places.pop((type, worse), None)
        else:
            self._places[type, worse] = last


@dataclass(frozen=True, slots=True)
class _Selection:
    """Which jobs of a type a claim looks for."""

    connection: Connection
    type: str
    limits: Limits
    count: int
    first_rank: int
    worse: bool
    since: int
    """Attempts that began later count towards the rate. Microseconds."""

    def of_key(self, key: str | None, most: int) -> list[Row]:
        """Return the best jobs of a key that may begin."""
        params = {"type": self.type, "key": key, "first_rank": self.first_rank}
        if not self.limits.ordered or key is None:
            return run(self.connection, "next_of_key", limit=most, **params)
        return run(self.connection, "first_in_order", **params) if most > 0 else []

    def later(self) -> list[Row]:
        """Return jobs of chains that have begun, if the type has an order, which they are not part of."""
        if not self.limits.ordered:
            return []
        params = {"type": self.type, "first_rank": self.first_rank, "limit": self.count}
        return [
            (id, rank, scheduled_at, place)
            for id, rank, scheduled_at, place, key in run(self.connection, "later_jobs", **params)
            if self._is_below_rate(key)
        ]

    def _is_below_rate(self, key: str) -> bool:
        rate = self.limits.rate
        if rate is None:
            return True
        [(_, begun)] = run(self.connection, "use_of_key", type=self.type, key=key, since=self.since)
        return bool(begun < rate.count)


def admitted(
    connection: Connection,
    type: str,
    limits: Limits,
    count: int,
    now: int,
    rounds: KeyCursors,
    *,
    first_rank: int,
    worse: bool,
) -> Iterator[Row]:
    """Return the rows of the ready jobs that may begin, from a rank on, best first, at most ``count``.

    If the keys take turns, the best job of each key comes first, then the second of each, and so on. All have the rank
    of the best one then, so that none loses its turn to other types.
    """
    run(connection, "promote_due", type=type, now=now, limit=MAX_PROMOTED)
    since = _since(limits, now)
    selection = _Selection(connection, type, limits, count, first_rank, worse, since)
    most_keys = count + 1 if limits.fair and not limits.bounded else MAX_KEYS
    found = _capacities(connection, type, limits, since, rounds, most_keys=most_keys, worse=worse)
    keys = [(key, capacity) for key, capacity in found if capacity > 0]
    return iter(_in_turn(selection, keys) if limits.fair else _by_rank(selection, keys))


def _in_turn(selection: _Selection, keys: Sequence[tuple[str | None, int]]) -> list[Row]:
    count = selection.count
    share = 1 if len(keys) > count else 2 * count // max(1, len(keys)) + 1
    of_keys = [selection.of_key(key, min(share, capacity)) for key, capacity in keys]
    rounds = zip_longest(*of_keys)
    rows = [*selection.later(), *(row for round in rounds for row in round if row is not None)][:count]
    best = min((rank for _, rank, _, _ in rows), default=0)
    return [(id, best, turn, 0) for turn, (id, _, _, _) in enumerate(rows)]


def _by_rank(selection: _Selection, keys: Sequence[tuple[str | None, int]]) -> Iterator[Row]:
    count = selection.count
    queues = [(_order(row), key or "", capacity, key) for key, capacity in keys for row in selection.of_key(key, 1)]
    # Only the best job of each key was read so far. The next one is read when that is taken.
    heapq.heapify(queues)
    following = [(_order(row), row) for row in selection.later()]
    heapq.heapify(following)
    while count > 0 and (queues or following):
        if queues and (not following or queues[0][0] <= following[0][0]):
            _, _, capacity, key = heapq.heappop(queues)
            for row in selection.of_key(key, min(count, capacity)):
                heapq.heappush(following, (_order(row), row))
        count -= 1
        _, row = heapq.heappop(following)
        yield row


def _order(row: Row) -> tuple[int, int, int]:
    _, rank, scheduled_at, place = row
    return rank, scheduled_at, place


def _since(limits: Limits, now: int) -> int:
    return 0 if limits.rate is None else now - rows.microseconds_of(limits.rate.seconds)


def _capacities(
    connection: Connection,
    type: str,
    limits: Limits,
    since: int,
    rounds: KeyCursors,
    *,
    most_keys: int = MAX_KEYS,
    worse: bool = False,
) -> Iterator[tuple[str | None, int]]:
    """Return the keys, None between the last and the first, and how many more attempts of each may begin now."""
    params = {"per_key": limits.per_key is not None, "rated": limits.rate is not None, "since": since}
    found, others = _keys(connection, type, rounds, most_keys, fair=limits.fair, worse=worse, **params)
    for key, running, begun in found:
        yield key, _left(limits, running, begun)
    begun = 0
    if limits.rate is not None:
        [(begun,)] = run(connection, "count_unkeyed_starts", type=type, since=since)
    yield None, _left(limits, 0, begun, keyless=True)
    for key, running, begun in others:
        yield key, _left(limits, running, begun)


def capacities(
    connection: Connection, type: str, limits: Limits, now: int, *, others: Sequence[str]
) -> Iterator[tuple[str | None, int]]:
    """The first keys with ready jobs, None among them, and these others: how many more attempts of each may begin."""
    since = _since(limits, now)
    found = dict(_capacities(connection, type, limits, since, KeyCursors()))
    yield from found.items()
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


def _keys(
    connection: Connection, type: str, rounds: KeyCursors, most: int, *, fair: bool, worse: bool, **params: object
) -> tuple[list[Row], list[Row]]:
    """Return the keys with ready jobs after the cursor, and those up to it: at most ``most``, so that none starves."""
    begin = rounds.cursor(type, worse=worse)
    found = run(connection, "ready_keys", type=type, limit=most, **{"from": begin}, **params)
    others: list[Row] = []
    last = _last_key(found) if len(found) == most else None
    if begin and last is None:
        again = run(connection, "ready_keys", type=type, limit=most - len(found), **{"from": ""}, **params)
        others = [(key, running, begun) for key, running, begun in again if key <= begin]
        last = _last_key(others) if len(found) + len(others) == most else None
    if not fair or last is not None:
        # A claim that serves a key records that one instead, if keys take turns.
        rounds.ended(type, last, worse=worse)
    return found, others


def _last_key(found: Sequence[Row]) -> str:
    key, _, _ = found[-1]
    return str(key)
