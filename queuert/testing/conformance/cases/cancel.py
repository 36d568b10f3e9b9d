"""Cancelling chains from outside: open ones close at once, whatever their jobs are at."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.errors import ChainNotFoundError, LeaseLostError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import ChainUpdate, ReapRequest, Renewal
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
    ask,
    check_chain_seconds,
    claim_one,
    complete,
    due_later,
    error_of,
    expire,
    fail,
    go_on,
    job,
    read,
    read_chain,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_ROUNDS = 25


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


async def _cancel(store: AsyncStore, *ids: str) -> list[ChainUpdate]:
    return await store.cancel_chains(ids, reason="not wanted")


@case()
async def each_status_that_is_open(stores: Stores) -> None:
    """Blocked, scheduled, ready and running jobs are cancelled at once, with the reason; none is claimed any more."""
    store = await stores.open()
    [running] = await started_and_claimed(store)
    ids = await start(store, job(blockers=[running.id]), job(run_at=due_later()), job())
    results = await _cancel(store, *ids, running.id)
    assert [(one.chain_id, one.job_id) for one in results] == [(id, id) for id in (*ids, running.id)]
    assert [(one.job_type, one.chain_type) for one in results] == [("work", "work")] * 4
    statuses = [JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.READY, JobStatus.RUNNING]
    assert [one.previous_status for one in results] == statuses
    assert all(one.written and one.status is ChainStatus.CANCELLED for one in results)
    for id in (*ids, running.id):
        found, chain = await read(store, id), await read_chain(store, id)
        assert found.status is JobStatus.CANCELLED and found.finished_at is not None
        assert found.lease_expires_at is None
        assert chain.status is ChainStatus.CANCELLED and chain.closed_at is not None
        assert found.last_error == chain.error and chain.error is not None
        assert (chain.error.kind, chain.error.message) == ("cancel", "not wanted")
    assert await store.claim(ask()) == []
    assert await store.next_due(["work"]) is None


@case()
async def closed_ones_stay(stores: Stores) -> None:
    """Chains that have closed stay as they are, and the results say so, in the order asked."""
    store = await stores.open()
    held = await started_and_claimed(store, 2)
    await store.finish([complete(held[0]), fail(held[1])])
    [open_one] = await start(store, job())
    before = await store.get_jobs([one.id for one in held])
    results = await _cancel(store, held[0].id, open_one, held[1].id, held[0].id)
    assert [one.written for one in results] == [False, True, False, False]
    assert [one.status.value for one in results] == ["completed", "cancelled", "failed", "completed"]
    assert [one.previous_status.value for one in results[::2]] == ["completed", "failed"]
    assert await store.get_jobs([one.id for one in held]) == before
    assert not any(one.written for one in await _cancel(store, open_one))


@case()
async def the_last_job_of_a_long_chain(stores: Stores) -> None:
    """The last job is cancelled and the chain with it; the jobs before it stay continued."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="second"))])
    await store.finish([go_on(await claim_one(store, "next"), job("last", id="third"))])
    [result] = await _cancel(store, held.id)
    assert (result.chain_id, result.job_id, result.chain_type, result.job_type) == (held.id, "third", "work", "last")
    assert [(await read(store, id)).status for id in (held.id, "second")] == [JobStatus.CONTINUED] * 2
    assert (await read(store, "third")).status is JobStatus.CANCELLED
    chain = await read_chain(store, held.id)
    assert (chain.status, chain.output) == (ChainStatus.CANCELLED, None) and chain.closed_at is not None


@case()
async def tells_the_age_of_the_chain(stores: Stores) -> None:
    """The results say how long the chains took that were cancelled, of one job and of several, and of no others."""
    store = await stores.open()
    long, closed = await started_and_claimed(store, 2)
    await store.finish([go_on(long, job("next")), complete(closed)])
    [alone] = await start(store, job())
    results = {one.chain_id: one for one in await _cancel(store, closed.id, long.id, alone)}
    assert not results[closed.id].written and results[closed.id].chain_seconds is None
    for id in (long.id, alone):
        await check_chain_seconds(store, id, results[id].chain_seconds)
    assert (await _cancel(store, alone))[0].chain_seconds is None
    assert [one.chain_seconds for one in await store.retry_chains([long.id, alone])] == [None, None]


