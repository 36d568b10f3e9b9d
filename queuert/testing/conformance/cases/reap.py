"""Reaping: an expired lease is a failed attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queuert.jobs import ChainStatus, JobStatus
from queuert.policies import RetryPolicy
from queuert.state import Capability
from queuert.state.types import ReapedJob, ReapRequest
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
    ask,
    check_chain_seconds,
    claim_one,
    complete,
    eventually,
    expire,
    go_on,
    interrupt,
    job,
    read,
    read_chain,
    reap,
    retry,
    run_out,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def counts_as_a_failed_attempt(stores: Stores) -> None:
    """An expired lease ends the attempt: an error that names the holder, counted, the job due again."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    await run_out(store, claimed)
    [reaped] = await reap(store)
    assert (reaped.id, reaped.type, reaped.chain_id) == (claimed.id, "work", claimed.id)
    assert (reaped.status, reaped.attempt, reaped.holder) == (JobStatus.READY, 1, "holder")
    assert reaped.due_types == ("work",)
    found = await read(store, claimed.id)
    assert (found.status, found.attempt, found.lease_expirations) == (JobStatus.READY, 1, 1)
    assert (found.uncounted, found.lease_expires_at, found.finished_at) == (0, None, None)
    assert found.last_error is not None
    assert found.last_error.kind == "lease_expired" and "holder" in found.last_error.message


@case()
async def backs_off(stores: Stores) -> None:
    """The next attempt is scheduled by the type's policy, longer after each expiry, up to the policy's maximum."""
    store = await stores.open()
    policy = RetryPolicy(initial_delay=1000.0, multiplier=10.0, max_delay=50_000.0, jitter=0.0)
    await started_and_claimed(store)
    await start(store, job("other"))
    [claimed] = await store.claim(ask("other"))
    await run_out(store, claimed)
    [reaped] = await reap(store, policy, type="other")
    assert reaped.status is JobStatus.SCHEDULED
    pause = await store.next_due(["other"])
    assert pause is not None and 900.0 < pause <= 1000.0


@case()
async def backs_off_longer_each_time(stores: Stores) -> None:
    """The pause grows by the policy's factor with each counted attempt."""
    store = await stores.open()
    policy = RetryPolicy(initial_delay=1000.0, multiplier=10.0, max_delay=1e6, jitter=0.0)
    [claimed] = await started_and_claimed(store)
    pauses = []
    for attempt in (1, 2, 3):
        # The attempts before are ended at once, so that only the last one's pause is waited for.
        await run_out(store, claimed)
        await reap(store, policy if attempt == 3 else AT_ONCE)
        pauses.append(await store.next_due(["work"]))
        if attempt < 3:
            claimed = await claim_one(store)
    assert pauses[:2] == [0.0, 0.0]
    assert pauses[2] is not None and 99_000.0 < pauses[2] <= 100_000.0


@case()
async def fails_at_the_cap(stores: Stores) -> None:
    """On the last attempt that the policy allows, the job fails and its chain closes; it is not claimed again."""
    store = await stores.open()
    policy = RetryPolicy(max_attempts=2, initial_delay=0.0)
    [claimed] = await started_and_claimed(store)
    await run_out(store, claimed)
    assert [one.status for one in await reap(store, policy)] == [JobStatus.READY]
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, policy)
    assert (reaped.status, reaped.attempt, reaped.due_types) == (JobStatus.FAILED, 2, ())
    found, chain = await read(store, claimed.id), await read_chain(store, claimed.id)
    assert (found.status, found.lease_expirations, found.lease_expires_at) == (JobStatus.FAILED, 2, None)
    assert found.last_error is not None and found.last_error.kind == "lease_expired"
    assert found.finished_at is not None
    assert (chain.status, chain.error) == (ChainStatus.FAILED, found.last_error)
    assert chain.closed_at is not None
    assert await store.claim(ask()) == []


