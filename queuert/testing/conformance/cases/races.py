"""Races: what must hold whoever comes first. Free-running, or forced to overlap by transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queuert.errors import StateUnavailableError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.policies import RetryPolicy
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, ReapedJob, ReapRequest, Renewal
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
    ask,
    claim_one,
    complete,
    eventually,
    expire,
    go_on,
    job,
    read,
    read_chain,
    run_out,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_ROUNDS = 50


async def _check_released_once(store: AsyncStore, waiting: str, reported: Sequence[Sequence[str]]) -> None:
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.READY, 0)
    assert sum("waits" in types for types in reported) == 1, "told of the release not exactly once"
    assert (await claim_one(store, "waits")).id == waiting


async def _two_blockers_in_transactions(stores: Stores, *, overlap: bool) -> None:
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        held = await started_and_claimed(store, 2)
        [waiting] = await start(store, job("waits", blockers=[one.id for one in held]))
        both_open = asyncio.Barrier(2) if overlap else None
        reported = await asyncio.gather(
            *(_finish_together(one, claimed, both_open) for one, claimed in zip((store, other), held, strict=True))
        )
        await _check_released_once(store, waiting, reported)


async def _finish_together(
    store: AsyncStore, claimed: ClaimedJob, both_open: asyncio.Barrier | None
) -> tuple[str, ...]:
    try:
        return await _finish_in_transaction(store, claimed, both_open)
    except StateUnavailableError as error:
        # In a database whose transactions are serializable by default the other one was first, and the attempt would be
        # repeated.
        if "could not serialize" not in str(error):
            raise
        return await _finish_in_transaction(store, claimed, None)


async def _finish_in_transaction(
    store: AsyncStore, claimed: ClaimedJob, both_open: asyncio.Barrier | None
) -> tuple[str, ...]:
    async with store.transaction(claimed) as transaction:
        if both_open is not None:
            await both_open.wait()
        result = await transaction.finish(complete(claimed))
    return result.due_types


@case()
async def two_blockers_in_transactions_at_once(stores: Stores) -> None:
    """Two blockers of a job that close in transactions of their own release it exactly once, fifty times over."""
    await _two_blockers_in_transactions(stores, overlap=False)


@case(Capability.ROW_LOCKS)
async def two_blockers_in_overlapping_transactions(stores: Stores) -> None:
    """The same where both transactions are open before either of them ends its job."""
    await _two_blockers_in_transactions(stores, overlap=True)


@case()
async def two_blockers_at_once(stores: Stores) -> None:
    """Two blockers of a job that close at once, each by a store of its own, release it exactly once."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        held = await started_and_claimed(store, 2)
        [waiting] = await start(store, job("waits", blockers=[one.id for one in held]))
        results = await asyncio.gather(store.finish([complete(held[0])]), other.finish([complete(held[1])]))
        await _check_released_once(store, waiting, [one.due_types for answer in results for one in answer])


@case()
async def eight_blockers_at_once(stores: Stores) -> None:
    """Eight blockers that close at once release the jobs that wait for all of them, and those that wait for some."""
    several = await stores.open_many(8)
    store = several[0]
    for _ in range(5):
        held = await started_and_claimed(store, 8)
        ids = [one.id for one in held]
        waiting = await start(store, *(job("waits", blockers=ids[place:]) for place in range(8)))
        await asyncio.gather(*(one.finish([complete(claimed)]) for one, claimed in zip(several, held, strict=True)))
        found = [one for one in await store.get_jobs(waiting) if one]
        assert [(one.status, one.open_blockers) for one in found] == [(JobStatus.READY, 0)] * 8
        assert len(await store.claim(ask("waits"))) == 8


