"""Finishing: every kind of finish, written once and by the holder only."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.run_at import after
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult
from queuert.testing.conformance.builders import (
    LAST_ATTEMPT,
    ask,
    cancel,
    check_chain_seconds,
    claim_one,
    complete,
    due_later,
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


@case()
async def complete_closes_the_chain(stores: Stores) -> None:
    """COMPLETE stores the output, ends the job and its chain, and keeps who did it."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert await store.finish([complete(claimed, '{"n": 1}')]) == [FinishResult(claimed.id)]
    found = await read(store, claimed.id)
    assert (found.status, found.output, found.attempt) == (JobStatus.COMPLETED, {"n": 1}, 1)
    assert (found.holder, found.lease_expires_at, found.last_error) == ("holder", None, None)
    assert found.finished_at is not None and found.finished_at >= claimed.started_at
    chain = await read_chain(store, claimed.id)
    assert (chain.status, chain.output, chain.error) == (ChainStatus.COMPLETED, '{"n": 1}', None)
    assert chain.closed_at is not None


@case()
async def complete_clears_the_last_error(stores: Stores) -> None:
    """The error of an earlier attempt is gone once the job is completed."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await store.finish([retry(claimed)])
    assert (await read(store, claimed.id)).last_error is not None
    await store.finish([complete(await claim_one(store))])
    assert (await read(store, claimed.id)).last_error is None


@case()
async def fail_closes_the_chain(stores: Stores) -> None:
    """FAIL keeps the error, on the job and on its chain; no output shows."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    finish = fail(claimed)
    assert (await store.finish([finish]))[0].written
    found, chain = await read(store, claimed.id), await read_chain(store, claimed.id)
    assert (found.status, found.last_error, found.output) == (JobStatus.FAILED, finish.error, None)
    assert (chain.status, chain.error, chain.output) == (ChainStatus.FAILED, finish.error, None)
    assert found.finished_at is not None and chain.closed_at is not None


@case()
async def cancel_closes_the_chain(stores: Stores) -> None:
    """CANCEL ends the job and its chain as cancelled."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert (await store.finish([cancel(claimed)]))[0].written
    assert (await read(store, claimed.id)).status is JobStatus.CANCELLED
    assert (await read_chain(store, claimed.id)).status is ChainStatus.CANCELLED


@case()
async def retry_makes_it_due_again(stores: Stores) -> None:
    """RETRY without a pause makes the job READY with its error, the chain open, and tells its type."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    finish = retry(claimed)
    assert await store.finish([finish]) == [FinishResult(claimed.id, due_types=("work",))]
    found = await read(store, claimed.id)
    assert (found.status, found.last_error, found.attempt) == (JobStatus.READY, finish.error, 1)
    assert (found.finished_at, found.lease_expires_at) == (None, None)
    assert (await read_chain(store, claimed.id)).status is ChainStatus.OPEN


@case()
async def retry_with_a_pause(stores: Stores) -> None:
    """RETRY with a pause schedules the job for so long after the finish."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await store.finish([retry(claimed, 3600.0)])
    found = await read(store, claimed.id)
    assert found.status is JobStatus.SCHEDULED
    assert found.scheduled_at - claimed.started_at >= timedelta(hours=1)
    assert await store.claim(ask()) == []


@case()
async def interrupt_does_not_count(stores: Stores) -> None:
    """INTERRUPT makes the job due at once; the attempt stays numbered and does not count."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert await store.finish([interrupt(claimed)]) == [FinishResult(claimed.id, due_types=("work",))]
    found = await read(store, claimed.id)
    assert (found.status, found.attempt, found.uncounted) == (JobStatus.READY, 1, 1)
    again = await claim_one(store)
    assert (again.attempt, again.counted_attempts) == (2, 1)


