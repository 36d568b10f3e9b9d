"""Cascades: a retry with what failed together, a cancel with what nobody else waits for, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuert import AsyncClient, Attempt, JobType, JobTypes, NewChain, Outcome, Processors, after
from queuert.client import async_cascades
from queuert.client.async_cascades import Cascade
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    PayloadError,
)
from queuert.ids import new_token
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import TypeTraits
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainClosed
from queuert.state import AsyncStore, StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.sqlite import SQLiteState
from queuert.state.types import ClaimRequest, Finish, FinishKind, NewJob
from queuert.testing import AsyncJobQueue
from queuert.testing.conformance.builders import ask, claim_one, complete, fail, wait
from queuert.testing.events import EventLog
from queuert.workers import WorkerHeartbeat
from tests.support.waiting import WAIT

work = JobType("work", input=int, output=int)
join = JobType("join", input=int, output=int)
child = JobType("child", input=int, output=int, closes_with_parent=True)
JOB_TYPES = JobTypes(work, join)
BEAT = WorkerHeartbeat("w", "w", "here", 1, "1", (), 1, 0, 0.0, traits=(TypeTraits("child", closes_with_parent=True),))
"""What a worker has told of a type that closes with its parent."""


class Queue:
    """A client, and the store behind it, on which a test plays the worker."""

    def __init__(self, client: AsyncClient, store: AsyncStore) -> None:
        self.client = client
        self.store = store

    async def fail_all(self, type: str) -> None:
        while claimed := await self.store.claim(ClaimRequest({type: 60.0}, 500, "me", new_token())):
            await self.store.finish([fail(job) for job in claimed])

    async def statuses(self, *ids: str) -> list[ChainStatus]:
        return [chain.status for chain in await self.store.get_chains(ids) if chain is not None]

    async def failed_tree(self, dependents: int) -> tuple[str, list[str]]:
        """A failed blocker, and chains that failed after they had waited for it."""
        blocker = await self.client.start_chain(work, 1)
        chains = await self.client.start_chains([NewChain(join, n, blockers=[blocker]) for n in range(dependents)])
        await self.fail_all("work")
        await self.fail_all("join")
        return blocker.id, [chain.id for chain in chains]


@pytest.fixture(params=["postgres", "sqlite", "redis"])
def state(request: pytest.FixtureRequest) -> StateAdapter:
    if request.param == "postgres":
        return PostgresState(request.getfixturevalue("dsn"))
    if request.param == "redis":
        from queuert.state.redis import RedisState

        return RedisState(request.getfixturevalue("redis_url"))
    return SQLiteState()


@pytest.fixture
async def queue(state: StateAdapter) -> AsyncIterator[Queue]:
    store = state.async_store(max_connections=1)
    await store.open()
    async with AsyncClient(state, JOB_TYPES, notify=InProcessNotify()) as client:
        yield Queue(client, store)
    await store.aclose()


async def test_a_failed_blocker_is_retried_with_all_its_failed_dependents(queue: Queue) -> None:
    blocker, dependents = await queue.failed_tree(1_000)
    retried = await queue.client.retry_chain(blocker, cascade=True)
    assert retried[0] == blocker
    assert sorted(retried[1:]) == sorted(dependents)
    jobs = await queue.store.get_jobs(dependents)
    assert {job.status for job in jobs if job is not None} == {JobStatus.BLOCKED}
    assert (await queue.store.claim(ask("join"))) == []
    await queue.store.finish([complete(await claim_one(queue.store))])
    assert len(await queue.store.claim(ask("join", limit=1_000))) == 1_000


async def test_a_failed_dependent_is_retried_with_its_failed_blockers(queue: Queue) -> None:
    blocker, [one, other] = await queue.failed_tree(2)
    assert await queue.client.retry_chain(one, cascade=True) == [one, blocker]
    assert await queue.statuses(one, blocker, other) == [ChainStatus.OPEN, ChainStatus.OPEN, ChainStatus.FAILED]


async def test_a_cascade_of_retries_goes_through_levels(queue: Queue) -> None:
    first = await queue.client.start_chain(work, 1)
    second = await queue.client.start_chain(join, 1, blockers=[first])
    third = await queue.client.start_chain(join, 1, blockers=[second])
    await queue.fail_all("work")
    await queue.fail_all("join")
    assert await queue.client.retry_chain(first, cascade=True) == [first.id, second.id, third.id]


async def test_what_failed_for_other_causes_stays_failed(queue: Queue) -> None:
    # The dependent completed in spite of its failed blocker, or failed before it was retried and failed again.
    blocker, [early] = await queue.failed_tree(1)
    await queue.client.retry_chain(blocker)
    done = await queue.client.start_chain(join, 1, blockers=[blocker])
    await queue.fail_all("work")
    await queue.store.finish([complete(await claim_one(queue.store, "join"))])
    assert await queue.client.retry_chain(blocker, cascade=True) == [blocker]
    assert await queue.statuses(early, done.id) == [ChainStatus.FAILED, ChainStatus.COMPLETED]


async def test_without_a_cascade_only_the_given_chains_are_retried(queue: Queue) -> None:
    blocker, [dependent] = await queue.failed_tree(1)
    assert await queue.client.retry_chains([blocker, blocker]) == [blocker]
    assert await queue.statuses(dependent) == [ChainStatus.FAILED]


async def test_a_cascade_of_a_chain_that_cannot_be_retried_is_refused(queue: Queue) -> None:
    open_chain = await queue.client.start_chain(work, 1)
    with pytest.raises(ChainNotRetriableError):
        await queue.client.retry_chain(open_chain, cascade=True)
    with pytest.raises(ChainNotFoundError):
        await queue.client.retry_chain("nowhere", cascade=True)
    with pytest.raises(ChainNotFoundError):
        await queue.client.cancel_chain("nowhere", cascade=True)


async def test_a_cascade_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker, dependents = await queue.failed_tree(3)
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 3)
    with pytest.raises(ConfigurationError, match="a cascade must have at most 3 chains"):
        await queue.client.retry_chain(blocker, cascade=True)
    assert set(await queue.statuses(blocker, *dependents)) == {ChainStatus.FAILED}


async def test_cancel_takes_children_and_blockers_that_nobody_else_waits_for(queue: Queue) -> None:
    alone, shared = await queue.client.start_chains([NewChain(work, 1), NewChain(work, 2)])
    parent = await queue.client.start_chain(join, 1, blockers=[alone, shared])
    other = await queue.client.start_chain(join, 2, blockers=[shared])
    assert await queue.client.cancel_chain(parent, cascade=True)
    cancelled, still_open = ChainStatus.CANCELLED, ChainStatus.OPEN
    assert await queue.statuses(parent.id, alone.id, shared.id, other.id) == [
        cancelled,
        cancelled,
        still_open,
        still_open,
    ]
    assert await queue.client.cancel_chains([other], cascade=True) == [True, True]
    assert await queue.statuses(shared.id) == [cancelled]


async def test_cancel_takes_the_children_of_a_job_and_theirs(queue: Queue) -> None:
    parent = await queue.client.start_chain(join, 1)
    claimed = await claim_one(queue.store, "join")
    await queue.store.finish([wait(claimed, NewJob("child", "work", "1"))])
    claimed = await claim_one(queue.store)
    await queue.store.finish([wait(claimed, NewJob("grandchild", "work", "1"))])
    assert await queue.client.cancel_chains([parent], cascade=True) == [True, True, True]
    assert set(await queue.statuses(parent.id, "child", "grandchild")) == {ChainStatus.CANCELLED}


async def test_two_chains_that_share_a_blocker_are_cancelled_with_it(queue: Queue) -> None:
    shared = await queue.client.start_chain(work, 1)
    chains = await queue.client.start_chains([NewChain(join, n, blockers=[shared]) for n in range(2)])
    assert await queue.client.cancel_chains(chains, cascade=True) == [True, True, True]


async def test_a_blocker_of_two_chains_that_are_cancelled_at_once_is_cancelled(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cascade sees that the job of the other one still waits for it."""
    both, before, looks = asyncio.Barrier(2), async_cascades._spread, []

    async def spread(*arguments: Any, **more: Any) -> Cascade:
        found = await before(*arguments, **more)
        looks.append(found)
        if len(looks) <= 2:
            await both.wait()
        return found

    monkeypatch.setattr(async_cascades, "_spread", spread)
    below = await queue.client.start_chain(work, 1)
    shared = await queue.client.start_chain(work, 2, blockers=[below])
    parents = await queue.client.start_chains([NewChain(join, one, blockers=[shared]) for one in range(2)])
    await asyncio.gather(*(queue.client.cancel_chain(one, cascade=True) for one in parents))
    assert [found.spared for found in looks[:2]] == [{shared.id}] * 2
    assert await queue.statuses(shared.id, below.id) == [ChainStatus.CANCELLED] * 2


