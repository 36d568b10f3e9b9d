"""Transactions: the caller's writes and the queue's commit together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from queuert.errors import JobIdConflictError, LeaseLostError, StateError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, Finish, ReapRequest
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
    ask,
    cancel,
    check_chain_seconds,
    claim_one,
    complete,
    error_of,
    expire,
    fail,
    go_on,
    interrupt,
    job,
    lost_to_reaper,
    read,
    read_chain,
    reap,
    retry,
    start,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.USER_TRANSACTIONS


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


async def _refused(store: AsyncStore, claimed: ClaimedJob) -> str:
    """The reason why a transaction for this lease does not begin."""
    error = await error_of(LeaseLostError, store.transaction(claimed).__aenter__())
    assert error.job_id == claimed.id
    return error.reason


@case(_NEEDS)
async def commits_together(stores: Stores) -> None:
    """The caller's row and the finish stand together after the block, and neither is seen before its end."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await stores.user_data.add(transaction.connection, "mine")
        assert (await transaction.finish(complete(held, "1"))).written
        assert (await read(store, held.id)).status is JobStatus.RUNNING
        assert await stores.user_data.keys() == set()
    assert (await read(store, held.id)).output == 1
    assert await stores.user_data.keys() == {"mine"}


@case(_NEEDS)
async def rolls_back_together(stores: Stores) -> None:
    """An exception in the block passes as it is, and takes both with it; the lease still holds, and can finish."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    error = _OnPurpose()

    async def block() -> None:
        async with store.transaction(held) as transaction:
            await stores.user_data.add(transaction.connection, "mine")
            await transaction.finish(complete(held))
            raise error

    assert await error_of(_OnPurpose, block()) is error
    assert await stores.user_data.keys() == set()
    assert (await read(store, held.id)).status is JobStatus.RUNNING
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    assert (await store.finish([complete(held)]))[0].written


@case()
async def rolls_back_a_continuation(stores: Stores) -> None:
    """A continuation that was created in a block that fails was never there."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    with suppress(_OnPurpose):
        async with store.transaction(held) as transaction:
            await transaction.finish(go_on(held, job("next", id="next")))
            raise _OnPurpose
    assert await store.get_jobs(["next"]) == [None]
    assert (await store.finish([go_on(held, job("next", id="next"))]))[0].written


@case()
async def closing_tells_the_age_of_the_chain(stores: Stores) -> None:
    """After the block the result of a finish that closes a chain of several jobs says how long the chain took."""
    store = await stores.open()
    for last in (True, False):
        [first] = await started_and_claimed(store)
        await store.finish([go_on(first, job("next"))])
        held = await claim_one(store, "next")
        async with store.transaction(held) as transaction:
            result = await transaction.finish(complete(held), last=last)
        await check_chain_seconds(store, first.id, result.chain_seconds)


@case()
async def every_kind_inside(stores: Stores) -> None:
    """Every kind of finish works inside a transaction as it does outside."""
    store = await stores.open()
    ends: dict[JobStatus, Callable[[ClaimedJob], Finish]] = {
        JobStatus.COMPLETED: complete,
        JobStatus.CONTINUED: lambda one: go_on(one, job("next")),
        JobStatus.SCHEDULED: lambda one: retry(one, 60.0),
        JobStatus.FAILED: fail,
        JobStatus.CANCELLED: cancel,
        JobStatus.READY: interrupt,
    }
    for status, end in ends.items():
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            assert (await transaction.finish(end(held))).written
        assert (await read(store, held.id)).status is status


@case()
async def releases_dependents(stores: Stores) -> None:
    """What waited for the chain is released when the transaction commits, and the result names its type by then."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    async with store.transaction(held) as transaction:
        result = await transaction.finish(fail(held))
    assert result.due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == waiting


@case(Capability.ROW_LOCKS)
async def dependents_wait_for_the_commit(stores: Stores) -> None:
    """A claim beside the open transaction finds nothing of what that is about to release, and other jobs."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    [other] = await start(store, job("other"))
    async with store.transaction(held) as transaction:
        await transaction.finish(fail(held))
        assert [one.id for one in await store.claim(ask("waits", "other"))] == [other]
    assert (await claim_one(store, "waits")).id == waiting


@case()
async def continuation_with_blockers(stores: Stores) -> None:
    """A continuation inside can wait for chains, and is released by them."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    async with store.transaction(held) as transaction:
        await transaction.finish(go_on(held, job("waits", id="next", blockers=[other.id])))
    assert (await read(store, "next")).status is JobStatus.BLOCKED
    assert (await store.finish([complete(other)]))[0].due_types == ("waits",)
    assert (await claim_one(store, "waits")).chain_id == held.chain_id


@case(_NEEDS)
async def without_an_finish(stores: Stores) -> None:
    """A block without ``finish`` commits the caller's writes; the job goes on under its lease."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await stores.user_data.add(transaction.connection, "mine")
    assert await stores.user_data.keys() == {"mine"}
    assert await store.lost_reasons([held.lease]) == [None]
    assert (await read(store, held.id)).status is JobStatus.RUNNING