@case()
async def continue_creates_the_next(stores: Stores) -> None:
    """CONTINUE ends the job and creates the next in one step: index + 1, the chain's identity, the chain open."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    following = job("next", input="[2]", priority=7)
    assert await store.finish([go_on(first, following)]) == [FinishResult(first.id, due_types=("next",))]
    before, created = await read(store, first.id), await read(store, following.id)
    assert (before.status, before.continued_by) == (JobStatus.CONTINUED, following.id)
    assert (created.chain_id, created.chain_index, created.type) == (first.id, 1, "next")
    assert (created.status, created.input, created.priority, created.attempt) == (JobStatus.READY, [2], 7, 0)
    chain = await read_chain(store, first.id)
    assert (chain.status, chain.type, chain.tail_type) == (ChainStatus.OPEN, "work", "next")


@case()
async def closing_tells_the_age_of_the_chain(stores: Stores) -> None:
    """A finish that closes a chain of several jobs says how long the chain took, by the store's clock."""
    store = await stores.open()
    for finish in (complete, fail, cancel):
        [first] = await started_and_claimed(store)
        [continued] = await store.finish([go_on(first, job("next"))])
        assert continued.chain_seconds is None
        [closed] = await store.finish([finish(await claim_one(store, "next"))])
        await check_chain_seconds(store, first.id, closed.chain_seconds)


@case()
async def continue_for_later(stores: Stores) -> None:
    """A continuation can be scheduled."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    later, now = job("next", run_at=due_later()), job("next", run_at=after(seconds=0))
    await store.finish([go_on(first, later)])
    [second] = await started_and_claimed(store)
    await store.finish([go_on(second, now)])
    assert (await read(store, later.id)).status is JobStatus.SCHEDULED
    assert (await read(store, now.id)).status is JobStatus.READY


@case()
async def chain_of_ten(stores: Stores) -> None:
    """A chain's indexes have no gaps, each job names the next, and the last one's output is the chain's."""
    store = await stores.open()
    [current] = await started_and_claimed(store)
    ids = [current.id]
    for _ in range(9):
        following = job()
        await store.finish([go_on(current, following)])
        ids.append(following.id)
        current = await claim_one(store)
        assert (current.id, current.chain_id) == (following.id, ids[0])
    await store.finish([complete(current, "10")])
    links = [await read(store, id) for id in ids]
    assert [one.chain_index for one in links] == list(range(10))
    assert [one.continued_by for one in links] == [*ids[1:], None]
    assert [one.status for one in links] == [JobStatus.CONTINUED] * 9 + [JobStatus.COMPLETED]
    chain = await read_chain(store, ids[0])
    assert (chain.status, chain.output) == (ChainStatus.COMPLETED, "10")


@case()
async def end_of_a_later_job_closes_the_chain(stores: Stores) -> None:
    """FAIL and CANCEL of a continuation close the chain with its error; a RETRY of it does not."""
    store = await stores.open()
    for end, status in ((fail, ChainStatus.FAILED), (cancel, ChainStatus.CANCELLED)):
        [first] = await started_and_claimed(store)
        await store.finish([go_on(first, job("next"))])
        await store.finish([retry(await claim_one(store, "next"))])
        assert (await read_chain(store, first.id)).status is ChainStatus.OPEN
        finish = end(await claim_one(store, "next"))
        await store.finish([finish])
        chain = await read_chain(store, first.id)
        assert (chain.status, chain.error, chain.tail_type) == (status, finish.error, "next")
        assert (await read(store, first.id)).status is JobStatus.CONTINUED


@case()
async def all_kinds_in_one_call(stores: Stores) -> None:
    """Finishes of all kinds go in one call, and their results come in the order asked."""
    store = await stores.open()
    held = await started_and_claimed(store, 6)
    ends = [complete(held[0]), go_on(held[1], job("next")), retry(held[2]), fail(held[3]), cancel(held[4])]
    ends.append(interrupt(held[5]))
    results = await store.finish(ends[::-1])
    assert [one.job_id for one in results] == [one.id for one in held[::-1]]
    assert all(one.written for one in results)
    assert [(await read(store, one.id)).status for one in held] == [
        JobStatus.COMPLETED,
        JobStatus.CONTINUED,
        JobStatus.READY,
        JobStatus.FAILED,
        JobStatus.CANCELLED,
        JobStatus.READY,
    ]


