"""Retrying failed and cancelled chains from outside."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.errors import ChainNotFoundError, ChainNotRetriableError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.policies import RetryPolicy
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, ReapRequest
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    error_of,
    expire,
    fail,
    go_on,
    job,
    lost_to_reaper,
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


async def _failed(store: AsyncStore) -> ClaimedJob:
    [held] = await started_and_claimed(store)
    await store.finish([fail(held)])
    return held


@case()
async def failed_and_cancelled(stores: Stores) -> None:
    """Failed and cancelled chains are open again, and their jobs due; the last error stays to be read."""
    store = await stores.open()
    held = await started_and_claimed(store, 3)
    await store.finish([fail(held[0]), cancel(held[1])])
    await store.cancel_chains([held[2].id], reason="no")
    ids = [one.id for one in held]
    results = await store.retry_chains(ids)
    assert [(one.chain_id, one.previous_status.value) for one in results] == [
        (ids[0], "failed"), (ids[1], "cancelled"), (ids[2], "cancelled")
    ]  # fmt: skip
    assert all(one.written and one.status is ChainStatus.OPEN and one.due_types == ("work",) for one in results)
    for id, kind in zip(ids, ("fail", "cancel", "cancel"), strict=True):
        found, chain = await read(store, id), await read_chain(store, id)
        assert (found.status, found.finished_at) == (JobStatus.READY, None)
        assert found.last_error is not None and found.last_error.kind == kind
        assert (chain.status, chain.closed_at) == (ChainStatus.OPEN, None)
    again = await store.claim(ask())
    assert sorted(one.id for one in again) == sorted(ids)
    assert all(one.written for one in await store.finish([complete(one) for one in again]))
    for id in ids:
        assert (await read_chain(store, id)).error is None
        assert (await read(store, id)).last_error is None


@case()
async def cancelled_before_its_first_attempt(stores: Stores) -> None:
    """The error of the cancellation ends with the first attempt that completes or continues the chain."""
    store = await stores.open()
    ids = await start(store, job(), job())
    await store.cancel_chains(ids, reason="no")
    await store.retry_chains(ids)
    one, other = await store.claim(ask())
    assert (one.attempt, other.attempt) == (1, 1)
    assert all(found.written for found in await store.finish([complete(one), go_on(other, job("then"))]))
    for id in ids:
        assert (await read(store, id)).last_error is None
        assert (await read_chain(store, id)).error is None


@case()
async def attempts_before_do_not_count(stores: Stores) -> None:
    """The job has all its attempts before it, and its place in the order; how often it ran is still told."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([retry(held)])
    await expire(store, await claim_one(store))
    await store.reap(ReapRequest({"work": RetryPolicy(max_attempts=2)}))
    assert (await read_chain(store, held.id)).status is ChainStatus.FAILED
    await store.retry_chains([held.id])
    found = await read(store, held.id)
    assert (found.attempt, found.uncounted, found.lease_expirations) == (2, 2, 0)
    again = await claim_one(store)
    assert (again.attempt, again.counted_attempts, again.own_failures) == (3, 1, 1)


@case()
async def only_the_last_job(stores: Stores) -> None:
    """The jobs before the one that failed stay continued."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="b"))])
    await store.finish([fail(await claim_one(store, "next"))])
    [result] = await store.retry_chains([held.id])
    assert (result.job_id, result.job_type, result.chain_type) == ("b", "next", "work")
    assert (await read(store, held.id)).status is JobStatus.CONTINUED
    opened = await read_chain(store, held.id)
    assert (opened.status, opened.closed_at) == (ChainStatus.OPEN, None)
    await store.finish([complete(await claim_one(store, "next"))])
    chain = await read_chain(store, held.id)
    assert chain.status is ChainStatus.COMPLETED and chain.closed_at is not None


@case()
async def open_and_completed_are_refused(stores: Stores) -> None:
    """An open or completed chain, or one that does not exist, is an error, and none is retried."""
    store = await stores.open()
    failed = await _failed(store)
    done, running = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    for id, status in ((done.id, "completed"), (running.id, "open")):
        error = await error_of(ChainNotRetriableError, store.retry_chains([failed.id, id]))
        assert (error.chain_id, error.status) == (id, status)
    assert (await error_of(ChainNotFoundError, store.retry_chains([failed.id, "nowhere"]))).id == "nowhere"
    assert (await read(store, failed.id)).status is JobStatus.FAILED
    assert await store.retry_chains([]) == []


@case()
async def former_holder_stays_fenced(stores: Stores) -> None:
    """Whoever held the job before cannot end it, whether it is ready or held by another."""
    store = await stores.open()
    failed = await _failed(store)
    await store.retry_chains([failed.id])
    assert await store.lost_reasons([failed.lease]) == [AbortReason.TAKEN_BY_ANOTHER_WORKER]
    await store.finish([complete(await claim_one(store))])
    late = await lost_to_reaper(store, RetryPolicy(max_attempts=1))
    await store.retry_chains([late.id])
    assert (await store.finish([complete(late)]))[0].lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    again = await claim_one(store)
    assert (await store.finish([complete(late)]))[0].lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert (await store.finish([complete(again)]))[0].written


@case()
async def released_ones_stay_released(stores: Stores) -> None:
    """A job that was released when the chain failed stays as it is, while the chain is open and when it closes."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    ids = await start(store, job("waits", blockers=[held.id]), job("waits", blockers=[held.id]))
    await store.finish([fail(held)])
    one, two = await store.claim(ask("waits"))
    await store.finish([complete(one)])
    await store.retry_chains([held.id])
    assert (await read(store, two.id)).status is JobStatus.RUNNING
    assert (await store.finish([complete(await claim_one(store))]))[0].due_types == ()
    assert (await store.finish([complete(two)]))[0].written
    assert [(await read(store, id)).open_blockers for id in ids] == [0, 0]


