"""Rows and connections that somebody locks: this delays the owner, and no other."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from queuert import AsyncChain, JobType, NewChain
from queuert.errors import JobFailedError
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptRetried,
    FinishRejected,
    JobReaped,
    LeasesRenewed,
)
from tests.faults.application import KEPT, LASTING, Plan, before_poison, patient, quick, threaded
from tests.faults.harness import MODES, FaultHarness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault


@asynccontextmanager
async def held(harness: FaultHarness, *chains: AsyncChain[int]) -> AsyncIterator[None]:
    """Start a job with these chains as blockers in a caller's transaction, which commits at the end of the block."""
    async with await psycopg.AsyncConnection.connect(harness.dsn) as connection:
        await harness.client.start_chain(quick, 0, id="waits", blockers=chains, connection=connection)
        yield


def undisturbed(harness: FaultHarness) -> None:
    """No lease was lost, and nothing was repeated."""
    for kind in (AttemptAborted, AttemptRetried, FinishRejected, JobReaped):
        assert harness.log.of(kind) == []


IN_COMPLETE = Plan(completes=True, inside=[1], busy=True)


async def test_all_connections_are_held_by_handlers(harness: FaultHarness) -> None:
    """Claims and finishes wait; renewals use a connection of their own; nothing deadlocks."""
    async with harness.worker(concurrency=4, max_connections=2, lease=KEPT):
        others = await harness.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(2)])
        for chain in others:
            await harness.step(chain.id, "began")
        holding = await harness.client.start_chains([NewChain(patient, IN_COMPLETE) for _ in range(2)])
        for chain in holding:
            await harness.step(chain.id, "inside")
        harness.log.forget()
        await harness.outlast_leases()
        await harness.log.wait_for(LeasesRenewed)
        harness.witness.open("before:1")
        harness.witness.open("inside:1")
        assert [await chain.result(WAIT) for chain in others + holding] == [1] * 4
    undisturbed(harness)


async def test_more_handlers_than_connections(harness: FaultHarness) -> None:
    """Handlers wait for each other's connections, while their leases are kept."""
    chains = await harness.client.start_chains([NewChain(patient, IN_COMPLETE) for _ in range(6)])
    async with harness.worker(concurrency=6, max_connections=2, lease=KEPT):
        for chain in chains:
            await harness.step(chain.id, "began")
        await harness.outlast_leases()
        harness.witness.open("inside:1")
        assert [await chain.result(WAIT) for chain in chains] == [1] * 6
    undisturbed(harness)


@MODES
@pytest.mark.parametrize("count", [1, 3])
async def test_chains_that_are_held_do_not_hold_up_others(
    harness: FaultHarness, job_type: JobType[Plan, int], count: int
) -> None:
    """Finishes of locked chains wait for the caller's commit; all others are written meanwhile."""
    # Renewals also skip locked rows: the lease must last longer than the caller's transaction.
    async with harness.worker(concurrency=count + 2, lease=LASTING):
        waiting = await harness.client.start_chains([NewChain(job_type, Plan(before=[1])) for _ in range(count)])
        for chain in waiting:
            await harness.step(chain.id, "began")
        async with held(harness, *waiting):
            harness.witness.open("before:1")
            others = await harness.client.start_chains([NewChain(job_type, Plan()) for _ in range(10)])
            assert [await chain.result(WAIT) for chain in others] == [1] * 10
            together = await harness.client.start_chains([NewChain(job_type, Plan(completes=True)) for _ in range(10)])
            assert [await chain.result(WAIT) for chain in together] == [1] * 10
            assert harness.witness.leases() == count
        assert [await chain.result(WAIT) for chain in waiting] == [1] * count
        blocked = await harness.client.get_chain("waits")
        assert await blocked.result(WAIT) == 0
    assert len(harness.log.of(AttemptCompleted, type=job_type.name)) == count + 20


@pytest.mark.quick
@MODES
async def test_chains_with_dependents_end_beside_one_that_is_held(
    harness: FaultHarness, job_type: JobType[Plan, int]
) -> None:
    """They finish together with it, and lock as many rows as it does."""
    async with harness.worker(concurrency=12, lease=LASTING):
        chains = await harness.client.start_chains([NewChain(job_type, Plan(before=[1])) for _ in range(10)])
        for place, chain in enumerate(chains):
            await harness.client.start_chain(quick, 0, id=f"behind-{place}", blockers=[chain])
            await harness.step(chain.id, "began")
        async with held(harness, chains[0]):
            harness.witness.open("before:1")
            assert [await chain.result(WAIT) for chain in chains[1:]] == [1] * 9
            for place in range(1, 10):
                assert await (await harness.client.get_chain(f"behind-{place}")).result(WAIT) == 0
            assert harness.witness.leases() == 1
        assert await chains[0].result(WAIT) == 1
    undisturbed(harness)


