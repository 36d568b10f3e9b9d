"""Calls for many jobs: a store may write them in several parts, and nobody sees that."""

from __future__ import annotations

from collections import Counter

from queuert.errors import (
    BlockerReferenceError,
    ChainNotFoundError,
    ChainNotRetriableError,
    JobIdConflictError,
    JobNotTriggerableError,
)
from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore
from queuert.state.types import WorkerlessCompletion
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    start,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_MANY = 130


async def _statuses(store: AsyncStore, ids: list[str]) -> Counter[str]:
    return Counter("none" if one is None else one.status.value for one in await store.get_chains(ids))


async def _pairs(store: AsyncStore) -> tuple[list[str], list[str]]:
    """Start chains, and for each of them one that waits for it."""
    blockers = await start(store, *(job("blocker") for _ in range(_MANY)))
    return blockers, await start(store, *(job(blockers=[id]) for id in blockers))


@case()
async def reads_in_the_order_requested(stores: Stores) -> None:
    """Each id has its answer at its place, also one that does not exist, and one that is there twice."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    requested = [*reversed(ids), "nowhere", ids[3]]
    expected = [*reversed(ids), None, ids[3]]
    assert [one and one.id for one in await store.get_jobs(requested)] == expected
    assert [one and one.id for one in await store.get_chains(requested)] == expected
    assert [one and one.id for one in await store.get_chain_states(requested)] == expected


@case()
async def dependents_of_many(stores: Stores) -> None:
    """All that wait, in order, and of each no more than the limit."""
    store = await stores.open()
    blockers = await start(store, *(job("blocker") for _ in range(_MANY)))
    waiting = sorted(await start(store, *(job(blockers=blockers) for _ in range(_MANY))))
    blocked = (JobStatus.BLOCKED,)
    links = await store.get_dependent_links(blockers, statuses=blocked, limit=_MANY + 1)
    assert [(one.blocker_id, one.job_id) for one in links] == [(id, one) for id in blockers for one in waiting]
    links = await store.get_dependent_links(blockers, statuses=blocked, limit=2, excluding=waiting[:-1])
    assert [(one.blocker_id, one.job_id) for one in links] == [(id, waiting[-1]) for id in blockers]
    links = await store.get_dependent_links(blockers, statuses=blocked, limit=110)
    assert [(one.blocker_id, one.job_id) for one in links] == [(id, one) for id in blockers for one in waiting[:110]]


@case()
async def closed_chains_within_a_portion(stores: Stores) -> None:
    """Of the portion all parts take, and what does not fit is known by its status."""
    store = await stores.open()
    held = await started_and_claimed(store, _MANY)
    text = '"' + "x" * 998 + '"'
    await store.finish([complete(one, text) for one in held])
    found = await store.closed_chains([one.id for one in held], portion=110_000)
    read = [one for one in found if one is not None and not isinstance(one, ChainStatus)]
    assert 105 <= len(read) <= 111
    assert found.count(ChainStatus.COMPLETED) == _MANY - len(read)


@case()
async def claimed_in_turn(stores: Stores) -> None:
    """Of many types each has its turn, in a claim of many jobs as in one of few."""
    store = await stores.open()
    types = [f"type-{number}" for number in range(40)]
    await start(store, *(job(type) for type in types for _ in range(5)))
    claimed = await store.claim(ask(*types, limit=_MANY))
    assert Counter(Counter(one.type for one in claimed).values()) == {3: 30, 4: 10}
    assert len(await store.claim(ask(*types, limit=_MANY))) == 200 - _MANY


@case()
async def released_to_the_front(stores: Stores) -> None:
    """In the order in which they were claimed."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY + 1)))
    held = await store.claim(ask(limit=_MANY))
    assert await store.release([one.lease for one in held]) == _MANY
    assert [one.id for one in await store.claim(ask(limit=_MANY + 1))] == ids


@case()
async def finished_all_or_none(stores: Stores) -> None:
    """One that creates a job whose id is taken keeps the others from being written."""
    store = await stores.open()
    held = await started_and_claimed(store, _MANY)
    [taken] = await start(store, job("other"))
    finishes = [go_on(one, job("next")) for one in held[:-1]]
    await error_of(JobIdConflictError, store.finish([*finishes, go_on(held[-1], job("next", id=taken))]))
    assert await store.claim(ask("next")) == []
    results = await store.finish([*finishes, complete(held[-1])])
    assert [one.job_id for one in results] == [one.id for one in held]
    assert all(one.written for one in results)
    assert len(await store.claim(ask("next", limit=_MANY))) == _MANY - 1


