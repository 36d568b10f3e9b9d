"""What the modules of several peers share. Imports of packages that only some environments have are in functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from benchmarks.child import Request

USER_TABLE = "create table user_write (id bigint generated always as identity primary key, value bigint not null)"
WRITE = "insert into user_write (value) values (%s)"
BATCH = 1000

Remaining: TypeAlias = Callable[[], Awaitable[int]]


def run(request: Request, work: Coroutine[Any, Any, dict[str, float] | None]) -> dict[str, float]:
    """Run a coroutine, on uvloop when the entry says so."""
    if request.option("uvloop", False):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work) or {}
    return asyncio.run(work) or {}


def unfinished(rows: str) -> str:
    """Asks whether there are any of these rows: ``TABLE where CONDITION``. 1 or 0, whatever their number."""
    return f"select count(*) from (select from {rows} limit 1) as unfinished"


def some_of(*rows: str) -> str:
    """The same of several sets of rows, each of which has an index of its own."""
    return f"select ({' or '.join(f'exists (select from {one})' for one in rows)})::int"


def batches(jobs: int, size: int = BATCH) -> Iterator[range]:
    """The numbers of so many jobs, a batch at a time."""
    for begin in range(0, jobs, size):
        yield range(begin, min(begin + size, jobs))


@asynccontextmanager
async def remaining(server: str, statement: str) -> AsyncIterator[Remaining]:
    """Asks Postgres for a count, through psycopg, on a connection of its own.

    The clock runs meanwhile, so it takes an index where there is one: whatever has ended lies beside what has not.
    """
    import psycopg

    async with await psycopg.AsyncConnection.connect(server, autocommit=True) as connection:
        await connection.execute("set enable_seqscan = off")

        async def ask() -> int:
            row = await (await connection.execute(statement.encode())).fetchone()
            return 0 if row is None else int(row[0])

        yield ask


async def until_none(ask: Remaining, seconds: float = 0.03) -> None:
    """Wait until none remains, where handlers cannot tell: they run elsewhere."""
    while await ask() > 0:  # noqa: ASYNC110 - no store tells of it
        await asyncio.sleep(seconds)
