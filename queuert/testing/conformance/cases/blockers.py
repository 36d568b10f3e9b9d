"""Blockers: a job waits until the chains it was given have closed, and is released exactly once."""

from __future__ import annotations

from collections.abc import Callable

from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.run_at import after
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, Finish
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    interrupt,
    job,
    read,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_WAITS = "waits"


async def _waiting_for(store: AsyncStore, *chains: str) -> str:
    [id] = await start(store, job(_WAITS, blockers=chains))
    return id


@case()
async def open_blocker_blocks(stores: Stores) -> None:
    """A job with an open blocker is BLOCKED, counts its open ones, and is not claimed."""
    store = await stores.open()
    chains = await start(store, job(), job())
    [started] = await store.start_jobs([job(_WAITS, blockers=chains)])
    assert started.status is JobStatus.BLOCKED
    found = await read(store, started.id)
    assert (found.status, found.open_blockers, found.attempt) == (JobStatus.BLOCKED, 2, 0)
    assert await store.claim(ask(_WAITS)) == []
    assert await store.next_due([_WAITS]) is None


@case()
async def closed_blockers_do_not(stores: Stores) -> None:
    """Blockers that have closed, in whichever way, block nothing; the claim still counts them."""
    store = await stores.open()
    held = await started_and_claimed(store, 3)
    await store.finish([complete(held[0]), fail(held[1]), cancel(held[2])])
    [started] = await store.start_jobs([job(_WAITS, blockers=[one.id for one in held])])
    assert started.status is JobStatus.READY
    claimed = await claim_one(store, _WAITS)
    assert (claimed.id, claimed.blocker_count) == (started.id, 3)


@case()
async def some_open_some_closed(stores: Stores) -> None:
    """In one batch, each job is judged by its own blockers; only the open ones are waited for."""
    store = await stores.open()
    [done, held] = await started_and_claimed(store, 2)
    await store.finish([complete(done)])
    blockers: tuple[list[str], ...] = ([done.id], [done.id, held.id], [], [held.id])
    started = await store.start_jobs([job(_WAITS, blockers=some) for some in blockers])
    ready, blocked = JobStatus.READY, JobStatus.BLOCKED
    assert [one.status for one in started] == [ready, blocked, ready, blocked]
    assert [(await read(store, one.id)).open_blockers for one in started] == [0, 1, 0, 1]
    await store.finish([complete(held)])
    assert [(await read(store, one.id)).status for one in started] == [ready] * 4


@case()
async def released_by_the_last(stores: Stores) -> None:
    """Each blocker that closes counts down; the last one makes the job due, and its result says so."""
    store = await stores.open()
    held = await started_and_claimed(store, 3)
    waiting = await _waiting_for(store, *(one.id for one in held))
    for left, one in zip((2, 1), held, strict=False):
        [result] = await store.finish([complete(one)])
        assert result.due_types == ()
        assert (await read(store, waiting)).open_blockers == left
    [result] = await store.finish([complete(held[2])])
    assert (result.written, result.due_types) == (True, (_WAITS,))
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.READY, 0)
    assert (await claim_one(store, _WAITS)).id == waiting


@case()
async def any_close_releases(stores: Stores) -> None:
    """COMPLETE, FAIL and CANCEL of a blocker all release: it is for the job to look how they ended."""
    store = await stores.open()
    for end in (complete, fail, cancel):
        [held] = await started_and_claimed(store)
        waiting = await _waiting_for(store, held.id)
        assert _WAITS in (await store.finish([end(held)]))[0].due_types
        assert (await claim_one(store, _WAITS)).id == waiting


