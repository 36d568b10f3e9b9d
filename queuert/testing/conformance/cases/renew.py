"""Renewing leases: who may, and what it does."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

from queuert.jobs import AbortReason, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import Lease, ReapRequest, Renewal
from queuert.testing.conformance.builders import (
    AT_ONCE,
    claim_one,
    complete,
    expire,
    lost_to_reaper,
    read,
    reap,
    retry,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


async def _expiry(store: AsyncStore, id: str) -> datetime:
    expires_at = (await read(store, id)).lease_expires_at
    assert expires_at is not None
    return expires_at


@case()
async def extends_from_now(stores: Stores) -> None:
    """A renewal sets the lease's end to so many seconds from now, be that later or sooner; each one anew."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    before = await _expiry(store, claimed.id)
    assert await store.renew([Renewal(claimed.lease, 600.0)]) == [True]
    extended = await _expiry(store, claimed.id)
    assert timedelta(seconds=500) < extended - before < timedelta(seconds=600)
    assert await store.renew([Renewal(claimed.lease, 600.0)]) == [True]
    assert await _expiry(store, claimed.id) > extended
    assert await store.renew([Renewal(claimed.lease, 30.0)]) == [True]
    assert await _expiry(store, claimed.id) < before


@case()
async def changes_nothing_else(stores: Stores) -> None:
    """A renewed job stays the same attempt of the same holder."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    before = await read(store, claimed.id)
    await store.renew([Renewal(claimed.lease, 600.0)])
    after = await read(store, claimed.id)
    assert (after.status, after.attempt, after.holder) == (JobStatus.RUNNING, 1, before.holder)
    assert (after.started_at, after.scheduled_at) == (before.started_at, before.scheduled_at)


@case()
async def each_its_own_seconds_in_order(stores: Stores) -> None:
    """Many at once: each gets its own time, and its answer in its place."""
    store = await stores.open()
    held = await started_and_claimed(store, 5)
    requested = [Renewal(one.lease, 1000.0 * (place + 1)) for place, one in enumerate(held)]
    requested.insert(2, Renewal(stolen(held[0]).lease, 5.0))
    requested.insert(4, Renewal(Lease("unknown", held[0].token), 5.0))
    assert await store.renew(requested) == [True, True, False, True, False, True, True]
    ends = [await _expiry(store, one.id) for one in held]
    gaps = [later - sooner for sooner, later in itertools.pairwise(ends)]
    assert all(timedelta(seconds=900) < gap < timedelta(seconds=1100) for gap in gaps)


@case()
async def nothing_requested(stores: Stores) -> None:
    """No leases, no answers."""
    assert await (await stores.open()).renew([]) == []


@case()
async def saves_an_expired_lease(stores: Stores) -> None:
    """A lease that expired and was not reaped is saved: the reaper lets it be, and its holder can finish."""
    store = await stores.open()
    [claimed, other] = await started_and_claimed(store, 2)
    await expire(store, other, claimed)
    assert await store.renew([Renewal(claimed.lease, 60.0)]) == [True]
    assert [one.id for one in await reap(store)] == [other.id]
    assert (await store.reap(ReapRequest({"work": AT_ONCE}))).reaped == []
    assert (await store.finish([complete(claimed)]))[0].written


@case()
async def refuses_a_stranger(stores: Stores) -> None:
    """Another token than the claim's extends nothing."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    before = await _expiry(store, claimed.id)
    assert await store.renew([Renewal(stolen(claimed).lease, 6000.0)]) == [False]
    assert await _expiry(store, claimed.id) == before


@case()
async def refuses_what_was_reaped(stores: Stores) -> None:
    """After the reaper came, and after the next claim, the old lease extends nothing; the new one does."""
    store = await stores.open()
    lost = await lost_to_reaper(store)
    assert await store.renew([Renewal(lost.lease, 60.0)]) == [False]
    again = await claim_one(store)
    assert await store.renew([Renewal(lost.lease, 60.0)]) == [False]
    assert await store.renew([Renewal(again.lease, 60.0)]) == [True]


@case()
async def tells_two_leases_of_a_job_apart(stores: Stores) -> None:
    """The lost lease and the live one of a job, asked about together, get each its own answer."""
    store = await stores.open()
    lost = await lost_to_reaper(store)
    live = await claim_one(store)
    assert await store.renew([Renewal(lost.lease, 60.0), Renewal(live.lease, 60.0)]) == [False, True]
    assert await store.renew([Renewal(live.lease, 60.0), Renewal(lost.lease, 60.0)]) == [True, False]


@case()
async def refuses_what_has_ended(stores: Stores) -> None:
    """A finished job, one to be tried again, and one that was released hold no lease."""
    store = await stores.open()
    done, again, released = await started_and_claimed(store, 3)
    await store.finish([complete(done), retry(again)])
    await store.release([released.lease])
    assert await store.renew([Renewal(one.lease, 60.0) for one in (done, again, released)]) == [False] * 3
    assert [(await read(store, one.id)).lease_expires_at for one in (done, again, released)] == [None] * 3


@case(Capability.ROW_LOCKS)
async def passes_over_a_locked_job(stores: Stores) -> None:
    """A job that a transaction holds is not waited for: its renewal says False, the others are extended.

    ``lost_reasons`` tells that it is not lost.
    """
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    async with store.transaction(held):
        assert await store.renew([Renewal(held.lease, 60.0), Renewal(other.lease, 60.0)]) == [False, True]
        assert await store.lost_reasons([held.lease]) == [None]
    assert await store.renew([Renewal(held.lease, 60.0)]) == [True]


@case()
async def reasons(stores: Stores) -> None:
    """``lost_reasons``: None for a lease that holds and for one that ended its job itself, else why, in order."""
    store = await stores.open()
    holds, ended = await started_and_claimed(store, 2)
    await store.finish([complete(ended)])
    lost = await lost_to_reaper(store)
    assert await store.lost_reasons([lost.lease]) == [AbortReason.TAKEN_BY_ANOTHER_WORKER]
    again = await claim_one(store)
    requested = [lost.lease, holds.lease, Lease("unknown", holds.token), ended.lease, stolen(ended).lease, again.lease]
    assert await store.lost_reasons(requested) == [
        AbortReason.TAKEN_BY_ANOTHER_WORKER,
        None,
        AbortReason.NOT_FOUND,
        None,
        AbortReason.ALREADY_COMPLETED,
        None,
    ]
    assert await store.lost_reasons([]) == []