@case()
async def start_while_the_blocker_closes(stores: Stores) -> None:
    """A job that begins to wait for a chain just as it closes is never stranded: blocked by an open chain, or ready."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        [started], [result] = await asyncio.gather(
            other.start_jobs([job("waits", blockers=[held.id])]), store.finish([complete(held)])
        )
        assert result.written
        assert (await read_chain(store, held.id)).status is ChainStatus.COMPLETED
        # Told by whichever of the two made it due.
        assert (started.status is JobStatus.READY) != ("waits" in result.due_types)
        assert (await claim_one(store, "waits")).id == started.id


@case(Capability.USER_TRANSACTIONS)
async def start_while_the_blockers_transaction_is_open(stores: Stores) -> None:
    """The same where the closing transaction is open when the start comes: the start waits for its outcome."""
    store, other = await stores.open_many(2)
    for _ in range(10):
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            await transaction.finish(complete(held))
            starting = asyncio.create_task(other.start_jobs([job("waits", blockers=[held.id])]))
        [started] = await starting
        assert started.status is JobStatus.READY
        assert (await claim_one(store, "waits")).id == started.id


@case(Capability.USER_TRANSACTIONS)
async def close_while_the_dependents_transaction_is_open(stores: Stores) -> None:
    """The other way round: a chain that closes while a start in the caller's transaction waits for it releases it."""
    store, other = await stores.open_many(2)
    for _ in range(10):
        [held] = await started_and_claimed(store)
        async with stores.user_transaction() as connection:
            [started] = await store.start_jobs([job("waits", blockers=[held.id])], connection=connection)
            closing = asyncio.create_task(other.finish([complete(held)]))
        [result] = await closing
        assert result.written
        assert (await claim_one(store, "waits")).id == started.id


@case()
async def continuation_while_its_blocker_closes(stores: Stores) -> None:
    """A continuation that begins to wait for a chain just as it closes is never stranded either."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        held, blocker = await started_and_claimed(store, 2)
        following = job("waits", blockers=[blocker.id])
        await asyncio.gather(store.finish([go_on(held, following)]), other.finish([complete(blocker)]))
        assert (await claim_one(store, "waits")).id == following.id


@case()
async def claim_against_reap(stores: Stores) -> None:
    """While one reaps and another claims, each job is claimed once an attempt, and no attempt is left out."""
    store, other = await stores.open_many(2)
    held = await started_and_claimed(store, 30)
    await expire(store, *held)
    again: list[ClaimedJob] = []

    async def round() -> bool:
        _, claimed = await asyncio.gather(
            store.reap(ReapRequest({"work": AT_ONCE}, limit=7)), other.claim(ask(limit=5))
        )
        again.extend(claimed)
        return len(again) >= 30

    await eventually(round)
    assert sorted(one.id for one in again) == sorted(one.id for one in held)
    assert {one.attempt for one in again} == {2}


@case()
async def renew_against_reap(stores: Stores) -> None:
    """An expired lease is either saved or reaped: never both, never neither."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS // 2):
        [held] = await started_and_claimed(store)
        await expire(store, held)
        saved, reaped = await _renew_and_reap(store, other, held)
        assert saved != bool(reaped)
        found = await read(store, held.id)
        assert found.status is (JobStatus.RUNNING if saved else JobStatus.READY)
        assert found.lease_expirations == len(reaped)
        await store.finish([complete(held if saved else await claim_one(store))])


async def _renew_and_reap(store: AsyncStore, other: AsyncStore, held: ClaimedJob) -> tuple[bool, Sequence[ReapedJob]]:
    """Race a renewal against a reap; each skips a row that the other has locked, and is then asked again."""
    [saved], result = await asyncio.gather(
        store.renew([Renewal(held.lease, 60.0)]), other.reap(ReapRequest({"work": AT_ONCE}))
    )
    if not saved and not result.reaped:
        [saved] = await store.renew([Renewal(held.lease, 60.0)])
    return saved, result.reaped


