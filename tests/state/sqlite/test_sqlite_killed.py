"""Processes that share a file and are killed, whatever they are at: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from queuert import AsyncChain, AsyncClient
from queuert.errors import StateUnavailableError
from queuert.state.sqlite import SQLiteState
from tests.state.sqlite.application import JOB_TYPES, first, parent, patient, single, slow, threaded
from tests.state.sqlite.harness import SQLiteHarness
from tests.support.waiting import START, WAIT, until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

_WORKERS = 4
_KILLS = 8
_ENDED = "SELECT count(*) FROM history WHERE new_status IN ('completed', 'continued')"


@asynccontextmanager
async def client_of(harness: SQLiteHarness, **settings: float) -> AsyncIterator[AsyncClient]:
    state = SQLiteState(harness.path, synchronous="normal", **settings)
    async with AsyncClient(state, JOB_TYPES) as client:
        yield client


async def test_killed_again_and_again_under_load(harness: SQLiteHarness) -> None:
    """Four workers; whenever some jobs have ended, one of the four is killed and another one takes its place."""
    rng = random.Random(7)
    workers = [harness.spawn() for _ in range(_WORKERS)]
    chains: list[AsyncChain[int]] = []
    async with client_of(harness) as client:
        for _ in range(_KILLS):
            goal = harness.witness.one(_ENDED) + 15
            for job_type in (single, threaded, first, parent):
                chains += [await client.start_chain(job_type, number) for number in range(10)]
            await until(lambda goal=goal: harness.witness.one(_ENDED) >= goal, "the workers go on", START)  # type: ignore[misc]
            place = rng.randrange(_WORKERS)
            workers[place].kill()
            workers[place] = harness.spawn()
        for chain in chains:
            await chain.result(240)
    assert harness.witness.rows("SELECT DISTINCT status FROM queuert_chain") == [("completed",)]
    # They were killed with jobs in their hands.
    assert harness.witness.one("SELECT sum(lease_expirations) FROM queuert_job") > 0


async def test_killed_inside_its_transaction(harness: SQLiteHarness) -> None:
    """What it wrote is gone with it, and so is its lock: others go on at once, and do the job again."""
    worker = harness.spawn()
    await worker.says("started")
    async with client_of(harness) as client, client_of(harness, answer_timeout=0.2) as impatient:
        chain = await client.start_chain(patient, 7)
        await worker.says(f"inside {chain.id}")
        with pytest.raises(StateUnavailableError, match="kept the database locked for too long"):
            await impatient.start_chain(single, 1)
        assert harness.witness.effects(chain.id) == []
        worker.kill()
        await impatient.start_chain(single, 2)
        harness.spawn()
        assert await chain.result(START) == 7
    assert harness.witness.effects(chain.id) == [2]


async def test_frozen_for_longer_than_its_lease(harness: SQLiteHarness) -> None:
    """Others do its job meanwhile. When it goes on, what it wrote is refused, and it works on."""
    frozen = harness.spawn()
    await frozen.says("started")
    gate = harness.path.with_name("gate")
    async with client_of(harness) as client:
        chain = await client.start_chain(slow, str(gate))
        await frozen.says(f"began {chain.id}")
        frozen.freeze()
        other = harness.spawn()
        assert await chain.result(START) == 2
        other.kill()
        gate.touch()
        frozen.go_on()
        assert await (await client.start_chain(single, 7)).result(WAIT) == 7
    assert harness.witness.effects(chain.id) == [2]


async def test_four_processes_share_the_work(harness: SQLiteHarness) -> None:
    """Each of them gets some, whoever makes a job due: of the first, or of more if it stood still meanwhile."""
    workers = [harness.spawn() for _ in range(_WORKERS)]
    await asyncio.gather(*(worker.says("started") for worker in workers))

    def all_have_some() -> bool:
        return len(harness.witness.rows("SELECT DISTINCT holder FROM queuert_job")) == _WORKERS

    async with client_of(harness) as client, asyncio.timeout(START):
        while not all_have_some():
            chains = [await client.start_chain(job_type, 1) for job_type in (parent, first, single, threaded) * 25]
            assert [await chain.result() for chain in chains] == [3, 1, 1, 1] * 25
