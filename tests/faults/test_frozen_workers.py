"""Workers that are frozen for longer than their lease and resume: their writes are rejected, and handlers aborted."""

from __future__ import annotations

import psycopg
import pytest

from queuert import JobType, NewChain
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptFailed,
    AttemptRetried,
    FinishRejected,
)
from queuert.policies import LeasePolicy
from tests.faults.application import KEPT, Plan, blocking, patient
from tests.faults.harness import MODES, FaultHarness
from tests.support.waiting import WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault

LOST = {"lease_not_renewed", "taken_by_another_worker", "already_completed"}
"""The abort reasons that the handler may see: the thread that wakes first may only know that the lease has expired."""


def finishes(process: WorkerProcess) -> set[tuple[str, int]]:
    """Return the attempts whose finish a worker reported as written."""
    kinds = (AttemptCompleted, AttemptRetried, AttemptFailed)
    return {(event.job_id, event.attempt) for kind in kinds for event in process.log.of(kind)}


async def takes_part(harness: FaultHarness, frozen: WorkerProcess, job_type: JobType[Plan, int]) -> None:
    """The frozen worker runs another job. Its only finish is that of this job: all its earlier leases were lost."""
    other = await harness.client.start_chain(job_type, Plan(completes=True))
    # Its leases are short: if the whole machine stops for as long, this is not the first attempt.
    attempt = await other.result(WAIT)
    await frozen.log.wait_for(AttemptCompleted, job_id=other.id)
    assert finishes(frozen) == {(other.id, attempt)}


@pytest.mark.quick
@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
@pytest.mark.parametrize("second_is", ["running", "finished"])
async def test_frozen_past_its_lease(
    harness: FaultHarness, job_type: JobType[Plan, int], completes: bool, second_is: str
) -> None:
    """Attempt one ignores its abort, and its finish is rejected, while attempt two runs and after it has finished."""
    waiting = [1, 2] if second_is == "running" else [1]
    plan = Plan(before=waiting, completes=completes, stubborn=True)
    chain = await harness.client.start_chain(job_type, plan)
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
        assert harness.witness.detail(chain.id, "reported", 1) in LOST
        harness.witness.open("before:1")
        if completes:
            await harness.step(chain.id, "refused")
            assert harness.witness.detail(chain.id, "refused", 1) in LOST
        elif job_type is patient:
            reason = "taken_by_another_worker" if second_is == "running" else "already_completed"
            await frozen.log.wait_for(FinishRejected, job_id=chain.id, reason=reason)
        # The worker takes part again afterwards.
        harness.witness.open("before:2")
        assert await chain.result(WAIT) == 2
    await takes_part(harness, frozen, job_type)
    assert harness.witness.effects(chain.id) == ([2] if completes else [])
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


@MODES
async def test_frozen_inside_complete(harness: FaultHarness, job_type: JobType[Plan, int]) -> None:
    """The server ends the transaction of a frozen worker: its effect is rolled back, and its commit fails."""
    chain = await harness.client.start_chain(job_type, Plan(completes=True, inside=[1], stubborn=True))
    frozen = harness.spawn()
    await harness.step(chain.id, "inside")
    await frozen.freeze()

    async with harness.worker():
        assert await chain.result(WAIT) == 2
    frozen.resume()
    harness.witness.open("inside:1")
    await harness.step(chain.id, "refused")
    # complete() documents this error: the connection broke.
    assert harness.witness.detail(chain.id, "refused", 1) in {*LOST, "StateUnavailableError"}
    await takes_part(harness, frozen, job_type)
    assert harness.witness.effects(chain.id) == [2]
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


async def test_frozen_while_it_receives_a_claim(harness: FaultHarness) -> None:
    """The answer to a claim is larger than all buffers, and comes before its commit: the server ends the session of a
    worker that does not read it, and so unlocks the jobs."""
    ballast = "x" * 900_000
    chains = await harness.client.start_chains([NewChain(patient, Plan(ballast=ballast)) for _ in range(16)])
    with psycopg.connect(harness.dsn) as connection:
        connection.execute("lock table queuert.job in access exclusive mode")
        frozen = harness.spawn(concurrency=16, answer_timeout=3.0)
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '-- Leases%'"
        await until(lambda: harness.witness.one(waiting), "the claim waits for the table")
        await frozen.freeze()
    writes = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'ClientWrite'"
    await until(lambda: harness.witness.one(writes), "the server waits for the frozen process")
    async with harness.worker():
        for chain in chains:
            assert await chain.result(WAIT) == 1
    assert [harness.witness.job(chain.id) for chain in chains] == [("completed", 1, 0, 0)] * 16
    frozen.resume()
    other = await harness.client.start_chain(patient, Plan())
    assert await other.result(WAIT) == 1


async def test_a_handler_blocks_the_event_loop(harness: FaultHarness) -> None:
    """A thread renews the lease, so another worker, which is running and could claim the job, does not get it."""
    blocked = harness.spawn(lease=KEPT)
    holder = await blocked.started()
    chain = await harness.client.start_chain(blocking, 0.0)
    await harness.step(chain.id, "began")
    async with harness.worker():
        await harness.outlast_leases()
        harness.witness.open("wake")
        assert await chain.result(WAIT) == 1
    assert harness.witness.detail(chain.id, "woke", 1) is None
    assert (await blocked.log.wait_for(AttemptCompleted, job_id=chain.id)).worker == holder
    assert blocked.log.of(AttemptAborted) == []
    assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)


async def test_an_finish_that_nobody_can_write(harness: FaultHarness) -> None:
    """A handler has ended, and the next one blocks the event loop before its finish is written: another worker takes
    it."""
    stuck, awake = await harness.client.start_chains([NewChain(patient, Plan()), NewChain(blocking, 0.0)])
    # The finish has three leases' time to be written, and then the lease of its job expires.
    blocked = harness.spawn(concurrency=2, lease=LeasePolicy(seconds=2.5, renew_every=0.5))
    await harness.step(awake.id, "began")
    async with harness.worker():
        assert await stuck.result(2 * WAIT) == 2
        harness.witness.open("wake")
        assert await awake.result(WAIT) == 1
        # This handler blocks the event loop for as long, but it is still running: its lease is kept.
        assert harness.witness.detail(awake.id, "woke", 1) is None
        await blocked.log.wait_for(FinishRejected, job_id=stuck.id)
    assert harness.witness.job(stuck.id) == ("completed", 2, 1, 0)