@case()
async def one_lost_among_many(stores: Stores) -> None:
    """A lost finish in a batch of a hundred writes nothing and does not disturb the others."""
    store = await stores.open()
    held = await started_and_claimed(store, 100)
    await store.release([held[50].lease])
    results = await store.finish([complete(one) for one in held])
    assert [place for place, one in enumerate(results) if not one.written] == [50]
    assert results[50].lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert {(one.status, one.count) for one in await store.count_jobs()} == {
        (JobStatus.COMPLETED, 99),
        (JobStatus.READY, 1),
    }


@case()
async def a_lost_one_may_ask_for_the_impossible(stores: Stores) -> None:
    """A lost finish whose continuation could not be written anyway does not disturb the others either."""
    store = await stores.open()
    await start(store, job("other", id="taken"))
    good, lost, also_lost = await started_and_claimed(store, 3)
    await store.release([lost.lease, also_lost.lease])
    impossible = [go_on(lost, job(blockers=["unreal"])), go_on(also_lost, job(id="taken"))]
    results = await store.finish([complete(good), *impossible])
    assert [one.written for one in results] == [True, False, False]


@case()
async def two_leases_of_a_job_in_one_call(stores: Stores) -> None:
    """The stale finish and the live one of a job, asked for together, get each its own answer."""
    store = await stores.open()
    stale = await lost_to_reaper(store)
    live = await claim_one(store)
    results = await store.finish([complete(stale, '"stale"'), complete(live, '"live"')])
    assert [one.lost for one in results][1] is None
    assert results[0].lost is AbortReason.ALREADY_COMPLETED or results[0].lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert (await read(store, live.id)).output == "live"


@case()
async def two_continuations_of_a_job_in_one_call(stores: Stores) -> None:
    """Of the stale continuation and the live one, asked for together, only the live one is created."""
    store = await stores.open()
    stale = await lost_to_reaper(store)
    live = await claim_one(store)
    results = await store.finish([go_on(stale, job(id="stale")), go_on(live, job(id="live"))])
    assert [one.written for one in results] == [False, True]
    assert await store.get_jobs(["stale"]) == [None]
    assert (await read(store, "live")).chain_index == 1


@case()
async def requested_twice_is_written_once(stores: Stores) -> None:
    """Asking again for a finish that stands says that it is written, and changes nothing: for every kind."""
    store = await stores.open()
    held = await started_and_claimed(store, 6)
    ends = [complete(held[0]), go_on(held[1], job("next")), retry(held[2], 60.0), fail(held[3]), cancel(held[4])]
    ends.append(interrupt(held[5]))
    assert all(one.written for one in await store.finish(ends))
    before = await store.get_jobs([one.id for one in held])
    assert all(one.written for one in await store.finish(ends))
    assert await store.get_jobs([one.id for one in held]) == before
    assert [one.count for one in await store.count_jobs(["next"])] == [1]


@case()
async def another_finish_than_the_one_that_stands(stores: Stores) -> None:
    """A finish that contradicts the one which this lease has written is not said to stand."""
    store = await stores.open()
    retried, failed = await started_and_claimed(store, 2)
    await store.finish([retry(retried, 60.0), fail(failed)])
    results = await store.finish([complete(retried), complete(failed)])
    assert [one.written for one in results] == [False, False]
    assert (await read(store, retried.id)).status is JobStatus.SCHEDULED
    assert (await read(store, failed.id)).status is JobStatus.FAILED