@case()
async def renew_against_reap_at_the_cap(stores: Stores) -> None:
    """On the last attempt too: a lease that was renewed while the reaper works is not failed, whoever asks first."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS // 2):
        [held] = await started_and_claimed(store)
        await expire(store, held)
        reaping = asyncio.ensure_future(other.reap(ReapRequest({"work": LAST_ATTEMPT})))
        saved = False
        while not saved and not reaping.done():
            [saved] = await store.renew([Renewal(held.lease, 60.0)])
        reaped = (await reaping).reaped
        if not saved and not reaped:
            # Each has skipped the row while the other had it locked.
            [saved] = await store.renew([Renewal(held.lease, 60.0)])
        assert saved != bool(reaped)
        found = await read(store, held.id)
        assert (found.status, found.lease_expirations) == ((JobStatus.RUNNING, 0) if saved else (JobStatus.FAILED, 1))


@case()
async def finish_against_reap(stores: Stores) -> None:
    """A finish after the lease's end, against a reaper: one of them has the job, and both know who."""
    store, other = await stores.open_many(2)
    for policy, status in ((AT_ONCE, JobStatus.READY), (LAST_ATTEMPT, JobStatus.FAILED)):
        for _ in range(_ROUNDS // 2):
            [held] = await started_and_claimed(store)
            await expire(store, held)
            [result], reaping = await asyncio.gather(
                store.finish([complete(held)]), other.reap(ReapRequest({"work": policy}))
            )
            assert result.written != bool(reaping.reaped)
            found = await read(store, held.id)
            assert found.status is (JobStatus.COMPLETED if result.written else status)
            if found.status is JobStatus.READY:
                await store.finish([complete(await claim_one(store))])


@case()
async def one_finish_requested_for_by_many(stores: Stores) -> None:
    """The same finish asked for by eight at once is written once; all of them are told that it stands."""
    several = await stores.open_many(8)
    store = several[0]
    for _ in range(10):
        [held] = await started_and_claimed(store)
        finish = go_on(held, job("next"))
        answers = await asyncio.gather(*(one.finish([finish]) for one in several))
        assert all(result.written for [result] in answers)
        assert len(await store.claim(ask("next"))) == 1


@case()
async def holder_against_successor(stores: Stores) -> None:
    """A late finish and its successor's, at once: the successor's stands, the late one is told that it lost."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS // 2):
        [late] = await started_and_claimed(store)
        await run_out(store, late)
        reaped = await _reaped(store)
        assert [one.id for one in reaped] == [late.id]
        again = await claim_one(store)
        [lost], [won] = await asyncio.gather(
            store.finish([complete(late, '"late"')]), other.finish([complete(again, '"again"')])
        )
        assert won.written
        assert lost.lost in (AbortReason.TAKEN_BY_ANOTHER_WORKER, AbortReason.ALREADY_COMPLETED)
        assert (await read(store, late.id)).output == "again"


async def _reaped(store: AsyncStore) -> Sequence[ReapedJob]:
    async def some() -> Sequence[ReapedJob]:
        return (await store.reap(ReapRequest({"work": AT_ONCE}))).reaped

    return await eventually(some)


@case()
async def overlapping_batches(stores: Stores) -> None:
    """Batches that end the same jobs in opposite orders neither block each other for ever nor lose a finish."""
    store, other = await stores.open_many(2)
    for _ in range(10):
        held = await started_and_claimed(store, 40)
        await start(store, *(job("waits", blockers=[one.id]) for one in held[::5]))
        ends = [complete(one) for one in held]
        first, second = await asyncio.gather(store.finish(ends), other.finish(ends[::-1]))
        assert all(one.written for one in [*first, *second])
        assert len(await store.claim(ask("waits"))) == 8


@case()
async def release_against_finish(stores: Stores) -> None:
    """A job is released or finished, never both."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS // 2):
        [held] = await started_and_claimed(store)
        released, [result] = await asyncio.gather(store.release([held.lease]), other.finish([complete(held)]))
        assert result.written != bool(released)
        if released:
            await store.finish([complete(await claim_one(store))])


@case()
async def everything_at_once(stores: Stores) -> None:
    """Four workers claim, finish, retry, release and reap side by side until two hundred chains have closed.

    No job is lost or finished twice, and attempts have no gaps.
    """
    several = await stores.open_many(4)
    ids = await start(several[0], *(job() for _ in range(200)))
    attempts: dict[str, list[int]] = {id: [] for id in ids}
    completed: list[str] = []
    await asyncio.gather(*(_work(one, attempts, completed) for one in several))
    assert sorted(completed) == sorted(ids)
    for id, seen in attempts.items():
        assert sorted(set(seen)) == list(range(1, max(seen) + 1))
        assert (await read(several[0], id)).attempt == max(seen)


async def _work(store: AsyncStore, attempts: dict[str, list[int]], completed: list[str]) -> None:
    policy = RetryPolicy(initial_delay=0.0)

    async def round() -> bool:
        for place, claimed in enumerate(await store.claim(ask(limit=5))):
            attempts[claimed.id].append(claimed.attempt)
            if claimed.attempt == 1 and place % 5 == 0:
                await run_out(store, claimed)
            elif claimed.attempt == 1 and place % 5 == 1:
                # A row that another transaction has locked just now is skipped, and offered again.
                while not await store.release([claimed.lease]):  # noqa: ASYNC110  (nothing says when)
                    await asyncio.sleep(0)
            elif (await store.finish([complete(claimed)]))[0].written:
                completed.append(claimed.id)
        await store.reap(ReapRequest({"work": policy}))
        return len(completed) == len(attempts)

    await eventually(round)
