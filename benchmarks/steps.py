"""What a step costs beside a guarded transaction: `python -m benchmarks.steps`.

One attempt after the other runs each of these so many times, in an order that is rotated from attempt to attempt: a
`transaction()` with an insert, a `step_transaction()` with the same insert, a `step()` of a function that does nothing,
and the replay of such a step in the next attempt. Printed are medians in microseconds of one, and ratios to
`transaction` within an attempt, with their extremes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Any

import psycopg

from benchmarks.servers import PostgresServer, postgres
from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    PostgresState,
    Processors,
    migrations,
)
from queuert.worker import GuardedTransaction

TRANSACTION = "transaction"
KINDS = (TRANSACTION, "step_transaction", "step")
REPLAY = "replayed step"
_INSERT = "insert into effect (number) values (%s)"

measured = JobType("measured", input=int, output=dict[str, float])


async def _insert(tx: GuardedTransaction, number: int) -> int:
    await tx.connection.execute(_INSERT, (number,))
    return number


async def _nothing(number: int) -> int:
    return number


async def _once(attempt: Attempt[int, Any], kind: str, number: int) -> None:
    if kind == "step":
        await attempt.step("step", _nothing, number, key=number)
    elif kind == "step_transaction":
        await attempt.step_transaction("step_transaction", _insert, number, key=number)
    else:
        async with attempt.transaction() as tx:
            await _insert(tx, number)


async def _timed(count: int, once: Callable[[int], Awaitable[None]]) -> float:
    """Return the microseconds of one."""
    began = time.perf_counter()
    for number in range(count):
        await once(number)
    return (time.perf_counter() - began) / count * 1e6


def processors(count: int) -> Processors:
    """The handler: the first attempt measures all kinds, the second one the replay of the steps."""
    handlers = Processors(JobTypes(measured))
    found: dict[str, dict[str, float]] = {}

    @handlers.handles(measured)
    async def measure(attempt: Attempt[int, dict[str, float]]) -> Outcome[dict[str, float]]:
        turn = attempt.input % len(KINDS)
        order = KINDS[turn:] + KINDS[:turn]
        if attempt.number > 1:
            numbers = found.pop(attempt.job_id)
            for kind in order:
                if kind != TRANSACTION:
                    numbers[REPLAY] = await _timed(count, lambda number, kind=kind: _once(attempt, kind, number))  # type: ignore[misc]
            return numbers
        found[attempt.job_id] = {
            kind: await _timed(count, lambda number, kind=kind: _once(attempt, kind, number))  # type: ignore[misc]
            for kind in order
        }
        return attempt.snooze(0)

    return handlers


def run(server: PostgresServer, count: int, rounds: int) -> list[Mapping[str, float]]:
    """The numbers of each round; the first one, which warms the machine, is left out."""
    empty = server.template("empty", migrations.upgrade)
    with server.copy(empty) as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("create table effect (number integer not null)")
        return asyncio.run(_run(dsn, count, rounds))[1:]


async def _run(dsn: str, count: int, rounds: int) -> list[Mapping[str, float]]:
    handlers = processors(count)
    client = AsyncClient(PostgresState(dsn), JobTypes(measured))
    async with client, InProcessWorker(client, handlers, concurrency=1):
        return [await (await client.start_chain(measured, turn)).result(600) for turn in range(rounds + 1)]


def report(found: Sequence[Mapping[str, float]]) -> str:
    """A table: medians, and ratios to `transaction`."""
    lines = [f"{'':<18}{'us':>8}   ratio"]
    for kind in (*KINDS, REPLAY):
        ratios = [one[kind] / one[TRANSACTION] for one in found]
        middle = median(one[kind] for one in found)
        lines.append(f"{kind:<18}{middle:>8.1f}   {median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="of each kind in an attempt, at most 500")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with postgres() as server:
        print(report(run(server, args.steps, args.rounds)))


if __name__ == "__main__":
    main()
