"""Workers that die: what they had is found by the others, which need no service, leader or event for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from queuert import Attempt, ChainStatus, JobStatus, LeasePolicy, NewChain, RetryPolicy
from queuert.observability.events import AttemptStarted, JobReaped
from tests.acceptance.support import BRIEF, WAIT, Gate, Ground, echo, in_time, number, text, until


async def test_every_worker_finds_what_the_dead_had(ground: Ground) -> None:
    """P62, P63, P31, G20: also one that is started afterwards; it tells whose it was."""
    chain = await ground.client.start_chain(number, 5)
    await ground.claimed_by_the_dead(number, holder="gone-1")
    ground.handles(number, echo, lease=BRIEF)
    async with ground.worker() as worker:
        assert await chain.result(WAIT) == 5
        reported = await ground.log.wait_for(JobReaped, job_id=chain.id)
    assert (reported.worker, reported.holder, reported.attempt, reported.failed) == (worker.name, "gone-1", 1, False)


async def test_one_that_is_busy_finds_it_too(ground: Ground) -> None:
    """P62: its handlers have nothing to do with it."""
    gate = Gate()
    ground.handles(number, gate.pass_through)
    ground.handles(text, echo, lease=BRIEF)
    async with ground.worker() as busy:
        await ground.client.start_chain(number, 1)
        await gate.next()
        await ground.client.start_chain(text, "a", id="lost")
        await ground.claimed_by_the_dead(text)
        await ground.log.wait_for(JobReaped, job_id="lost")
        await busy.stop(shutdown_timeout=0)


async def test_a_lease_that_holds_is_let_be(ground: Ground) -> None:
    """P63, P64: of two that a worker had, the one that has expired comes back, the other does not."""
    ground.handles(number, echo)
    await ground.client.start_chain(number, 1, id="long")
    held = await ground.claimed_by_the_dead(number, seconds=3600)
    await ground.client.start_chain(number, 2, id="short")
    await ground.claimed_by_the_dead(number)
    async with ground.worker():
        assert await (await ground.client.get_chain("short")).result(WAIT) == 2
        assert (await ground.client.get_job("long")).status is JobStatus.RUNNING
        assert await ground.ended_late(held, "10")
        assert await (await ground.client.get_chain("long")).result(WAIT) == 10
    assert [event.job_id for event in ground.log.of(JobReaped)] == ["short"]


async def test_what_ended_meanwhile_is_let_be(ground: Ground) -> None:
    """P64, G19: a lease that nobody has taken over is still good for its finish, however late."""
    await ground.client.start_chain(number, 1, id="a")
    job = await ground.claimed_by_the_dead(number, seconds=0.1)
    held = await ground.client.get_job("a")
    assert held.lease_expires_at is not None
    expires_at = held.lease_expires_at
    await until(lambda: datetime.now(UTC) > expires_at, "the lease has expired")
    assert await ground.ended_late(job, "7")
    ground.handles(number, echo)
    async with ground.worker():
        assert await ground.client.start_and_wait(number, 2, id="b") == 2
    assert await (await ground.client.get_chain("a")).result() == 7
    assert ground.log.of(JobReaped) == []


async def test_a_late_finish_does_not_overwrite_another(ground: Ground) -> None:
    """D11, G38, P65: whoever lost the job writes nothing, before its successor ends and after."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    chain = await ground.client.start_chain(number, 5)
    lost = await ground.claimed_by_the_dead(number)
    ground.handles(number, handler, lease=BRIEF)
    async with ground.worker():
        successor = await gate.next()
        assert successor.number == 2
        assert not await ground.ended_late(lost, "1000")
        gate.open()
        assert await chain.result(WAIT) == 5
    assert not await ground.ended_late(lost, "1000")
    assert await (await chain.refresh()).result() == 5


async def test_a_job_that_kills_its_workers_ends(ground: Ground) -> None:
    """P65, D10, G19: each death is a counted attempt, by a guard of its own."""
    ground.handles(number, echo, lease=BRIEF, retry=RetryPolicy(max_crashes=2, initial_delay=0, jitter=0))
    ground.handles(text, echo, lease=BRIEF)
    chain = await ground.client.start_chain(number, 1, id="poison")
    await ground.claimed_by_the_dead(number)
    reaps = ground.group()
    reaps.handles(number, lease=BRIEF, retry=RetryPolicy(max_crashes=2, initial_delay=3600, max_delay=3600))(echo)
    async with ground.worker(reaps):
        await ground.log.wait_for(JobReaped, job_id="poison")
    await ground.client.trigger_job("poison")
    await ground.claimed_by_the_dead(number)
    async with ground.worker():
        closed = await chain.wait(WAIT)
    assert closed.status is ChainStatus.FAILED
    assert closed.error is not None
    assert closed.error.kind == "lease_expired"
    job = await ground.client.get_job("poison")
    assert (job.attempt, job.lease_expirations) == (2, 2)
    assert ground.log.of(AttemptStarted) == []


async def test_many_reapers_share_without_a_leader(ground: Ground) -> None:
    """P68, D08: each lost job is taken over once, whichever of them finds it."""
    ground.handles(number, echo)
    chains = await ground.client.start_chains([NewChain(number, value) for value in range(12)])
    for _ in chains:
        await ground.claimed_by_the_dead(number)
    workers = [ground.worker() for _ in range(4)]
    await asyncio.gather(*(worker.start() for worker in workers))
    assert sorted([await chain.result(WAIT) for chain in chains]) == list(range(12))
    # Who has taken a job over tells it when the store has answered, and another may have run the job by then.
    for worker in workers:
        await worker.stop()
    reaped = Counter(event.job_id for event in ground.log.of(JobReaped))
    assert reaped == Counter(chain.id for chain in chains)


async def test_a_job_that_was_claimed_and_not_begun_comes_back(ground: Ground) -> None:
    """D05, G38: the claim is the lease: there is no moment between them in which a job is nobody's."""
    chain = await ground.client.start_chain(number, 5)
    await ground.claimed_by_the_dead(number, holder="gone")
    job = await ground.client.get_job(chain.id)
    assert (job.status, job.holder) == (JobStatus.RUNNING, "gone")
    assert job.lease_expires_at is not None
    ground.handles(number, echo, lease=BRIEF)
    async with ground.worker():
        assert await in_time(chain.result()) == 5


async def test_default_leases(ground: Ground) -> None:
    """P40, G08, G30: a minute, or what the job type says."""
    assert LeasePolicy().seconds == 60
    gate = Gate()
    ground.handles(number, gate.pass_through)
    ground.handles(text, gate.pass_through, lease=LeasePolicy(seconds=600))
    await ground.client.start_chain(number, 1)
    await ground.client.start_chain(text, "a")
    async with ground.worker(concurrency=2) as worker:
        lasts = {}
        for _ in range(2):
            job = await ground.client.get_job((await gate.next()).job_id)
            assert job.lease_expires_at is not None
            assert job.started_at is not None
            lasts[job.type] = round((job.lease_expires_at - job.started_at).total_seconds())
        await worker.stop(shutdown_timeout=0)
    assert lasts == {"number": 60, "text": 600}
