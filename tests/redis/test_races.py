"""Operations that race each other on the same jobs: one of them wins, the other is told, and all stays whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest
import redis

from queuert.errors import ChainNotFoundError, JobNotFoundError, JobNotTriggerableError, QueuertError
from queuert.ids import new_id
from queuert.jobs import JobStatus
from queuert.state.redis import RedisState
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.types import ClaimedJob, ReapRequest, Renewal, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    AT_ONCE,
    ask,
    complete,
    due_later,
    expire,
    go_on,
    interrupt,
    job,
    retry,
    start,
)
from queuert.testing.redis_scan import scan

ROUNDS = 30


class Arena:
    """Two stores on one namespace."""

    def __init__(self, one: AsyncRedisStore, other: AsyncRedisStore) -> None:
        self.one = one
        self.other = other

    async def claimed(self, count: int = 1, **what: Any) -> list[ClaimedJob]:
        """New jobs under a lease."""
        await start(self.one, *(job(**what) for _ in range(count)))
        return await self.one.claim(ask(limit=count))

    async def status(self, id: str) -> JobStatus | None:
        [found] = await self.one.get_jobs([id])
        return None if found is None else found.status


@pytest.fixture
async def arena(redis_url: str) -> AsyncIterator[Arena]:
    """Afterwards the namespace is whole."""
    namespace = new_id()
    stores = [RedisState(redis_url, namespace=namespace).async_store(max_connections=8) for _ in range(2)]
    for store in stores:
        await store.open()
    yield Arena(*stores)
    with redis.Redis.from_url(redis_url) as client:
        assert scan(client, namespace) == []
    for store in stores:
        await store.aclose()


async def both(*calls: Awaitable[Any]) -> list[Any]:
    """What concurrent calls answer, or the errors of Queuert's that they raise."""
    answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, QueuertError):
            raise answer
    return answers


async def reap(store: AsyncRedisStore) -> list[str]:
    return [one.id for one in (await store.reap(ReapRequest({"work": AT_ONCE}))).reaped]


async def test_cancel_and_start_the_same_id_again(arena: Arena) -> None:
    """The entry of the old one is dead: the new one runs once, with its own input. D02."""
    await start(arena.one, *(job() for _ in range(200)))  # So that the entry is left in the list.
    for number in range(5):
        await start(arena.one, job(id="same", input=f'"{number}"'))
        await start(arena.one, job())
        if number < 4:
            await arena.one.cancel_chains(["same"], reason="not wanted")
            await arena.one.delete_chains(["same"])
    claimed = await arena.one.claim(ask(limit=1000))
    assert [one.input for one in claimed if one.id == "same"] == ['"4"']
    assert len(claimed) == 200 + 5 + 1


async def test_reap_and_complete(arena: Arena) -> None:
    won = set()
    for _ in range(ROUNDS):
        [claimed] = await arena.claimed()
        await expire_only(arena, claimed)
        reaped, [finished] = await both(reap(arena.one), arena.other.finish([complete(claimed)]))
        assert (reaped == [claimed.id]) is (not finished.written)
        assert await arena.status(claimed.id) is (JobStatus.COMPLETED if finished.written else JobStatus.READY)
        won.add(bool(finished.written))
        await arena.one.delete_chains([claimed.id])
    assert won <= {True, False}


async def test_reap_and_renew(arena: Arena) -> None:
    for _ in range(ROUNDS):
        [claimed] = await arena.claimed()
        await expire_only(arena, claimed)
        reaped, [renewed] = await both(reap(arena.one), arena.other.renew([Renewal(claimed.lease, 60.0)]))
        assert (reaped == [claimed.id]) is (not renewed)
        assert await arena.status(claimed.id) is (JobStatus.RUNNING if renewed else JobStatus.READY)
        await arena.one.delete_chains([claimed.id])


async def expire_only(arena: Arena, claimed: ClaimedJob) -> None:
    """Let a lease expire, unreaped."""
    await expire(arena.one, claimed)


async def test_two_reapers(arena: Arena) -> None:
    """Each lease is reaped once."""
    claimed = await arena.claimed(50)
    await expire(arena.one, *claimed)
    found = await both(*(reap(store) for store in [arena.one, arena.other] * 4))
    assert sorted(id for ids in found for id in ids) == sorted(one.id for one in claimed)
    jobs = await arena.one.get_jobs([one.id for one in claimed])
    assert {one.lease_expirations for one in jobs if one is not None} == {1}


@pytest.mark.parametrize("finish", [complete, retry, interrupt, lambda one: go_on(one, job())])
async def test_delete_while_running(arena: Arena, finish: Any) -> None:
    """The holder is told that there is no such job, and writes nothing."""
    for _ in range(ROUNDS):
        [claimed] = await arena.claimed(limit_key="key")
        deleted, [finished] = await both(arena.one.delete_chains([claimed.id]), arena.other.finish([finish(claimed)]))
        assert list(deleted.chain_ids) == [claimed.id]
        assert list(deleted.running_job_ids) == ([] if finished.written else [claimed.id])
        assert finished.lost in (None, "not_found")
        assert await arena.one.claim(ask(limit=10)) == []