async def test_renewals_pass_over_a_held_row(harness: FaultHarness) -> None:
    """The other jobs keep their leases, for longer than a lease lasts."""
    async with harness.worker(concurrency=3, lease=KEPT):
        waiting = await harness.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(3)])
        for chain in waiting:
            await harness.step(chain.id, "began")
        async with held(harness, waiting[0]):
            await harness.outlast_leases()
            harness.log.forget()
            await harness.log.wait_for(LeasesRenewed, count=2)
        harness.witness.open("before:1")
        assert [await chain.result(WAIT) for chain in waiting] == [1, 1, 1]
    undisturbed(harness)


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
@pytest.mark.parametrize("ends", ["later", "meanwhile"])
async def test_a_held_chain_keeps_its_lease(
    harness: FaultHarness, job_type: JobType[Plan, int], completes: bool, ends: str
) -> None:
    """The lease is kept however long a caller's transaction lasts, and whether the handler ends during or after it."""
    plan = Plan(before=[1], completes=completes)
    async with harness.worker(name="holder", lease=KEPT), harness.worker(name="other", lease=KEPT):
        chain = await harness.client.start_chain(job_type, plan)
        await harness.step(chain.id, "began")
        async with held(harness, chain):
            if ends == "meanwhile":
                harness.witness.open("before:1")
            # The lease in the row has expired, and its extension was renewed since.
            await harness.outlast_leases()
            ends_at = harness.witness.one("select max(expires_at) from queuert.lease_extension")
            extended = (
                "select max(expires_at) > %s and max(expires_at) > clock_timestamp() from queuert.lease_extension"
            )
            await until(lambda: harness.witness.one(extended, ends_at), "its lease goes on")
            assert harness.witness.job(chain.id) == ("running", 1, 0, 0)
        harness.witness.open("before:1")
        assert await chain.result(WAIT) == 1
        assert await (await harness.client.get_chain("waits")).result(WAIT) == 0
    undisturbed(harness)


@MODES
async def test_a_block_of_its_own_keeps_its_lease(harness: FaultHarness, job_type: JobType[Plan, int]) -> None:
    """However long it lasts: a reaper may see the row before the first renewal after it."""
    async with harness.worker(lease=KEPT):
        chain = await harness.client.start_chain(job_type, IN_COMPLETE)
        await harness.step(chain.id, "inside")
        await harness.outlast_leases()
        extended = "select count(*) from queuert.lease_extension where expires_at > clock_timestamp()"
        await until(lambda: harness.witness.one(extended), "its lease goes on")
        harness.witness.open("inside:1")
        attempt = await chain.result(WAIT)
    undisturbed(harness)  # First, since it says what has ended the first attempt, if another one was needed.
    assert attempt == 1


async def test_a_held_chain_is_taken_from_a_dead_worker(harness: FaultHarness) -> None:
    """The job's lease expires at the end of its extension, once the row is unlocked."""
    chain = await harness.client.start_chain(threaded, Plan(before=[1]))
    process = harness.spawn(lease=KEPT)
    await harness.step(chain.id, "began")
    async with held(harness, chain):
        extended = "select count(*) from queuert.lease_extension"
        await until(lambda: harness.witness.one(extended), "its lease was extended")
        await process.kill()
    async with harness.worker():
        assert await chain.result(WAIT) == 2
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


async def test_the_reaper_does_not_wait_for_a_held_chain(harness: FaultHarness) -> None:
    """The reaper postpones a locked chain whose job has died for the last time; it reaps the others meanwhile."""
    chain = await harness.client.start_chain(before_poison, "kill")
    last_attempt = "select count(*) from queuert.job where type = 'poison' and attempt = 2"
    while not harness.witness.one(last_attempt):
        assert await harness.spawn().ended() == -signal.SIGKILL
    async with held(harness, chain), harness.worker(lease=KEPT):
        # The worker is busy, so it claims nothing and only reaps, as often as one of its own leases could expire.
        busy = await harness.client.start_chain(patient, Plan(before=[1]))
        await harness.step(busy.id, "began")
        for _ in range(2):
            other = await harness.client.start_chain(threaded, Plan(before=[1]))
            process = harness.spawn()
            await harness.step(other.id, "began")
            await process.kill()
            await until(lambda: harness.witness.job(other.id)[2] == 1, "it is reaped")  # noqa: B023
        harness.witness.open("before:1")
        assert await busy.result(WAIT) == 1
    async with harness.worker():
        with pytest.raises(JobFailedError):
            await chain.result(WAIT)
