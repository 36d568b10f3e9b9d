"""A call for many chains whose process dies between two of its scripts: the same call again does the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, JobType, JobTypes, NewChain
from queuert.errors import BlockerReferenceError
from queuert.jobs import ChainStatus
from queuert.notify.in_process import InProcessNotify
from queuert.state.redis import RedisState
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.types import PruneRequest
from queuert.testing.conformance.builders import ask, claim_one, complete, fail

work = JobType("work", input=int, output=int)
join = JobType("join", input=int, output=int)
child = JobType("child", input=int, output=int, closes_with_parent=True)

OPEN, COMPLETED, CANCELLED = ChainStatus.OPEN, ChainStatus.COMPLETED, ChainStatus.CANCELLED

MANY = 60
"""Chains of one level: more than one script changes."""


class Died(BaseException):
    """The process is killed."""


class Queue:
    def __init__(self, client: AsyncClient, store: AsyncRedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.store = store
        self.monkeypatch = monkeypatch

    async def statuses(self, *ids: str) -> list[ChainStatus]:
        return [chain.status for chain in await self.store.get_chains(ids) if chain is not None]

    async def fail_all(self, type: str) -> None:
        while claimed := await self.store.claim(ask(type, limit=500)):
            await self.store.finish([fail(job) for job in claimed])

    async def levels(self, type: JobType[int, int]) -> list[str]:
        """Chains of which each waits for one of the next level, after the one that waits for all of the second."""
        third = await self.client.start_chains([NewChain(type, n) for n in range(MANY)])
        second = await self.client.start_chains([NewChain(type, n, blockers=[third[n]]) for n in range(MANY)])
        first = await self.client.start_chain(join, 1, blockers=second)
        return [first.id, *(one.id for one in (*second, *third))]

    def dies(self, script: str, *, after: int) -> None:
        """Let the process die after this script has written so many times."""
        before, written = AsyncRedisStore._run, list[str]()

        async def run(store: AsyncRedisStore, name: str, arguments: list[str]) -> Any:
            if name == script and not (json.loads(arguments[0]).get("check")):
                if len(written) == after:
                    self.monkeypatch.setattr(AsyncRedisStore, "_run", before)
                    raise Died
                written.append(name)
            return await before(store, name, arguments)

        self.monkeypatch.setattr(AsyncRedisStore, "_run", run)


@pytest.fixture
async def queue(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    state = RedisState(redis_url)
    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JobTypes(work, join, child), notify=InProcessNotify()) as client:
        yield Queue(client, store, monkeypatch)
    await store.aclose()


@pytest.mark.parametrize("written", [1, 3])
@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_retry_with_what_failed_because_of_a_chain(queue: Queue, written: int, goes_on: bool) -> None:
    """Also if a worker has completed the chain since."""
    blocker = await queue.client.start_chain(work, 1)
    second = await queue.client.start_chains([NewChain(join, n, blockers=[blocker]) for n in range(MANY)])
    third = await queue.client.start_chains([NewChain(child, n, blockers=[second[n]]) for n in range(MANY)])
    ids = [one.id for one in (*second, *third)]
    for type in ("work", "join", "child"):
        await queue.fail_all(type)
    queue.dies("retry_chains", after=written)
    with pytest.raises(Died):
        await queue.client.retry_chain(blocker, cascade=True)
    half = await queue.statuses(*ids)
    assert await queue.statuses(blocker.id) == [OPEN]
    assert half.count(OPEN) == written * 25 - 1
    if goes_on:
        await queue.store.finish([complete(await claim_one(queue.store))])
    retried = await queue.client.retry_chain(blocker, cascade=True)
    assert sorted(retried) == sorted(id for id, status in zip(ids, half, strict=True) if status is not OPEN)
    assert set(await queue.statuses(*ids)) == {OPEN}
    assert await queue.store.claim(ask("child")) == [], "they wait for their blockers again"


@pytest.mark.parametrize("cascade", [True, False])
async def test_a_cancel_with_what_a_chain_waits_for(queue: Queue, cascade: bool) -> None:
    """With a cascade, and with children that close with their parent. A cascade does the rest of both."""
    ids = await queue.levels(work if cascade else child)
    queue.dies("cancel_chains", after=3)
    with pytest.raises(Died):
        await queue.client.cancel_chain(ids[0], cascade=cascade)
    half = await queue.statuses(*ids)
    assert (half[0], half.count(CANCELLED)) == (CANCELLED, 75)
    assert await queue.client.cancel_chain(ids[0]) is False
    assert await queue.statuses(*ids) == half
    assert await queue.client.cancel_chain(ids[0], cascade=True) is False
    assert set(await queue.statuses(*ids)) == {CANCELLED}


@pytest.mark.parametrize(("script", "written"), [("delete_chains", 1), ("delete_chains", 3), ("cancel_chains", 2)])
async def test_a_deletion_with_what_a_chain_waits_for(queue: Queue, script: str, written: int) -> None:
    """The chain is deleted last, so that the others are found by it. No job runs without its blocker meanwhile."""
    ids = await queue.levels(work)
    queue.dies(script, after=written)
    with pytest.raises(Died):
        await queue.client.delete_chain(ids[0], cascade=True)
    left = [one.id for one in await queue.store.get_chains(ids) if one is not None]
    assert left[0] == ids[0]
    assert len(left) == len(ids) - (written * 25 if script == "delete_chains" else 0)
    await queue.store.release_stranded()
    assert await queue.store.claim(ask("join")) == []
    assert sorted(await queue.client.delete_chains([ids[0]], cascade=True)) == sorted(left)
    assert await queue.statuses(*ids) == []


async def test_a_chain_that_is_about_to_be_deleted_does_not_expire(queue: Queue) -> None:
    """What it waited for is found from it, when the same call does the rest."""
    blockers = await queue.client.start_chains([NewChain(work, n) for n in range(MANY)])
    chain = await queue.client.start_chain(join, 1, blockers=blockers, result_ttl=1e-6)
    queue.dies("delete_chains", after=0)
    with pytest.raises(Died):
        await queue.client.delete_chain(chain, cascade=True)
    ids = [chain.id, *(one.id for one in blockers)]
    assert set(await queue.statuses(*ids)) == {CANCELLED}
    assert (await queue.store.prune(PruneRequest())).chain_ids == ()
    assert sorted(await queue.client.delete_chains([chain], cascade=True)) == sorted(ids)


async def test_a_deletion_is_refused_for_a_chain_that_waits_since_it_was_read(queue: Queue) -> None:
    """Before anything is cancelled: the chain would run, as if what it waits for had ended."""
    blockers = sorted(one.id for one in await queue.client.start_chains([NewChain(work, n) for n in range(MANY)]))
    chain = await queue.client.start_chain(join, 1, blockers=blockers)
    before = AsyncRedisStore._run

    async def run(store: AsyncRedisStore, name: str, arguments: list[str]) -> Any:
        if name == "cancel_chains":
            queue.monkeypatch.setattr(AsyncRedisStore, "_run", before)
            await queue.client.start_chain(child, 1, blockers=blockers[:1])
        return await before(store, name, arguments)

    queue.monkeypatch.setattr(AsyncRedisStore, "_run", run)
    with pytest.raises(BlockerReferenceError) as refused:
        await queue.client.delete_chain(chain, cascade=True)
    assert list(refused.value.chain_ids) == blockers[:1]
    assert set(await queue.statuses(chain.id, *blockers)) == {OPEN}
    assert await queue.store.claim(ask("child")) == []


async def test_a_job_that_is_retried_meanwhile_keeps_its_blocker(queue: Queue) -> None:
    """It would run without it."""
    ids = await queue.levels(work)
    queue.dies("delete_chains", after=0)
    with pytest.raises(Died):
        await queue.client.delete_chain(ids[0], cascade=True)
    before = AsyncRedisStore._run

    async def run(store: AsyncRedisStore, name: str, arguments: list[str]) -> Any:
        if name == "delete_chains":
            queue.monkeypatch.setattr(AsyncRedisStore, "_run", before)
            await queue.client.retry_chains(ids[1:])
        return await before(store, name, arguments)

    queue.monkeypatch.setattr(AsyncRedisStore, "_run", run)
    with pytest.raises(BlockerReferenceError):
        await queue.client.delete_chain(ids[0], cascade=True)
    assert len(await queue.statuses(*ids)) == len(ids)
