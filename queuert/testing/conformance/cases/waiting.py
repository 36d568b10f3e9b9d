"""A running job that waits: for chains that its finish starts, and for others; then it runs again."""

from __future__ import annotations

import asyncio

from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, Finish, FinishKind
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    error_of,
    fail,
    interrupt,
    job,
    read,
    start,
    started_and_claimed,
    stolen,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


async def _parent(store: AsyncStore) -> ClaimedJob:
    [held] = await started_and_claimed(store, type="parent")
    return held


@case()
async def starts_chains_and_waits(stores: Stores) -> None:
    """The chains are started and the job is blocked in one step; it is due again when the last of them has closed."""
    store = await stores.open()
    held = await _parent(store)
    children = [job("child"), job("child")]
    [result] = await store.finish([wait(held, *children)])
    assert result.written
    assert result.due_types == ("child",)
    found = await read(store, held.id)
    assert (found.status, found.open_blockers, found.attempt, found.uncounted) == (JobStatus.BLOCKED, 2, 1, 1)
    assert (found.lease_expires_at, found.finished_at) == (None, None)
    assert await store.claim(ask("parent")) == []
    first, second = await store.claim(ask("child"))
    assert (await store.finish([complete(first)]))[0].due_types == ()
    assert (await store.finish([complete(second)]))[0].due_types == ("parent",)
    again = await claim_one(store, "parent")
    assert (again.id, again.attempt, again.counted_attempts, again.blocker_count) == (held.id, 2, 1, 2)


@case()
async def outputs_in_order(stores: Stores) -> None:
    """What it waited for is read in the order in which it was given, new ones and others, over several waits."""
    store = await stores.open()
    held = await _parent(store)
    [other] = await started_and_claimed(store, type="other")
    first = job("child")
    await store.finish([wait(held, first, others=[other.id])])
    await store.finish([fail(other), complete(await claim_one(store, "child"), "1")])
    second = job("child")
    again = await claim_one(store, "parent")
    await store.finish([wait(again, second, others=[other.id])])
    await store.finish([complete(await claim_one(store, "child"), "2")])
    found = await store.get_blockers(held.id)
    assert [one.chain_id for one in found] == [first.id, other.id, second.id]
    assert [(one.status, one.output) for one in found] == [
        (ChainStatus.COMPLETED, "1"), (ChainStatus.FAILED, None), (ChainStatus.COMPLETED, "2")
    ]  # fmt: skip
    assert (await claim_one(store, "parent")).blocker_count == 3


@case()
async def nothing_left_to_wait_for(stores: Stores) -> None:
    """Where all that it names has closed already, or is awaited already, the job is due at once."""
    store = await stores.open()
    held = await _parent(store)
    [done] = await started_and_claimed(store)
    await store.finish([complete(done)])
    [result] = await store.finish([wait(held, others=[done.id])])
    assert result.due_types == ("parent",)
    again = await claim_one(store, "parent")
    assert (again.attempt, again.counted_attempts) == (2, 1)
    assert (await store.finish([wait(again, others=[done.id])]))[0].due_types == ("parent",)
    assert (await claim_one(store, "parent")).blocker_count == 1


@case()
async def keeps_its_attempts(stores: Stores) -> None:
    """However often a job waits, that costs it no attempts."""
    store = await stores.open()
    held = await _parent(store)
    for round in range(3):
        await store.finish([wait(held, job("child"))])
        await store.finish([complete(await claim_one(store, "child"))])
        held = await claim_one(store, "parent")
        assert (held.attempt, held.counted_attempts) == (round + 2, 1)


@case()
async def only_by_its_holder(stores: Stores) -> None:
    """A stranger's wait writes nothing, and starts nothing; one that was written says so when it is asked again."""
    store = await stores.open()
    held = await _parent(store)
    [result] = await store.finish([wait(stolen(held), job("child"))])
    assert result.lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert await store.claim(ask("child")) == []
    finish = wait(held, job("child"))
    for _ in range(2):
        assert (await store.finish([finish]))[0].written
    assert len(await store.claim(ask("child"))) == 1


@case()
async def refused_as_a_whole(stores: Stores) -> None:
    """A chain that does not exist, or an id that does, is an error: nothing is started, the attempt goes on."""
    store = await stores.open()
    held = await _parent(store)
    await start(store, job(id="taken"))
    await error_of(ChainNotFoundError, store.finish([wait(held, job("child"), others=["nowhere"])]))
    await error_of(JobIdConflictError, store.finish([wait(held, job("child"), job("child", id="taken"))]))
    assert await store.claim(ask("child")) == []
    assert (await store.finish([complete(held)]))[0].written


