"""Failures: the attempts of a job that failed, in its record."""

from __future__ import annotations

from datetime import UTC

from queuert.jobs import JobError, JobFailure
from queuert.state import AsyncStore
from queuert.state.paging import JobFilter, PageRequest
from queuert.state.types import ClaimedJob, Finish, FinishKind, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    LAST_ATTEMPT,
    cancel,
    claim_one,
    complete,
    fail,
    go_on,
    interrupt,
    job,
    read,
    reap,
    retry,
    run_out,
    start,
    started_and_claimed,
    stolen,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


async def _failures(store: AsyncStore, id: str) -> tuple[JobFailure, ...]:
    return (await read(store, id)).failures


def _again(claimed: ClaimedJob, message: str) -> Finish:
    return Finish(claimed, FinishKind.RETRY, error=JobError("handler", message))


@case()
async def none_without_a_failure(stores: Stores) -> None:
    """A job has no failures while it waits and runs, and when it has completed or was cancelled."""
    store = await stores.open()
    one, two = await start(store, job(), job())
    assert await _failures(store, one) == ()
    first, second = await claim_one(store), await claim_one(store)
    await store.finish([complete(first), cancel(second)])
    assert await _failures(store, one) == await _failures(store, two) == ()


@case()
async def one_for_each_failed_attempt(stores: Stores) -> None:
    """RETRY and FAIL add the attempt: its number, times, worker and error, oldest first. Others stay as they are."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([retry(first)])
    [failure] = await _failures(store, first.id)
    assert (failure.attempt, failure.worker, failure.started_at) == (1, "holder", first.started_at)
    assert failure.error == retry(first).error
    assert failure.failed_at >= first.started_at and failure.failed_at.tzinfo == UTC
    second = await claim_one(store, holder="another")
    assert await _failures(store, first.id) == (failure,)
    await store.finish([fail(second)])
    found = await read(store, first.id)
    assert found.failures[0] == failure
    assert [(one.attempt, one.worker, one.error) for one in found.failures[1:]] == [(2, "another", found.last_error)]


@case()
async def several_jobs_at_once(stores: Stores) -> None:
    """Finishes that are written together add each to its own job, whatever kinds they are."""
    store = await stores.open()
    claimed = await started_and_claimed(store, 4)
    [awaited] = await start(store, job("other"))
    await store.finish(
        [_again(claimed[0], "a"), fail(claimed[1]), complete(claimed[2]), wait(claimed[3], others=[awaited])]
    )
    found = [[one.error.message for one in await _failures(store, each.id)] for each in claimed]
    assert found == [["a"], ["gave up"], [], []]


@case()
async def of_a_later_job(stores: Stores) -> None:
    """Each job of a chain has its own."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([retry(first)])
    await store.finish([go_on(await claim_one(store), following := job())])
    await store.finish([fail(await claim_one(store))])
    assert [one.error.kind for one in await _failures(store, first.id)] == ["handler"]
    assert [one.error.kind for one in await _failures(store, following.id)] == ["fail"]


@case()
async def expired_leases(stores: Stores) -> None:
    """A lease that expired is a failure, of the worker that held it, also on the last attempt."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await run_out(store, first)
    await reap(store)
    second = await claim_one(store, holder="another")
    await run_out(store, second)
    await reap(store, LAST_ATTEMPT)
    found = await read(store, first.id)
    assert [(one.attempt, one.worker, one.started_at) for one in found.failures] == [
        (1, "holder", first.started_at), (2, "another", second.started_at)
    ]  # fmt: skip
    assert [one.error.kind for one in found.failures] == ["lease_expired"] * 2
    assert found.failures[1].error == found.last_error
    assert "holder" in found.failures[0].error.message


@case()
async def rejected_finishes_add_none(stores: Stores) -> None:
    """What does not have the lease writes no failure."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    assert not (await store.finish([retry(stolen(claimed))]))[0].written
    assert await _failures(store, claimed.id) == ()
    await store.finish([retry(claimed)])
    await store.finish([retry(claimed)])
    assert len(await _failures(store, claimed.id)) == 1


