"""Deduplication: one chain for a key, however many start it, and attaching to an id that exists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from queuert.deduplication import Deduplicate
from queuert.errors import ChainNotFoundError, JobIdConflictError, JobTypeMismatchError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.types import NewJob, StartedJob
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
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.USER_TRANSACTIONS


class _OnPurpose(Exception):
    """Ends a transaction badly."""


def _keyed(key: str = "key", type: str = "work", *, id: str | None = None, **how: Any) -> NewJob:
    more = {name: how.pop(name) for name in ("blockers", "run_at", "attach", "input") if name in how}
    return job(type, id=id, deduplication=Deduplicate(key, **how), **more)


async def _one(store: AsyncStore, new: NewJob, **how: Any) -> StartedJob:
    [started] = await store.start_jobs([new], **how)
    return started


def _ids(started: Iterable[StartedJob]) -> set[str]:
    return {one.id for one in started}


# --- keys -------------------------------------------------------------------------------------------------------------


@case()
async def second_gets_the_first(stores: Stores) -> None:
    """A start whose key has an open chain writes nothing and returns that chain's first job; its input is dropped."""
    store = await stores.open()
    first = await _one(store, _keyed(input='"first"'))
    second = await _one(store, _keyed(input='"second"'))
    assert not first.existing and second.existing
    assert (second.id, second.type, second.created_at) == (first.id, "work", first.created_at)
    found = await read(store, first.id)
    assert (found.input, found.deduplication_key) == ("first", "key")
    assert sum(one.count for one in await store.count_jobs()) == 1


@case()
async def other_keys_and_types_do_not_match(stores: Stores) -> None:
    """A key counts together with the type of the first job; starts without a key match nothing."""
    store = await stores.open()
    starts = [_keyed(), _keyed("other"), _keyed(type="another"), job(), job()]
    for new in starts:
        assert not (await _one(store, new)).existing
    assert sum(one.count for one in await store.count_jobs()) == 5


@case()
async def any_characters(stores: Stores) -> None:
    """Keys are any text: quotes, braces, percent signs, other scripts, newlines; those that differ are different."""
    store = await stores.open()
    keys = ["a'b", 'a"b', "{a}", "%s %(a)s", "\u00e9", "e\u0301", "\n", "a\\b", "A", "a", " a", "\U0001f600"]
    first = [await _one(store, _keyed(key)) for key in keys]
    again = [await _one(store, _keyed(key)) for key in keys]
    assert len(_ids(first)) == len(keys)
    assert [one.id for one in again] == [one.id for one in first]
    assert all(one.existing for one in again)


@case()
async def open_scope_ignores_closed_chains(stores: Stores) -> None:
    """Scope open: a chain that has closed, in whichever way, is a duplicate of nothing."""
    store = await stores.open()
    for end in (complete, fail, cancel):
        started = await _one(store, _keyed())
        assert not started.existing
        await store.finish([end(await claim_one(store))])
    assert not (await _one(store, _keyed())).existing


@case()
async def open_chain_that_went_on(stores: Stores) -> None:
    """A chain is open until its last job has ended: one that was continued still stands in."""
    store = await stores.open()
    first = await _one(store, _keyed())
    await store.finish([go_on(await claim_one(store), job("next"))])
    assert (await _one(store, _keyed())).id == first.id


@case()
async def any_scope_matches_closed_chains(stores: Stores) -> None:
    """Scope any: the newest chain of the key, closed or not, stands in."""
    store = await stores.open()
    old = await _one(store, _keyed())
    await store.finish([complete(await claim_one(store))])
    new = await _one(store, _keyed())
    await store.finish([fail(await claim_one(store))])
    found = await _one(store, _keyed(scope="any"))
    assert found.chain_status is ChainStatus.FAILED
    assert (found.id, found.existing, found.status) == (new.id, True, JobStatus.FAILED)
    assert old.id != new.id


@case()
async def within_a_window(stores: Stores) -> None:
    """With a window, only chains that were started within it match; it goes with both scopes."""
    store = await stores.open()
    first = await _one(store, _keyed(window=3600))
    assert (await _one(store, _keyed(window=3600))).id == first.id
    for scope in ("open", "any"):
        later = await _one(store, _keyed(window=0.000_001, scope=scope))
        assert not later.existing
    assert (await _one(store, _keyed(window=3600, scope="any"))).existing


