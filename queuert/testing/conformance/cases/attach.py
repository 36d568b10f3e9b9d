"""Attaching: a start of a chosen id that exists already gets the chain that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from queuert.errors import ChainNotFoundError, JobIdConflictError, JobTypeMismatchError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import NewJob, StartedJob
from queuert.testing.conformance.builders import (
    claim_one,
    complete,
    error_of,
    go_on,
    job,
    read,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


async def one(store: AsyncStore, new: NewJob) -> StartedJob:
    """Start one job."""
    [started] = await store.start_jobs([new])
    return started


def attached(id: str = "mine", type: str = "work", **more: Any) -> NewJob:
    """A job of a chosen id that attaches to the chain of that id."""
    return job(type, id=id, attach=True, **more)


@case()
async def attaches_to_the_chain_of_its_id(stores: Stores) -> None:
    """The first start of an id writes the chain; a later one returns it as existing, and its input is dropped."""
    store = await stores.open()
    first = await one(store, attached(input="1"))
    second = await one(store, attached(input="2"))
    assert (first.id, first.existing) == ("mine", False)
    assert second == StartedJob("mine", "work", JobStatus.READY, first.created_at, existing=True)
    assert (await read(store, "mine")).input == 1


@case()
async def attaches_to_a_closed_chain(stores: Stores) -> None:
    """A chain that runs, has gone on or has closed is attached to all the same."""
    store = await stores.open()
    await one(store, attached())
    claimed = await claim_one(store)
    seen = [(await one(store, attached())).status]
    await store.finish([go_on(claimed, job("next"))])
    seen.append((await one(store, attached())).status)
    await store.finish([complete(await claim_one(store, "next"))])
    last = await one(store, attached())
    assert [*seen, last.status] == [JobStatus.RUNNING, JobStatus.CONTINUED, JobStatus.CONTINUED]
    assert (last.existing, last.chain_status) == (True, ChainStatus.COMPLETED)
    assert [chain.status for chain in await store.get_chains(["mine"]) if chain] == [ChainStatus.COMPLETED]


@case()
async def attaches_to_its_own_type_only(stores: Stores) -> None:
    """A chain of that id and of another type is a JobTypeMismatchError; nothing of the batch is written."""
    store = await stores.open()
    await start(store, job("other", id="mine"))
    mismatch = await error_of(JobTypeMismatchError, store.start_jobs([job(id="beside"), attached()]))
    assert (mismatch.chain_id, mismatch.expected, mismatch.actual) == ("mine", "work", "other")
    assert await store.get_jobs(["beside"]) == [None]


@case()
async def attaches_to_first_jobs_only(stores: Stores) -> None:
    """The id of a job inside a chain is a conflict, for a start that would attach as for any other."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("work", id="mine"))])
    assert (await error_of(JobIdConflictError, store.start_jobs([attached()]))).ids == ("mine",)


@case()
async def without_attach_it_is_a_conflict(stores: Stores) -> None:
    """Without ``attach`` an id that exists is a conflict, though it was started by one who would have attached."""
    store = await stores.open()
    await one(store, attached())
    assert (await error_of(JobIdConflictError, store.start_jobs([job(id="mine")]))).ids == ("mine",)


@case()
async def attaches_within_a_batch(stores: Stores) -> None:
    """One id twice in a batch is one chain, that of the first."""
    store = await stores.open()
    found = await store.start_jobs([attached(input="1"), job(), attached(input="2")])
    assert [each.id for each in found[::2]] == ["mine", "mine"]
    assert [each.existing for each in found] == [False, False, True]
    assert (await read(store, "mine")).input == 1


@case()
async def attached_need_no_blockers(stores: Stores) -> None:
    """A start that attaches needs none of its blockers; one that writes does, and waits for them."""
    store = await stores.open()
    [gate] = await start(store, job("gate"))
    assert (await one(store, attached(blockers=[gate]))).status is JobStatus.BLOCKED
    found = await one(store, attached(blockers=["unreal"]))
    assert (found.existing, found.status) == (True, JobStatus.BLOCKED)
    await error_of(ChainNotFoundError, store.start_jobs([attached("new", blockers=["unreal"])]))
    assert await store.get_jobs(["new"]) == [None]


@case()
async def one_of_many_writes_an_id(stores: Stores) -> None:
    """Of eight that attach to one id at once, one writes it; in batches of opposite orders, too."""
    several = await stores.open_many(8)
    for number in range(10):
        ids = [f"{number} {place}" for place in range(5)]
        orders = [ids if place % 2 else ids[::-1] for place in range(8)]
        answers = await asyncio.gather(
            *(store.start_jobs([attached(id) for id in order]) for store, order in zip(several, orders, strict=True))
        )
        assert [_ids(answer) for answer in answers] == orders
        for id in ids:
            assert sum(each.id == id and not each.existing for answer in answers for each in answer) == 1


