"""Pruning chains beside others: each goes once, nobody waits, and what is wanted again stays."""

from __future__ import annotations

import asyncio

from queuert.errors import ChainNotFoundError
from queuert.jobs import JobStatus
from queuert.state import Capability
from queuert.state.types import PruneRequest
from queuert.testing.conformance.builders import (
    claim_one,
    complete,
    fail,
    job,
    read,
    start,
)
from queuert.testing.conformance.expiry import ALL_GO, closed_chains, pruned, there
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_ROUNDS = 25


@case()
async def many_at_once(stores: Stores) -> None:
    """Several stores prune the same chains: each goes once, and nobody fails."""
    opened = await stores.open_many(4)
    for _ in range(5):
        ids = await closed_chains(opened[0], *[complete] * 20)
        found = await asyncio.gather(*(pruned(store, {"work": ALL_GO}, limit=7) for store in opened))
        gone = [id for each in found for id in each]
        # What one held while the other skipped it goes with the next look.
        gone += await pruned(opened[0], {"work": ALL_GO})
        assert sorted(gone) == sorted(ids)


@case()
async def against_retries(stores: Stores) -> None:
    """A chain is either deleted or opened again."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [failed] = await closed_chains(store, fail)
        gone, retried = await asyncio.gather(
            other.prune(PruneRequest({"work": ALL_GO})), store.retry_chains([failed]), return_exceptions=True
        )
        if isinstance(retried, BaseException):
            assert isinstance(retried, ChainNotFoundError), retried
            assert await there(store, failed) == []
        else:
            assert not isinstance(gone, BaseException), gone
            assert list(gone.chain_ids) == []
            assert (await read(store, failed)).status is JobStatus.READY
            await store.delete_chains([failed])


@case()
async def against_starts_that_wait(stores: Stores) -> None:
    """A job that is to wait for a chain finds it, and it stays, or does not find it and is not written."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [closed] = await closed_chains(store, complete)
        waiting = job("waits", blockers=[closed])
        gone, started = await asyncio.gather(
            other.prune(PruneRequest({"work": ALL_GO})), store.start_jobs([waiting]), return_exceptions=True
        )
        assert not isinstance(gone, BaseException), gone
        if isinstance(started, BaseException):
            assert isinstance(started, ChainNotFoundError), started
            assert (list(gone.chain_ids), await there(store, waiting.id)) == ([closed], [])
        else:
            assert (list(gone.chain_ids), await there(store, closed)) == ([], [closed])
            await store.delete_chains([waiting.id, closed])


@case()
async def against_finishes(stores: Stores) -> None:
    """Chains are pruned beside jobs that had them as blockers and are finish: nobody waits for ever, nobody fails."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        needed = await closed_chains(store, complete, complete, result_ttl=None)
        ids = await start(store, *(job("waits", blockers=needed) for _ in range(3)))
        claims = [await claim_one(store, "waits") for _ in ids]
        _, results = await asyncio.gather(
            pruned(other, {"work": ALL_GO, "waits": ALL_GO}), store.finish([complete(one) for one in claims])
        )
        assert all(one.written for one in results)
        await pruned(other, {"work": ALL_GO, "waits": ALL_GO})
        assert await there(store, *ids, *needed) == []


@case(Capability.USER_TRANSACTIONS)
async def what_others_opened_again_stays(stores: Stores) -> None:
    """A chain that is opened again in a transaction while others are pruned stays, and so do its blockers."""
    store, other = await stores.open_many(2)
    [needed] = await closed_chains(store, complete)
    [waiting] = await start(store, job("waits", blockers=[needed]))
    await store.finish([fail(await claim_one(store, "waits"))])
    async with stores.user_transaction() as connection:
        await store.retry_chains([waiting], connection=connection)
        pruning = asyncio.create_task(pruned(other, {"work": ALL_GO, "waits": ALL_GO}))
        await stores.user_data.add(connection, "before the commit")
    assert await pruning == []
    [blocker] = await store.get_blockers(waiting)
    assert blocker.chain_id == needed


@case(Capability.USER_TRANSACTIONS, Capability.ROW_LOCKS)
async def what_others_hold_is_passed_over(stores: Stores) -> None:
    """Chains that a transaction holds are let be, at once; so are those that a job in it had as blockers."""
    store = await stores.open()
    [needed, plain] = await closed_chains(store, complete, complete)
    [waiting] = await start(store, job("waits", blockers=[needed]))
    await store.finish([fail(await claim_one(store, "waits"))])
    async with stores.user_transaction() as connection:
        await store.retry_chains([waiting], connection=connection)
        assert await pruned(store, {"work": ALL_GO, "waits": ALL_GO}) == [plain]
    assert await pruned(store, {"work": ALL_GO, "waits": ALL_GO}) == []
    [blocker] = await store.get_blockers(waiting)
    assert blocker.chain_id == needed
