"""The attempts that the start of a job allows, instead of the retry policy."""

from __future__ import annotations

from queuert.deduplication import Deduplicate
from queuert.jobs import JobStatus
from queuert.policies import RetryPolicy
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
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
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def claims_and_reads_have_it(stores: Stores) -> None:
    """Each claim of the job has the number of its start, and so has what is read of it; None if it has none."""
    store = await stores.open()
    several, plain = await start(store, job(max_attempts=7), job())
    assert ((await read(store, several)).max_attempts, (await read(store, plain)).max_attempts) == (7, None)
    claimed = await claim_one(store)
    assert (claimed.id, claimed.max_attempts) == (several, 7)
    await store.finish([retry(claimed)])
    found = {one.id: one.max_attempts for one in [await claim_one(store), await claim_one(store)]}
    assert found == {several: 7, plain: None}


@case()
async def many_at_once(stores: Stores) -> None:
    """In one call each job has its own number."""
    store = await stores.open()
    numbers = [None, 1, 2, None, 1_000_000]
    ids = await start(store, *(job(max_attempts=number) for number in numbers))
    assert [(await read(store, id)).max_attempts for id in ids] == numbers


@case()
async def reaper_counts_by_it(stores: Stores) -> None:
    """An expired lease fails the job at the number of its start, whether the policy allows more or fewer attempts."""
    store = await stores.open()
    [once] = await start(store, job(max_attempts=1))
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, AT_ONCE)
    assert (reaped.id, reaped.status) == (once, JobStatus.FAILED)
    [twice] = await start(store, job(max_attempts=2))
    statuses = []
    for _ in range(2):
        await run_out(store, await claim_one(store))
        [reaped] = await reap(store, RetryPolicy(max_attempts=1, initial_delay=0.0))
        statuses.append(reaped.status)
    assert (reaped.id, statuses) == (twice, [JobStatus.READY, JobStatus.FAILED])


@case()
async def crashes_and_uncounted_attempts(stores: Stores) -> None:
    """The policy still bounds crashes, and an interrupted attempt does not count."""
    store = await stores.open()
    [id] = await start(store, job(max_attempts=2))
    await store.finish([interrupt(await claim_one(store))])
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, RetryPolicy(initial_delay=0.0, max_crashes=5))
    assert (reaped.id, reaped.status) == (id, JobStatus.READY)
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, RetryPolicy(initial_delay=0.0, max_crashes=5))
    assert (reaped.id, reaped.status) == (id, JobStatus.FAILED)
    await start(store, job(max_attempts=10))
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, RetryPolicy(max_crashes=1))
    assert reaped.status is JobStatus.FAILED


@case()
async def is_not_inherited(stores: Stores) -> None:
    """A continuation has none, and an existing chain keeps its own; a child has that of its own start."""
    store = await stores.open()
    [id] = await start(store, job(max_attempts=3, deduplication=Deduplicate("key")))
    [again] = await start(store, job(max_attempts=5, deduplication=Deduplicate("key")))
    assert (again, (await read(store, id)).max_attempts) == (id, 3)
    await store.finish([go_on(await claim_one(store), job("next"))])
    claimed = await claim_one(store, "next")
    assert claimed.max_attempts is None
    children = [job("child", max_attempts=2), job("child")]
    await store.finish([wait(claimed, *children)])
    assert [(await read(store, child.id)).max_attempts for child in children] == [2, None]
    await store.finish([complete(await claim_one(store, "child")) for _ in children])
    assert (await claim_one(store, "next")).max_attempts is None


@case()
async def retried_chain_has_all_attempts_again(stores: Stores) -> None:
    """A chain that is retried has as many attempts as its start allows, again."""
    store = await stores.open()
    [id] = await start(store, job(max_attempts=1))
    await store.finish([fail(await claim_one(store))])
    await store.retry_chains([id])
    claimed = await claim_one(store)
    assert (claimed.counted_attempts, claimed.max_attempts) == (1, 1)
    await run_out(store, claimed)
    [reaped] = await reap(store, LAST_ATTEMPT)
    assert reaped.status is JobStatus.FAILED