@case()
async def missing_chain(stores: Stores) -> None:
    """A chain that does not exist, or a job that is not the first of one, is an error, and none is cancelled."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job(id="second"))])
    [other] = await start(store, job())
    for missing in ("nowhere", "second"):
        assert (await error_of(ChainNotFoundError, _cancel(store, other, missing, held.id))).id == missing
    assert [(await read_chain(store, id)).status.value for id in (other, held.id)] == ["open", "open"]
    assert await _cancel(store) == []


@case()
async def releases_dependents(stores: Stores) -> None:
    """Jobs that waited only for cancelled chains become due, told once; the others go on waiting."""
    store = await stores.open()
    chains = await start(store, *(job() for _ in range(3)))
    [one, two, all_three] = await start(store, *(job("waits", blockers=chains[:count]) for count in (1, 2, 3)))
    results = await _cancel(store, *chains[:2])
    assert sorted(type for result in results for type in result.due_types) == ["waits"]
    assert {claimed.id for claimed in await store.claim(ask("waits"))} == {one, two}
    assert (await read(store, all_three)).open_blockers == 1


@case()
async def chain_and_its_dependent(stores: Stores) -> None:
    """A chain and the one that waits for it are cancelled by one call, which makes nothing due."""
    store = await stores.open()
    [blocker] = await start(store, job())
    [waiting] = await start(store, job("waits", blockers=[blocker]))
    results = await _cancel(store, waiting, blocker)
    assert [one.due_types for one in results] == [(), ()]
    assert (await read(store, waiting)).status is JobStatus.CANCELLED
    assert await store.claim(ask("waits")) == []


@case()
async def blocked_one_stays_cancelled(stores: Stores) -> None:
    """A cancelled job that was blocked is not released when what it waited for closes."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    await _cancel(store, waiting)
    await store.finish([complete(held)])
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.CANCELLED, 0)
    assert await store.claim(ask("waits")) == []


@case()
async def holder_learns_why(stores: Stores) -> None:
    """A running attempt is refused everything, with the reason CANCELLED: finish, renewal, release, reaping."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await _cancel(store, held.id)
    assert await store.renew([Renewal(held.lease, 60.0)]) == [False]
    assert await store.lost_reasons([held.lease]) == [AbortReason.CANCELLED]
    for finish in (complete(held), fail(held), retry(held), go_on(held, job())):
        assert (await store.finish([finish]))[0].lost is AbortReason.CANCELLED
    assert await store.release([held.lease]) == 0
    assert list((await store.reap(ReapRequest({"work": AT_ONCE}))).reaped) == []
    assert (await read(store, held.id)).attempt == 1


@case()
async def transaction_does_not_begin(stores: Stores) -> None:
    """The holder's transaction is refused with the reason CANCELLED."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await _cancel(store, held.id)
    assert (await error_of(LeaseLostError, store.transaction(held).__aenter__())).reason is AbortReason.CANCELLED


@case(Capability.USER_TRANSACTIONS)
async def waits_for_the_holders_transaction(stores: Stores) -> None:
    """A cancel that comes while the holder's transaction is open waits for it, and finds what it left."""
    store, other = await stores.open_many(2)
    for ends in (True, False):
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            cancelling = asyncio.create_task(_cancel(other, held.id))
            if ends:
                await transaction.finish(complete(held))
        [result] = await cancelling
        assert result.written is not ends
        assert result.status is (ChainStatus.COMPLETED if ends else ChainStatus.CANCELLED)


@case(Capability.USER_TRANSACTIONS)
async def follows_a_continuation(stores: Stores) -> None:
    """The same where the holder's transaction continues the chain: the next job is cancelled."""
    store, other = await stores.open_many(2)
    for _ in range(5):
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            following = job()
            await transaction.finish(go_on(held, following))
            cancelling = asyncio.create_task(_cancel(other, held.id))
        [result] = await cancelling
        assert (result.written, result.job_id) == (True, following.id)
        assert await store.claim(ask()) == []