@case()
async def still_blocked_ones_wait_again(stores: Stores) -> None:
    """A job that still waits for another chain waits for the reopened one again, and is released by the last."""
    store = await stores.open()
    failed, other = await started_and_claimed(store, 2)
    [waiting] = await start(store, job("waits", blockers=[failed.id, other.id]))
    await store.finish([fail(failed)])
    assert (await read(store, waiting)).open_blockers == 1
    await store.retry_chains([failed.id])
    assert (await read(store, waiting)).open_blockers == 2
    assert (await store.finish([complete(other)]))[0].due_types == ()
    assert (await store.finish([complete(await claim_one(store))]))[0].due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == waiting


@case()
async def new_dependents_wait(stores: Stores) -> None:
    """A job that names a retried chain waits for it as for any open one."""
    store = await stores.open()
    held = await _failed(store)
    await store.retry_chains([held.id])
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    assert (await store.finish([complete(await claim_one(store))]))[0].due_types == ("waits",)


@case()
async def waits_again(stores: Stores) -> None:
    """A chain and the one that failed with it, retried together: the second waits for the first again."""
    store = await stores.open()
    [held, other] = await started_and_claimed(store, 2)
    await store.finish([complete(other)])
    [waiting] = await start(store, job("waits", blockers=[other.id, held.id]))
    await store.finish([fail(held)])
    await store.finish([fail(await claim_one(store, "waits"))])
    results = await store.retry_chains([waiting, held.id])
    assert [one.due_types for one in results] == [(), ("work",)]
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.BLOCKED, 1)
    assert (await store.finish([complete(await claim_one(store))]))[0].due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == waiting


@case()
async def waits_for_what_was_retried_before(stores: Stores) -> None:
    """The same where the first was retried by a call of its own, and is still open."""
    store = await stores.open()
    held = await _failed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    await store.finish([fail(await claim_one(store, "waits"))])
    await store.retry_chains([held.id])
    assert [one.due_types for one in await store.retry_chains([waiting])] == [()]
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    assert (await store.finish([complete(await claim_one(store))]))[0].due_types == ("waits",)


@case()
async def still_waits(stores: Stores) -> None:
    """A job that was cancelled while it was blocked is blocked again, by what is still open."""
    store = await stores.open()
    held = await started_and_claimed(store, 2)
    [waiting] = await start(store, job("waits", blockers=[one.id for one in held]))
    await store.cancel_chains([waiting], reason="no")
    await store.finish([complete(held[0])])
    assert [one.due_types for one in await store.retry_chains([waiting])] == [()]
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.BLOCKED, 1)
    assert (await store.finish([complete(held[1])]))[0].due_types == ("waits",)


@case(Capability.USER_TRANSACTIONS)
async def callers_transaction(stores: Stores) -> None:
    """On the caller's connection it stands with the commit, and is gone with a rollback; an error spoils nothing."""
    store = await stores.open()
    held = await _failed(store)
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.retry_chains([held.id], connection=connection)
            raise _OnPurpose
    assert (await read(store, held.id)).status is JobStatus.FAILED
    async with stores.user_transaction() as connection:
        await error_of(ChainNotFoundError, store.retry_chains(["nowhere"], connection=connection))
        await store.retry_chains([held.id], connection=connection)
        assert (await read(store, held.id)).status is JobStatus.FAILED
    assert (await claim_one(store)).id == held.id


@case()
async def against_another(stores: Stores) -> None:
    """Two retries of one chain at once: one opens it, the other finds it open."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        held = await _failed(store)
        answers = await asyncio.gather(
            store.retry_chains([held.id]), other.retry_chains([held.id]), return_exceptions=True
        )
        [refused] = [one for one in answers if isinstance(one, BaseException)]
        assert isinstance(refused, ChainNotRetriableError) and refused.status == "open"
        again = await claim_one(store)
        assert again.attempt == 2
        await store.finish([complete(again)])


@case()
async def against_its_blocker(stores: Stores) -> None:
    """A job that is retried just as what it waits for closes is never stranded."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        [waiting] = await start(store, job("waits", blockers=[held.id]))
        await store.cancel_chains([waiting], reason="no")
        [retried], [closed] = await asyncio.gather(store.retry_chains([waiting]), other.finish([complete(held)]))
        assert "waits" in retried.due_types + closed.due_types
        claimed = await claim_one(store, "waits")
        assert (claimed.id, (await read(store, waiting)).open_blockers) == (waiting, 0)
        await store.finish([complete(claimed)])
