"""A chain whose time is over is gone at once for starts, whether anybody has deleted it yet or not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.deduplication import Deduplicate
from queuert.errors import JobIdConflictError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, NewJob, PruneRequest
from queuert.testing.conformance.builders import (
    claim_one,
    complete,
    error_of,
    go_on,
    job,
    read,
    read_chain,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.expiry import LONG, SOON, closed_chain, expired
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


async def _anew(store: AsyncStore, wanted: NewJob, old: str) -> ClaimedJob:
    """Start anew what has expired, once, and claim it."""
    await expired(store, old)
    [started] = await store.start_jobs([wanted])
    assert (started.existing, started.status) == (False, JobStatus.READY)
    held = await claim_one(store, wanted.type)
    assert (held.id, held.attempt) == (started.id, 1)
    return held


@case()
async def attach_starts_anew(stores: Stores) -> None:
    """A start that would attach to an expired chain starts a new one of the same id, which is as good as any."""
    store = await stores.open()
    old = await closed_chain(store, id="a")
    held = await _anew(store, job(id="a", attach=True, input='"new"'), old)
    assert held.input == '"new"'
    chain = await read_chain(store, "a")
    assert (chain.status, chain.output, chain.expires_at) == (ChainStatus.OPEN, None, None)
    await store.finish([complete(held, '"second"')])
    assert (await read_chain(store, "a")).output == '"second"'


@case()
async def attach_to_a_long_chain_starts_anew(stores: Stores) -> None:
    """With an expired chain go all of its jobs."""
    store = await stores.open()
    [held] = await started_and_claimed(store, id="a", result_ttl=SOON)
    await store.finish([go_on(held, job("next", id="a2"))])
    await store.finish([complete(await claim_one(store, "next"))])
    held = await _anew(store, job(id="a", attach=True), "a")
    assert await store.get_jobs(["a2"]) == [None]
    await store.finish([go_on(held, job("next", id="a2"))])
    assert (await read(store, "a2")).chain_index == 1


@case()
async def chosen_ids_are_free_again(stores: Stores) -> None:
    """A start with the id of an expired chain is written as if that were gone, of another type as well."""
    store = await stores.open()
    old = await closed_chain(store, id="a")
    await _anew(store, job("other", id="a"), old)
    await error_of(JobIdConflictError, store.start_jobs([job(id="a")]))


@case()
async def several_at_once(stores: Stores) -> None:
    """In one batch some ids are free, some expired, some attached to."""
    store = await stores.open()
    ids = ["a", "b", "c"]
    for id in ids:
        await closed_chain(store, id=id)
    await closed_chain(store, id="d", ttl=LONG)
    await expired(store, *ids)
    started = await store.start_jobs([job(id=id, attach=id in "acd") for id in (*ids, "d", "e")])
    assert [one.existing for one in started] == [False, False, False, True, False]


@case()
async def keys_are_free_again(stores: Stores) -> None:
    """An expired chain is a duplicate of no start of its deduplication key; an older one that has not expired does."""
    store = await stores.open()
    key = Deduplicate("key", scope="any")
    old = await closed_chain(store, deduplication=key)
    held = await _anew(store, job(deduplication=key), old)
    await store.finish([complete(held)])
    younger = job(deduplication=Deduplicate("key", scope="any", excluding=[held.id]), result_ttl=SOON)
    [started] = await store.start_jobs([younger])
    await store.finish([complete(await claim_one(store))])
    await expired(store, started.id)
    [found] = await store.start_jobs([job(deduplication=key)])
    assert (found.id, found.existing) == (held.id, True)


@case()
async def racers_start_one(stores: Stores) -> None:
    """Of many who find an expired chain, while it is being deleted, one starts anew and the others attach to that."""
    opened = await stores.open_many(4)
    for _ in range(10):
        await closed_chain(opened[0], id="a")
        await expired(opened[0], "a")
        starting = asyncio.gather(*(store.start_jobs([job(id="a", attach=True)]) for store in opened))
        started, _ = await asyncio.gather(starting, opened[0].prune(PruneRequest()))
        assert sorted(one.existing for [one] in started) == [False, True, True, True]
        await opened[0].delete_chains(["a"])


@case()
async def needed_by_an_open_job(stores: Stores) -> None:
    """An expired chain that an open job has as a blocker stays for that: its id is refused until the job has ended."""
    store = await stores.open()
    old = await closed_chain(store, id="a")
    [waiting] = await start(store, job("waits", blockers=[old]))
    await expired(store, old)
    for attach in (True, False):
        error = await error_of(JobIdConflictError, store.start_jobs([job(id="a", attach=attach)]))
        assert error.ids == ("a",)
    [blocker] = await store.get_blockers(waiting)
    assert blocker.output == '"done"'
    await store.finish([complete(await claim_one(store, "waits"))])
    await _anew(store, job(id="a", attach=True), old)
    assert await store.get_blockers(waiting) == []


@case(Capability.USER_TRANSACTIONS)
async def in_the_callers_transaction(stores: Stores) -> None:
    """A caller's transaction starts anew as well, and what it rolls back leaves the expired chain gone all the same."""
    store = await stores.open()
    for attach in (True, False):
        await closed_chain(store, id="a")
        await expired(store, "a")
        with suppress(_OnPurpose):
            async with stores.user_transaction() as connection:
                [started] = await store.start_jobs([job(id="a", attach=attach)], connection=connection)
                assert not started.existing
                await stores.user_data.add(connection, "rolled back")
                raise _OnPurpose
        assert await store.get_chains(["a"]) == [None]
        async with stores.user_transaction() as connection:
            await store.start_jobs([job(id="a", attach=attach)], connection=connection)
            await stores.user_data.add(connection, f"committed {attach}")
        assert (await read_chain(store, "a")).status is ChainStatus.OPEN
        await store.delete_chains(["a"])
    assert await stores.user_data.keys() == {"committed True", "committed False"}