def _ids(started: Sequence[StartedJob]) -> list[str]:
    return [each.id for each in started]


@case(Capability.USER_TRANSACTIONS)
async def attach_waits_for_the_commit(stores: Stores) -> None:
    """A start that would attach to an id which another transaction has written waits for its commit."""
    store, other = await stores.open_many(2)
    async with stores.user_transaction() as connection:
        await store.start_jobs([attached(input="1")], connection=connection)
        waiting = asyncio.create_task(one(other, attached(input="2")))
        await stores.user_data.add(connection, "before the commit")
        assert not waiting.done()
    assert (await waiting).existing
    assert (await read(store, "mine")).input == 1


async def _rolled_back_beside(
    stores: Stores, store: AsyncStore, second: Callable[[], Awaitable[StartedJob]], new: NewJob
) -> tuple[StartedJob, asyncio.Future[StartedJob]]:
    """Start a job in a transaction that rolls back, while another start goes on beside it."""
    found: list[Any] = []
    try:
        async with stores.user_transaction() as connection:
            found += await store.start_jobs([new], connection=connection)
            found.append(asyncio.ensure_future(second()))
            await stores.user_data.add(connection, "rolled back")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    return found[0], found[1]


@case(Capability.USER_TRANSACTIONS)
async def attach_writes_after_a_rollback(stores: Stores) -> None:
    """If that transaction rolls back, the one that waited writes the chain."""
    store, other = await stores.open_many(2)
    _, waiting = await _rolled_back_beside(stores, store, lambda: one(other, attached(input="2")), attached(input="1"))
    assert not (await waiting).existing
    assert (await read(store, "mine")).input == 2


@case(Capability.USER_TRANSACTIONS)
async def refusal_leaves_the_transaction_whole(stores: Stores) -> None:
    """A refused start in the caller's transaction spoils nothing: the caller goes on, and what it wrote stands."""
    store = await stores.open()
    await start(store, job("other", id="mine"))
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "before")
        await error_of(JobTypeMismatchError, store.start_jobs([attached()], connection=connection))
        [started] = await store.start_jobs([attached("other")], connection=connection)
        await stores.user_data.add(connection, "after")
    assert await stores.user_data.keys() == {"before", "after"}
    assert (await read(store, "other")).created_at == started.created_at


@case()
async def the_same_start_many_times(stores: Stores) -> None:
    """One start, given twice in a batch as the same value, attaches twice to a chain that exists."""
    store = await stores.open()
    first = await one(store, attached())
    found = await store.start_jobs([attached()] * 3)
    assert [(each.id, each.existing) for each in found] == [(first.id, True)] * 3


@case()
async def batch_of_one_id_and_two_types(stores: Stores) -> None:
    """Within a batch as well, one attaches to its own type only; and without ``attach`` an id before it is taken."""
    store = await stores.open()
    mismatch = await error_of(JobTypeMismatchError, store.start_jobs([attached(type="other"), attached()]))
    assert (mismatch.chain_id, mismatch.expected, mismatch.actual) == ("mine", "work", "other")
    conflict = await error_of(JobIdConflictError, store.start_jobs([attached(), job(id="mine")]))
    assert conflict.ids == ("mine",)
    assert await store.get_jobs(["mine"]) == [None]


@case()
async def blockers_of_the_same_batch(stores: Stores) -> None:
    """A blocker that another start of the same batch writes does not exist yet; one that it attaches to does."""
    store = await stores.open()
    batch = [attached("gate"), attached("waits", blockers=["gate"])]
    assert (await error_of(ChainNotFoundError, store.start_jobs(batch))).id == "gate"
    assert await store.get_jobs(["gate", "waits"]) == [None, None]
    await start(store, attached("gate"))
    gate, waits = await store.start_jobs(batch)
    assert (gate.existing, waits.existing, waits.status) == (True, False, JobStatus.BLOCKED)


@case(Capability.USER_TRANSACTIONS)
async def waits_before_it_looks_at_its_blockers(stores: Stores) -> None:
    """A start that finds its id about to be written needs its blockers only if that is rolled back."""
    store, other = await stores.open_many(2)
    async with stores.user_transaction() as connection:
        await store.start_jobs([attached()], connection=connection)
        waiting = asyncio.create_task(one(other, attached(blockers=["unreal"])))
        await stores.user_data.add(connection, "before the commit")
    assert (await waiting).existing


@case()
async def thousands_in_a_batch(stores: Stores) -> None:
    """A batch of five thousand, half of which are there, is written and attached to in the order asked."""
    store = await stores.open()
    batch = [attached(f"{number * 7919 % 5000:04}") for number in range(5000)]
    await store.start_jobs(batch[::2])
    found = await store.start_jobs(batch)
    assert _ids(found) == [each.id for each in batch]
    assert [each.existing for each in found] == [True, False] * 2500