@case()
async def refusals_name_all(stores: Stores) -> None:
    """An error names all chains that are refused for its cause, of few chains and of many."""
    store = await stores.open()
    failed = [one.id for one in await started_and_claimed(store, 2)]
    await store.cancel_chains(failed, reason="no")
    for number in (3, _MANY):
        open_chains = await start(store, *(job() for _ in range(number)))
        missing = [f"nowhere-{index}" for index in range(number)]
        chains = [failed[0], *open_chains, failed[1]]
        refused = await error_of(ChainNotRetriableError, store.retry_chains(chains))
        assert (refused.chain_id, refused.chain_ids, refused.status) == (open_chains[0], tuple(open_chains), "open")
        for call in (
            store.cancel_chains([*chains, *missing], reason="no"),
            store.retry_chains([*failed, *missing]),
            store.change_waiting_jobs([*chains, *missing], priority=1),
        ):
            absent = await error_of(ChainNotFoundError, call)
            assert (absent.id, absent.ids) == (missing[0], tuple(missing))
        await start(store, *(job(blockers=[id]) for id in open_chains))
        await start(store, *(job(blockers=[open_chains[0]]) for _ in range(_MANY)))
        kept = await error_of(BlockerReferenceError, store.delete_chains(chains))
        assert sorted(kept.chain_ids) == sorted(open_chains)
        assert len(kept.references) == 100


@case()
async def cancelled_all_or_none(stores: Stores) -> None:
    """One that does not exist keeps the others from being cancelled; one that is closed does not."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    await error_of(ChainNotFoundError, store.cancel_chains([*ids, "nowhere"], reason="no"))
    assert await _statuses(store, ids) == {"open": _MANY}
    await store.cancel_chains([ids[-1]], reason="no")
    results = await store.cancel_chains([*ids, ids[0]], reason="no")
    assert [one.chain_id for one in results] == [*ids, ids[0]]
    assert Counter(one.written for one in results) == {True: _MANY, False: 1}
    assert await _statuses(store, ids) == {"cancelled": _MANY}


@case()
async def retried_all_or_none(stores: Stores) -> None:
    """One that is open keeps the others from being retried."""
    store = await stores.open()
    held = await started_and_claimed(store, _MANY)
    await store.finish([fail(one) for one in held])
    ids = [one.id for one in held]
    [other] = await start(store, job("other"))
    await error_of(ChainNotRetriableError, store.retry_chains([*ids, other]))
    assert await _statuses(store, ids) == {"failed": _MANY}
    assert [one.chain_id for one in await store.retry_chains(ids)] == ids
    assert await _statuses(store, ids) == {"open": _MANY}


@case()
async def completed_all_or_none(stores: Stores) -> None:
    """One that is closed keeps the others from being completed."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    await store.cancel_chains([ids[-1]], reason="no")
    completions = [WorkerlessCompletion(id, id, output="1") for id in ids]
    results = await store.complete_chains(completions)
    assert [(one.chain_id, one.written) for one in results] == [(id, False) for id in ids]
    assert await _statuses(store, ids) == {"open": _MANY - 1, "cancelled": 1}
    assert all(one.written for one in await store.complete_chains(completions[:-1]))
    assert await _statuses(store, ids) == {"completed": _MANY - 1, "cancelled": 1}


@case()
async def completed_with_many_that_are_cancelled(stores: Stores) -> None:
    """All or none, however many there are of both."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(2 * _MANY)))
    completions = [WorkerlessCompletion(id, id, output="1") for id in ids[:_MANY]]
    others = ids[_MANY:]
    await error_of(ChainNotFoundError, store.complete_chains(completions, cancel=[*others, "nowhere"], reason="no"))
    assert await _statuses(store, ids) == {"open": 2 * _MANY}
    stale = WorkerlessCompletion(ids[0], "another", output="1")
    results = await store.complete_chains([stale, *completions[1:]], cancel=others, reason="no")
    assert [one.written for one in results] == [False] * _MANY
    assert await _statuses(store, ids) == {"open": 2 * _MANY}
    results = await store.complete_chains(completions, cancel=others, reason="no")
    assert [(one.chain_id, one.written) for one in results] == [(id, True) for id in ids]
    assert await _statuses(store, ids) == {"completed": _MANY, "cancelled": _MANY}


@case()
async def continuations_with_one_id(stores: Stores) -> None:
    """Two continuations of a call cannot have one id, wherever they are in it."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    following = [job("next", id="twice" if id in (ids[0], ids[-1]) else None) for id in ids]
    completions = [WorkerlessCompletion(id, id, continuation=new) for id, new in zip(ids, following, strict=True)]
    await error_of(JobIdConflictError, store.complete_chains(completions))
    assert await store.claim(ask("next")) == []
    assert len(await store.claim(ask(limit=_MANY))) == _MANY


