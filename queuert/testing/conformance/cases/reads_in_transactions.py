"""Reads in a caller's transaction: they see what it has written, and nobody else does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.testing.conformance.builders import due_later, job, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.USER_TRANSACTIONS


class _OnPurpose(Exception):
    """Rolls the transaction back."""


async def _seen(store: AsyncStore, chain: str, blocked: str, connection: Any = None) -> list[set[str]]:
    """The ids that each read returns."""
    page = PageRequest(10)
    jobs = await store.get_jobs([chain, blocked], connection=connection)
    chains = await store.get_chains([chain, blocked], connection=connection)
    of_attribute = ChainFilter(attributes=(("user", "17"),))
    pages: list[Any] = [
        await store.list_chains(ChainFilter(), page, connection=connection),
        await store.list_chains(of_attribute, page, connection=connection),
        await store.list_chains(
            ChainFilter(types=("work",), statuses=(ChainStatus.OPEN,)), page, connection=connection
        ),
        await store.list_jobs(JobFilter(), page, connection=connection),
        await store.list_jobs(JobFilter(statuses=(JobStatus.BLOCKED,)), page, connection=connection),
        await store.list_chain_jobs(blocked, page, connection=connection),
        await store.list_dependents(chain, page, connection=connection),
    ]
    found = [{one.id for one in entries if one is not None} for entries in (jobs, chains, *pages)]
    links = await store.get_dependent_links([chain], statuses=(JobStatus.BLOCKED,), limit=9, connection=connection)
    blockers = await store.get_blockers(blocked, connection=connection)
    return [*found, {one.job_id for one in links}, {one.chain_id for one in blockers}]


@case(_NEEDS)
async def see_uncommitted_starts(stores: Stores) -> None:
    """Each read with the connection returns the chains that its transaction has started; others see none of them."""
    store = await stores.open()
    nothing: list[set[str]] = [set()] * 11
    ids: list[str] = []
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            [first] = await store.start_jobs([job(attributes={"user": "17"})], connection=connection)
            [second] = await store.start_jobs([job(blockers=[first.id])], connection=connection)
            ids = [first.id, second.id]
            both = set(ids)
            later = {second.id}
            expected = [both, both, both, {first.id}, both, both, later, later, later, later, {first.id}]
            assert await _seen(store, ids[0], ids[1], connection) == expected
            assert await _seen(store, ids[0], ids[1]) == nothing
            raise _OnPurpose
    assert await _seen(store, ids[0], ids[1]) == nothing


@case(_NEEDS)
async def pages_in_a_transaction(stores: Stores) -> None:
    """Pages go on at their cursors, in both orders, with what is committed and what is not."""
    store = await stores.open()
    committed = await start(store, job(), job())
    async with stores.user_transaction() as connection:
        own = [one.id for one in await store.start_jobs([job(), job(run_at=due_later())], connection=connection)]
        for oldest_first in (True, False):
            found: list[str] = []
            cursor = None
            while True:
                request = PageRequest(3, cursor, oldest_first)
                page = await store.list_jobs(JobFilter(types=("work",)), request, connection=connection)
                found += [one.id for one in page]
                cursor = page.next_cursor
                if cursor is None:
                    break
            ordered = [*committed, *own]
            assert found == (ordered if oldest_first else ordered[::-1])


@case(_NEEDS)
async def the_transaction_goes_on(stores: Stores) -> None:
    """What does not exist is None, and the caller's transaction writes and commits after the reads."""
    store = await stores.open()
    async with stores.user_transaction() as connection:
        assert await store.get_jobs(["nobody"], connection=connection) == [None]
        assert await store.get_chains(["nobody"], connection=connection) == [None]
        await stores.user_data.add(connection, "mine")
        [started] = await store.start_jobs([job()], connection=connection)
        [found] = await store.get_jobs([started.id], connection=connection)
        assert found is not None and found.status is JobStatus.READY
    assert await stores.user_data.keys() == {"mine"}
    assert [one is not None for one in await store.get_jobs([started.id])] == [True]