@case()
async def excluded_chains_do_not_match(stores: Stores) -> None:
    """A chain that is excluded is skipped, and the next newest is looked at: a chain can start its successor."""
    store = await stores.open()
    first = await _one(store, _keyed())
    second = await _one(store, _keyed(excluding=[first.id]))
    assert not second.existing
    assert (await _one(store, _keyed(excluding=[second.id]))).id == first.id
    assert (await _one(store, _keyed(excluding=["nobody", first.id]))).id == second.id
    assert not (await _one(store, _keyed(excluding=[first.id, second.id]))).existing


@case()
async def continuations_have_no_key(stores: Stores) -> None:
    """A key is the chain's: its later jobs do not match, whatever their type."""
    store = await stores.open()
    await _one(store, _keyed(type="first"))
    await store.finish([go_on(await claim_one(store, "first"), job("work"))])
    assert not (await _one(store, _keyed(type="work"))).existing


@case()
async def key_before_id(stores: Stores) -> None:
    """A key decides before a chosen id does: the id is not looked at where a chain stands in."""
    store = await stores.open()
    first = await _one(store, _keyed(id="mine"))
    assert (await _one(store, _keyed(id="mine"))).id == first.id
    assert (await _one(store, _keyed(id="other"))).id == first.id
    assert await store.get_jobs(["other"]) == [None]
    await error_of(JobIdConflictError, store.start_jobs([_keyed("new", id="mine")]))


@case()
async def batch_of_one_key(stores: Stores) -> None:
    """In a batch the first of a key decides, and the others get its result; each row is judged by its own key."""
    store = await stores.open()
    there = await _one(store, _keyed("there"))
    given = [_keyed("a"), _keyed("there"), job(), _keyed("a"), _keyed("b"), _keyed("there"), _keyed("a", "other")]
    started = await store.start_jobs(given)
    assert [one.existing for one in started] == [False, True, False, True, False, True, False]
    assert started[3].id == started[0].id == given[0].id
    assert started[1].id == started[5].id == there.id
    assert len(_ids(started)) == 5


@case()
async def blockers_of_what_is_not_written(stores: Stores) -> None:
    """A start that another is a duplicate of needs none of its blockers, not even that they exist."""
    store = await stores.open()
    first = await _one(store, _keyed())
    assert (await _one(store, _keyed(blockers=["nowhere"]))).id == first.id
    await error_of(ChainNotFoundError, store.start_jobs([_keyed("new", blockers=["nowhere"])]))
    assert not (await _one(store, _keyed("new"))).existing


@case()
async def keyed_jobs_wait_and_have_times(stores: Stores) -> None:
    """A keyed start that is written takes its schedule and its blockers like any other."""
    store = await stores.open()
    [blocker] = await start(store, job())
    [later, blocked] = await store.start_jobs(
        [_keyed("later", run_at=due_later()), _keyed("blocked", blockers=[blocker])]
    )
    assert (later.status, blocked.status) == (JobStatus.SCHEDULED, JobStatus.BLOCKED)
    assert (await _one(store, _keyed("blocked"))).status is JobStatus.BLOCKED


@case(_NEEDS)
async def rolled_back_key_is_free(stores: Stores) -> None:
    """A key whose start rolled back stands for nothing; one that commits does."""
    store = await stores.open()
    gone = StartedJob("", "", JobStatus.READY, datetime.now(UTC))
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            gone = await _one(store, _keyed(), connection=connection)
            assert (await _one(store, _keyed(), connection=connection)).id == gone.id
            raise _OnPurpose
    first = await _one(store, _keyed())
    assert not first.existing
    assert await store.get_jobs([gone.id]) == [None]
    async with stores.user_transaction() as connection:
        assert (await _one(store, _keyed(), connection=connection)).id == first.id


@case(_NEEDS)
async def loser_waits_for_the_winner(stores: Stores) -> None:
    """Who comes second waits for the first one's outcome: its chain if it commits, a new one if it rolls back."""
    for commits in (True, False):
        store, other = await stores.open_many(2)
        key = f"commits {commits}"
        winner, loser = None, None
        with suppress(_OnPurpose):
            async with stores.user_transaction() as connection:
                winner = await _one(store, _keyed(key), connection=connection)
                loser = asyncio.ensure_future(_one(other, _keyed(key)))
                # Whoever does not wait has answered long before these.
                for _ in range(20):
                    await store.count_jobs()
                assert not loser.done()
                if not commits:
                    raise _OnPurpose
        assert winner is not None and loser is not None
        got = await loser
        assert (got.id == winner.id, got.existing) == (commits, commits)