@case(Capability.USER_TRANSACTIONS)
async def callers_transaction(stores: Stores) -> None:
    """On the caller's connection it stands with the commit, and is gone with a rollback, dependents included."""
    store = await stores.open()
    [id] = await start(store, job())
    [waiting] = await start(store, job("waits", blockers=[id]))
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.cancel_chains([id], reason="no", connection=connection)
            raise _OnPurpose
    assert [(await read(store, one)).status.value for one in (id, waiting)] == ["ready", "blocked"]
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "mine")
        await error_of(ChainNotFoundError, store.cancel_chains(["nowhere"], reason="no", connection=connection))
        [result] = await store.cancel_chains([id], reason="no", connection=connection)
        assert result.written and result.due_types == ("waits",)
        assert (await read(store, id)).status is JobStatus.READY
    assert [(await read(store, one)).status.value for one in (id, waiting)] == ["cancelled", "ready"]
    assert await stores.user_data.keys() == {"mine"}


@case()
async def against_finish(stores: Stores) -> None:
    """A finish and a cancel at once: one of them has the job, and both know who."""
    store, other = await stores.open_many(2)
    for round in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        following = job("next")
        finish = complete(held) if round % 2 else go_on(held, following)
        [finished], [cancelled] = await asyncio.gather(store.finish([finish]), _cancel(other, held.id))
        chain = await read_chain(store, held.id)
        if round % 2:
            assert finished.written != cancelled.written
            assert chain.status is (ChainStatus.COMPLETED if finished.written else ChainStatus.CANCELLED)
        else:
            assert cancelled.written and chain.status is ChainStatus.CANCELLED
            assert cancelled.job_id == (following.id if finished.written else held.id)
        assert finished.written or finished.lost is AbortReason.CANCELLED


@case()
async def against_claim(stores: Stores) -> None:
    """A claim and a cancel at once: the job is cancelled, and whoever claimed it learns so."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [id] = await start(store, job())
        claimed, [result] = await asyncio.gather(store.claim(ask()), _cancel(other, id))
        assert result.written
        assert result.previous_status is (JobStatus.RUNNING if claimed else JobStatus.READY)
        assert (await read(store, id)).status is JobStatus.CANCELLED
        assert [one.lost for one in await store.finish([complete(one) for one in claimed])] == [
            AbortReason.CANCELLED for _ in claimed
        ]


@case()
async def against_renew(stores: Stores) -> None:
    """A renewal and a cancel at once: the job is cancelled, and holds no lease afterwards."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        _, [result] = await asyncio.gather(store.renew([Renewal(held.lease, 60.0)]), _cancel(other, held.id))
        assert result.written
        assert (await read(store, held.id)).lease_expires_at is None


@case()
async def against_reap(stores: Stores) -> None:
    """A reaper and a cancel at once: the chain is closed once, by one of them."""
    store, other = await stores.open_many(2)
    for policy in (AT_ONCE, LAST_ATTEMPT):
        for _ in range(_ROUNDS // 3):
            [held] = await started_and_claimed(store)
            await expire(store, held)
            reaping, [result] = await asyncio.gather(store.reap(ReapRequest({"work": policy})), _cancel(other, held.id))
            failed = any(one.status is JobStatus.FAILED for one in reaping.reaped)
            assert result.written is not failed
            assert (await read_chain(store, held.id)).status.value == ("failed" if failed else "cancelled")


@case()
async def against_another(stores: Stores) -> None:
    """Chains cancelled by four at once, in different orders, are closed once each."""
    several = await stores.open_many(4)
    for _ in range(5):
        ids = await start(several[0], *(job() for _ in range(12)))
        [waiting] = await start(several[0], job("waits", blockers=ids))
        orders = (ids, ids[::-1], ids[6:] + ids[:6], ids[::-2] + ids[::2])
        answers = await asyncio.gather(
            *(_cancel(store, *dict.fromkeys(order)) for store, order in zip(several, orders, strict=True))
        )
        closed = [one.chain_id for results in answers for one in results if one.written]
        assert sorted(closed) == sorted(ids)
        reported = [type for results in answers for one in results for type in one.due_types]
        assert reported == ["waits"]
        assert (await claim_one(several[0], "waits")).id == waiting