@case()
async def wrong_token(stores: Stores) -> None:
    """A finish by a token that does not hold the job writes nothing, for every kind."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    thief = stolen(claimed)
    for end in (complete(thief), go_on(thief, job("next")), retry(thief), fail(thief), cancel(thief), interrupt(thief)):
        [result] = await store.finish([end])
        assert (result.lost, result.due_types) == (AbortReason.TAKEN_BY_ANOTHER_WORKER, ())
    found = await read(store, claimed.id)
    assert (found.status, found.attempt, found.last_error) == (JobStatus.RUNNING, 1, None)
    assert list(await store.count_jobs(["next"])) == []
    assert (await store.finish([complete(claimed)]))[0].written


@case()
async def wrong_tokens_beside_right_ones(stores: Stores) -> None:
    """In one batch of completions and failures, those by tokens that do not hold their jobs write nothing."""
    store = await stores.open()
    taken, also_taken, good, bad = await started_and_claimed(store, 4)
    ends = [complete(stolen(taken)), fail(stolen(also_taken)), complete(good), fail(bad)]
    lost = AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert [one.lost for one in await store.finish(ends)] == [lost, lost, None, None]
    statuses = [(await read(store, one.id)).status for one in (taken, also_taken, good, bad)]
    assert statuses == [JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.FAILED]


@case()
async def unknown_job(stores: Stores) -> None:
    """A finish of a job that does not exist is lost: not found."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    ghost = Finish(_renamed(claimed, "ghost"), FinishKind.COMPLETE, output="1")
    [result] = await store.finish([ghost])
    assert (result.job_id, result.lost) == ("ghost", AbortReason.NOT_FOUND)


def _renamed(claimed: ClaimedJob, id: str) -> ClaimedJob:
    return replace(claimed, id=id, chain_id=id)


@case()
async def late_after_the_reaper(stores: Stores) -> None:
    """A finish that comes after the reaper is lost, before the next claim, while it runs, and after it finished."""
    store = await stores.open()
    late = await lost_to_reaper(store)
    reasons = [(await store.finish([complete(late)]))[0].lost]
    again = await claim_one(store)
    reasons.append((await store.finish([complete(late)]))[0].lost)
    await store.finish([complete(again, '"again"')])
    reasons.append((await store.finish([complete(late)]))[0].lost)
    taken, completed = AbortReason.TAKEN_BY_ANOTHER_WORKER, AbortReason.ALREADY_COMPLETED
    assert reasons == [taken, taken, completed]
    assert (await read(store, late.id)).output == "again"


@case()
async def late_after_other_ends(stores: Stores) -> None:
    """A late finish tells whether the job was cancelled, continued, failed, or failed by the reaper meanwhile."""
    store = await stores.open()
    reasons = []
    for end in (cancel, fail, lambda one: go_on(one, job("next"))):
        late = await lost_to_reaper(store)
        await store.finish([end(await claim_one(store))])
        reasons.append((await store.finish([complete(late)]))[0].lost)
    late = await lost_to_reaper(store, LAST_ATTEMPT)
    reasons.append((await store.finish([complete(late)]))[0].lost)
    completed = AbortReason.ALREADY_COMPLETED
    assert reasons == [AbortReason.CANCELLED, completed, completed, completed]


@case()
async def expired_and_not_reaped(stores: Stores) -> None:
    """A finish after the lease's end is written as long as nobody has reaped the job."""
    store = await stores.open()
    [claimed, other] = await started_and_claimed(store, 2)
    await expire(store, claimed, other)
    assert (await store.finish([complete(claimed)]))[0].written
    assert [one.id for one in await reap(store)] == [other.id]
    assert (await read(store, claimed.id)).status is JobStatus.COMPLETED


@case()
async def nothing_requested(stores: Stores) -> None:
    """No finishes, no results."""
    assert await (await stores.open()).finish([]) == []


@case()
async def five_hundred_at_once(stores: Stores) -> None:
    """A batch of five hundred, completed and continued, is written whole."""
    store = await stores.open()
    held = await started_and_claimed(store, 500)
    ends = [complete(one) if place % 2 else go_on(one, job("next")) for place, one in enumerate(held)]
    assert all(one.written for one in await store.finish(ends))
    counts = {(one.type, one.status): one.count for one in await store.count_jobs()}
    assert counts == {
        ("work", JobStatus.COMPLETED): 250,
        ("work", JobStatus.CONTINUED): 250,
        ("next", JobStatus.READY): 250,
    }
