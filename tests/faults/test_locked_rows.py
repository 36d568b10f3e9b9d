"""Rows and connections that somebody holds: it costs him, and nobody else."""

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
from tests.faults.ground import MODES, WAIT, Ground, until

pytestmark = pytest.mark.fault


@asynccontextmanager
async def held(ground: Ground, *chains: AsyncChain[int]) -> AsyncIterator[None]:
    """A caller's transaction that starts a job with these chains as blockers, and commits at the end of the block."""
    async with await psycopg.AsyncConnection.connect(ground.dsn) as connection:
        await ground.client.start_chain(quick, 0, id="waits", blockers=chains, connection=connection)
        yield


def undisturbed(ground: Ground) -> None:
    """No lease was lost, and nothing had to be done twice."""
    for kind in (AttemptAborted, AttemptRetried, FinishRejected, JobReaped):
        assert ground.log.of(kind) == []


IN_COMPLETE = Plan(completes=True, inside=[1], busy=True)


async def test_all_connections_are_held_by_handlers(ground: Ground) -> None:
    """Claims and finishes wait; leases are renewed on a connection of their own; nothing deadlocks."""
    async with ground.worker(concurrency=4, max_connections=2, lease=KEPT):
        others = await ground.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(2)])
        for chain in others:
            await ground.step(chain.id, "began")
        holding = await ground.client.start_chains([NewChain(patient, IN_COMPLETE) for _ in range(2)])
        for chain in holding:
            await ground.step(chain.id, "inside")
        ground.log.forget()
        await ground.outlast_leases()
        await ground.log.wait_for(LeasesRenewed)
        ground.witness.open("before:1")
        ground.witness.open("inside:1")
        assert [await chain.result(WAIT) for chain in others + holding] == [1] * 4
    undisturbed(ground)


async def test_more_handlers_than_connections(ground: Ground) -> None:
    """They wait for each other's connections, under leases that are kept."""
    chains = await ground.client.start_chains([NewChain(patient, IN_COMPLETE) for _ in range(6)])
    async with ground.worker(concurrency=6, max_connections=2, lease=KEPT):
        for chain in chains:
            await ground.step(chain.id, "began")
        await ground.outlast_leases()
        ground.witness.open("inside:1")
        assert [await chain.result(WAIT) for chain in chains] == [1] * 6
    undisturbed(ground)


@MODES
@pytest.mark.parametrize("count", [1, 3])
async def test_chains_that_are_held_do_not_hold_up_others(
    ground: Ground, job_type: JobType[Plan, int], count: int
) -> None:
    """Finishes of held chains wait for the caller's commit; all others are written meanwhile."""
    # Renewals pass over held rows too: the lease must outlast the caller.
    async with ground.worker(concurrency=count + 2, lease=LASTING):
        waiting = await ground.client.start_chains([NewChain(job_type, Plan(before=[1])) for _ in range(count)])
        for chain in waiting:
            await ground.step(chain.id, "began")
        async with held(ground, *waiting):
            ground.witness.open("before:1")
            others = await ground.client.start_chains([NewChain(job_type, Plan()) for _ in range(10)])
            assert [await chain.result(WAIT) for chain in others] == [1] * 10
            together = await ground.client.start_chains([NewChain(job_type, Plan(completes=True)) for _ in range(10)])
            assert [await chain.result(WAIT) for chain in together] == [1] * 10
            assert ground.witness.leases() == count
        assert [await chain.result(WAIT) for chain in waiting] == [1] * count
        blocked = await ground.client.get_chain("waits")
        assert await blocked.result(WAIT) == 0
    assert len(ground.log.of(AttemptCompleted, type=job_type.name)) == count + 20


@MODES
async def test_chains_with_dependents_end_beside_one_that_is_held(ground: Ground, job_type: JobType[Plan, int]) -> None:
    """They end together with it, and lock as many rows as it does."""
    async with ground.worker(concurrency=12, lease=LASTING):
        chains = await ground.client.start_chains([NewChain(job_type, Plan(before=[1])) for _ in range(10)])
        for place, chain in enumerate(chains):
            await ground.client.start_chain(quick, 0, id=f"behind-{place}", blockers=[chain])
            await ground.step(chain.id, "began")
        async with held(ground, chains[0]):
            ground.witness.open("before:1")
            assert [await chain.result(WAIT) for chain in chains[1:]] == [1] * 9
            for place in range(1, 10):
                assert await (await ground.client.get_chain(f"behind-{place}")).result(WAIT) == 0
            assert ground.witness.leases() == 1
        assert await chains[0].result(WAIT) == 1
    undisturbed(ground)


