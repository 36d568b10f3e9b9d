"""Chains that retention marks as stale before it deletes them."""

from __future__ import annotations

from datetime import datetime, timedelta

from queuert.event_log import EventFilter
from queuert.policies import Keep, Retention
from queuert.state import AsyncStore, Capability
from queuert.state.paging import PageRequest
from queuert.state.types import PruneRequest, PruneResult
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    eventually,
    fail,
    go_on,
    job,
    read_chain,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.expiry import ALL_GO, LONG, SOON, closed_chains, expired, pruned, there
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_SOON, _LONG = Keep(count=0, stale_for=SOON), Keep(count=0, stale_for=LONG)
_SOON_STALE = Retention(_SOON, _SOON, _SOON)
_LONG_STALE = Retention(_LONG, _LONG, _LONG)


async def _kinds(store: AsyncStore, chain: str) -> list[str]:
    page = await store.list_events(EventFilter(chain_id=chain), PageRequest(limit=50, oldest_first=True))
    return [event.kind for event in page.items]


@case()
async def stale_before_it_is_deleted(stores: Stores) -> None:
    """A chain that is no longer kept is marked first, stays as long as the stale time, and is then deleted."""
    store = await stores.open()
    ids = await closed_chains(store, complete, fail, cancel)
    [running] = await started_and_claimed(store)
    first = await store.prune(PruneRequest({"work": _LONG_STALE}))
    assert (set(first.stale_ids), list(first.chain_ids)) == (set(ids), [])
    again = await store.prune(PruneRequest({"work": _LONG_STALE}))
    assert (list(again.stale_ids), list(again.chain_ids)) == ([], [])
    for id in ids:
        chain = await read_chain(store, id)
        assert chain.stale_at is not None and chain.closed_at is not None
        assert chain.closed_at <= chain.stale_at
        assert chain.expires_at is None
    assert (await read_chain(store, running.id)).stale_at is None

    async def gone() -> list[str]:
        return await pruned(store, {"work": _SOON_STALE})

    assert set(await eventually(gone)) == set(ids)
    assert await there(store, *ids, running.id) == [running.id]


