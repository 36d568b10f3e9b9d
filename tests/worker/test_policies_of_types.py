"""Each job type has its own retry and lease policy."""

from __future__ import annotations

from datetime import timedelta

from queuert import Attempt, JobStatus, NewChain, Outcome, Processors, RetryPolicy
from queuert.observability.events import JobReaped, LeasesRenewed, LoopFailed
from queuert.policies import LeasePolicy
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, anything, echo, number, order, text
from tests.support.waiting import WAIT, Gate


async def test_whole_numbers_and_floats_mix_in_lease_policies(harness: PostgresHarness) -> None:
    harness.handles(number, echo, lease=LeasePolicy(seconds=120))
    harness.handles(text, echo, lease=LeasePolicy(seconds=60.5))
    harness.handles(anything, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 1
    assert harness.log.of(LoopFailed) == []


async def test_whole_numbers_and_floats_mix_in_the_renewal_of_leases(harness: PostgresHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[object, object]) -> object:
        await gate.pass_through(attempt)
        return attempt.input

    # Leases that a machine that stands still for a while does not lose, renewed soon all the same.
    harness.handles(number, handler, lease=LeasePolicy(seconds=30, renew_every=0.2))
    harness.handles(text, handler, lease=LeasePolicy(seconds=29.5, renew_every=0.2))
    async with harness.worker(concurrency=2):
        chains = await harness.client.start_chains([NewChain(number, 1), NewChain(text, "x")])
        for _ in chains:
            await gate.next()
        await harness.log.wait_for(LeasesRenewed, count=2, lost=0)
        gate.open()
        await harness.client.wait(chains, timeout=WAIT)
    assert {(await harness.job(chain.id)).attempt for chain in chains} == {1}


async def test_whole_numbers_and_floats_mix_in_retry_policies(harness: PostgresHarness) -> None:
    harness.insert("number", "5", id="dead")
    harness.rows(
        "update queuert.job set status = 'running', attempt = 1, holder = 'gone', lease_token = gen_random_uuid(),"
        " lease_expires_at = clock_timestamp() - interval '1 s'"
    )
    harness.handles(number, echo, retry=RetryPolicy(initial_delay=0, jitter=0))
    harness.handles(text, echo, retry=RetryPolicy(initial_delay=1, multiplier=3, max_delay=10))
    harness.handles(order, echo)
    async with harness.worker():
        await harness.log.wait_for(JobReaped, job_id="dead")
        assert await (await harness.client.get_chain("dead", number)).result(WAIT) == 5
    assert harness.log.of(LoopFailed) == []


async def test_the_lease_is_as_long_as_the_type_says(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number, lease=LeasePolicy(seconds=500.0))
    async def long(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    other = Processors(JOB_TYPES, lease=LeasePolicy(seconds=50.0))

    @other.handles(text)
    async def short(attempt: Attempt[str, str]) -> Outcome[str]:
        await gate.pass_through(attempt)
        return attempt.input

    async with harness.worker([harness.processors, other], concurrency=2):
        chains = await harness.client.start_chains([NewChain(number, 1), NewChain(text, "x")])
        for _ in chains:
            await gate.next()
        leases = dict(harness.rows("select type, lease_expires_at - started_at from queuert.job"))
        gate.open()
    # The store reads its clock for each of the two times, and may have stood still between, or renewed the lease.
    some = timedelta(seconds=WAIT)
    assert abs(leases["number"] - timedelta(seconds=500)) < some
    assert abs(leases["text"] - timedelta(seconds=50)) < some


async def test_each_type_has_its_own_cap(harness: PostgresHarness) -> None:
    async def fails(attempt: Attempt[object, object]) -> object:
        raise ValueError("no")

    harness.handles(number, fails, retry=RetryPolicy(max_attempts=1))
    harness.handles(text, fails, retry=RetryPolicy(max_attempts=3, initial_delay=0.0, jitter=0.0))
    async with harness.worker(concurrency=2):
        chains = await harness.client.start_chains([NewChain(number, 1, id="n"), NewChain(text, "x", id="t")])
        await harness.client.wait(chains, timeout=WAIT)
    assert ((await harness.job("n")).attempt, (await harness.job("t")).attempt) == (1, 3)
    assert {job.status for job in (await harness.job("n"), await harness.job("t"))} == {JobStatus.FAILED}
