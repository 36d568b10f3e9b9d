"""Jobs that kill their worker, and workers that die again and again: the good jobs are completed, one at a time."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from queuert import NewChain
from queuert.errors import JobFailedError
from queuert.observability.events import WorkerStarted
from tests.faults.application import Plan, patient, poison, quick
from tests.faults.harness import FaultHarness
from tests.support.waiting import START, WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.fault]

TO_DO = "select count(*) from queuert.job where status not in ('completed', 'failed')"


@pytest.fixture(autouse=True)
def _no_core_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


@asynccontextmanager
async def restarted(harness: FaultHarness, processes: int, concurrency: int) -> AsyncIterator[list[WorkerProcess]]:
    """Run workers, and replace each that ends, as an orchestrator does; yield the list of the running ones."""
    running = [harness.spawn(concurrency=concurrency) for _ in range(processes)]

    async def replace() -> None:
        while True:
            await until(lambda: any(one.has_ended for one in running), "one has died", timeout=3600)
            running[:] = [harness.spawn(concurrency=concurrency) if one.has_ended else one for one in running]

    replacing = asyncio.create_task(replace())
    try:
        yield running
    finally:
        replacing.cancel()
        with suppress(asyncio.CancelledError):
            await replacing


@pytest.mark.quick
@pytest.mark.parametrize("death", ["exit", "segfault", "kill"])
async def test_poisonous_jobs_end_at_the_cap(harness: FaultHarness, death: str) -> None:
    """The poison jobs count every death, and the good jobs that died with them run again."""
    [bad] = await harness.client.start_chains([NewChain(poison, death)])
    good = await harness.client.start_chains([NewChain(quick, number) for number in range(50)])
    async with restarted(harness, processes=1, concurrency=4):
        with pytest.raises(JobFailedError):
            await bad.result(2 * WAIT)
        await until(lambda: harness.witness.one(TO_DO) == 0, "all have ended")
    assert harness.witness.job(bad.id) == ("failed", 2, 2, 0)
    job = await harness.client.get_job(bad.id)
    assert job.last_error is not None
    assert job.last_error.kind == "lease_expired"
    assert [await chain.result(WAIT) for chain in good] == list(range(50))


async def kill_the_holder(harness: FaultHarness, running: list[WorkerProcess], job_id: str) -> None:
    """Kill the worker in which the first attempt of a job hangs, unless the worker died by another job, begun or
    not."""

    def is_over() -> bool:
        _, attempt, expired, uncounted = harness.witness.job(job_id)
        return attempt > 1 or expired > 0 or uncounted > 0

    def is_killed() -> bool:
        if is_over():
            return True
        holder = harness.witness.one("select holder from queuert.job where id = %s", job_id)
        # The event with its name may arrive a moment after its first job has begun.
        for process in running:
            if holder is not None and process.log.of(WorkerStarted, worker=holder):
                process.send(signal.SIGKILL)
                return True
        return False

    await until(lambda: harness.witness.has_step(job_id, "began", 1) or is_over(), f"{job_id} hangs", START)
    await until(is_killed, f"who has {job_id} is killed")


async def test_two_workers_never_run_one_job_at_once(harness: FaultHarness) -> None:
    """Workers die while they run other jobs. The effect of a completing attempt is within its own lease."""
    plans = [Plan(completes=True, before=[1] if number % 8 == 4 else []) for number in range(64)]
    chains = await harness.client.start_chains([NewChain(patient, plan) for plan in plans])
    async with restarted(harness, processes=2, concurrency=3) as running:
        for chain, plan in zip(chains, plans, strict=True):
            if plan.before:
                await kill_the_holder(harness, running, chain.id)
        await until(lambda: harness.witness.one(TO_DO) == 0, "all are done")
    attempts = [await chain.result(WAIT) for chain in chains]
    assert all(attempt >= 2 for attempt, plan in zip(attempts, plans, strict=True) if plan.before)
    overlapping = harness.witness.rows(
        # Between the handler's first record and its effect, no other worker claimed the job.
        "select effect.job_id from effect"
        " join step on (step.job_id, step.attempt, step.name) = (effect.job_id, effect.attempt, 'began')"
        " join history on history.job_id = effect.job_id and new_status = 'running'"
        "     and history.at between step.at and effect.at"
    )
    assert overlapping == []