@case()
async def not_begun_without_the_lease(stores: Stores) -> None:
    """A lost lease is a LeaseLostError with the reason before the block is entered: for every way to lose it."""
    store = await stores.open()
    reaped = await lost_to_reaper(store)
    reasons = [await _refused(store, reaped)]
    again = await claim_one(store)
    reasons += [await _refused(store, reaped), await _refused(store, stolen(again))]
    await store.finish([complete(again)])
    reasons += [await _refused(store, reaped), await _refused(store, again)]
    cancelled = await lost_to_reaper(store)
    await store.finish([cancel(await claim_one(store))])
    reasons.append(await _refused(store, cancelled))
    capped = await lost_to_reaper(store, LAST_ATTEMPT)
    reasons.append(await _refused(store, capped))
    taken, completed = AbortReason.TAKEN_BY_ANOTHER_WORKER, AbortReason.ALREADY_COMPLETED
    assert reasons == [taken, taken, taken, completed, completed, AbortReason.CANCELLED, completed]


@case()
async def expired_and_not_reaped(stores: Stores) -> None:
    """A lease that has expired and was not reaped can still begin a transaction, and finish in it."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await expire(store, held)
    async with store.transaction(held) as transaction:
        await transaction.finish(complete(held))
    assert (await read(store, held.id)).status is JobStatus.COMPLETED


@case(_NEEDS)
async def swallowed_error_of_the_database(stores: Stores) -> None:
    """An error of the database that the caller swallows takes all of the block with it, or the failed statement only.

    If all of it is gone, the block is a StateError: what was not kept must not seem to be.
    """
    store = await stores.open()
    [held] = await started_and_claimed(store)
    kept = True
    try:
        async with store.transaction(held) as transaction:
            await stores.user_data.add(transaction.connection, "mine")
            await transaction.finish(complete(held))
            await error_of(Exception, stores.user_data.add(transaction.connection, "mine"))
    except StateError:
        kept = False
    assert (await read(store, held.id)).status is (JobStatus.COMPLETED if kept else JobStatus.RUNNING)
    assert await stores.user_data.keys() == ({"mine"} if kept else set())
    assert (await store.finish([complete(held)]))[0].written


@case(_NEEDS)
async def swallowed_error_without_an_finish(stores: Stores) -> None:
    """The same where nothing was finished."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    kept = True
    try:
        async with store.transaction(held) as transaction:
            await stores.user_data.add(transaction.connection, "mine")
            await error_of(Exception, stores.user_data.add(transaction.connection, "mine"))
    except StateError:
        kept = False
    assert await stores.user_data.keys() == ({"mine"} if kept else set())


@case(_NEEDS)
async def connections_come_back_clean(stores: Stores) -> None:
    """A store of two connections stands many transactions that fail, on their own, in the block or before it."""
    store = await stores.open(max_connections=2)
    stale = await lost_to_reaper(store)
    [held] = await started_and_claimed(store, type="other")

    async def block(*keys: str) -> None:
        async with store.transaction(held) as transaction:
            for key in keys:
                await stores.user_data.add(transaction.connection, key)
            raise _OnPurpose

    for _ in range(3):
        assert await _refused(store, stale) == AbortReason.TAKEN_BY_ANOTHER_WORKER
        await error_of(_OnPurpose, block("one"))
        assert not isinstance(await error_of(Exception, block("one", "one")), _OnPurpose)
    assert await stores.user_data.keys() == set()
    await asyncio.gather(*(store.count_jobs() for _ in range(8)))
    assert (await store.finish([complete(held)]))[0].written


@case(_NEEDS)
async def held_against_everybody(stores: Stores) -> None:
    """While the transaction is open nobody else gets the job: not the reaper, not a claim, not its own release.

    They pass it over, or wait their turn and find it ended.
    """
    store, other = await stores.open_many(2)
    [held] = await started_and_claimed(store)
    await expire(store, held)
    async with store.transaction(held) as transaction:
        reaping = asyncio.create_task(other.reap(ReapRequest({"work": AT_ONCE})))
        claiming = asyncio.create_task(other.claim(ask()))
        release = asyncio.create_task(other.release([held.lease]))
        await transaction.finish(complete(held))
    assert (list((await reaping).reaped), await claiming, await release) == ([], [], 0)
    assert (await read(store, held.id)).status is JobStatus.COMPLETED