async def test_a_blocker_that_is_deleted_during_a_cascade_is_left_out(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, looks = async_cascades._spread, []

    async def spread(*arguments: Any, **more: Any) -> Cascade:
        found = await before(*arguments, **more)
        looks.append(found)
        return found if len(looks) > 1 else Cascade([*found.ids, "deleted"], found.spared)

    monkeypatch.setattr(async_cascades, "_spread", spread)
    blocker = await queue.client.start_chain(work, 1)
    chain = await queue.client.start_chain(join, 1, blockers=[blocker])
    assert await queue.client.cancel_chains([chain], cascade=True) == [True, True]
    with pytest.raises(ChainNotFoundError):
        await queue.client.cancel_chains([chain, "nowhere"], cascade=True)


async def test_a_cascade_finishes_what_a_cancel_without_one_has_left(queue: Queue) -> None:
    """Only what nobody waits for; and nothing of a chain that a client completed, whose blockers are to go on."""
    below, shared, kept = await queue.client.start_chains([NewChain(work, one) for one in range(3)])
    alone = await queue.client.start_chain(work, 3, blockers=[below])
    chain, other = await queue.client.start_chains(
        [NewChain(join, 1, blockers=[alone, shared]), NewChain(join, 2, blockers=[shared])]
    )
    completed = await queue.client.start_chain(join, 3, blockers=[kept])
    await queue.client.complete_chain(completed, 1)
    await queue.client.cancel_chain(chain)
    assert await queue.client.cancel_chains([chain, completed], cascade=True) == [False, False, True, True]
    assert await queue.statuses(alone.id, below.id) == [ChainStatus.CANCELLED] * 2
    assert await queue.statuses(shared.id, other.id, kept.id) == [ChainStatus.OPEN] * 3
    await queue.client.cancel_chain(other)
    assert await queue.client.cancel_chains([other], cascade=True) == [False, True]
    with pytest.raises(ChainNotRetriableError):
        await queue.client.retry_chain(kept, cascade=True)


async def test_a_cancelled_chain_is_cancelled_again_without_what_was_retried_since(
    state: StateAdapter, queue: Queue
) -> None:
    """Neither its children, nor those behind a child that is cancelled itself; a cascade cancels them."""
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        leaf = await client.start_chain(child, 1)
        mine = await client.start_chain(child, 2, blockers=[leaf])
        parent = await client.start_chain(join, 1, blockers=[mine])
        assert await client.cancel_chain(parent)
        await client.retry_chain(leaf)
        assert await client.cancel_chain(mine) is False
        await client.retry_chain(parent)
        assert await client.cancel_chain(parent)
        assert await queue.statuses(leaf.id, mine.id) == [ChainStatus.OPEN, ChainStatus.CANCELLED]
        await client.retry_chain(mine)
        assert await client.cancel_chain(parent) is False
        assert await queue.statuses(leaf.id, mine.id) == [ChainStatus.OPEN] * 2
        assert await client.cancel_chains([parent], cascade=True) == [False, True, True]
        assert await queue.statuses(leaf.id, mine.id) == [ChainStatus.CANCELLED] * 2


async def test_a_cascade_goes_through_a_blocker_that_was_cancelled_before(queue: Queue) -> None:
    """It is not written again, and what another job waits for stays open."""
    leaf, shared = await queue.client.start_chains([NewChain(work, one) for one in range(2)])
    middle = await queue.client.start_chain(work, 3, blockers=[leaf, shared])
    top, other = await queue.client.start_chains(
        [NewChain(join, 1, blockers=[middle]), NewChain(join, 2, blockers=[shared])]
    )
    await queue.client.cancel_chain(middle, reason="mine")
    assert await queue.client.cancel_chains([top], cascade=True) == [True, True]
    assert await queue.statuses(leaf.id, shared.id, other.id) == [
        ChainStatus.CANCELLED,
        ChainStatus.OPEN,
        ChainStatus.OPEN,
    ]
    assert "mine" in str((await queue.client.get_chain(middle.id)).error)


async def test_what_a_cascade_of_cancels_looks_at_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = await queue.client.start_chain(work, 1)
    middle = await queue.client.start_chain(work, 2, blockers=[leaf])
    top = await queue.client.start_chain(join, 3, blockers=[middle])
    await queue.client.cancel_chain(middle)
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 2)
    with pytest.raises(ConfigurationError, match="a cascade must have at most 2 chains"):
        await queue.client.cancel_chain(top, cascade=True)
    assert await queue.statuses(top.id, leaf.id) == [ChainStatus.OPEN] * 2


