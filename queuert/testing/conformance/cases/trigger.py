"""Making scheduled jobs due now."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.errors import JobNotFoundError, JobNotTriggerableError
from queuert.jobs import JobStatus
from queuert.state import Capability
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    read,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


@case()
async def scheduled_job_is_due(stores: Stores) -> None:
    """A job that was scheduled for later is READY, its time is now, and it is claimed."""
    store = await stores.open()
    [id] = await start(store, job(run_at=due_later()))
    before = await read(store, id)
    assert await store.claim(ask()) == []
    [triggered] = await store.trigger_jobs([id])
    assert (triggered.id, triggered.type) == (id, "work")
    found = await read(store, id)
    assert found.status is JobStatus.READY
    assert before.created_at <= found.scheduled_at < before.scheduled_at
    assert await store.next_due(["work"]) == 0
    assert (await claim_one(store)).id == id


@case()
async def nothing_else_changes(stores: Stores) -> None:
    """Attempts, errors, priority and input stay; the pause before a retry is over."""
    store = await stores.open()
    [held] = await started_and_claimed(store, priority=7, input='{"a": 1}')
    await store.finish([retry(held, delay=3600.0)])
    before = await read(store, held.id)
    await store.trigger_jobs([held.id])
    found = await read(store, held.id)
    for name in ("attempt", "uncounted", "last_error", "priority", "input", "created_at", "chain_id"):
        assert getattr(found, name) == getattr(before, name)
    assert (await claim_one(store)).attempt == 2


@case()
async def batch_in_order(stores: Stores) -> None:
    """Results come in the order asked, ready jobs among them, which stay as they are."""
    store = await stores.open()
    ids = await start(store, job("b", run_at=due_later()), job("a"), job("c", run_at=due_later()))
    ready = await read(store, ids[1])
    triggered = await store.trigger_jobs([ids[2], ids[1], ids[0]])
    assert [(one.id, one.type) for one in triggered] == [(ids[2], "c"), (ids[1], "a"), (ids[0], "b")]
    assert await read(store, ids[1]) == ready
    assert len(await store.claim(ask("a", "b", "c"))) == 3


@case()
async def nothing_at_all(stores: Stores) -> None:
    """No jobs, no results."""
    store = await stores.open()
    assert await store.trigger_jobs([]) == []


@case()
async def missing_job(stores: Stores) -> None:
    """A job that does not exist is an error, and none is triggered."""
    store = await stores.open()
    [id] = await start(store, job(run_at=due_later()))
    assert (await error_of(JobNotFoundError, store.trigger_jobs([id, "nowhere"]))).id == "nowhere"
    assert (await read(store, id)).status is JobStatus.SCHEDULED


@case()
async def neither_scheduled_nor_ready(stores: Stores) -> None:
    """A job that is blocked, running, or has ended is an error that names its status, and none is triggered."""
    store = await stores.open()
    held = await started_and_claimed(store, 5)
    ends = [go_on(held[1], job()), complete(held[2]), fail(held[3]), cancel(held[4])]
    await store.finish(ends)
    [blocked, later] = await start(store, job(blockers=[held[0].id]), job(run_at=due_later()))
    refused = {held[0].id: "running", blocked: "blocked"} | dict(
        zip([one.id for one in held[1:]], ["continued", "completed", "failed", "cancelled"], strict=True)
    )
    for id, status in refused.items():
        error = await error_of(JobNotTriggerableError, store.trigger_jobs([later, id]))
        assert (error.job_id, error.status) == (id, status)
    assert (await read(store, later)).status is JobStatus.SCHEDULED


@case()
async def continuation(stores: Stores) -> None:
    """A continuation that is scheduled for later is triggered by its own id."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="second", run_at=due_later()))])
    await store.trigger_jobs(["second"])
    assert (await claim_one(store, "next")).chain_id == held.chain_id


@case(Capability.USER_TRANSACTIONS)
async def callers_transaction(stores: Stores) -> None:
    """On the caller's connection it stands with the commit, and is gone with a rollback; an error spoils nothing."""
    store = await stores.open()
    [id] = await start(store, job(run_at=due_later()))
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.trigger_jobs([id], connection=connection)
            raise _OnPurpose
    assert (await read(store, id)).status is JobStatus.SCHEDULED
    async with stores.user_transaction() as connection:
        await error_of(JobNotFoundError, store.trigger_jobs(["nowhere"], connection=connection))
        await store.trigger_jobs([id], connection=connection)
        assert (await read(store, id)).status is JobStatus.SCHEDULED
    assert (await claim_one(store)).id == id


@case()
async def against_claim(stores: Stores) -> None:
    """A claim and a trigger at once: the job is claimed once, and the trigger says what it found."""
    store, other = await stores.open_many(2)
    for _ in range(25):
        [later, ready] = await start(store, job(run_at=due_later()), job())

        async def trigger(*ids: str) -> bool:
            try:
                return bool(await other.trigger_jobs(ids))
            except JobNotTriggerableError:
                return False

        claimed, done = await asyncio.gather(store.claim(ask()), trigger(later, ready))
        claimed += await store.claim(ask())
        assert sorted(one.id for one in claimed) == sorted([later, ready] if done else [ready])
        await store.finish([complete(one) for one in claimed])
        await store.cancel_chains([later], reason="the next round")