@case()
async def racers_for_one_key(stores: Stores) -> None:
    """Many who start one key at once get one chain, written once."""
    several = await stores.open_many(5)
    for round in range(5):
        key = f"race {round}"
        started = await asyncio.gather(*(_one(store, _keyed(key)) for store in several * 4))
        assert len(_ids(started)) == 1
        assert sum(not one.existing for one in started) == 1


@case()
async def batches_that_cross(stores: Stores) -> None:
    """Batches of the same keys in other orders neither double a key nor hang in each other."""
    several = await stores.open_many(4)
    keys = [str(number) for number in range(8)]
    for round in range(5):
        orders = [keys, keys[::-1], keys[4:] + keys[:4], keys[1::2] + keys[::2]]
        batches = await asyncio.gather(
            *(
                store.start_jobs([_keyed(f"{round} {key}") for key in order])
                for store, order in zip(several, orders, strict=True)
            )
        )
        assert len({one.id for batch in batches for one in batch}) == len(keys)
        assert sum(not one.existing for batch in batches for one in batch) == len(keys)


# --- ids --------------------------------------------------------------------------------------------------------------


@case()
async def attach_to_what_exists(stores: Stores) -> None:
    """With attach, a start whose id exists returns that chain as it stands, open or closed; otherwise it starts it."""
    store = await stores.open()
    first = await _one(store, job(id="order", attach=True, input='"first"'))
    again = await _one(store, job(id="order", attach=True, input='"second"'))
    assert (first.existing, again.existing, again.id) == (False, True, "order")
    assert (await read(store, "order")).input == "first"
    await store.finish([complete(await claim_one(store))])
    closed = await _one(store, job(id="order", attach=True))
    assert (closed.existing, closed.status) == (True, JobStatus.COMPLETED)


@case()
async def attach_to_another_type(stores: Stores) -> None:
    """Attaching to a chain of another type, or to a job inside a chain, is an error, and nothing is written."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next", id="inside"))])
    error = await error_of(JobTypeMismatchError, store.start_jobs([job(), job("other", id=held.id, attach=True)]))
    assert (error.chain_id, error.expected, error.actual) == (held.id, "other", "work")
    await error_of(JobIdConflictError, store.start_jobs([job(), job("next", id="inside", attach=True)]))
    assert await store.claim(ask()) == []


@case()
async def attach_beside_others(stores: Stores) -> None:
    """In a batch each start is judged by itself; a chosen id without attach still conflicts, and all is undone."""
    store = await stores.open()
    await start(store, job(id="old"))
    started = await store.start_jobs([job(id="old", attach=True), job(id="new", attach=True), job()])
    assert [one.existing for one in started] == [True, False, False]
    error = await error_of(JobIdConflictError, store.start_jobs([job(id="newer", attach=True), job(id="old")]))
    assert error.ids == ("old",)
    assert await store.get_jobs(["newer"]) == [None]


@case()
async def attach_needs_no_blockers(stores: Stores) -> None:
    """A start that attaches needs none of its blockers; one that is written needs them all."""
    store = await stores.open()
    await start(store, job(id="old"))
    assert (await _one(store, job(id="old", attach=True, blockers=["nowhere"]))).existing
    await error_of(ChainNotFoundError, store.start_jobs([job(id="new", attach=True, blockers=["nowhere"])]))
    [blocker] = await start(store, job())
    assert (await _one(store, job(id="new", attach=True, blockers=[blocker]))).status is JobStatus.BLOCKED


@case()
async def racers_for_one_id(stores: Stores) -> None:
    """Many who attach to one id at once get one chain, and one of them has written it."""
    several = await stores.open_many(5)
    for round in range(5):
        started = await asyncio.gather(*(_one(store, job(id=f"id {round}", attach=True)) for store in several * 3))
        assert sum(not one.existing for one in started) == 1


@case(_NEEDS)
async def attaching_waits_for_the_other(stores: Stores) -> None:
    """Who attaches to an id that somebody is about to write waits for the outcome, and never holds what was undone."""
    for commits in (True, False):
        store, other = await stores.open_many(2)
        id = f"commits {commits}"
        second = None
        with suppress(_OnPurpose):
            async with stores.user_transaction() as connection:
                await _one(store, job(id=id, attach=True), connection=connection)
                second = asyncio.ensure_future(_one(other, job(id=id, attach=True)))
                for _ in range(20):
                    await store.count_jobs()
                assert not second.done()
                if not commits:
                    raise _OnPurpose
        assert second is not None and (await second).existing is commits
        assert (await read(store, id)).status is JobStatus.READY
