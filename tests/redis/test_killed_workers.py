"""Workers that are killed at every step of a job: it is run again by others, counted, and nothing is done twice."""

from __future__ import annotations

import pytest

from queuert import JobType
from queuert.observability.events import JobReaped
from tests.redis.application import Plan, patient, threaded
from tests.redis.harness import RedisHarness
from tests.support.waiting import WAIT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

STEPS = {
    "in the handler": ("began", Plan(before=[1])),
    "after prepare()": ("prepared", Plan(prepares=True, before=[1])),
    "in complete()": ("inside", Plan(completes=True, inside=[1])),
    "before a continuation": ("inside", Plan(completes=True, continues=True, inside=[1])),
    "before a fan-out": ("inside", Plan(completes=True, fans_out=3, inside=[1])),
}


@pytest.mark.parametrize("step", list(STEPS))
async def test_killed(harness: RedisHarness, step: str) -> None:
    name, plan = STEPS[step]
    chain = await harness.client.start_chain(patient, plan)
    process = harness.spawn()
    holder = await process.started()
    await harness.step(chain.id, name)
    await process.kill()
    assert harness.faults() == []
    assert (await harness.job(chain.id)).holder == holder

    async with harness.worker():
        reaped = await harness.log.wait_for(JobReaped, job_id=chain.id)
        assert (reaped.holder, reaped.attempt, reaped.failed) == (holder, 1, False)
        await chain.result(WAIT)
    job = await harness.job(chain.id)
    assert (job.attempt - job.uncounted, job.lease_expirations) == (2, 1)
    assert harness.count("completed") == 1 + plan.fans_out


@pytest.mark.parametrize("job_type", [patient, threaded], ids=lambda one: str(one.name))
async def test_killed_with_many_in_hand(harness: RedisHarness, job_type: JobType[Plan, int]) -> None:
    chains = [await harness.client.start_chain(job_type, Plan(before=[1], completes=True)) for _ in range(10)]
    process = harness.spawn(concurrency=10)
    for chain in chains:
        await harness.step(chain.id, "began")
    await process.kill()
    assert harness.count("running") == 10

    async with harness.worker(concurrency=4):
        for chain in chains:
            assert await chain.result(WAIT) == 2
    assert len(harness.begun()) == 20


@pytest.mark.quick
async def test_killed_while_idle(harness: RedisHarness) -> None:
    process = harness.spawn()
    await process.started()
    await process.kill()
    chain = await harness.client.start_chain(patient, Plan())
    async with harness.worker():
        assert await chain.result(WAIT) == 1
    assert harness.log.of(JobReaped) == []


async def test_killed_again_and_again_under_load(harness: RedisHarness) -> None:
    """Every chain ends once, no attempt begins twice, and what was lost was counted."""
    plans = [Plan(), Plan(completes=True), Plan(continues=True), Plan(fans_out=2), Plan(retries=1), Plan(prepares=True)]
    chains = [await harness.client.start_chain(patient, plans[number % len(plans)]) for number in range(120)]
    # One time fewer than a job may cost workers their lives before it counts as what kills them.
    for round in range(4):
        process = harness.spawn(concurrency=8, name=f"child-{round}")
        await process.started()
        done = harness.count("completed")
        wanted = min(done + 12, 100)
        await harness.completed(wanted)
        await process.kill()
        assert harness.faults() == []
    async with harness.worker(concurrency=8):
        for chain in chains:
            await chain.result(WAIT)
        await harness.drained()
    assert harness.count("failed") == 0