async def test_trigger_and_claim(arena: Arena) -> None:
    """A scheduled job that is triggered is claimed once."""
    for _ in range(ROUNDS):
        [id] = await start(arena.one, job(run_at=due_later()))
        claims = [store.claim(ask(limit=5)) for store in (arena.one, arena.other) * 2]
        first, *found, again = await both(arena.one.trigger_jobs([id]), *claims, arena.other.trigger_jobs([id]))
        assert [one.id for one in first] == [id]
        assert isinstance(again, JobNotTriggerableError) or [one.id for one in again] == [id]
        taken = [one.id for claimed in found for one in claimed] + [one.id for one in await arena.one.claim(ask())]
        assert taken == [id]


async def test_cancel_and_claim(arena: Arena) -> None:
    """A job is cancelled before it started, or while it runs, and the answer says which. D18."""
    met: set[JobStatus | None] = set()
    round = 0
    while round < ROUNDS or (len(met) < 2 and round < 50 * ROUNDS):
        round += 1
        [id] = await start(arena.one, job())
        cancelling = arena.one.cancel_chains([id], reason="not wanted")
        claiming = arena.other.claim(ask())
        if round % 2:
            [cancelled], claimed = await both(cancelling, claiming)
        else:
            claimed, [cancelled] = await both(claiming, cancelling)
        assert cancelled.written
        assert cancelled.previous_status is (JobStatus.RUNNING if claimed else JobStatus.READY)
        met.add(cancelled.previous_status)
        if claimed:
            [finished] = await arena.other.finish([complete(claimed[0])])
            assert finished.lost == "cancelled"
    assert met == {JobStatus.RUNNING, JobStatus.READY}, "they never raced"


async def test_complete_from_outside_and_from_inside(arena: Arena) -> None:
    """One output stands, and only who wrote it is told so."""
    written = set()
    for round in range(ROUNDS):
        [claimed] = await arena.claimed()
        outside = arena.one.complete_chains([WorkerlessCompletion(claimed.id, claimed.id, '"outside"')])
        inside = arena.other.finish([complete(claimed, '"inside"')])
        if round % 2:
            [done], [finished] = await both(outside, inside)
        else:
            [finished], [done] = await both(inside, outside)
        assert done.written is not finished.written
        [chain] = await arena.one.get_chains([claimed.id])
        assert chain is not None
        assert chain.output == ('"outside"' if done.written else '"inside"')
        written.add(done.written)
    assert written == {True, False}, "they never raced"


async def test_starts_of_one_id(arena: Arena) -> None:
    """One of many is written."""
    answers = await both(*(store.start_jobs([job(id="same")]) for store in [arena.one, arena.other] * 10))
    assert sum(not isinstance(answer, QueuertError) for answer in answers) == 1


async def test_everything_at_once(arena: Arena) -> None:
    """On the same few chains, by all operations: errors are of Queuert's, and nothing is left half."""
    ids = [f"chain-{number}" for number in range(6)]

    async def restart(id: str) -> None:
        await arena.one.start_jobs([job(id=id, limit_key=id[-1] if id[-1] in "03" else None)])

    async def wait_for(id: str) -> None:
        await arena.other.start_jobs([job(blockers=(id,))])

    async def work(store: AsyncRedisStore) -> None:
        claimed = await store.claim(ask(limit=3, holder=new_id()))
        finishes: list[Any] = [complete, retry, interrupt, lambda one: go_on(one, job())]
        for number, one in enumerate(claimed):
            if number == 1:
                await store.release([one.lease])
            else:
                await store.finish([finishes[hash(one.token) % 4](one)])

    async def complete_outside(id: str) -> None:
        await arena.one.complete_chains([WorkerlessCompletion(id, id, "1")])

    for round in range(40):
        mixed: list[Awaitable[Any]] = []
        for number, id in enumerate(ids):
            actions: Sequence[Any] = [
                lambda id=id: restart(id),
                lambda id=id: arena.other.cancel_chains([id], reason="no"),
                lambda id=id: arena.one.retry_chains([id]),
                lambda id=id: arena.other.delete_chains([id]),
                lambda id=id: arena.one.trigger_jobs([id]),
                lambda id=id: complete_outside(id),
                lambda id=id: wait_for(id),
            ]
            mixed += [actions[(round + number) % 7](), actions[(round * 3 + number) % 7](), restart(id)]
        mixed += [work(arena.one), work(arena.other), reap(arena.one), arena.one.release_stranded()]
        await both(*mixed)
    with pytest.raises((ChainNotFoundError, JobNotFoundError)):
        await arena.one.cancel_chains(["nobody"], reason="no")
