"""Workers that die: what they had is found by the others, which need no service, leader or event for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from queuert import Attempt, ChainStatus, JobStatus, NewChain, RetryPolicy
from queuert.observability.events import AttemptStarted, JobReaped
from queuert.policies import LeasePolicy
from tests.support.harness import Harness
from tests.support.job_types import BRIEF, echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


async def test_every_worker_finds_what_the_dead_had(harness: Harness) -> None:
    """P62, P63, P31, G20: also one that is started afterwards; it tells whose it was."""
    chain = await harness.client.start_chain(number, 5)
    await harness.claim_and_die(number, worker="gone-1")
    harness.handles(number, echo, lease=BRIEF)
    async with harness.worker() as worker:
        assert await chain.result(WAIT) == 5
        reported = await harness.log.wait_for(JobReaped, job_id=chain.id)
    assert (reported.worker, reported.holder, reported.attempt, reported.failed) == (worker.name, "gone-1", 1, False)


async def test_one_that_is_busy_finds_it_too(harness: Harness) -> None:
    """P62: its handlers have nothing to do with it."""
    gate = Gate()
    harness.handles(number, gate.pass_through)
    harness.handles(text, echo, lease=BRIEF)
    async with harness.worker() as busy:
        await harness.client.start_chain(number, 1)
        await gate.next()
        await harness.client.start_chain(text, "a", id="lost")
        await harness.claim_and_die(text)
        await harness.log.wait_for(JobReaped, job_id="lost")
        await busy.stop(shutdown_timeout=0)


async def test_a_lease_that_holds_is_let_be(harness: Harness) -> None:
    """P63, P64: of two that a worker had, the one that has expired comes back, the other does not."""
    harness.handles(number, echo)
    await harness.client.start_chain(number, 1, id="long")
    held = await harness.claim_and_die(number, seconds=3600)
    await harness.client.start_chain(number, 2, id="short")
    await harness.claim_and_die(number)
    async with harness.worker():
        assert await (await harness.client.get_chain("short")).result(WAIT) == 2
        assert (await harness.client.get_job("long")).status is JobStatus.RUNNING
        assert await harness.finish_late(held, "10")
        assert await (await harness.client.get_chain("long")).result(WAIT) == 10
    assert [event.job_id for event in harness.log.of(JobReaped)] == ["short"]


async def test_what_ended_meanwhile_is_let_be(harness: Harness) -> None:
    """P64, G19: a lease that nobody has taken over is still good for its finish, however late."""
    await harness.client.start_chain(number, 1, id="a")
    job = await harness.claim_and_die(number, seconds=0.1)
    held = await harness.client.get_job("a")
    assert held.lease_expires_at is not None
    expires_at = held.lease_expires_at
    await until(lambda: datetime.now(UTC) > expires_at, "the lease has expired")
    assert await harness.finish_late(job, "7")
    harness.handles(number, echo)
    async with harness.worker():
        assert await harness.client.start_and_wait(number, 2, id="b") == 2
    assert await (await harness.client.get_chain("a")).result() == 7
    assert harness.log.of(JobReaped) == []


async def test_a_late_finish_does_not_overwrite_another(harness: Harness) -> None:
    """D11, G38, P65: whoever lost the job writes nothing, before its successor ends and after."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    chain = await harness.client.start_chain(number, 5)
    lost = await harness.claim_and_die(number)
    harness.handles(number, handler, lease=BRIEF)
    async with harness.worker():
        successor = await gate.next()
        assert successor.number == 2
        assert not await harness.finish_late(lost, "1000")
        gate.open()
        assert await chain.result(WAIT) == 5
    assert not await harness.finish_late(lost, "1000")
    assert await (await chain.refresh()).result() == 5


async def test_a_job_that_kills_its_workers_ends(harness: Harness) -> None:
    """P65, D10, G19: each death is a counted attempt, by a guard of its own."""
    harness.handles(number, echo, lease=BRIEF, retry=RetryPolicy(max_crashes=2, initial_delay=0, jitter=0))
    harness.handles(text, echo, lease=BRIEF)
    chain = await harness.client.start_chain(number, 1, id="poison")
    await harness.claim_and_die(number)
    reaps = harness.new_processors()
    reaps.handles(number, lease=BRIEF, retry=RetryPolicy(max_crashes=2, initial_delay=3600, max_delay=3600))(echo)
    async with harness.worker(reaps):
        await harness.log.wait_for(JobReaped, job_id="poison")
    await harness.client.trigger_job("poison")
    await harness.claim_and_die(number)
    async with harness.worker():
        closed = await chain.wait(WAIT)
    assert closed.status is ChainStatus.FAILED
    assert closed.error is not None
    assert closed.error.kind == "lease_expired"
    job = await harness.client.get_job("poison")
    assert (job.attempt, job.lease_expirations) == (2, 2)
    assert harness.log.of(AttemptStarted) == []


async def test_many_reapers_share_without_a_leader(harness: Harness) -> None:
    """P68, D08: each lost job is taken over once, whichever of them finds it."""
    harness.handles(number, echo)
    chains = await harness.client.start_chains([NewChain(number, value) for value in range(12)])
    for _ in chains:
        await harness.claim_and_die(number)
    workers = [harness.worker() for _ in range(4)]
    await asyncio.gather(*(worker.start() for worker in workers))
    assert sorted([await chain.result(WAIT) for chain in chains]) == list(range(12))
    # Who has taken a job over tells it when the store has answered, and another may have run the job by then.
    for worker in workers:
        await worker.stop()
    reaped = Counter(event.job_id for event in harness.log.of(JobReaped))
    assert reaped == Counter(chain.id for chain in chains)


async def test_a_job_that_was_claimed_and_not_begun_comes_back(harness: Harness) -> None:
    """D05, G38: the claim is the lease: there is no moment between them in which a job is nobody's."""
    chain = await harness.client.start_chain(number, 5)
    await harness.claim_and_die(number, worker="gone")
    job = await harness.client.get_job(chain.id)
    assert (job.status, job.holder) == (JobStatus.RUNNING, "gone")
    assert job.lease_expires_at is not None
    harness.handles(number, echo, lease=BRIEF)
    async with harness.worker():
        assert await in_time(chain.result()) == 5


async def test_default_leases(harness: Harness) -> None:
    """P40, G08, G30: a minute, or what the job type says."""
    assert LeasePolicy().seconds == 60
    gate = Gate()
    harness.handles(number, gate.pass_through)
    harness.handles(text, gate.pass_through, lease=LeasePolicy(seconds=600))
    await harness.client.start_chain(number, 1)
    await harness.client.start_chain(text, "a")
    async with harness.worker(concurrency=2) as worker:
        lasts = {}
        for _ in range(2):
            job = await harness.client.get_job((await gate.next()).job_id)
            assert job.lease_expires_at is not None
            assert job.started_at is not None
            lasts[job.type] = round((job.lease_expires_at - job.started_at).total_seconds())
        await worker.stop(shutdown_timeout=0)
    assert lasts == {"number": 60, "text": 600}
