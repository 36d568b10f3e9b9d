"""Connections between a worker and its database are reset, delayed and refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import Attempt, NewChain, Outcome
from queuert.observability.events import (
    AttemptCompleted,
    LoopFailed,
    LoopRecovered,
)
from queuert.testing.fault_proxy import FaultProxy
from tests.faults.application import AT_ONCE
from tests.support.harness import PostgresHarness
from tests.support.job_types import SHORT, echo, loop, number, text
from tests.support.waiting import WAIT, Gate, in_time

pytestmark = pytest.mark.fault

COMMIT = b"COMMIT"
CLAIM = b"Leases the best due jobs"
FINISH = b"Finishes attempts of all kinds"
RELEASE = b"Releases all jobs of one claim"


def make_effects(harness: PostgresHarness) -> None:
    """The table that handlers write to in their transactions."""
    harness.rows("create table effect (job text, attempt int)")


def effects(harness: PostgresHarness) -> list[tuple[str, int]]:
    """Return what handlers committed: job and attempt."""
    return [(row[0], row[1]) for row in harness.rows("select job, attempt from effect order by job, attempt")]


@pytest.fixture
async def near(dsn: str) -> AsyncIterator[PostgresHarness]:
    """A harness that is connected to the database itself."""
    harness = PostgresHarness(dsn)
    make_effects(harness)
    yield harness
    await harness.close()


@pytest.fixture
async def proxy(near: PostgresHarness) -> AsyncIterator[FaultProxy]:
    """Yield the proxy between the far harness and the database."""
    with FaultProxy.before(near.dsn) as proxy:
        yield proxy


@pytest.fixture
async def far(near: PostgresHarness, proxy: FaultProxy) -> AsyncIterator[PostgresHarness]:
    """A harness whose client and workers are connected through the proxy."""
    harness = PostgresHarness(near.dsn, through=proxy.address_in(near.dsn), answer_timeout=5.0)
    yield harness
    proxy.heal()
    await harness.close()


async def writes(attempt: Attempt[Any, Any]) -> Any:
    async with attempt.complete() as tx:
        await tx.connection.execute("insert into effect values (%s, %s)", (attempt.job_id, attempt.number))
        return tx.finish(attempt.input)


def writes_in_thread(attempt: Attempt[Any, Any]) -> Any:
    with attempt.complete() as tx:
        tx.connection.execute("insert into effect values (%s, %s)", (attempt.job_id, attempt.number))
        return tx.finish(attempt.input)


@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_continuation_is_created_once_whatever_is_lost(
    near: PostgresHarness, far: PostgresHarness, proxy: FaultProxy, lost: str
) -> None:
    gate = Gate()

    @far.processors.handles(loop, retry=AT_ONCE)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 0:
            await gate.pass_through(attempt)
            return attempt.continue_with(loop, 1)
        return attempt.input

    await far.worker().start()
    chain = await near.client.start_chain(loop, 0)
    await gate.next()
    if lost == "answer":
        proxy.lose_answer(FINISH)
    else:
        proxy.lose_request(FINISH)
    gate.open()
    assert await chain.result(WAIT) == 1
    assert proxy.fired.is_set()
    assert near.rows("select chain_index, attempt from queuert.job order by 1") == [(0, 1), (1, 1)]


async def test_a_lost_claim_is_given_back_when_the_worker_stops(
    near: PostgresHarness, far: PostgresHarness, proxy: FaultProxy
) -> None:
    far.handles(number, echo)
    chains = await near.client.start_chains([NewChain(number, one) for one in range(3)])
    proxy.lose_answer(CLAIM)
    worker = far.worker(concurrency=3)
    await worker.start()
    await far.log.wait_for(LoopFailed, loop="claimer")
    await in_time(worker.stop())
    await near.client.get_chains(chains)
    assert near.one("select count(*) from queuert.job where lease_expires_at is not null") == 0


async def test_all_connections_are_cut_again_and_again(
    near: PostgresHarness, far: PostgresHarness, proxy: FaultProxy
) -> None:
    far.handles(number, writes, retry=AT_ONCE, lease=SHORT)
    far.handles(text, writes_in_thread, retry=AT_ONCE, lease=SHORT)
    near.handles(number, writes, retry=AT_ONCE, lease=SHORT)
    near.handles(text, writes_in_thread, retry=AT_ONCE, lease=SHORT)
    await far.worker(concurrency=10).start()
    chains = await near.client.start_chains(
        [NewChain(number, 1) for _ in range(100)] + [NewChain(text, "x") for _ in range(100)]
    )
    for times in (20, 60, 100):
        await far.log.wait_for(AttemptCompleted, times=times)
        proxy.reset()
    await near.client.wait(chains, timeout=2 * WAIT)
    assert [one for one, _ in effects(near)] == sorted(chain.id for chain in chains)
    assert near.one("select count(*) from queuert.job where status <> 'completed'") == 0


async def test_a_database_that_comes_late(near: PostgresHarness, far: PostgresHarness, proxy: FaultProxy) -> None:
    """Connections are refused for a while: afterwards every loop continues. With a short lease the reaper checks
    often."""
    far.handles(number, echo, lease=SHORT)
    await far.worker().start()
    assert await (await near.client.start_chain(number, 1)).result(WAIT) == 1
    proxy.refuse()
    proxy.reset()
    chain = await near.client.start_chain(number, 2)
    await far.log.wait_for(LoopFailed, loop="reaper")
    proxy.heal()
    assert await chain.result(WAIT) == 2
    await far.log.wait_for(LoopRecovered, loop="reaper")