@case()
async def nothing_else_releases(stores: Stores) -> None:
    """RETRY, INTERRUPT, CONTINUE and a release leave the chain open, and what waits for it waiting."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    waiting = await _waiting_for(store, held.id)
    ends: tuple[Callable[[ClaimedJob], Finish], ...] = (retry, interrupt, lambda one: go_on(one, job()))
    for end in ends:
        [result] = await store.finish([end(held)])
        assert _WAITS not in result.due_types
        held = await claim_one(store)
    await store.release([held.lease])
    found = await read(store, waiting)
    assert (found.status, found.open_blockers) == (JobStatus.BLOCKED, 1)


@case()
async def released_at_the_end_of_a_long_chain(stores: Stores) -> None:
    """A blocker closes with its last job, however long it has become; that one's type and output are its result."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    waiting = await _waiting_for(store, held.id)
    await store.finish([go_on(held, job("next"))])
    assert [one.tail_type for one in await store.get_blockers(waiting)] == ["next"]
    [result] = await store.finish([complete(await claim_one(store, "next"), "42")])
    assert result.due_types == (_WAITS,)
    [blocker] = await store.get_blockers(waiting)
    assert (blocker.chain_id, blocker.status) == (held.chain_id, ChainStatus.COMPLETED)
    assert (blocker.tail_type, blocker.output, blocker.error) == ("next", "42", None)


@case()
async def one_blocks_many(stores: Stores) -> None:
    """A chain releases all jobs that wait for it, of all types."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    ids = await start(store, *(job(f"{_WAITS}{number % 3}", blockers=[held.id]) for number in range(60)))
    [result] = await store.finish([complete(held)])
    assert set(result.due_types) == {"waits0", "waits1", "waits2"}
    claimed = await store.claim(ask("waits0", "waits1", "waits2"))
    assert sorted(one.id for one in claimed) == sorted(ids)


@case()
async def many_close_in_one_call(stores: Stores) -> None:
    """Blockers that close in one call release each job once, the call's results naming its type."""
    store = await stores.open()
    held = await started_and_claimed(store, 20)
    both = await _waiting_for(store, *(one.id for one in held))
    half = await _waiting_for(store, *(one.id for one in held[:10]))
    results = await store.finish([complete(one) for one in held[:15]])
    assert [type for one in results for type in one.due_types] == [_WAITS]
    assert (await read(store, both)).open_blockers == 5
    assert (await claim_one(store, _WAITS)).id == half
    results = await store.finish([complete(one) for one in held[15:]])
    assert [type for one in results for type in one.due_types] == [_WAITS]
    assert (await claim_one(store, _WAITS)).id == both


@case()
async def does_not_jump_the_queue(stores: Stores) -> None:
    """A released job is due from its release on: those that were due before it go first."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    waiting = await _waiting_for(store, held.id)
    [before] = await start(store, job(_WAITS))
    await store.finish([complete(held)])
    assert [one.id for one in await store.claim(ask(_WAITS))] == [before, waiting]


@case()
async def keeps_its_schedule(stores: Stores) -> None:
    """A job that is blocked and scheduled waits for both: once released it is SCHEDULED for its time."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    [started] = await store.start_jobs([job(_WAITS, blockers=[held.id], run_at=due_later())])
    assert started.status is JobStatus.BLOCKED
    before = await read(store, started.id)
    await store.finish([complete(held)])
    found = await read(store, started.id)
    assert (found.status, found.scheduled_at) == (JobStatus.SCHEDULED, before.scheduled_at)
    [late] = await store.start_jobs([job(_WAITS, blockers=[held.id], run_at=after(hours=1))])
    assert late.status is JobStatus.SCHEDULED


@case()
async def known_to_the_claimer_or_not(stores: Stores) -> None:
    """A chain's first dependent counts whether it came before the claim (which says so) or after it."""
    store = await stores.open()
    [early, late] = await start(store, job("early"), job("late"))
    await _waiting_for(store, early)
    first, second = await claim_one(store, "early"), await claim_one(store, "late")
    assert (first.has_dependents, second.has_dependents) == (True, False)
    await _waiting_for(store, late)
    for held in (second, first):
        assert (await store.finish([complete(held)]))[0].due_types == (_WAITS,)
    assert len(await store.claim(ask(_WAITS))) == 2