@case(Capability.EVENTS)
async def stale_and_deleted_are_events(stores: Stores) -> None:
    """The log says that a chain became stale, and that it was deleted; of one without a stale time neither."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="b"))])
    await store.finish([complete(await claim_one(store, "next"))])
    [plain] = await closed_chains(store, complete)
    await store.prune(PruneRequest({"work": _LONG_STALE}, only=PruneResult((), None, [held.id])))

    async def gone() -> bool:
        request = PruneRequest({"work": _SOON_STALE}, only=PruneResult([held.id], None))
        return bool((await store.prune(request)).chain_ids)

    await eventually(gone)
    before = ["created", "started", "continued", "created", "started", "completed"]
    assert await _kinds(store, held.id) == [*before, "stale", "deleted", "deleted"]
    # Nothing else can say any more what was deleted.
    page = await store.list_events(EventFilter(kinds=("deleted",)), PageRequest(limit=50, oldest_first=True))
    deleted = {(one.job_id, one.chain_id, one.chain_index, one.type, one.chain_type) for one in page.items}
    assert deleted == {(held.id, held.id, 0, "work", "work"), ("b", held.id, 1, "next", "work")}
    assert {one.job_id: one.status.value for one in page.items} == {held.id: "continued", "b": "completed"}
    await pruned(store, {"work": ALL_GO})
    assert await _kinds(store, plain) == ["created", "started", "completed"]


@case()
async def stale_until_it_is_retried(stores: Stores) -> None:
    """A retry takes the mark away, and the chain is marked anew when it has closed again."""
    store = await stores.open()
    [id] = await closed_chains(store, fail)
    await store.prune(PruneRequest({"work": _LONG_STALE}))
    await store.retry_chains([id])
    assert (await read_chain(store, id)).stale_at is None
    await store.finish([complete(await claim_one(store))])
    assert (await read_chain(store, id)).stale_at is None
    again = await store.prune(PruneRequest({"work": _SOON_STALE}))
    assert (list(again.stale_ids), list(again.chain_ids)) == ([id], [])


@case()
async def stale_chains_go_at_once_without_a_stale_time(stores: Stores) -> None:
    """A policy that has no stale time any more deletes what is stale; one that keeps the chain keeps it."""
    store = await stores.open()
    [id] = await closed_chains(store, complete)
    await store.prune(PruneRequest({"work": _LONG_STALE}))
    assert await pruned(store, {"work": Retention(Keep(count=1, stale_for=SOON))}) == []
    assert await pruned(store, {"work": ALL_GO}) == [id]


@case()
async def previewed(stores: Stores) -> None:
    """A preview says what would become stale or be deleted, and changes nothing; `only` does some of it."""
    store = await stores.open()
    ids = await closed_chains(store, complete, complete, complete)
    [ends] = await closed_chains(store, complete, result_ttl=SOON)
    await expired(store, ends)
    policies = {"work": _LONG_STALE}
    preview = await store.prune(PruneRequest(policies, preview=True))
    assert (set(preview.stale_ids), list(preview.chain_ids)) == (set(ids), [])
    assert (await read_chain(store, ids[0])).stale_at is None
    marked = await store.prune(PruneRequest(policies, only=PruneResult(ids, None, ids[:2])))
    assert (set(marked.stale_ids), list(marked.chain_ids)) == (set(ids[:2]), [])
    preview = await store.prune(PruneRequest({"work": ALL_GO}, preview=True))
    assert (list(preview.stale_ids), set(preview.chain_ids)) == ([], set(ids))
    assert await there(store, *ids, ends) == [*ids, ends]
    gone = await store.prune(PruneRequest({"work": ALL_GO}, only=PruneResult(ids[1:], None, ids)))
    assert set(gone.chain_ids) == set(ids[1:])
    assert await there(store, *ids, ends) == [ids[0], ends]


@case()
async def blockers_are_not_previewed(stores: Stores) -> None:
    """A preview leaves out the chains to delete that open jobs have as blockers, and not those to become stale."""
    store = await stores.open()
    [held] = await started_and_claimed(store, type="waits")
    await store.finish([wait(held, job(id="needed"), job(id="free", type="other"))])
    await store.finish([complete(await claim_one(store)), complete(await claim_one(store, "other"))])
    waiting = await claim_one(store, "waits")
    policies = {"work": ALL_GO, "other": ALL_GO}
    assert list((await store.prune(PruneRequest(policies, preview=True))).chain_ids) == []
    preview = await store.prune(PruneRequest({"work": _LONG_STALE}, preview=True))
    assert (list(preview.stale_ids), list(preview.chain_ids)) == (["needed"], [])
    await store.finish([complete(waiting)])
    preview = await store.prune(PruneRequest(policies, preview=True))
    assert set(preview.chain_ids) == {"needed", "free"}


@case()
async def stale_page_by_page(stores: Stores) -> None:
    """Pages reach all chains, those that are marked, and those that are deleted after them."""
    store = await stores.open()
    ids = await closed_chains(store, *[complete] * 7)
    seen: list[str] = []
    cursor = None
    for _ in range(20):
        page = await store.prune(PruneRequest({"work": _LONG_STALE}, 2, cursor))
        seen += page.stale_ids
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids

    async def gone() -> bool:
        await pruned(store, {"work": _SOON_STALE}, limit=2)
        return not await there(store, *ids)

    await eventually(gone)


@case()
async def not_marked_while_it_has_an_end(stores: Stores) -> None:
    """A chain with a TTL of its own never becomes stale."""
    store = await stores.open()
    [id] = await closed_chains(store, complete, result_ttl=LONG)
    result = await store.prune(PruneRequest({"work": _LONG_STALE}))
    assert (list(result.stale_ids), list(result.chain_ids)) == ([], [])
    assert (await read_chain(store, id)).stale_at is None


@case()
async def not_deleted_before_it_was_read(stores: Stores) -> None:
    """What closed or became stale at a time or later is not deleted, expired or not; it may become stale."""
    store = await stores.open()
    [ends] = await closed_chains(store, complete, result_ttl=SOON)
    [before] = await closed_chains(store, complete)
    await expired(store, ends)
    closed_at = (await read_chain(store, before)).closed_at
    assert closed_at is not None
    kept = PruneRequest({"work": ALL_GO}, closed_before=closed_at - timedelta(minutes=1))
    result = await store.prune(kept)
    assert (list(result.chain_ids), list(result.stale_ids)) == ([], [])
    marked = await store.prune(PruneRequest({"work": _SOON_STALE}, closed_before=closed_at))
    assert before in marked.stale_ids
    assert ends in await _pruned_before(store, closed_at) or not await there(store, ends)
    stale_at = (await read_chain(store, before)).stale_at
    assert stale_at is not None
    assert await _pruned_before(store, stale_at) == []
    assert await _pruned_before(store, stale_at + timedelta(microseconds=1)) == [before]


@case()
async def expired_after_it_became_stale(stores: Stores) -> None:
    """A stale chain that was given an end has still to be read from the moment at which it became stale."""
    store = await stores.open()
    [id] = await closed_chains(store, complete)
    await store.prune(PruneRequest({"work": _LONG_STALE}))
    stale_at = (await read_chain(store, id)).stale_at
    assert stale_at is not None
    await store.update_result_ttl([id], SOON)
    await expired(store, id)
    result = await store.prune(PruneRequest({}, closed_before=stale_at))
    assert (list(result.chain_ids), await there(store, id)) == ([], [id])
    preview = await store.prune(PruneRequest({"work": ALL_GO}, preview=True))
    assert (list(preview.chain_ids), list(preview.stale_ids)) == ([], [])
    result = await store.prune(PruneRequest({}, closed_before=stale_at + timedelta(microseconds=1)))
    assert list(result.chain_ids) == [id]


@case()
async def held_chains_count_for_the_page(stores: Stores) -> None:
    """A page reads as many expired chains as its limit says, whether they go or stay; those behind it go."""
    store = await stores.open()
    last = await closed_chains(store, complete, result_ttl=LONG)
    [mark] = await closed_chains(store, complete)
    held = await closed_chains(store, *[complete] * 3, result_ttl=SOON)
    await store.update_result_ttl(last, SOON)
    await expired(store, *last, *held)
    before = (await read_chain(store, mark)).closed_at
    assert before is not None
    first = await store.prune(PruneRequest({}, 2, closed_before=before))
    assert (list(first.chain_ids), first.cursor is None) == ([], False)
    second = await store.prune(PruneRequest({}, 2, first.cursor, closed_before=before))
    assert list(second.chain_ids) == last
    assert await there(store, *held) == held


async def _pruned_before(store: AsyncStore, time: datetime) -> list[str]:
    return list((await store.prune(PruneRequest({"work": ALL_GO}, closed_before=time))).chain_ids)