@case()
async def fails_a_continuation_at_the_cap(stores: Stores) -> None:
    """A later job of a chain at its cap fails the chain as well."""
    store = await stores.open()
    [first] = await started_and_claimed(store)
    await store.finish([go_on(first, job())])
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, LAST_ATTEMPT)
    assert (reaped.chain_id, reaped.status) == (first.id, JobStatus.FAILED)
    chain = await read_chain(store, first.id)
    assert chain.status is ChainStatus.FAILED
    assert chain.error is not None and chain.error.kind == "lease_expired"
    assert (await read(store, first.id)).status is JobStatus.CONTINUED


@case()
async def tells_the_age_of_the_chain(stores: Stores) -> None:
    """The answer names the type of the chain, and says how long a chain took that the reaper closed: of one job, and of
    several. An attempt that is retried closes nothing."""
    store = await stores.open()
    [alone] = await started_and_claimed(store)
    await run_out(store, alone)
    [again] = await reap(store)
    assert (again.status, again.chain_type, again.chain_seconds) == (JobStatus.READY, "work", None)
    await run_out(store, await claim_one(store))
    [failed] = await reap(store, LAST_ATTEMPT)
    assert (failed.status, failed.chain_type) == (JobStatus.FAILED, "work")
    await check_chain_seconds(store, alone.id, failed.chain_seconds)

    [first] = await started_and_claimed(store)
    await store.finish([go_on(first, job("next"))])
    await run_out(store, await claim_one(store, "next"))
    [again] = await reap(store, type="next")
    assert (again.type, again.chain_type, again.chain_seconds) == ("next", "work", None)
    await run_out(store, await claim_one(store, "next"))
    [failed] = await reap(store, LAST_ATTEMPT, type="next")
    assert (failed.type, failed.chain_id, failed.chain_type) == ("next", first.id, "work")
    await check_chain_seconds(store, first.id, failed.chain_seconds)


