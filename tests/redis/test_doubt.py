"""Connections that break while a script is under way: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from queuert import AsyncClient, Client, InProcessWorker, JobType, NewChain
from queuert.errors import JobIdConflictError, StateUnavailableError
from queuert.notify.redis import RedisNotify
from queuert.observability.events import AttemptCompleted, AttemptStarted, JobReaped, JobsReleased, LoopFailed
from queuert.state.redis.scripts import script
from queuert.testing.fault_proxy import FaultProxy
from tests.redis.application import JOB_TYPES, KEPT, LEASE, Plan, patient, quick, threaded
from tests.redis.harness import RedisHarness
from tests.support.waiting import WAIT, until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

NEVER = 3600.0
MODES = pytest.mark.parametrize("job_type", [patient, threaded], ids=lambda one: str(one.name))
LOST = pytest.mark.parametrize("arrives", [True, False], ids=["answer is lost", "request is lost"])


def lose(proxy: FaultProxy, name: str, *, arrives: bool) -> None:
    """Break the connection that runs this operation next, before or after it is done. Its text is known by now."""
    (proxy.lose_answer if arrives else proxy.lose_request)(script(name).digest.encode())


@pytest.fixture
async def known(harness: RedisHarness) -> None:
    """The server has all scripts, so that they are sent by their digests."""
    for name in ("start", "claim", "finish", "renew", "reap", "release_claim"):
        harness.redis.script_load(script(name).text.decode())


def direct(harness: RedisHarness) -> RedisNotify:
    """Notifications that do not go through the proxy."""
    return RedisNotify(harness.url, namespace=harness.namespace)


@pytest.fixture
async def worker(harness: RedisHarness, proxy: FaultProxy, known: None) -> AsyncIterator[InProcessWorker]:
    """A worker whose scripts go through the proxy."""
    async with harness.worker(url=proxy.address_in(harness.url), notify=direct(harness)) as worker:
        yield worker


@LOST
@pytest.mark.usefixtures("known")
async def test_a_start(harness: RedisHarness, proxy: FaultProxy, arrives: bool) -> None:
    """The outcome is unknown, and a repetition with the same id tells it."""
    state = harness.state_at(proxy.address_in(harness.url))
    async with AsyncClient(state, JOB_TYPES, notify=direct(harness)) as client:
        await client.start_chain(quick, 0, id="first")
        lose(proxy, "start", arrives=arrives)
        with pytest.raises(StateUnavailableError):
            await client.start_chain(quick, 1, id="chosen")
        assert proxy.fired.is_set()
        if arrives:
            with pytest.raises(JobIdConflictError):
                await client.start_chain(quick, 1, id="chosen")
        chain = await client.start_chain(quick, 1, id="chosen", attach=True)
        assert chain.deduplicated is arrives
    async with harness.worker():
        assert await chain_result(harness, "chosen") == 1
    assert harness.begun() == {("first", 1): 1, ("chosen", 1): 1}


@LOST
@pytest.mark.usefixtures("known")
def test_a_start_of_many_in_a_thread(harness: RedisHarness, proxy: FaultProxy, arrives: bool) -> None:
    """All of them or none."""
    state = harness.state_at(proxy.address_in(harness.url))
    with Client(state, JOB_TYPES, notify=direct(harness)) as client:
        client.start_chain(quick, 0)
        lose(proxy, "start", arrives=arrives)
        with pytest.raises(StateUnavailableError):
            client.start_chains([NewChain(quick, number) for number in range(500)])
        assert harness.count("ready") == (501 if arrives else 1)


async def chain_result(harness: RedisHarness, id: str) -> object:
    """What a chain ends with."""
    return await (await harness.client.get_chain(id)).result(WAIT)


@LOST
@pytest.mark.usefixtures("known")
async def test_a_claim(harness: RedisHarness, proxy: FaultProxy, arrives: bool) -> None:
    """Jobs that nobody knows to be claimed are released at once, uncounted, and then run."""
    chains = [await harness.client.start_chain(quick, number) for number in range(5)]
    lose(proxy, "claim", arrives=arrives)
    async with harness.worker(url=proxy.address_in(harness.url), notify=direct(harness), concurrency=5):
        for number, chain in enumerate(chains):
            assert await chain.result(WAIT) == number
    assert proxy.fired.is_set()
    assert [event.count for event in harness.log.of(JobsReleased)] == [5] * arrives
    assert len(harness.log.of(LoopFailed, loop="claimer")) == 1
    assert len(harness.log.of(AttemptStarted)) == 5
    assert harness.log.of(JobReaped) == []
    assert harness.begun() == {(chain.id, 1): 1 for chain in chains}


@pytest.mark.usefixtures("known")
async def test_a_claim_before_a_stop(harness: RedisHarness, proxy: FaultProxy) -> None:
    """Jobs of a lost claim are released by a worker that stops as well."""
    chain = await harness.client.start_chain(patient, Plan())
    lose(proxy, "claim", arrives=True)
    async with harness.worker(url=proxy.address_in(harness.url), notify=direct(harness), shutdown_timeout=WAIT):
        await until(proxy.fired.is_set, "the answer is lost")
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) in {("ready", 0), ("completed", 1)}


@MODES
@LOST
@pytest.mark.parametrize("plan", [Plan(), Plan(completes=True)], ids=["returns", "completes"])
@pytest.mark.usefixtures("worker")
async def test_an_finish(
    harness: RedisHarness, proxy: FaultProxy, job_type: JobType[Plan, int], plan: Plan, arrives: bool
) -> None:
    """It is asked for again: one attempt in either case, and no failure."""
    chain = await harness.client.start_chain(job_type, plan.model_copy(update={"before": [1]}))
    await harness.step(chain.id, "began")
    lose(proxy, "finish", arrives=arrives)
    harness.open("before:1")
    await until(proxy.fired.is_set, "the connection is cut")
    assert await chain.result(WAIT) == 1
    await harness.log.wait_for(AttemptCompleted, job_id=chain.id)
    job = await harness.job(chain.id)
    assert (job.attempt, job.last_error) == (1, None)
    assert harness.log.of(JobReaped) == []


@LOST
@pytest.mark.parametrize(
    "plan", [Plan(continues=True), Plan(fans_out=3), Plan(retries=1)], ids=["continues", "fans out", "retries"]
)
@pytest.mark.usefixtures("worker")
async def test_an_finish_that_writes_more(harness: RedisHarness, proxy: FaultProxy, plan: Plan, arrives: bool) -> None:
    """What it creates is created once."""
    chain = await harness.client.start_chain(patient, plan.model_copy(update={"before": [1]}))
    await harness.step(chain.id, "began")
    lose(proxy, "finish", arrives=arrives)
    harness.open("before:1")
    await until(proxy.fired.is_set, "the connection is cut")
    await chain.result(WAIT)
    await harness.drained()
    assert harness.count("completed") == 1 + plan.fans_out
    assert harness.count("continued") == int(plan.continues)
    assert harness.log.of(JobReaped) == []


@pytest.mark.usefixtures("known")
async def test_renewals(harness: RedisHarness, proxy: FaultProxy) -> None:
    """A renewal whose answer is lost is made again in time."""
    async with harness.worker(url=proxy.address_in(harness.url), notify=direct(harness), lease=KEPT):
        chain = await harness.client.start_chain(patient, Plan(before=[1]))
        await harness.step(chain.id, "began")
        outlasting = asyncio.create_task(harness.outlast_leases("patient"))
        for arrives in (True, False, True):
            lose(proxy, "renew", arrives=arrives)
            await until(proxy.fired.is_set, "a renewal is lost")
        await outlasting
        harness.open("before:1")
        assert await chain.result(WAIT) == 1
    assert harness.log.of(JobReaped) == []


async def test_a_reaper_whose_answer_is_lost(harness: RedisHarness, proxy: FaultProxy, known: None) -> None:
    """What it reaped is counted once, and runs again, although nobody polls."""
    chain = await harness.client.start_chain(patient, Plan(before=[1]))
    process = harness.spawn()
    await harness.step(chain.id, "began")
    await process.kill()
    await harness.expired(chain.id)
    lose(proxy, "reap", arrives=True)
    async with harness.worker(url=proxy.address_in(harness.url), notify=direct(harness), poll_interval=NEVER):
        assert await chain.result(WAIT) == 2
    assert proxy.fired.is_set()
    assert harness.log.of(JobReaped) == []
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (2, 1)


async def test_connections_are_cut_again_and_again(harness: RedisHarness, proxy: FaultProxy) -> None:
    """In the middle of whatever goes on."""
    plans = [Plan(), Plan(completes=True), Plan(continues=True), Plan(fans_out=2), Plan(retries=1)]
    # What nobody could release runs out.
    async with harness.worker(url=proxy.address_in(harness.url), lease=LEASE, concurrency=10, poll_interval=0.1):
        chains = [await harness.client.start_chain(patient, plans[number % 5]) for number in range(150)]
        for wanted in range(20, 140, 20):
            await harness.completed(wanted)
            proxy.cut_after(300 + wanted, "to_client" if wanted % 40 else "to_server")
            await until(lambda: proxy.fired.is_set() or not harness.count("ready"), "a connection is cut")
        for chain in chains:
            await chain.result(WAIT)
        await harness.drained()
    assert harness.count("completed") == 150 + 30 * 2
    assert harness.count("failed") == 0
