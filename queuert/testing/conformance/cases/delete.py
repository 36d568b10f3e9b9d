"""Deleting chains, with what they waited for if asked to, and never from under a job that stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from queuert.deduplication import Deduplicate
from queuert.errors import BlockerReferenceError, ChainNotFoundError, LeaseLostError
from queuert.jobs import AbortReason, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import FinishResult, ReapRequest, Renewal
from queuert.testing.conformance.builders import (
    AT_ONCE,
    ask,
    claim_one,
    complete,
    due_later,
    error_of,
    go_on,
    job,
    read,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_ROUNDS = 25


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


async def _delete(store: AsyncStore, *ids: str, cascade: bool = False) -> list[str]:
    return list((await store.delete_chains(ids, cascade=cascade)).chain_ids)


async def _there(store: AsyncStore, *ids: str) -> list[str]:
    return [one.id for one in await store.get_jobs(ids) if one is not None]


@case()
async def all_jobs_of_a_chain(stores: Stores) -> None:
    """A chain goes with all its jobs, and its ids are free again."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="b"))])
    await store.finish([go_on(await claim_one(store, "next"), job("next", id="c"))])
    assert await _delete(store, held.id) == [held.id]
    assert await _there(store, held.id, "b", "c") == []
    assert await store.get_chains([held.id]) == [None]
    assert await store.claim(ask("work", "next")) == []
    assert await start(store, job(id="b"), job(id=held.id)) == ["b", held.id]


@case()
async def others_are_untouched(stores: Stores) -> None:
    """Nothing else changes; chains that do not exist, and jobs that are not the first of one, are skipped."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="b"))])
    ids = await start(store, job(), job(), job())
    before = await store.get_jobs([held.id, "b", ids[1]])
    assert await _delete(store, ids[2], "nowhere", "b", ids[0], ids[2]) == [ids[2], ids[0]]
    assert await store.get_jobs([held.id, "b", ids[1]]) == before
    assert await _there(store, *ids) == [ids[1]]
    assert await _delete(store) == []
    assert await _delete(store, "nowhere") == []


@case()
async def each_status(stores: Stores) -> None:
    """Chains are deleted whatever they are at; running jobs are named, since their holders must be told."""
    store = await stores.open()
    done, running = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    ids = await start(store, job(run_at=due_later()), job(), job("waits", blockers=[running.id]))
    result = await store.delete_chains([done.id, running.id, *ids])
    assert list(result.chain_ids) == [done.id, running.id, *ids]
    assert list(result.running_job_ids) == [running.id]
    assert list(await store.count_jobs()) == []


@case()
async def holder_learns_why(stores: Stores) -> None:
    """A running attempt is refused everything, with the reason NOT_FOUND."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await _delete(store, held.id)
    assert await store.renew([Renewal(held.lease, 60.0)]) == [False]
    assert await store.lost_reasons([held.lease]) == [AbortReason.NOT_FOUND]
    for finish in (complete(held), go_on(held, job())):
        assert (await store.finish([finish]))[0].lost is AbortReason.NOT_FOUND
    assert await store.release([held.lease]) == 0
    assert list((await store.reap(ReapRequest({"work": AT_ONCE}))).reaped) == []
    assert list(await store.count_jobs()) == []


@case()
async def transaction_does_not_begin(stores: Stores) -> None:
    """The holder's transaction is refused with the reason NOT_FOUND."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await _delete(store, held.id)
    assert (await error_of(LeaseLostError, store.transaction(held).__aenter__())).reason is AbortReason.NOT_FOUND


@case()
async def named_by_a_job_that_stays(stores: Stores) -> None:
    """A chain that a job outside has as a blocker, open or closed, is not deleted, nor are others with it."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [other] = await start(store, job())
    waiting = await start(store, *(job("waits", blockers=[held.id, other]) for _ in range(2)))
    for _ in range(2):
        error = await error_of(BlockerReferenceError, _delete(store, held.id, other))
        wanted = {(chain, one) for chain in (held.id, other) for one in waiting}
        assert set(error.references) == wanted
        assert len(await _there(store, held.id, other, *waiting)) == 4
        await store.finish([complete(held)])
    error = await error_of(BlockerReferenceError, _delete(store, held.id, waiting[0]))
    assert set(error.references) == {(held.id, waiting[1])}
    assert await _delete(store, *waiting, held.id) == [*waiting, held.id]
    assert await _there(store, other, *waiting) == [other]


@case()
async def named_by_a_continuation(stores: Stores) -> None:
    """A blocker of a later job of a chain is protected like one of the first; the message names that job."""
    store = await stores.open()
    held, blocker = await started_and_claimed(store, 2)
    await store.finish([go_on(held, job("next", id="b", blockers=[blocker.id]))])
    error = await error_of(BlockerReferenceError, _delete(store, blocker.id))
    assert error.references == ((blocker.id, "b"),)
    assert await _delete(store, blocker.id, held.id) == [blocker.id, held.id]


