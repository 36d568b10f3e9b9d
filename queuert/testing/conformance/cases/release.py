"""Releasing what was claimed and not started."""

from __future__ import annotations

from queuert.jobs import AbortReason, JobStatus
from queuert.state.types import Lease
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    job,
    lost_to_reaper,
    read,
    retry,
    start,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def due_at_once_and_not_counted(stores: Stores) -> None:
    """A released job is READY, its attempt never was; the next claim is attempt 1 again."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert await store.release([claimed.lease]) == 1
    found = await read(store, claimed.id)
    assert (found.status, found.attempt, found.uncounted, found.lease_expires_at) == (JobStatus.READY, 0, 0, None)
    assert await store.next_due(["work"]) == 0
    assert (await claim_one(store)).attempt == 1


@case()
async def keeps_earlier_attempts(stores: Stores) -> None:
    """Only the attempt that was released is not counted."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([retry(first)])
    await store.release([(await claim_one(store)).lease])
    assert (await read(store, first.id)).attempt == 1
    assert (await claim_one(store)).attempt == 2


@case()
async def keeps_its_place(stores: Stores) -> None:
    """A released job is as old as it was: the next claim takes it first."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await start(store, job())
    await store.release([first.lease])
    assert (await claim_one(store)).id == first.id


@case()
async def many_keep_their_places(stores: Stores) -> None:
    """Jobs that are released together, or with their whole claim, are claimed again in the order that they had."""
    store = await stores.open()
    ids = await start(store, *(job(type, priority=priority) for priority in (1, 0) for type in ("a", "b", "a", "b")))
    await start(store, *(job(type) for type in ("a", "b")))
    for limit in (6, 3, 6):
        request = ask("a", "b", limit=limit)
        claimed = await store.claim(request)
        assert [one.id for one in claimed] == ids[:limit]
        if limit == 3:
            assert await store.release_claim(request) == (limit, 0)
        else:
            assert await store.release([one.lease for one in claimed]) == limit
    assert [one.id for one in await store.claim(ask("a", "b", limit=8))] == ids


@case()
async def only_by_its_holder(stores: Stores) -> None:
    """Wrong tokens, unknown jobs, lost leases and finished jobs are not released; the right one among them is."""
    store = await stores.open()
    lost = await lost_to_reaper(store)
    held = await claim_one(store)
    assert held.id == lost.id
    mine, done = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    leases = [lost.lease, stolen(mine).lease, done.lease, Lease("unknown", mine.token), mine.lease]
    assert await store.release(leases) == 1
    statuses = [one.status for one in await store.get_jobs([held.id, mine.id, done.id]) if one]
    assert statuses == [JobStatus.RUNNING, JobStatus.READY, JobStatus.COMPLETED]


@case()
async def twice_is_once(stores: Stores) -> None:
    """A second release finds nothing, and takes no further attempt off."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert [await store.release([claimed.lease]) for _ in range(2)] == [1, 0]
    assert (await read(store, claimed.id)).attempt == 0
    assert await store.release([]) == 0


@case()
async def ends_the_lease(stores: Stores) -> None:
    """After its release a lease can neither finish nor hold: the job is another's to take."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await store.release([claimed.lease])
    [result] = await store.finish([complete(claimed)])
    assert (result.written, result.lost) == (False, AbortReason.TAKEN_BY_ANOTHER_WORKER)
    assert await store.lost_reasons([claimed.lease]) == [AbortReason.TAKEN_BY_ANOTHER_WORKER]
    assert (await read(store, claimed.id)).status is JobStatus.READY


@case()
async def many(stores: Stores) -> None:
    """Many at once, whatever their types and claims."""
    store = await stores.open()
    await start(store, *(job(f"type{number % 4}") for number in range(40)))
    claimed = [one for number in range(4) for one in await store.claim(ask(f"type{number}"))]
    assert await store.release([one.lease for one in claimed]) == 40
    assert {(one.status, one.count) for one in await store.count_jobs()} == {(JobStatus.READY, 10)}


@case()
async def of_a_whole_claim(stores: Stores) -> None:
    """``release_claim`` releases what a claim took and still holds, by its token alone, and no one else's jobs."""
    store = await stores.open()
    await start(store, *(job(type) for type in ("a", "b", "a", "b", "a")))
    request = ask("a", "b", limit=4)
    taken = await store.claim(request)
    [other] = await store.claim(ask("a", "b"))
    await store.finish([complete(taken[0])])
    assert await store.release_claim(request) == (3, 0)
    assert await store.release_claim(request) == (0, 0)
    assert (await read(store, other.id)).status is JobStatus.RUNNING
    again = await store.claim(ask("a", "b"))
    assert {(one.id, one.attempt) for one in again} == {(one.id, 1) for one in taken[1:]}


@case()
async def of_a_claim_that_took_nothing(stores: Stores) -> None:
    """``release_claim`` of a claim that never reached the store, or found nothing, gives nothing back."""
    store = await stores.open()
    await started_and_claimed(store)
    assert await store.release_claim(ask()) == (0, 0)