@case(Capability.ROW_LOCKS)
async def keeps_nobody_waiting(stores: Stores) -> None:
    """While the transaction is open the reaper and claims pass the job over, and find the others."""
    store, other = await stores.open_many(2)
    held, lost = await started_and_claimed(store, 2)
    await expire(store, held, lost)
    async with store.transaction(held) as transaction:
        assert [one.id for one in (await other.reap(ReapRequest({"work": AT_ONCE}))).reaped] == [lost.id]
        assert [one.id for one in await other.claim(ask())] == [lost.id]
        await transaction.finish(complete(held))
    assert (await read(store, held.id)).status is JobStatus.COMPLETED


@case()
async def finish_from_outside_waits(stores: Stores) -> None:
    """A finish by the same lease from outside waits for the transaction, and finds its finish written."""
    store, other = await stores.open_many(2)
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        outside = asyncio.create_task(other.finish([complete(held, '"mine"')]))
        await transaction.finish(complete(held, '"mine"'))
    assert [one.written for one in await outside] == [True]
    assert (await read_chain(store, held.id)).output == '"mine"'


@case(_NEEDS)
async def start_commits_with_the_caller(stores: Stores) -> None:
    """Jobs started on the caller's connection are not there before its commit, and are after it."""
    store = await stores.open()
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "mine")
        [started] = await store.start_jobs([job()], connection=connection)
        assert started.status is JobStatus.READY
        assert await store.get_jobs([started.id]) == [None]
    assert await stores.user_data.keys() == {"mine"}
    assert (await claim_one(store)).id == started.id


@case(_NEEDS, Capability.ROW_LOCKS)
async def claims_go_on_beside_the_callers(stores: Stores) -> None:
    """A claim beside the caller's transaction does not wait for it, and finds what is committed."""
    store = await stores.open()
    [there] = await start(store, job())
    async with stores.user_transaction() as connection:
        [started] = await store.start_jobs([job()], connection=connection)
        assert [one.id for one in await store.claim(ask())] == [there]
    assert (await claim_one(store)).id == started.id


@case(_NEEDS)
async def start_rolls_back_with_the_caller(stores: Stores) -> None:
    """Jobs started on the caller's connection vanish with its rollback, and a blocker is none the wiser."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.start_jobs([job(id="a"), job(id="b", blockers=[held.id])], connection=connection)
            raise _OnPurpose
    assert await store.get_jobs(["a", "b"]) == [None, None]
    assert (await store.finish([complete(held)]))[0].written
    assert (await read_chain(store, held.id)).status is ChainStatus.COMPLETED


@case(_NEEDS)
async def conflict_does_not_spoil_the_callers(stores: Stores) -> None:
    """A chosen id that exists is refused, and the caller's transaction goes on as if nothing had been asked."""
    store = await stores.open()
    await start(store, job(id="taken"))
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "mine")
        requested = store.start_jobs([job(id="first"), job(id="taken")], connection=connection)
        assert (await error_of(JobIdConflictError, requested)).ids == ("taken",)
        await store.start_jobs([job(id="second")], connection=connection)
    assert await stores.user_data.keys() == {"mine"}
    assert [one.id if one else None for one in await store.get_jobs(["first", "second"])] == [None, "second"]


@case(_NEEDS)
async def start_waits_with_the_caller(stores: Stores) -> None:
    """Jobs started on the caller's connection may wait for chains, those of the same transaction among them."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("new", id="new")], connection=connection)
        [started] = await store.start_jobs([job("waits", blockers=[held.id, "new"])], connection=connection)
        assert started.status is JobStatus.BLOCKED
    await store.finish([complete(held)])
    assert (await store.finish([complete(await claim_one(store, "new"))]))[0].due_types == ("waits",)
    assert (await claim_one(store, "waits")).id == started.id


@case(_NEEDS)
async def start_inside_the_jobs_transaction(stores: Stores) -> None:
    """A job can start others in the transaction that ends it: all of it stands, or none."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    for fails in (True, False):
        try:
            async with store.transaction(held) as transaction:
                await store.start_jobs([job("child", id="child")], connection=transaction.connection)
                await transaction.finish(complete(held))
                if fails:
                    raise _OnPurpose
        except _OnPurpose:
            assert await store.get_jobs(["child"]) == [None]
    assert (await claim_one(store, "child")).id == "child"
    assert (await read(store, held.id)).status is JobStatus.COMPLETED


@case()
async def reaped_after_a_rollback(stores: Stores) -> None:
    """A transaction that failed leaves an expired lease to the reaper."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await expire(store, held)
    with suppress(_OnPurpose):
        async with store.transaction(held) as transaction:
            await transaction.finish(complete(held))
            raise _OnPurpose
    assert [one.id for one in await reap(store)] == [held.id]
