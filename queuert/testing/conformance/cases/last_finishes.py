"""Finishes that are the last of their transaction: a store may commit with them."""

from __future__ import annotations

from collections.abc import Callable

from queuert.errors import StateError
from queuert.jobs import JobStatus
from queuert.state import Capability
from queuert.state.types import ClaimedJob, Finish
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    error_of,
    fail,
    go_on,
    job,
    read,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.USER_TRANSACTIONS


@case(_NEEDS)
async def commits_with_the_last(stores: Stores) -> None:
    """A finish that is the last of the block may be committed with it; after the block it and the rows stand."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await stores.user_data.add(transaction.connection, "mine")
        assert (await transaction.finish(complete(held, '"out"'), last=True)).written
    found = await read(store, held.id)
    assert (found.status, found.output) == (JobStatus.COMPLETED, "out")
    assert await stores.user_data.keys() == {"mine"}


@case()
async def last_of_a_chain_that_was_joined(stores: Stores) -> None:
    """Jobs that came to wait for the chain after its claim are released by the last finish as by any other."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await start(store, job("waits", id="waits", blockers=[held.id]))
    async with store.transaction(held) as transaction:
        assert (await transaction.finish(complete(held), last=True)).written
    assert (await claim_one(store, "waits")).id == "waits"


@case(_NEEDS)
async def last_after_a_swallowed_error(stores: Stores) -> None:
    """The last finish after an error that the caller swallowed: all is kept but the failed statement, or nothing is."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    kept = True
    try:
        async with store.transaction(held) as transaction:
            await stores.user_data.add(transaction.connection, "mine")
            await error_of(Exception, stores.user_data.add(transaction.connection, "mine"))
            await transaction.finish(complete(held), last=True)
    except StateError:
        kept = False
    assert (await read(store, held.id)).status is (JobStatus.COMPLETED if kept else JobStatus.RUNNING)
    assert await stores.user_data.keys() == ({"mine"} if kept else set())


@case(_NEEDS)
async def last_releases_what_came_to_wait(stores: Stores) -> None:
    """A chain that is started inside the block, and waits for the block's own, is released by its commit."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await store.start_jobs([job("waits", id="waits", blockers=[held.id])], connection=transaction.connection)
        await transaction.finish(complete(held), last=True)
    assert (await claim_one(store, "waits")).id == "waits"


@case()
async def every_kind_as_the_last(stores: Stores) -> None:
    """Every kind of finish can be the last."""
    store = await stores.open()
    ends: list[tuple[JobStatus, Callable[[ClaimedJob], Finish]]] = [
        (JobStatus.COMPLETED, complete),
        (JobStatus.CONTINUED, lambda one: go_on(one, job("next"))),
        (JobStatus.FAILED, fail),
        (JobStatus.CANCELLED, cancel),
    ]
    for status, end in ends:
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            assert (await transaction.finish(end(held), last=True)).written
        assert (await read(store, held.id)).status is status