@case()
async def releases_dependents_at_the_cap(stores: Stores) -> None:
    """A chain that the reaper fails is closed: what waited for it becomes due, and the answer says so."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    [waiting] = await start(store, job("waits", blockers=[claimed.chain_id]))
    await run_out(store, claimed)
    [reaped] = await reap(store, LAST_ATTEMPT)
    assert reaped.due_types == ("waits",)
    assert (await read(store, waiting)).status is JobStatus.READY
    assert [one.status for one in await store.get_blockers(waiting)] == [ChainStatus.FAILED]


@case()
async def interruptions_do_not_count(stores: Stores) -> None:
    """Attempts that a stopping worker released do not bring the job nearer to its cap."""
    store = await stores.open()
    [claimed] = await started_and_claimed(store)
    for _ in range(3):
        await store.finish([interrupt(claimed)])
        claimed = await claim_one(store)
    await run_out(store, claimed)
    policy = RetryPolicy(max_attempts=2, initial_delay=0.0)
    assert [one.status for one in await reap(store, policy)] == [JobStatus.READY]
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, policy)
    assert (reaped.status, reaped.attempt) == (JobStatus.FAILED, 5)


@case()
async def each_type_by_its_policy(stores: Stores) -> None:
    """Each type is judged by its own policy."""
    store = await stores.open()
    await start(store, job("tough"), job("frail"), job("patient"))
    types = ("tough", "frail", "patient")
    await run_out(store, *await store.claim(ask(*types)))
    request = ReapRequest({"tough": AT_ONCE, "frail": LAST_ATTEMPT, "patient": RetryPolicy(initial_delay=100.0)})
    found: dict[str, JobStatus] = {}

    async def all_three() -> bool:
        found.update((one.type, one.status) for one in (await store.reap(request)).reaped)
        return len(found) == 3

    await eventually(all_three)
    assert found == {"tough": JobStatus.READY, "frail": JobStatus.FAILED, "patient": JobStatus.SCHEDULED}


@case()
async def more_than_the_limit(stores: Stores) -> None:
    """What is left is told as due now, though jobs of other types run for long."""
    store = await stores.open()
    types = [f"type-{number}" for number in range(60)]
    await start(store, *(job(types[0]) for _ in range(5)), job(types[-1]))
    held = [await claim_one(store, types[0]) for _ in range(5)]
    await claim_one(store, types[-1])
    await expire(store, *held)
    request = ReapRequest(dict.fromkeys(types, AT_ONCE), limit=3)
    found = await store.reap(request)
    assert (len(found.reaped), found.next_expiry) == (3, 0.0)
    found = await store.reap(request)
    assert len(found.reaped) == 2
    assert found.next_expiry is not None
    assert found.next_expiry > 1


@case()
async def other_types_are_not_touched(stores: Stores) -> None:
    """Expired leases of types without a policy here are left to whoever knows them."""
    store = await stores.open()
    await start(store, job("other"), job("work"))
    other, mine = await claim_one(store, "other"), await claim_one(store)
    await expire(store, other, mine)
    assert [one.id for one in await reap(store)] == [mine.id]
    assert (await read(store, other.id)).status is JobStatus.RUNNING
    assert (await store.reap(ReapRequest({}))).reaped == ()
    assert [one.id for one in await reap(store, type="other")] == [other.id]


@case()
async def live_leases_are_let_be(stores: Stores) -> None:
    """Leases that have not expired are not touched; the answer tells when the first of them will."""
    store = await stores.open()
    assert (await store.reap(ReapRequest({"work": AT_ONCE}))).next_expiry is None
    await start(store, job(), job())
    await claim_one(store, lease=500.0)
    await claim_one(store, lease=5000.0)
    result = await store.reap(ReapRequest({"work": AT_ONCE}))
    assert list(result.reaped) == []
    assert result.next_expiry is not None and 400.0 < result.next_expiry <= 500.0
    assert [(one.status, one.count) for one in await store.count_jobs()] == [(JobStatus.RUNNING, 2)]


@case()
async def next_expiry_of_all_types(stores: Stores) -> None:
    """The answer tells when the first lease of any of the types will expire, in whatever order they are named."""
    store = await stores.open()
    await start(store, job("early"), job("late"), job("other"))
    for type, lease in (("early", 500.0), ("late", 5000.0), ("other", 50.0)):
        await claim_one(store, type, lease=lease)
    for types in (("early", "late"), ("late", "early"), ("late", "none", "early", "none")):
        result = await store.reap(ReapRequest(dict.fromkeys(types, AT_ONCE)))
        assert result.next_expiry is not None and 400.0 < result.next_expiry <= 500.0


@case()
async def no_more_than_the_limit(stores: Stores) -> None:
    """One call reaps up to its limit, and tells to come again at once while there may be more."""
    store = await stores.open()
    await expire(store, *await started_and_claimed(store, 5))
    sizes: list[int] = []

    async def one_batch() -> bool:
        result = await store.reap(ReapRequest({"work": RetryPolicy(initial_delay=60.0)}, limit=2))
        sizes.append(len(result.reaped))
        assert result.next_expiry == (0.0 if sum(sizes) < 5 else None)
        return sum(sizes) == 5

    await eventually(one_batch)
    assert max(sizes) <= 2


@case()
async def only_once(stores: Stores) -> None:
    """A second reaper finds nothing left; the job is not counted twice."""
    store, other = await stores.open_many(2)
    [claimed] = await started_and_claimed(store)
    await run_out(store, claimed)
    await reap(store)
    assert list((await other.reap(ReapRequest({"work": AT_ONCE}))).reaped) == []
    assert (await read(store, claimed.id)).lease_expirations == 1


@case()
async def reapers_share(stores: Stores) -> None:
    """Of four reapers at once, one gets each job: some to try again, some at their cap."""
    store, *others = await stores.open_many(4)
    await start(store, *(job(type) for type in ("work", "frail") * 20))
    held = await store.claim(ask("work", "frail"))
    await run_out(store, *held)
    request = ReapRequest({"work": RetryPolicy(initial_delay=60.0), "frail": LAST_ATTEMPT}, limit=7)
    reaped: list[ReapedJob] = []

    async def round() -> bool:
        answers = await asyncio.gather(*(one.reap(request) for one in [store, *others]))
        reaped.extend(one for answer in answers for one in answer.reaped)
        return len(reaped) >= len(held)

    await eventually(round)
    assert sorted(one.id for one in reaped) == sorted(one.id for one in held)
    assert {(one.type, one.status) for one in reaped} == {("work", JobStatus.SCHEDULED), ("frail", JobStatus.FAILED)}


@case()
async def finished_jobs_are_let_be(stores: Stores) -> None:
    """A job that was finished after its lease's end, and before the reaper came, is not reaped."""
    store = await stores.open()
    done, lost = await started_and_claimed(store, 2)
    await expire(store, done, lost)
    await store.finish([complete(done)])
    assert [one.id for one in await reap(store)] == [lost.id]
    assert (await read(store, done.id)).status is JobStatus.COMPLETED


