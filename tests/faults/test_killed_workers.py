"""Workers that are killed: their jobs are run again by others, and nothing of them stands that was not committed."""

from __future__ import annotations

import pytest

from queuert import AsyncChain, JobType
from queuert.observability.events import JobReaped
from tests.faults.application import LASTING, Plan, patient
from tests.faults.ground import MODES, WAIT, Ground

pytestmark = pytest.mark.fault


async def killed_at(ground: Ground, chain: AsyncChain[int], step: str) -> str:
    """Let a worker begin the chain's job and kill it at that step; its name."""
    # A short lease could run out before that, on a slow machine; what the dead had would last long with this one.
    process = ground.spawn(lease=LASTING)
    holder = await process.started()
    await ground.step(chain.id, step)
    await process.kill()
    return holder


@MODES
async def test_killed_in_the_handler(ground: Ground, job_type: JobType[Plan, int]) -> None:
    chain = await ground.client.start_chain(job_type, Plan(before=[1, 2]))
    holder = await killed_at(ground, chain, "began")
    assert ground.witness.job(chain.id) == ("running", 1, 0, 0)
    ground.witness.expire_leases()

    async with ground.worker():
        reaped = await ground.log.wait_for(JobReaped, job_id=chain.id)
        assert (reaped.holder, reaped.attempt, reaped.failed) == (holder, 1, False)
        await ground.step(chain.id, "began", attempt=2)
        job = await ground.client.get_job(chain.id)
        assert job.last_error is not None
        assert job.last_error.kind == "lease_expired"
        assert holder in job.last_error.message
        ground.witness.open("before:2")
        assert await chain.result(WAIT) == 2
    assert ground.witness.job(chain.id) == ("completed", 2, 1, 0)


@MODES
async def test_killed_between_the_handler_and_the_commit(ground: Ground, job_type: JobType[Plan, int]) -> None:
    chain = await ground.client.start_chain(job_type, Plan(completes=True, inside=[1]))
    await killed_at(ground, chain, "inside")
    assert ground.witness.effects(chain.id) == []
    ground.witness.expire_leases()

    async with ground.worker():
        assert await chain.result(WAIT) == 2
    assert ground.witness.effects(chain.id) == [2]
    assert ground.witness.job(chain.id) == ("completed", 2, 1, 0)


async def test_killed_while_idle(ground: Ground) -> None:
    """Nothing to take over: the next worker begins at once, with attempt one."""
    process = ground.spawn()
    await process.started()
    await process.kill()
    chain = await ground.client.start_chain(patient, Plan())
    async with ground.worker():
        assert await chain.result(WAIT) == 1
    assert ground.log.of(JobReaped) == []
