"""Workers that are killed: other workers run their jobs again, and none of their uncommitted writes remains."""

from __future__ import annotations

import pytest

from queuert import AsyncChain, JobType
from queuert.observability.events import JobReaped
from tests.faults.application import LASTING, Plan, patient
from tests.faults.harness import MODES, FaultHarness
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault


async def killed_at(harness: FaultHarness, chain: AsyncChain[int], step: str) -> str:
    """Let a worker begin the chain's job and kill the worker at that step; return its name."""
    # A short lease could expire before that on a slow machine; a longer one would delay the take-over.
    process = harness.spawn(lease=LASTING)
    holder = await process.started()
    await harness.step(chain.id, step)
    await process.kill()
    await harness.disconnected()
    return holder


@pytest.mark.quick
@MODES
async def test_killed_in_the_handler(harness: FaultHarness, job_type: JobType[Plan, int]) -> None:
    chain = await harness.client.start_chain(job_type, Plan(before=[1, 2]))
    holder = await killed_at(harness, chain, "began")
    assert harness.witness.job(chain.id) == ("running", 1, 0, 0)
    harness.witness.expire_leases()

    async with harness.worker():
        reaped = await harness.log.wait_for(JobReaped, job_id=chain.id)
        assert (reaped.holder, reaped.attempt, reaped.failed) == (holder, 1, False)
        await harness.step(chain.id, "began", attempt=2)
        job = await harness.client.get_job(chain.id)
        assert job.last_error is not None
        assert job.last_error.kind == "lease_expired"
        assert holder in job.last_error.message
        harness.witness.open("before:2")
        assert await chain.result(WAIT) == 2
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


@pytest.mark.quick
@MODES
async def test_killed_between_the_handler_and_the_commit(harness: FaultHarness, job_type: JobType[Plan, int]) -> None:
    chain = await harness.client.start_chain(job_type, Plan(completes=True, inside=[1]))
    await killed_at(harness, chain, "inside")
    assert harness.witness.effects(chain.id) == []
    harness.witness.expire_leases()

    async with harness.worker():
        assert await chain.result(WAIT) == 2
    assert harness.witness.effects(chain.id) == [2]
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


async def test_killed_while_idle(harness: FaultHarness) -> None:
    """There is no job to take over: the next worker begins at once, with attempt one."""
    process = harness.spawn()
    await process.started()
    await process.kill()
    chain = await harness.client.start_chain(patient, Plan())
    async with harness.worker():
        assert await chain.result(WAIT) == 1
    assert harness.log.of(JobReaped) == []
