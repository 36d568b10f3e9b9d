"""Filling a table by the server itself, and the times of claims from what is in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from benchmarks.child import Request, tell
from benchmarks.contestants.support import batches

CLAIM = 10
"""Jobs of a claim whose time is measured."""

WARM = 20
"""Claims before those that are measured."""

_CHUNK = 500_000
_PORTION = 500


def rows_to_fill(request: Request) -> int:
    """The backlog, and what is taken from it before and while it is measured."""
    return int(request.option("rows")) + (request.jobs + WARM) * CLAIM + passed_over(request)


def passed_over(request: Request) -> int:
    """Jobs that are claimed and completed before the claims that are measured."""
    return int(request.option("passed", 0)) * request.jobs


def portions(request: Request) -> list[int]:
    """The same, a claim at a time."""
    return [len(numbers) for numbers in batches(passed_over(request), _PORTION)]


def without_flushes(request: Request) -> None:
    """From now on no commit in this database waits for the disk."""
    with psycopg.connect(request.server, autocommit=True) as connection:
        database = Identifier(connection.info.dbname)
        connection.execute(SQL("ALTER DATABASE {} SET synchronous_commit = off").format(database))


def fill(request: Request, statement: bytes, rows: int, **values: Any) -> None:
    """Run a statement over ``first`` to ``last``, a part at a time, and say how far it is."""
    began = time.monotonic()
    with psycopg.connect(request.server, autocommit=True) as connection:
        for first in range(0, rows, _CHUNK):
            last = min(first + _CHUNK, rows)
            connection.execute(statement, {"first": first + 1, "last": last, **values})
            if rows > _CHUNK:
                tell(f"  filled with {last:,} of {rows:,} rows ({time.monotonic() - began:.0f} s)")


def times_of(claim: Callable[[], int], claims: int) -> dict[str, float]:
    """The middle and the slow end of so many claims, in milliseconds.

    Raises:
        SystemExit: there was less to claim than was filled in.
    """
    milliseconds: list[float] = []
    for number in range(WARM + claims):
        began = time.perf_counter()
        count = claim()
        if count != CLAIM:
            raise SystemExit(f"a claim of {CLAIM} got {count}")
        if number >= WARM:
            milliseconds.append((time.perf_counter() - began) * 1e3)
    ordered = sorted(milliseconds)
    last = len(ordered) - 1
    return {"p50_ms": ordered[last // 2], "p99_ms": ordered[min(last, int(len(ordered) * 0.99))]}