@case()
async def changed_and_triggered_all_or_none(stores: Stores) -> None:
    """One that does not exist, or is not scheduled, keeps the others as they are."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    await error_of(ChainNotFoundError, store.change_waiting_jobs([*ids, "nowhere"], run_at=due_later()))
    assert [one.id for one in await store.claim(ask(limit=1))] == ids[:1]
    results = await store.change_waiting_jobs(ids[1:], run_at=due_later())
    assert [(one.chain_id, one.written) for one in results] == [(id, True) for id in ids[1:]]
    await error_of(JobNotTriggerableError, store.trigger_jobs([*ids[1:], ids[0]]))
    assert await store.claim(ask()) == []
    assert [one.id for one in await store.trigger_jobs(ids[1:])] == ids[1:]
    assert len(await store.claim(ask(limit=_MANY))) == _MANY - 1


@case()
async def deleted_all_or_none(stores: Stores) -> None:
    """One that another chain waits for keeps the others from being deleted."""
    store = await stores.open()
    ids = await start(store, *(job() for _ in range(_MANY)))
    [waiting] = await start(store, job("other", blockers=[ids[-1]]))
    error = await error_of(BlockerReferenceError, store.delete_chains(ids))
    assert error.references == ((ids[-1], waiting),)
    assert await _statuses(store, ids) == {"open": _MANY}
    deleted = await store.delete_chains([*ids, "nowhere", waiting, ids[0]])
    assert list(deleted.chain_ids) == [*ids, waiting]
    assert await _statuses(store, [*ids, waiting]) == {"none": _MANY + 1}


@case()
async def deleted_with_what_they_wait_for(stores: Stores) -> None:
    """First the requested chains, in their order, then the others, by id; and the jobs that were running."""
    store = await stores.open()
    blockers, waiting = await _pairs(store)
    running = await claim_one(store, "blocker")
    deleted = await store.delete_chains(waiting, cascade=True)
    assert list(deleted.chain_ids) == [*waiting, *sorted(blockers)]
    assert list(deleted.running_job_ids) == [running.id]
    assert await store.claim(ask("work", "blocker")) == []


@case()
async def deleted_in_a_circle(stores: Stores) -> None:
    """Chains that wait for each other are deleted as others are, in one call."""
    store = await stores.open()
    [one] = await started_and_claimed(store)
    await store.finish([wait(one, job("other", id="other", blockers=[one.id]))])
    ids = await start(store, *(job(blockers=[one.id]) for _ in range(_MANY)))
    deleted = await store.delete_chains([one.id, "other", *ids])
    assert list(deleted.chain_ids) == [one.id, "other", *ids]
    assert await _statuses(store, [one.id, "other", *ids]) == {"none": _MANY + 2}


@case()
async def cancelled_with_what_they_wait_for(stores: Stores) -> None:
    """In any order: all are cancelled."""
    store = await stores.open()
    blockers, waiting = await _pairs(store)
    results = await store.cancel_chains([*blockers, *waiting], reason="no")
    assert [one.chain_id for one in results] == [*blockers, *waiting]
    assert all(one.written for one in results)
    assert await store.claim(ask("work", "blocker")) == []


@case()
async def retried_with_what_they_wait_for(stores: Stores) -> None:
    """In any order: a chain waits again for those that are retried with it."""
    store = await stores.open()
    blockers, waiting = await _pairs(store)
    await store.cancel_chains([*waiting, *blockers], reason="no")
    results = await store.retry_chains([*waiting, *blockers])
    assert [one.chain_id for one in results] == [*waiting, *blockers]
    held = await store.claim(ask("work", "blocker", limit=2 * _MANY))
    assert {one.id for one in held} == set(blockers)
    assert {one.status for one in await store.get_jobs(waiting) if one is not None} == {JobStatus.BLOCKED}
    await store.finish([complete(one) for one in held])
    assert {one.id for one in await store.claim(ask(limit=2 * _MANY))} == set(waiting)
