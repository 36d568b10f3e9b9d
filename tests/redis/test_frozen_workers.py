"""Workers that stand still for longer than their lease and go on: too late, and nothing of them is written."""

from __future__ import annotations

import pytest

from queuert import JobType
from queuert.observability.events import AttemptAborted, AttemptCompleted, AttemptFailed, AttemptRetried
from tests.redis.application import KEPT, Plan, blocking, patient, threaded
from tests.redis.harness import RedisHarness
from tests.support.waiting import WAIT
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

LOST = {"lease_not_renewed", "taken_by_another_worker", "already_completed"}
MODES = pytest.mark.parametrize("job_type", [patient, threaded], ids=lambda one: str(one.name))


def finishes(process: WorkerProcess) -> set[tuple[str, int]]:
    """The attempts of which a worker said that their finish stands."""
    kinds = (AttemptCompleted, AttemptRetried, AttemptFailed)
    return {(event.job_id, event.attempt) for kind in kinds for event in process.log.of(kind)}


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
@pytest.mark.parametrize("second_is", ["running", "finished"])
async def test_frozen_past_its_lease(
    harness: RedisHarness, job_type: JobType[Plan, int], completes: bool, second_is: str
) -> None:
    """Attempt one insists on its finish, and is refused, while attempt two runs and after it has finished."""
    waiting = [1, 2] if second_is == "running" else [1]
    chain = await harness.client.start_chain(job_type, Plan(before=waiting, completes=completes, stubborn=True))
    frozen = harness.spawn()
    await harness.step(chain.id, "began")
    await frozen.freeze()

    async with harness.worker():
        await harness.step(chain.id, "began", attempt=2)
        if second_is == "finished":
            assert await chain.result(WAIT) == 2
        frozen.resume()
        await frozen.log.wait_for(AttemptAborted, job_id=chain.id)
        await harness.step(chain.id, "reported")
        assert harness.detail(chain.id, "reported") in LOST
        harness.open("before:1")
        if completes:
            await harness.step(chain.id, "refused")
            assert harness.detail(chain.id, "refused") in LOST
        harness.open("before:2")
        assert await chain.result(WAIT) == 2
    # It is none the worse for it: it takes part again.
    other = await harness.client.start_chain(job_type, Plan(completes=True))
    # Its leases are short: where the whole machine stands still for as long, that is not the first attempt.
    attempt = await other.result(WAIT)
    await frozen.log.wait_for(AttemptCompleted, job_id=other.id)
    assert finishes(frozen) == {(other.id, attempt)}
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations, job.output) == (2, 1, 2)


@MODES
async def test_frozen_inside_complete(harness: RedisHarness, job_type: JobType[Plan, int]) -> None:
    """Nothing holds the job in the store meanwhile: the commit is refused instead."""
    chain = await harness.client.start_chain(job_type, Plan(completes=True, inside=[1], stubborn=True))
    frozen = harness.spawn()
    await harness.step(chain.id, "inside")
    await frozen.freeze()
    async with harness.worker():
        assert await chain.result(WAIT) == 2
    frozen.resume()
    harness.open("inside:1")
    await harness.step(chain.id, "refused")
    assert harness.detail(chain.id, "refused") in LOST
    assert finishes(frozen) == set()
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations, job.output) == (2, 1, 2)


async def test_a_handler_blocks_the_event_loop_for_longer_than_its_lease(harness: RedisHarness) -> None:
    """Its lease is kept by a thread, so that another worker, which is awake and would take the job, gets nothing."""
    blocked = harness.spawn(lease=KEPT)
    holder = await blocked.started()
    chain = await harness.client.start_chain(blocking, None)
    await harness.step(chain.id, "began")
    async with harness.worker():
        await harness.outlast_leases("blocking")
        harness.open("wake")
        assert await chain.result(WAIT) == 1
    assert harness.detail(chain.id, "woke") == "None"
    assert (await blocked.log.wait_for(AttemptCompleted, job_id=chain.id)).worker == holder
    assert blocked.log.of(AttemptAborted) == []
    job = await harness.job(chain.id)
    assert (job.attempt, job.lease_expirations) == (1, 0)
