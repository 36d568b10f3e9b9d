"""The database itself goes away under load, and comes back: every chain completes, every effect once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuert import Attempt, NewChain, Outcome, migrations
from queuert.embedded import EmbeddedPostgres
from queuert.observability.events import AttemptCompleted, AttemptContinued
from tests.conftest import StartPostgres
from tests.faults.processes.support import effects, make_effects
from tests.worker.support import AT_ONCE, SHORT, Stage, loop, text

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

JOBS = 60
PATIENCE = 60.0


async def goes_on(attempt: Attempt[int, int]) -> Outcome[int]:
    """Three steps, the last with an effect."""
    if attempt.input < 2:
        return attempt.continue_with(loop, attempt.input + 1)
    async with attempt.complete() as tx:
        await tx.connection.execute("insert into effect values (%s, %s)", (attempt.chain_id, attempt.number))
        return tx.finish(attempt.input)


def in_thread(attempt: Attempt[Any, Any]) -> Any:
    with attempt.complete() as tx:
        tx.connection.execute("insert into effect values (%s, %s)", (attempt.chain_id, attempt.number))
        return tx.finish(attempt.input)


async def break_it(server: EmbeddedPostgres, how: str) -> None:
    await asyncio.to_thread(server.stop if how == "stopped" else server.kill)
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_database_that_restarts_under_load(private_postgres: StartPostgres, how: str) -> None:
    server = await asyncio.to_thread(private_postgres)
    dsn = server.dsn()
    await asyncio.to_thread(migrations.upgrade, dsn)
    near = Stage(dsn)
    make_effects(near)
    far = Stage(dsn, answer_timeout=5.0)
    far.handles(loop, goes_on, retry=AT_ONCE, lease=SHORT)
    far.handles(text, in_thread, retry=AT_ONCE, lease=SHORT)
    chains: list[Any] = await near.client.start_chains([NewChain(loop, 0) for _ in range(JOBS)])
    chains += await near.client.start_chains([NewChain(text, "x") for _ in range(JOBS)])
    workers = [far.worker(concurrency=4) for _ in range(2)]
    for worker in workers:
        await worker.start()
    waiting = asyncio.create_task(far.client.wait(chains, timeout=PATIENCE))
    await far.log.wait_for(AttemptContinued, times=5)
    await break_it(server, how)
    await far.log.wait_for(AttemptCompleted, times=JOBS, timeout=PATIENCE)
    await break_it(server, how)
    closed = await waiting
    assert {chain.status for chain in closed} == {"completed"}
    assert all(worker.health().live for worker in workers)
    await asyncio.gather(*(worker.stop() for worker in workers))
    await far.close()
    await near.close()
    after = Stage(dsn)
    assert [one for one, _ in effects(after)] == sorted(chain.id for chain in chains)
    assert after.one("select count(*) from queuert.job where status not in ('completed', 'continued')") == 0
    assert after.one("select max(chain_index) from queuert.job") == 2
    await after.close()


async def test_a_worker_outlives_a_database_that_was_away_while_it_was_idle(private_postgres: StartPostgres) -> None:
    server = await asyncio.to_thread(private_postgres)
    dsn = server.dsn()
    await asyncio.to_thread(migrations.upgrade, dsn)
    far = Stage(dsn)
    make_effects(far)
    far.handles(text, in_thread, retry=AT_ONCE, lease=SHORT)
    worker = far.worker(poll_interval=3600.0)
    await worker.start()
    await (await far.client.start_chain(text, "x", id="before")).result(PATIENCE)
    await asyncio.to_thread(server.restart)
    near = Stage(dsn)
    chain = await near.client.start_chain(text, "x", id="after")
    assert await chain.result(PATIENCE) == "x"
    assert worker.health().live
    assert [one for one, _ in effects(near)] == ["after", "before"]
    await far.close()
    await near.close()