@case(Capability.ROW_LOCKS)
async def passes_over_a_held_job(stores: Stores) -> None:
    """An expired job that a transaction holds is skipped, not waited for, and still counts as running."""
    store, other = await stores.open_many(2)
    held, free = await started_and_claimed(store, 2)
    await expire(store, held, free)
    async with store.transaction(held):
        assert [one.id for one in await reap(other)] == [free.id]
        result = await other.reap(ReapRequest({"work": AT_ONCE}))
        assert list(result.reaped) == []
        assert result.next_expiry is not None
    assert [one.id for one in await reap(other)] == [held.id]


@case()
async def reaped_jobs_are_claimed_again(stores: Stores) -> None:
    """What was reaped is there for any claimer, as the next attempt; the first holder's token opens nothing."""
    store, other = await stores.open_many(2)
    held = await started_and_claimed(store, 10)
    await run_out(store, *held)
    reaped: list[ReapedJob] = []

    async def all_reaped() -> bool:
        some: Sequence[ReapedJob] = (await store.reap(ReapRequest({"work": AT_ONCE}))).reaped
        reaped.extend(some)
        return len(reaped) == 10

    await eventually(all_reaped)
    again = await other.claim(ask(holder="second"))
    assert {(one.id, one.attempt, one.lease_expirations) for one in again} == {(one.id, 2, 1) for one in held}
    assert not any(one.written for one in await store.finish([complete(one) for one in held]))
    assert all(one.written for one in await other.finish([complete(one) for one in again]))


@case()
async def crashes_end_it_early(stores: Stores) -> None:
    """A job whose leases have expired as often as the policy bears is failed, whatever attempts are left."""
    store = await stores.open()
    [id] = await start(store, job())
    policy = RetryPolicy(max_attempts=100, initial_delay=0.0, jitter=0.0, max_crashes=2)
    statuses = []
    for _ in range(2):
        await run_out(store, await claim_one(store))
        [reaped] = await reap(store, policy)
        statuses.append(reaped.status)
    assert statuses == [JobStatus.READY, JobStatus.FAILED]
    found = await read(store, id)
    assert (found.attempt, found.lease_expirations) == (2, 2)
    assert found.last_error is not None
    assert "kills its workers" in found.last_error.message


@case()
async def failures_are_no_crashes(stores: Stores) -> None:
    """Attempts that handlers failed do not count as crashes."""
    store = await stores.open()
    await start(store, job())
    policy = RetryPolicy(max_attempts=100, initial_delay=0.0, jitter=0.0, max_crashes=2)
    for _ in range(3):
        await store.finish([retry(await claim_one(store))])
    await run_out(store, await claim_one(store))
    [reaped] = await reap(store, policy)
    assert (reaped.status, reaped.attempt) == (JobStatus.READY, 4)
