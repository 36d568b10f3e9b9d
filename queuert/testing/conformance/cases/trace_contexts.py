"""The trace contexts of jobs and of their newest attempts: kept as they are, by every finish, for the next attempt."""

from __future__ import annotations

from collections.abc import Callable

from queuert.schedules import MissedRuns
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob, Finish, ScheduleRecord, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    fail,
    go_on,
    interrupt,
    job,
    reap,
    retry,
    run_out,
    start,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_FIRST = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","baggage":"a=\\"b\\\\c\\""}'
_SECOND = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}'


def _traced(claimed: ClaimedJob, context: str = _FIRST) -> ClaimedJob:
    claimed.attempt_trace_context = context
    return claimed


async def _of_blocker(store: AsyncStore, *chains: str) -> list[str | None]:
    [waiting] = await start(store, job("waits", blockers=chains))
    return [one.attempt_trace_context for one in await store.get_blockers(waiting)]


@case()
async def of_an_attempt_is_kept_for_the_next(stores: Stores) -> None:
    """The next attempt gets that of the one before, retried, released or waiting; the job keeps its own."""
    store = await stores.open()
    await start(store, job(trace_context=_SECOND))
    first = await claim_one(store)
    assert (first.trace_context, first.attempt_trace_context) == (_SECOND, None)
    await store.finish([retry(_traced(first))])
    second = await claim_one(store)
    assert (second.trace_context, second.attempt_trace_context) == (_SECOND, _FIRST)
    await store.finish([interrupt(_traced(second, _SECOND))])
    third = await claim_one(store)
    assert third.attempt_trace_context == _SECOND
    await store.finish([wait(_traced(third), job("child", id="child"))])
    await store.finish([complete(await claim_one(store, "child"))])
    assert (await claim_one(store)).attempt_trace_context == _FIRST


@case()
async def of_an_attempt_that_nobody_traced(stores: Stores) -> None:
    """A finish writes what its job has: that of the attempt before stays, unless it is taken away."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([retry(_traced(first))])
    await store.finish([retry(await claim_one(store))])
    third = await claim_one(store)
    assert third.attempt_trace_context == _FIRST
    third.attempt_trace_context = None
    await store.finish([retry(third)])
    assert (await claim_one(store)).attempt_trace_context is None


@case()
async def of_a_reaped_attempt(stores: Stores) -> None:
    """An attempt whose lease expired has written nothing: that of the one before is still there."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([retry(_traced(first))])
    await run_out(store, _traced(await claim_one(store), _SECOND))
    await reap(store)
    assert (await claim_one(store)).attempt_trace_context == _FIRST


@case()
async def of_a_managed_chain(stores: Stores) -> None:
    """A management operation returns that of the last job's newest attempt; without one, that of the job."""
    store = await stores.open()
    traced, fresh, untraced = await start(store, job(), job("other", trace_context=_SECOND), job("other"))
    await store.finish([fail(_traced(await claim_one(store)))])
    [retried] = await store.retry_chains([traced])
    cancelled = await store.cancel_chains([fresh, untraced], reason="a test")
    [completed] = await store.complete_chains([WorkerlessCompletion(traced, traced, output="1")])
    assert [one.trace_context for one in (retried, *cancelled, completed)] == [_FIRST, _SECOND, None, _FIRST]


@case()
async def of_blockers(stores: Stores) -> None:
    """Whoever waited for a chain reads that of its last job's newest attempt, however it ended."""
    store = await stores.open()
    kinds: list[Callable[[ClaimedJob], Finish]] = [complete, fail, cancel]
    held = await started_and_claimed(store, 3)
    for kind, one in zip(kinds, held, strict=True):
        await store.finish([kind(_traced(one, f'{{"traceparent":"{kind.__name__}"}}'))])
    found = await _of_blocker(store, *(one.id for one in held))
    assert found == [f'{{"traceparent":"{kind.__name__}"}}' for kind in kinds]


@case()
async def of_blockers_that_continued(stores: Stores) -> None:
    """Of a chain of several jobs it is the last one's; an open chain that was never traced has none."""
    store = await stores.open()
    [first, untraced] = await started_and_claimed(store, 2)
    await store.finish([go_on(_traced(first), job("next", trace_context=_FIRST))])
    assert await _of_blocker(store, first.id, untraced.id) == [None, None]
    following = await claim_one(store, "next")
    assert (following.trace_context, following.attempt_trace_context) == (_FIRST, None)
    await store.finish([complete(_traced(following, _SECOND))])
    assert await _of_blocker(store, first.id) == [_SECOND]


@case()
async def written_together(stores: Stores) -> None:
    """Of many finishes in one call each job gets its own, or none."""
    store = await stores.open()
    held = await started_and_claimed(store, 3)
    traced = [_traced(held[0]), held[1], _traced(held[2], _SECOND)]
    await store.finish([complete(one) for one in traced])
    assert await _of_blocker(store, *(one.id for one in held)) == [_FIRST, None, _SECOND]


@case()
async def written_in_a_transaction(stores: Stores) -> None:
    """A finish inside a transaction that holds the job writes it too, and a rollback takes it away."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    async with store.transaction(claimed) as transaction:
        await transaction.finish(complete(_traced(claimed)), last=True)
    assert await _of_blocker(store, claimed.id) == [_FIRST]


@case()
async def of_the_chain_of_a_tick(stores: Stores) -> None:
    """The chain of a schedule keeps the trace context with which it was started."""
    store = await stores.open()
    await store.put_schedules([ScheduleRecord("s", "work", "1", None, 3600.0, "UTC", MissedRuns.ONCE)])
    [schedule] = await store.list_schedules()
    assert schedule.next_at is not None
    await store.fire_schedule("s", schedule.next_at, None, [job(id="s@2030-01-31T03:00:00Z", trace_context=_FIRST)])
    assert (await claim_one(store)).trace_context == _FIRST