async def test_a_given_chain_that_is_open_is_left_out_of_a_cascade_of_retries(queue: Queue) -> None:
    """What failed because of it before it was retried is retried. If there is nothing, the call is refused."""
    blocker, dependents = await queue.failed_tree(2)
    await queue.client.retry_chain(blocker)
    other, _ = await queue.failed_tree(0)
    await queue.client.retry_chain(blocker)
    assert sorted(await queue.client.retry_chains([blocker, other], cascade=True)) == sorted([other, *dependents])
    assert await queue.statuses(blocker, other, *dependents) == [ChainStatus.OPEN] * 4
    with pytest.raises(ChainNotRetriableError) as refused:
        await queue.client.retry_chains([blocker, other], cascade=True)
    assert refused.value.chain_ids == (blocker, other)
    assert await queue.client.retry_chains([], cascade=True) == []


async def test_a_chain_that_is_retried_while_a_cascade_begins(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out, and the others are retried."""
    blocker, dependents = await queue.failed_tree(2)
    before, looks = async_cascades._failed_after, []

    async def failed_after(*arguments: Any) -> Any:
        looks.append(1)
        found = await before(*arguments)
        if len(looks) == 1:
            await queue.client.retry_chain(blocker)
        return found

    monkeypatch.setattr(async_cascades, "_failed_after", failed_after)
    assert sorted(await queue.client.retry_chain(blocker, cascade=True)) == sorted(dependents)


@pytest.mark.parametrize("cascade", [False, True])
async def test_chains_that_another_client_retries_between_two_scripts_are_left_out(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, cascade: bool
) -> None:
    """On Redis, more than 25 chains are checked by some scripts, and written by others."""
    from queuert.state.redis import RedisState
    from queuert.state.redis.async_management import AsyncRedisManagement

    async with AsyncClient(RedisState(redis_url), JOB_TYPES, notify=InProcessNotify()) as client:
        ids = [chain.id for chain in await client.start_chains([NewChain(work, n) for n in range(60)])]
        await client.cancel_chains(ids)
        before, others, store = AsyncRedisManagement._check, [ids[0], ids[-1]], await client._open_store()

        async def check(*arguments: Any) -> None:
            await before(*arguments)
            await store.retry_chains(others)

        monkeypatch.setattr(AsyncRedisManagement, "_check", check)
        assert sorted(await client.retry_chains(ids, cascade=cascade)) == sorted(ids[1:-1])
        assert {one.status for one in await client.list_chains()} == {ChainStatus.OPEN}


async def test_a_cascade_leaves_the_blockers_of_a_failed_chain(queue: Queue) -> None:
    """They may have been retried since, and run."""
    blocker, [parent] = await queue.failed_tree(1)
    await queue.client.retry_chain(blocker)
    assert await queue.client.cancel_chains([parent], cascade=True) == [False]
    assert await queue.statuses(blocker, parent) == [ChainStatus.OPEN, ChainStatus.FAILED]


async def test_children_close_with_their_parent_if_their_type_says_so(state: StateAdapter, queue: Queue) -> None:
    """Those alone that nobody else waits for, and theirs; whether workers have recorded it or the client knows it."""
    job_types = JobTypes(work, join, child)
    async with AsyncClient(state, job_types, notify=InProcessNotify()) as client:
        for caller in (client, queue.client):
            grandchild, plain, shared = await client.start_chains(
                [NewChain(child, 1), NewChain(work, 1), NewChain(child, 2)]
            )
            mine = await client.start_chain(child, 3, blockers=[grandchild])
            parent = await client.start_chain(join, 1, blockers=[mine, plain, shared])
            other = await client.start_chain(join, 2, blockers=[shared])
            assert await caller.cancel_chains([parent, parent]) == [True]
            cancelled, still_open = [ChainStatus.CANCELLED] * 3, [ChainStatus.OPEN] * 3
            assert await queue.statuses(parent.id, mine.id, grandchild.id) == cancelled
            assert await queue.statuses(plain.id, shared.id, other.id) == still_open
            assert await caller.cancel_chain(other)
            assert await queue.statuses(shared.id) == [ChainStatus.CANCELLED]
            await queue.store.record_heartbeat(BEAT, 60.0)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_children_close_with_a_parent_that_a_client_completes(
    state: StateAdapter, queue: Queue, goes_on: bool
) -> None:
    """In one write; the error says why. Nothing of it concerns a chain that waits for nothing."""
    parent_type = JobType("parent", input=int, output=int, continues_with=work)
    job_types = JobTypes(work, parent_type, child)
    log = EventLog()
    async with AsyncClient(state, job_types, notify=InProcessNotify(), observability=log) as client:
        mine = await client.start_chain(child, 3)
        parent = await client.start_chain(parent_type, 1, blockers=[mine])
        if goes_on:
            await client.continue_chain(parent, work, 2)
        else:
            await client.complete_chain(parent, 2)
        found = await client.get_chain(mine.id)
        line = f"which a client has {'continued' if goes_on else 'completed'}."
        assert found.status is ChainStatus.CANCELLED
        assert str(found.error) == f"cancelled with the chain that waited for it, {line}\nIt is chain '{parent.id}'"
        # Those of all parents have one summary, by which bulk operations choose chains.
        assert found.error is not None
        assert found.error.summary == f"cancel: cancelled with the chain that waited for it, {line}"
        closed = [(one.chain_id, str(one.status)) for one in log.of(ChainClosed)]
        assert closed == [*([] if goes_on else [(parent.id, "completed")]), (mine.id, "cancelled")]
        alone = await client.start_chain(child, 4)
        await client.complete_chain(alone, 5)
        assert await alone.result() == 5


async def test_what_closed_with_its_parent_is_opened_with_it(state: StateAdapter, queue: Queue) -> None:
    """By a cascade. What somebody cancelled that does not close with a parent stays cancelled."""
    async with AsyncClient(state, JobTypes(work, join, child), notify=InProcessNotify()) as client:
        grandchild, plain = await client.start_chain(child, 1), await client.start_chain(work, 1)
        mine = await client.start_chain(child, 2, blockers=[grandchild])
        parent = await client.start_chain(join, 1, blockers=[mine, plain])
        await client.cancel_chains([parent])
        await client.cancel_chains([plain])
        assert await client.retry_chain(parent, cascade=True) == [parent.id, mine.id, grandchild.id]
        still_open = [ChainStatus.OPEN] * 3
        assert await queue.statuses(parent.id, mine.id, grandchild.id) == still_open
        assert await queue.statuses(plain.id) == [ChainStatus.CANCELLED]


async def test_a_child_that_is_deleted_while_its_parent_is_completed(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again, and the parent is completed."""
    job_types = JobTypes(work, join, child)
    async with AsyncClient(state, job_types, notify=InProcessNotify()) as client:
        mine = await client.start_chain(child, 3)
        parent = await client.start_chain(join, 1, blockers=[mine])
        looked = []
        before = async_cascades.closing_with

        async def closing_with(*arguments: Any) -> Cascade:
            looked.append(1)
            found = await before(*arguments)
            return found if len(looked) > 1 else Cascade([*found.ids, "deleted"], found.spared)

        monkeypatch.setattr("queuert.client.async_management.closing_with", closing_with)
        await client.complete_chain(parent, 2)
        assert (len(looked), await queue.statuses(parent.id, mine.id)) == (
            2,
            [ChainStatus.COMPLETED, ChainStatus.CANCELLED],
        )


@pytest.mark.parametrize("how", ["cancel", "complete", "continue"])
async def test_the_last_of_several_parents_closes_a_child(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also if both are closed at once, so that each sees the child awaited by the other one."""
    parent_type = JobType("parent", input=int, output=int, continues_with=work)
    both, before, looks = asyncio.Barrier(2), async_cascades._spread, []

    async def spread(*arguments: Any, **more: Any) -> Cascade:
        found = await before(*arguments, **more)
        looks.append(found)
        if len(looks) <= 2:
            await both.wait()
        return found

    monkeypatch.setattr(async_cascades, "_spread", spread)
    async with AsyncClient(state, JobTypes(work, parent_type, child), notify=InProcessNotify()) as client:
        grandchild = await client.start_chain(child, 1)
        mine = await client.start_chain(child, 1, blockers=[grandchild])
        parents = await client.start_chains([NewChain(parent_type, one, blockers=[mine]) for one in range(2)])
        if how == "cancel":
            await asyncio.gather(*(client.cancel_chain(one) for one in parents))
        elif how == "complete":
            await asyncio.gather(*(client.complete_chain(one, 1) for one in parents))
        else:
            await asyncio.gather(*(client.continue_chain(one, work, 1) for one in parents))
        assert [found.spared for found in looks[:2]] == [{mine.id}] * 2
        assert await queue.statuses(mine.id, grandchild.id) == [ChainStatus.CANCELLED] * 2


async def spared(
    queue: Queue,
    client: AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Cascade], Coroutine[Any, Any, Any]],
) -> list[str]:
    """Cancel a parent of many children. Another one, which also waits for them, is cancelled while they are read.

    ``act`` is called when the second part of the children, which nobody waits for any more, was read.
    """
    children = sorted(one.id for one in await client.start_chains([NewChain(child, n) for n in range(30)]))
    parent, other = await client.start_chains([NewChain(join, n, blockers=children) for n in range(2)])
    before, looks = async_cascades._spread, []

    async def spread(*arguments: Any, **more: Any) -> Cascade:
        found = await before(*arguments, **more)
        looks.append(found)
        if len(looks) == 1:
            assert found.spared == set(children)
            await queue.store.cancel_chains([other.id], reason="no")
        if len(looks) == 2:
            await act(found)
        return found

    monkeypatch.setattr(async_cascades, "_spread", spread)
    assert await client.cancel_chain(parent)
    return children


async def test_a_spared_child_that_a_job_begins_to_wait_for_meanwhile_goes_on(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are cancelled in parts, and looked at directly before."""
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:

        async def wait_for_the_last(found: Cascade) -> None:
            page = await client.list_chains(job_types=[child])
            await client.start_chain(join, 7, blockers=[max(one.id for one in page)])

        children = await spared(queue, client, monkeypatch, wait_for_the_last)
        assert await queue.statuses(*children) == [ChainStatus.CANCELLED] * 29 + [ChainStatus.OPEN]


async def test_a_spared_child_is_cancelled_though_another_is_deleted_meanwhile(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:

        async def delete_one_below(found: Cascade) -> None:
            found.ids.append("deleted")

        children = await spared(queue, client, monkeypatch, delete_one_below)
        assert await queue.statuses(*children) == [ChainStatus.CANCELLED] * 30


async def test_one_of_very_many_that_wait_keeps_a_child_open(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others have closed."""
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 3)
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        mine = await client.start_chain(child, 1)
        waits, *others = [await client.start_chain(join, number, blockers=[mine]) for number in range(8)]
        for one in reversed(others):
            await client.cancel_chain(one)
            assert await queue.statuses(mine.id) == [ChainStatus.OPEN]
        await client.cancel_chain(waits)
        assert await queue.statuses(mine.id) == [ChainStatus.CANCELLED]


@pytest.mark.parametrize("how", ["cancel", "complete"])
async def test_what_closes_with_a_chain_is_bounded(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The given chains do not count, nor those that are closed: so the way that the error names is one."""
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        children = await client.start_chains([NewChain(child, one) for one in range(3)])
        parent = await client.start_chain(join, 1, blockers=children)
        others = await client.start_chains([NewChain(join, one) for one in range(4)])
        monkeypatch.setattr(async_cascades, "MAX_CASCADE", 2)
        close = client.cancel_chain if how == "cancel" else partial(client.complete_chain, output=1)
        with pytest.raises(
            ConfigurationError, match=f"at most 2 chains must close with .* got more with '{parent.id}'"
        ):
            await close(parent)
        assert set(await queue.statuses(parent.id, *(one.id for one in children))) == {ChainStatus.OPEN}
        assert await client.cancel_chains(others) == [True] * 4
        await client.pause_job_types([join])
        await client.start_bulk_operation("cancel", requested_by="ada", job_types=[child])
        await client.run_bulk_operations()
        assert set(await queue.statuses(*(one.id for one in children))) == {ChainStatus.CANCELLED}
        assert await queue.store.claim(ask("join")) == []
        await close(parent)
        assert await queue.statuses(parent.id) != [ChainStatus.OPEN]


async def test_a_batch_with_too_many_children_for_one_write(
    state: StateAdapter, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chains are cancelled in parts; one that has too many alone is left out."""
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 2)
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        parents, children = list[str](), list[str]()
        for count in (2, 3, 1, 2):
            mine = await client.start_chains([NewChain(child, one) for one in range(count)])
            parents.append((await client.start_chain(join, 1, blockers=mine)).id)
            children.append(mine[0].id)
        operation = await client.start_bulk_operation("cancel", requested_by="ada", job_types=[join])
        await client.run_bulk_operations()
        done = await client.get_bulk_operation(operation.id)
        assert (done.status, done.seen, done.changed, done.skipped) == (ChainStatus.COMPLETED, 4, 3, 1)
        closed, still_open = ChainStatus.CANCELLED, ChainStatus.OPEN
        assert await queue.statuses(*parents) == [closed, still_open, closed, closed]
        assert await queue.statuses(*children) == [closed, still_open, closed, closed]


@pytest.mark.parametrize("links", [3, 1_000])
async def test_blockers_of_many_chains_are_read_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    """Those of their last jobs; alone only of chains with very many."""
    monkeypatch.setattr(async_cascades, "_LINKS", links)
    first, *shared = await queue.client.start_chains([NewChain(work, n) for n in range(4)])
    one, other = await queue.client.start_chains([NewChain(join, n, blockers=[first]) for n in range(2)])
    await queue.store.finish([complete(await claim_one(queue.store))])
    for claimed in await queue.store.claim(ask("join", limit=2)):
        await queue.store.finish([Finish(claimed, FinishKind.WAIT, blockers=tuple(chain.id for chain in shared))])
    parents = [one.id, other.id, (await queue.client.start_chain(join, 7)).id]
    chains = await async_cascades.existing_chains(queue.store, parents, None)
    reads = list[Any]()
    kind = type(getattr(queue.store, "_store", queue.store))
    for name in ("get_blockers", "get_blocker_links", "get_chains"):
        _record(monkeypatch, kind, name, reads)
    tails = {id: chain.tail_id for id, chain in chains.items()}
    found = await async_cascades.blockers_of(queue.store, tails, None)
    names = [name for name, _ in reads]
    assert names.count("get_blockers") == (2 if links == 3 else 0)
    assert len(names) - names.count("get_blockers") == 3
    expected = [first.id, *(chain.id for chain in shared)]
    assert {id: [blocker.id for blocker in blockers] for id, blockers in found.items()} == {
        one.id: expected,
        other.id: expected,
    }


@pytest.mark.parametrize("few", [0, 2, 100])
async def test_the_chains_of_a_cascade_are_sent_only_where_they_matter(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """However many dependents of a chain are read with those that the cascade has, all others are found."""
    monkeypatch.setattr(async_cascades, "_FEW_DEPENDENTS", few, raising=False)
    roots = await queue.client.start_chains([NewChain(work, n) for n in range(120)])
    middle = await queue.client.start_chains([NewChain(join, n, blockers=roots[:3]) for n in range(5)])
    last = await queue.client.start_chains([NewChain(join, n, blockers=[*roots[:3], *middle]) for n in range(3)])
    below = await queue.client.start_chain(join, 9, blockers=last)
    ids = [chain.id for chain in [*roots, *middle, *last, below]]
    calls = list[tuple[int, int]]()
    kind: Any = type(getattr(queue.store, "_store", queue.store))
    before = kind.get_dependent_links

    def read(store: Any, chains: Any, **named: Any) -> Any:
        calls.append((len(chains), len(named.get("excluding", ()))))
        return before(store, chains, **named)

    monkeypatch.setattr(kind, "get_dependent_links", read)
    await queue.fail_all("work")
    for _ in range(3):
        await queue.fail_all("join")
    retried = await queue.client.retry_chains(roots, cascade=True)
    assert sorted(retried) == sorted(ids)
    assert all(count for count, _ in calls), "no call is without chains"
    if few == 100:
        assert max(excluded for _, excluded in calls) == 0
    assert await queue.client.cancel_chains([below], cascade=True) == [True] * len([below, *last, *middle, *roots[:3]])
    other = await queue.client.start_chain(work, 1)
    parents = await queue.client.start_chains([NewChain(join, n, blockers=[other]) for n in range(7)])
    assert await queue.client.cancel_chains(parents[:-1], cascade=True) == [True] * 6
    assert await queue.statuses(other.id) == [ChainStatus.OPEN]
    assert await queue.client.cancel_chains(parents[-1:], cascade=True) == [True] * 2


async def test_no_payloads_are_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """By previews, batches and cascades: a page of large inputs would take as much memory."""
    blocker, _ = await queue.failed_tree(2)
    store = await queue.client._open_store()
    # That of SQLite is behind threads.
    kind = type(getattr(store, "_store", store))
    reads = list[Any]()
    for name in ("list_chains", "get_chains", "list_dependents", "get_jobs"):
        _record(monkeypatch, kind, name, reads)
    await queue.client.preview_bulk_operation("retry")
    await queue.client.retry_chain(blocker, cascade=True)
    await queue.client.cancel_chain(blocker, cascade=True)
    assert reads
    assert set(reads) == {("list_chains", False), ("get_chains", False)}
    await queue.client.start_bulk_operation("cancel", requested_by="ada", job_types=[join])
    reads.clear()
    await queue.client.run_bulk_operations()
    assert reads
    assert set(reads) == {("list_chains", False)}


def _record(monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str, reads: list[Any]) -> None:
    before = getattr(kind, name)

    def read(store: Any, *given: Any, **named: Any) -> Any:
        reads.append((name, named.get("payloads", True)))
        return before(store, *given, **named)

    monkeypatch.setattr(kind, name, read)


async def test_a_bulk_operation_knows_the_job_types_of_its_program(state: StateAdapter, queue: Queue) -> None:
    """No worker has recorded them."""
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        mine = await client.start_chain(child, 1)
        parent = await client.start_chain(join, 1, blockers=[mine])
        await client.start_bulk_operation("cancel", requested_by="ada", job_types=[join])
        await client.run_bulk_operations()
        assert await queue.statuses(parent.id, mine.id) == [ChainStatus.CANCELLED] * 2


async def test_a_child_that_the_next_job_waits_for_goes_on(state: StateAdapter, queue: Queue) -> None:
    """So does what it waits for; the others close."""
    parent_type = JobType("parent", input=int, output=int, continues_with=join)
    async with AsyncClient(state, JobTypes(join, parent_type, child), notify=InProcessNotify()) as client:
        grandchild = await client.start_chain(child, 1)
        kept = await client.start_chain(child, 2, blockers=[grandchild])
        closes = await client.start_chain(child, 3)
        parent = await client.start_chain(parent_type, 1, blockers=[kept, closes])
        step = await client.continue_chain(parent, join, 2, blockers=[kept])
        assert (await client.get_job(step)).status is JobStatus.BLOCKED
        still_open, cancelled = ChainStatus.OPEN, ChainStatus.CANCELLED
        assert await queue.statuses(kept.id, grandchild.id, closes.id) == [still_open, still_open, cancelled]


async def test_more_children_than_one_script_takes(state: StateAdapter, queue: Queue) -> None:
    """All of them close, and the results are those of the given chains."""
    async with AsyncClient(state, JobTypes(join, child), notify=InProcessNotify()) as client:
        for number in range(2):
            children = await client.start_chains([NewChain(child, one) for one in range(60)])
            parent = await client.start_chain(join, 1, blockers=children)
            if number:
                await client.complete_chain(parent, 2)
            else:
                assert await client.cancel_chains([parent]) == [True]
            statuses = await queue.statuses(*(one.id for one in children))
            assert set(statuses) == {ChainStatus.CANCELLED}


async def test_what_closes_is_read_in_the_callers_transaction(dsn: str) -> None:
    """A job that has begun to wait there keeps the child open, before anybody else sees it."""
    async with (
        AsyncClient(PostgresState(dsn), JobTypes(join, child), notify=InProcessNotify()) as client,
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        mine = await client.start_chain(child, 1)
        parents = await client.start_chains([NewChain(join, one, blockers=[mine]) for one in range(2)])
        other = await client.start_chain(join, 2, blockers=[mine], connection=connection)
        await client.complete_chain(parents[0], 1, connection=connection)
        await client.cancel_chain(parents[1], connection=connection)
        await connection.commit()
        assert (await mine.refresh()).status is ChainStatus.OPEN
        assert (await other.refresh()).status is ChainStatus.OPEN
        await client.cancel_chain(other, connection=connection)
        assert (await mine.refresh()).status is ChainStatus.OPEN
        await connection.commit()
        assert (await mine.refresh()).status is ChainStatus.CANCELLED


async def test_children_close_from_inside_of_an_attempt_in_memory() -> None:
    """Its transaction has the only connection."""
    job_types = JobTypes(work, join, child)
    processors = Processors(job_types)

    @processors.handles(work)
    async def withdraw(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await own.client.cancel_chain("parent", connection=tx.connection)
            return tx.finish(1)

    async with AsyncJobQueue(SQLiteState(), job_types) as own:
        mine = await own.client.start_chain(child, 1)
        await own.client.start_chain(join, 1, id="parent", blockers=[mine])
        await own.client.start_chain(work, 1)
        assert [one.outcome for one in await own.run_until_idle(processors)] == ["completed"]
        assert (await mine.refresh()).status is ChainStatus.CANCELLED


async def test_bulk_cancellations_close_children_and_count_what_was_chosen(state: StateAdapter, queue: Queue) -> None:
    job_types = JobTypes(work, join, child)
    async with AsyncClient(state, job_types, notify=InProcessNotify()) as client:
        await queue.store.record_heartbeat(BEAT, 60.0)
        mine = await client.start_chain(child, 3)
        parent = await client.start_chain(join, 1, blockers=[mine])
    # A connection is enough: the command line has no more.
    async with AsyncClient(state, job_types, notify=InProcessNotify(), max_connections=1) as client:
        operation = await client.start_bulk_operation("cancel", requested_by="ana", job_types=[join])
        await client.run_bulk_operations()
        assert (await client.get_bulk_operation(operation.id)).changed == 1
        assert await queue.statuses(parent.id, mine.id) == [ChainStatus.CANCELLED] * 2


async def test_a_chain_is_retried_with_another_input(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.fail_all("work")
    with pytest.raises(PayloadError):
        await queue.client.retry_chain_with_input(chain, "no number")
    assert await queue.statuses(chain.id) == [ChainStatus.FAILED]
    await queue.client.retry_chain_with_input(chain, 17)
    assert (await claim_one(queue.store)).input == "17"
    with pytest.raises(ChainNotRetriableError):
        await queue.client.retry_chain_with_input(chain, 18)
    with pytest.raises(ChainNotFoundError):
        await queue.client.retry_chain_with_input("nowhere", 18)


async def test_a_client_without_the_job_type_stores_plain_json(queue: Queue) -> None:
    chain = await queue.client.start_chain(work, 1)
    await queue.fail_all("work")
    async with AsyncClient(queue.client.state, JobTypes(), notify=InProcessNotify()) as operator:
        await operator.retry_chain_with_input(chain.id, {"new": [1]})
    assert (await claim_one(queue.store)).input.replace(" ", "") == '{"new":[1]}'


async def test_what_waits_gets_another_input(queue: Queue) -> None:
    chain, other = await queue.client.start_chains([NewChain(work, 1), NewChain(work, 2, run_at=after(hours=1))])
    with pytest.raises(PayloadError):
        await queue.client.edit_chain_input(chain, "no number")
    assert await queue.client.edit_chain_input(chain, 17)
    assert await queue.client.edit_chain_input(other.id, 18)
    assert (await other.refresh()).input == 18
    assert (await claim_one(queue.store)).input == "17"
    assert not await queue.client.edit_chain_input(chain, 19), "it runs"
    await queue.client.cancel_chain(other)
    assert not await queue.client.edit_chain_input(other, 19), "it is closed"
    with pytest.raises(ChainNotFoundError):
        await queue.client.edit_chain_input("nowhere", 18)


async def test_what_waits_is_rescheduled_and_reprioritized(queue: Queue) -> None:
    first, second = await queue.client.start_chains([NewChain(work, 1), NewChain(work, 2)])
    assert await queue.client.reschedule_chains([first], after(hours=1)) == [True]
    assert await queue.client.reprioritize_chains([first, second], 7) == [True, True]
    claimed = await claim_one(queue.store)
    assert (claimed.id, claimed.priority) == (second.id, 7)
    assert await queue.client.reschedule_chains([first, second], after()) == [True, False]
    assert (await claim_one(queue.store)).id == first.id
    with pytest.raises(ConfigurationError, match="run_at must be"):
        await queue.client.reschedule_chains([first], 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        await queue.client.reprioritize_chains([first], 2**40)
    with pytest.raises(ChainNotFoundError):
        await queue.client.reprioritize_chains(["nowhere"], 1)


async def test_bulk_operations_reschedule_and_reprioritize(queue: Queue) -> None:
    first, second = await queue.client.start_chains([NewChain(work, 1), NewChain(work, 2)])
    running = await claim_one(queue.store)
    later = await queue.client.start_bulk_operation("reschedule", requested_by="ana", run_at=after(hours=1))
    higher = await queue.client.start_bulk_operation("reprioritize", requested_by="ana", priority=3)
    await queue.client.run_bulk_operations()
    for id in (later.id, higher.id):
        done = await queue.client.get_bulk_operation(id)
        assert (done.seen, done.changed, done.skipped) == (2, 1, 1)
    [waiting] = {first.id, second.id} - {running.id}
    [job] = await queue.store.get_jobs([waiting])
    assert job is not None
    assert (job.priority, job.status) == (3, JobStatus.SCHEDULED)


LOCKED = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.mark.parametrize("how", ["cancel", "complete"])
async def test_a_parent_and_its_children_are_locked_in_one_order(dsn: str, how: str) -> None:
    """The parent is older than the children that its handler made. What completes these locks the parent first, since
    it waits for them; whoever took the locks in another order would wait for ever here, as nobody looks for deadlocks.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as operator:
        name = operator.info.dbname
        await operator.execute(sql.SQL("alter database {} set deadlock_timeout = '1h'").format(sql.Identifier(name)))
        async with (
            AsyncClient(PostgresState(dsn), JobTypes(work, join, child), notify=InProcessNotify()) as client,
            await psycopg.AsyncConnection.connect(dsn) as holder,
        ):
            parent = await client.start_chain(join, 1)
            store = await client._open_store()
            children = [NewJob(f"child{n}", "child", "1") for n in range(3)]
            await store.finish([wait(await claim_one(store, "join"), *children)])
            await holder.execute("select from queuert.job where id = %s for update", [parent.id])
            closing = client.cancel_chain(parent) if how == "cancel" else client.complete_chain(parent, 1)
            calls = [asyncio.ensure_future(closing)]
            await locked(operator, 1)
            calls += [asyncio.ensure_future(client.complete_chain(one.id, 1)) for one in children]
            await locked(operator, 4)
            await holder.rollback()
            closed, *refused = await asyncio.gather(*calls, return_exceptions=True)
            assert not isinstance(closed, BaseException)
            assert all(one is None or isinstance(one, ChainAlreadyClosedError) for one in refused)
            assert (await parent.refresh()).status is not ChainStatus.OPEN
            assert {one.status.value for one in await store.count_jobs(["child"])} <= {"cancelled", "completed"}


async def locked(operator: psycopg.AsyncConnection[Any], count: int) -> None:
    """Wait until so many sessions wait for locks."""
    async with asyncio.timeout(WAIT):
        while (await (await operator.execute(LOCKED)).fetchone()) != (count,):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