@case()
async def cancelled_and_interrupted_attempts_are_none(stores: Stores) -> None:
    """An attempt that was interrupted, and a chain that was cancelled, did not fail."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    stopped = interrupt(claimed)
    stopped.error = JobError("worker_stopping", "the worker stopped")
    await store.finish([stopped])
    await store.finish([retry(await claim_one(store))])
    await store.cancel_chains([claimed.id], reason="not wanted")
    found = await read(store, claimed.id)
    assert found.last_error is not None and found.last_error.kind == "cancel"
    assert [(one.attempt, one.error.kind) for one in found.failures] == [(2, "handler")]


@case()
async def kept_by_completion_and_retry(stores: Stores) -> None:
    """They stay when the chain is retried, and when the job completes, by its handler or without one."""
    store = await stores.open()
    one, two = await started_and_claimed(store, 2)
    await store.finish([fail(one), fail(two)])
    await store.retry_chains([one.id, two.id])
    assert [each.attempt for each in await _failures(store, one.id)] == [1]
    again = {each.id: each for each in [await claim_one(store), await claim_one(store)]}
    await store.finish([retry(again[two.id]), complete(again[one.id])])
    await store.complete_chains([WorkerlessCompletion(two.id, two.id, output="1")])
    found = [await read(store, each.id) for each in (one, two)]
    assert [each.last_error for each in found] == [None, None]
    assert [[each.attempt for each in job.failures] for job in found] == [[1], [1, 2]]


@case()
async def the_first_and_the_newest(stores: Stores) -> None:
    """Twenty are kept: the first one and the newest nineteen."""
    store = await stores.open()
    [id] = await start(store, job())
    for attempt in range(1, 23):
        await store.finish([_again(await claim_one(store), f"attempt {attempt}")])
    found = await _failures(store, id)
    assert [one.attempt for one in found] == [1, *range(4, 23)]
    assert [one.error.message for one in found] == [f"attempt {one.attempt}" for one in found]
    await run_out(store, await claim_one(store))
    await reap(store)
    assert [one.attempt for one in await _failures(store, id)] == [1, *range(5, 24)]


@case()
async def long_errors_are_cut(stores: Stores) -> None:
    """Of a long error the beginning of the message is kept, and the end of the traceback; the last error is whole."""
    store = await stores.open()
    error = JobError("handler", "begin" + "ä" * 1_990, "ValueError", "\n" * 9_990 + "the end")
    claimed = await started_and_claimed(store, 3)
    again = Finish(claimed[0], FinishKind.RETRY, error=error)
    await store.finish([again, Finish(claimed[1], FinishKind.FAIL, error=error)])
    await store.finish([Finish(claimed[2], FinishKind.FAIL, error=error, result_ttl=3600.0)])
    for one in claimed:
        found = await read(store, one.id)
        assert found.last_error == error
        [kept] = [failure.error for failure in found.failures]
        assert (kept.kind, kept.type) == ("handler", "ValueError")
        assert (len(kept.message), kept.message[:6], kept.message[-4:]) == (1_000, "beginä", " ...")
        assert kept.traceback is not None
        assert (len(kept.traceback), kept.traceback[:4], kept.traceback[-7:]) == (2_000, "... ", "the end")


@case()
async def without_an_error(stores: Stores) -> None:
    """A failure that was written without an error says so."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await store.finish([Finish(claimed, FinishKind.RETRY)])
    assert [one.error.kind for one in await _failures(store, claimed.id)] == ["unknown"]


@case()
async def shown_in_lists(stores: Stores) -> None:
    """Every list of jobs shows them."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    [awaited] = await start(store, job("other"))
    await store.finish([retry(claimed)])
    await store.finish([wait(await claim_one(store), others=[awaited])])
    failures = await _failures(store, claimed.id)
    assert len(failures) == 1
    page = PageRequest(10)
    for listed in (
        await store.list_jobs(JobFilter(types=("work",)), page),
        await store.list_chain_jobs(claimed.id, page),
        await store.list_dependents(awaited, page),
    ):
        assert [one.failures for one in listed.items] == [failures]


@case()
async def in_the_transaction_of_an_attempt(stores: Stores) -> None:
    """A failure that is written in the transaction of an attempt commits with it."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    async with store.transaction(claimed) as tx:
        await tx.finish(retry(claimed))
    assert [one.attempt for one in await _failures(store, claimed.id)] == [1]