async def test_renewals_pass_over_a_held_row(ground: Ground) -> None:
    """The others keep their leases, for longer than one lasts."""
    async with ground.worker(concurrency=3, lease=KEPT):
        waiting = await ground.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(3)])
        for chain in waiting:
            await ground.step(chain.id, "began")
        async with held(ground, waiting[0]):
            await ground.outlast_leases()
            ground.log.forget()
            await ground.log.wait_for(LeasesRenewed, count=2)
        ground.witness.open("before:1")
        assert [await chain.result(WAIT) for chain in waiting] == [1, 1, 1]
    undisturbed(ground)


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
@pytest.mark.parametrize("ends", ["later", "meanwhile"])
async def test_a_held_chain_keeps_its_lease(
    ground: Ground, job_type: JobType[Plan, int], completes: bool, ends: str
) -> None:
    """However long somebody's transaction waits for it, and whether its handler ends then or afterwards."""
    plan = Plan(before=[1], completes=completes)
    async with ground.worker(name="holder", lease=KEPT), ground.worker(name="other", lease=KEPT):
        chain = await ground.client.start_chain(job_type, plan)
        await ground.step(chain.id, "began")
        async with held(ground, chain):
            if ends == "meanwhile":
                ground.witness.open("before:1")
            # The row's lease is over, and the one beside it has been extended since.
            await ground.outlast_leases()
            ends_at = ground.witness.one("select max(expires_at) from queuert.lease_extension")
            extended = (
                "select max(expires_at) > %s and max(expires_at) > clock_timestamp() from queuert.lease_extension"
            )
            await until(lambda: ground.witness.one(extended, ends_at), "its lease goes on")
            assert ground.witness.job(chain.id) == ("running", 1, 0, 0)
        ground.witness.open("before:1")
        assert await chain.result(WAIT) == 1
        assert await (await ground.client.get_chain("waits")).result(WAIT) == 0
    undisturbed(ground)


async def test_a_held_chain_is_taken_from_a_dead_worker(ground: Ground) -> None:
    """Its lease ends where it was extended to last, when the row is free."""
    chain = await ground.client.start_chain(threaded, Plan(before=[1]))
    process = ground.spawn(lease=KEPT)
    await ground.step(chain.id, "began")
    async with held(ground, chain):
        extended = "select count(*) from queuert.lease_extension"
        await until(lambda: ground.witness.one(extended), "its lease was extended")
        await process.kill()
    async with ground.worker():
        assert await chain.result(WAIT) == 2
    assert ground.witness.job(chain.id) == ("completed", 2, 1, 0)


async def test_the_reaper_does_not_wait_for_a_held_chain(ground: Ground) -> None:
    """A job that died for the last time and whose chain is held is left for later; the others are reaped meanwhile."""
    chain = await ground.client.start_chain(before_poison, "kill")
    last_attempt = "select count(*) from queuert.job where type = 'poison' and attempt = 2"
    while not ground.witness.one(last_attempt):
        assert await ground.spawn().ended() == -signal.SIGKILL
    async with held(ground, chain), ground.worker(lease=KEPT):
        # It is busy, so that it claims nothing, and only reaps, as often as one of its own leases could run out.
        busy = await ground.client.start_chain(patient, Plan(before=[1]))
        await ground.step(busy.id, "began")
        for _ in range(2):
            other = await ground.client.start_chain(threaded, Plan(before=[1]))
            process = ground.spawn()
            await ground.step(other.id, "began")
            await process.kill()
            await until(lambda: ground.witness.job(other.id)[2] == 1, "it is reaped")  # noqa: B023
        ground.witness.open("before:1")
        assert await busy.result(WAIT) == 1
    async with ground.worker():
        with pytest.raises(JobFailedError):
            await chain.result(WAIT)