@case()
async def dependent_alone(stores: Stores) -> None:
    """A job that waits is deleted without what it waits for, which then closes without it."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[held.id]))
    assert await _delete(store, waiting) == [waiting]
    assert (await store.finish([complete(held)]))[0].due_types == ()
    assert await _delete(store, held.id) == [held.id]


@case()
async def cascade_takes_the_blockers(stores: Stores) -> None:
    """With a cascade, what the chain waited for goes with it; without, it stays."""
    store = await stores.open()
    ids = await start(store, job(), job())
    for cascade in (False, True):
        [waiting] = await start(store, job("waits", blockers=ids))
        gone = await _delete(store, waiting, cascade=cascade)
        assert gone == [waiting, *(sorted(ids) if cascade else ())]
    assert list(await store.count_jobs()) == []


@case()
async def cascade_without_blockers(stores: Stores) -> None:
    """A cascade from a chain without blockers takes that chain alone, and not what waits for others."""
    store = await stores.open()
    ids = await start(store, job(), job())
    assert await _delete(store, ids[0], cascade=True) == [ids[0]]
    assert await _there(store, *ids) == [ids[1]]


@case()
async def cascade_goes_down_to_the_end(stores: Stores) -> None:
    """A cascade goes on to the blockers of blockers, those of continuations among them."""
    store = await stores.open()
    [deep] = await start(store, job(id="deep"))
    [held] = await started_and_claimed(store, type="middle")
    await store.finish([go_on(held, job("next", id="b", blockers=[deep]))])
    [top] = await start(store, job("waits", blockers=[held.id]))
    gone = await _delete(store, top, cascade=True)
    assert gone[0] == top
    assert sorted(gone[1:]) == sorted([deep, held.id])
    assert list(await store.count_jobs()) == []


@case()
async def cascade_of_a_diamond(stores: Stores) -> None:
    """A chain that two of the cascade waited for goes once."""
    store = await stores.open()
    [bottom] = await start(store, job())
    sides = await start(store, job(blockers=[bottom]), job(blockers=[bottom]))
    [top] = await start(store, job(blockers=sides))
    gone = await _delete(store, top, cascade=True)
    assert sorted(gone) == sorted([top, *sides, bottom])
    assert list(await store.count_jobs()) == []


@case()
async def cascade_is_refused(stores: Stores) -> None:
    """A cascade that would take a blocker of a job outside deletes nothing."""
    store = await stores.open()
    [bottom] = await start(store, job())
    [one, other] = await start(store, job(blockers=[bottom]), job(blockers=[bottom]))
    error = await error_of(BlockerReferenceError, _delete(store, one, cascade=True))
    assert error.references == ((bottom, other),)
    assert len(await _there(store, one, other, bottom)) == 3
    assert sorted(await _delete(store, one, other, cascade=True)) == sorted([one, other, bottom])


@case()
async def deduplicated_ones(stores: Stores) -> None:
    """A chain with a deduplication key is forgotten with it: the next start of the key is a new chain."""
    store = await stores.open()
    for _ in range(2):
        [started] = await store.start_jobs([job(deduplication=Deduplicate("key", scope="any"))])
        assert not started.existing
        assert await _delete(store, started.id) == [started.id]


@case(Capability.USER_TRANSACTIONS)
async def callers_transaction(stores: Stores) -> None:
    """On the caller's connection it stands with the commit, and is gone with a rollback; a refusal spoils nothing."""
    store = await stores.open()
    [id] = await start(store, job())
    [waiting] = await start(store, job("waits", blockers=[id]))
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.delete_chains([waiting], cascade=True, connection=connection)
            raise _OnPurpose
    assert (await read(store, waiting)).status is JobStatus.BLOCKED
    async with stores.user_transaction() as connection:
        await stores.user_data.add(connection, "mine")
        await error_of(BlockerReferenceError, store.delete_chains([id], connection=connection))
        result = await store.delete_chains([waiting], cascade=True, connection=connection)
        assert list(result.chain_ids) == [waiting, id]
        assert len(await _there(store, id, waiting)) == 2
    assert await _there(store, id, waiting) == []
    assert await stores.user_data.keys() == {"mine"}


@case()
async def against_finish(stores: Stores) -> None:
    """A finish and a deletion at once: nothing is left, and a finish that came second is told NOT_FOUND."""
    store, other = await stores.open_many(2)
    for round in range(_ROUNDS):
        [held] = await started_and_claimed(store)
        finish = complete(held) if round % 2 else go_on(held, job("next"))
        [finished], deleted = await asyncio.gather(store.finish([finish]), other.delete_chains([held.id]))
        assert list(deleted.chain_ids) == [held.id]
        assert finished.written or finished == FinishResult(held.id, AbortReason.NOT_FOUND)
        assert list(await store.count_jobs()) == []


@case(Capability.USER_TRANSACTIONS)
async def against_a_continuation_in_a_transaction(stores: Stores) -> None:
    """A deletion that comes while the holder's transaction continues the chain takes the new job as well."""
    store, other = await stores.open_many(2)
    for _ in range(5):
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            await transaction.finish(go_on(held, job("next")))
            deleting = asyncio.create_task(other.delete_chains([held.id]))
        assert list((await deleting).chain_ids) == [held.id]
        assert list(await store.count_jobs()) == []


@case()
async def against_a_start_that_names_it(stores: Stores) -> None:
    """A deletion and a start that waits for the chain at once: one of them is refused, and no job waits for nothing."""
    store, other = await stores.open_many(2)
    for _ in range(_ROUNDS):
        [id] = await start(store, job())
        started, deleted = await asyncio.gather(
            store.start_jobs([job("waits", blockers=[id])]), other.delete_chains([id]), return_exceptions=True
        )
        if isinstance(started, BaseException):
            assert isinstance(started, ChainNotFoundError) and not isinstance(deleted, BaseException)
            assert list(await store.count_jobs()) == []
        else:
            assert isinstance(deleted, BlockerReferenceError)
            assert deleted.references == ((id, started[0].id),)
            await _delete(store, started[0].id, cascade=True)


@case()
async def against_another(stores: Stores) -> None:
    """Chains deleted by two at once, in opposite orders, are told once each, and none is left."""
    store, other = await stores.open_many(2)
    for _ in range(10):
        ids = await start(store, *(job() for _ in range(10)))
        answers = await asyncio.gather(_delete(store, *ids), _delete(other, *ids[::-1]))
        assert sorted(answers[0] + answers[1]) == sorted(ids)
        assert list(await store.count_jobs()) == []