@case()
async def beside_other_finishes(stores: Stores) -> None:
    """Waits go in one batch with finishes of other kinds, also of the chain that is waited for."""
    store = await stores.open()
    held = await _parent(store)
    [other] = await started_and_claimed(store, type="other")
    results = await store.finish([complete(other), wait(held, job("child"), others=[other.id])])
    assert all(result.written for result in results)
    assert (await read(store, held.id)).open_blockers == 1
    await store.finish([complete(await claim_one(store, "child"))])
    assert (await claim_one(store, "parent")).id == held.id


@case()
async def many_children(stores: Stores) -> None:
    """A thousand children, closed in batches by several: the job is released once, by the last."""
    several = await stores.open_many(4)
    store = several[0]
    held = await _parent(store)
    await store.finish([wait(held, *(job("child") for _ in range(1000)))])

    async def work(mine: AsyncStore) -> int:
        released = 0
        while claimed := await mine.claim(ask("child", limit=50)):
            results = await mine.finish([complete(one) for one in claimed])
            released += sum(type == "parent" for result in results for type in result.due_types)
        return released

    assert sum(await asyncio.gather(*(work(mine) for mine in several))) == 1
    found = await read(store, held.id)
    assert (found.status, found.open_blockers) == (JobStatus.READY, 0)


@case()
async def while_the_other_closes(stores: Stores) -> None:
    """A job that begins to wait for a chain that closes at the same moment is not stranded."""
    store, other = await stores.open_many(2)
    for _ in range(30):
        [blocker] = await started_and_claimed(store)
        held = await _parent(store)
        await asyncio.gather(store.finish([wait(held, others=[blocker.id])]), other.finish([complete(blocker)]))
        again = await claim_one(store, "parent")
        assert again.id == held.id
        await store.finish([complete(again)])


@case()
async def middle_outputs_are_kept(stores: Stores) -> None:
    """A continuation keeps the output of the job that it continues, if it has one."""
    store = await stores.open()
    for output in ('{"found": 3}', None):
        [held] = await started_and_claimed(store)
        await store.finish([Finish(held, FinishKind.CONTINUE, output=output, continuation=job("next"))])
        found = await read(store, held.id)
        assert (found.status, found.output) == (JobStatus.CONTINUED, {"found": 3} if output else None)


@case()
async def crashes_are_counted_apart(stores: Stores) -> None:
    """An attempt whose process died counts with the expired leases, not with the failures that cost priority.

    Whatever ends beside it.
    """
    store = await stores.open()
    for ends in (complete, interrupt):
        held, other = await started_and_claimed(store, 2)
        await store.finish([Finish(held, FinishKind.RETRY, crashed=True), ends(other)])
        claimed = {one.id: one for one in await store.claim(ask("work"))}
        again = claimed[held.id]
        assert (again.lease_expirations, again.own_failures, again.counted_attempts) == (1, 1, 2)
        await store.finish([complete(one) for one in claimed.values()])


@case()
async def waits_again_for_what_was_opened_again(stores: Stores) -> None:
    """A chain that it has waited for, and that was retried since, is open: it is waited for once more, in its place."""
    store = await stores.open()
    held = await _parent(store)
    [other] = await started_and_claimed(store, type="other")
    await store.finish([wait(held, others=[other.id])])
    await store.finish([fail(other)])
    await store.retry_chains([other.id])
    again = await claim_one(store, "parent")
    child = job("child")
    assert (await store.finish([wait(again, child, others=[other.id])]))[0].due_types == ("child",)
    assert (await read(store, held.id)).open_blockers == 2
    await store.finish([complete(await claim_one(store, "child"))])
    [result] = await store.finish([complete(await claim_one(store, "other"))])
    assert result.due_types == ("parent",)
    assert [one.chain_id for one in await store.get_blockers(held.id)] == [other.id, child.id]
    assert (await claim_one(store, "parent")).blocker_count == 2


@case()
async def does_not_jump_the_queue(stores: Stores) -> None:
    """A job that waits for nothing is due from then on: those that were due before it go first."""
    store = await stores.open()
    held = await _parent(store)
    [before] = await start(store, job("parent"))
    await store.finish([wait(held)])
    assert [one.id for one in await store.claim(ask("parent"))] == [before, held.id]