@case()
async def dependents_that_came_after_a_link(stores: Stores) -> None:
    """A dependent that came while a later job of the chain was running is released as well."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("next"))])
    tail = await claim_one(store, "next")
    waiting = await _waiting_for(store, held.chain_id)
    assert (await store.finish([complete(tail)]))[0].due_types == (_WAITS,)
    assert (await claim_one(store, _WAITS)).id == waiting


@case()
async def continuation_with_blockers(stores: Stores) -> None:
    """A continuation can wait as well: for open chains BLOCKED, released with the last, for closed ones due."""
    store = await stores.open()
    first, open_one, closed_one = await started_and_claimed(store, 3)
    await store.finish([complete(closed_one)])
    following = job(_WAITS, blockers=[open_one.id, closed_one.id])
    [result] = await store.finish([go_on(first, following)])
    assert result.written
    found = await read(store, following.id)
    assert (found.status, found.open_blockers, found.chain_id) == (JobStatus.BLOCKED, 1, first.chain_id)
    assert (await store.finish([complete(open_one)]))[0].due_types == (_WAITS,)
    claimed = await claim_one(store, _WAITS)
    assert (claimed.id, claimed.blocker_count) == (following.id, 2)
    last = job("last", blockers=[closed_one.id])
    assert (await store.finish([go_on(claimed, last)]))[0].due_types == ("last",)
    assert (await read(store, last.id)).status is JobStatus.READY


@case()
async def blocked_continuation_is_not_reported_as_due(stores: Stores) -> None:
    """``due_types`` names types of jobs that became due: a continuation that is blocked did not."""
    store = await stores.open()
    first, held = await started_and_claimed(store, 2)
    [result] = await store.finish([go_on(first, job(_WAITS, blockers=[held.id]))])
    assert result.due_types == ()


@case()
async def in_the_order_given(stores: Stores) -> None:
    """Blockers are read in the order in which they were given, each as it stands, with its result."""
    store = await stores.open()
    held = await started_and_claimed(store, 4)
    order = [held[2], held[0], held[3], held[1]]
    waiting = await _waiting_for(store, *(one.id for one in order))
    finish = fail(held[0])
    await store.finish([complete(held[2], '"two"'), finish, cancel(held[3])])
    found = await store.get_blockers(waiting)
    assert [one.chain_id for one in found] == [one.id for one in order]
    assert [(one.status, one.output) for one in found] == [
        (ChainStatus.COMPLETED, '"two"'),
        (ChainStatus.FAILED, None),
        (ChainStatus.CANCELLED, None),
        (ChainStatus.OPEN, None),
    ]
    assert found[1].error == finish.error
    assert await store.get_blockers(held[0].id) == []
    assert await store.get_blockers("unknown") == []


@case()
async def diamond(stores: Stores) -> None:
    """One chain, two that wait for it, and one that waits for both: released in turn."""
    store = await stores.open()
    [top] = await started_and_claimed(store)
    sides = await start(store, job("side", blockers=[top.id]), job("side", blockers=[top.id]))
    bottom = await _waiting_for(store, *sides)
    await store.finish([complete(top)])
    left, right = await store.claim(ask("side"))
    assert (await store.finish([complete(left)]))[0].due_types == ()
    assert (await store.finish([complete(right)]))[0].due_types == (_WAITS,)
    assert (await claim_one(store, _WAITS)).id == bottom


@case()
async def lost_finishes_release_nothing(stores: Stores) -> None:
    """A finish that is lost leaves the chain open and its dependents blocked."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    waiting = await _waiting_for(store, held.id)
    await store.release([held.lease])
    [result] = await store.finish([complete(held)])
    assert (result.lost, result.due_types) == (AbortReason.TAKEN_BY_ANOTHER_WORKER, ())
    assert (await read(store, waiting)).open_blockers == 1


@case()
async def refused_continuations_write_nothing(stores: Stores) -> None:
    """A continuation that waits for an unknown chain, or takes an id that exists, is a typed error.

    Its job is not finished and its lease holds: another finish, and those of the same batch, can be asked for again.
    """
    store = await stores.open()
    await start(store, job("other", id="taken"))
    first, second = await started_and_claimed(store, 2)
    unknown = store.finish([complete(second), go_on(first, job(blockers=["unreal"]))])
    assert (await error_of(ChainNotFoundError, unknown)).id == "unreal"
    conflict = store.finish([complete(second), go_on(first, job(id="taken"))])
    assert (await error_of(JobIdConflictError, conflict)).ids == ("taken",)
    assert (await read(store, first.id)).status is JobStatus.RUNNING
    assert (await store.finish([complete(second)]))[0].written
    assert (await store.finish([fail(first)]))[0].written
