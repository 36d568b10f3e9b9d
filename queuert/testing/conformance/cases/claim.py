"""Claiming: which jobs, in which order, how many, and what a claimed job says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from queuert.jobs import JobStatus
from queuert.limits import Limits, Rate
from queuert.run_at import after
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, ClaimRequest, NewJob
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    due_later,
    eventually,
    fail,
    go_on,
    interrupt,
    job,
    lost_to_reaper,
    read,
    retry,
    start,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def claimed_job_is_running(stores: Stores) -> None:
    """A claimed job is RUNNING under the claim's token and holder, its attempt counted; the answer says all of it."""
    store = await stores.open()
    [id] = await start(store, job(input="[1]", priority=2))
    request = ask(lease=30.0, holder="me")
    [claimed] = await store.claim(request)
    assert (claimed.id, claimed.chain_id, claimed.chain_index) == (id, id, 0)
    assert (claimed.type, claimed.chain_type, claimed.priority) == ("work", "work", 2)
    assert (claimed.attempt, claimed.uncounted, claimed.lease_expirations) == (1, 0, 0)
    assert (claimed.blocker_count, claimed.has_dependents, claimed.lease_seconds) == (0, False, 30.0)
    assert (json.loads(claimed.input), claimed.token) == ([1], request.token)
    found = await read(store, id)
    assert (found.status, found.attempt, found.holder) == (JobStatus.RUNNING, 1, "me")
    assert (found.created_at, found.scheduled_at) == (claimed.created_at, claimed.scheduled_at)
    assert found.started_at == claimed.started_at
    assert found.lease_expires_at is not None
    assert timedelta(seconds=29) < found.lease_expires_at - claimed.started_at < timedelta(seconds=31)


@case()
async def each_type_has_its_lease(stores: Stores) -> None:
    """A claim over several types leases each job for its own type's time."""
    store = await stores.open()
    await start(store, job("short"), job("long"))
    claimed = await store.claim(ClaimRequest({"short": 10.0, "long": 1000.0}, 5, "w", ask().token))
    assert {one.type: one.lease_seconds for one in claimed} == {"short": 10.0, "long": 1000.0}
    for one in claimed:
        found = await read(store, one.id)
        assert found.lease_expires_at is not None
        assert abs(found.lease_expires_at - one.started_at - timedelta(seconds=one.lease_seconds)) < timedelta(
            seconds=5
        )


@case()
async def oldest_first(stores: Stores) -> None:
    """Of equal priority, the job that has been due the longest is claimed first."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(5)]
    assert [(await claim_one(store)).id for _ in range(5)] == ids


@case()
async def oldest_first_across_types(stores: Stores) -> None:
    """Age counts over all types asked for: no type goes before another, and the answer is in that order."""
    store = await stores.open()
    ids = [(await start(store, job(type)))[0] for type in ("b", "a", "c", "a", "b", "c")]
    first = await store.claim(ask("a", "b", "c", limit=3))
    rest = await store.claim(ask("c", "b", "a", limit=3))
    assert [one.id for one in first] == ids[:3]
    assert [one.id for one in rest] == ids[3:]


@case()
async def types_take_turns(stores: Stores) -> None:
    """However many jobs of one type have been due for longer, each type has its turn: its longest due, its next."""
    store = await stores.open()
    await start(store, *(job("a") for _ in range(1_000)))
    of_b = await start(store, *(job("b") for _ in range(4)))
    await start(store, job("c"))
    claimed = await store.claim(ask("a", "b", "c", limit=6))
    assert Counter(one.type for one in claimed) == {"a": 3, "b": 2, "c": 1}
    assert [one.id for one in claimed if one.type == "b"] == of_b[:2]
    assert [one.type for one in await store.claim(ask("b", "a", limit=1))] == ["b"]
    assert [one.type for one in await store.claim(ask("c", "a", "b", limit=1))] == ["a"]
    assert [one.id for one in await store.claim(ask("b", "a", limit=1))] == of_b[3:]


@case()
async def turns_are_within_a_rank(stores: Stores) -> None:
    """A higher priority goes before another type's turn, and what a type got by it is no turn among the lower ones."""
    store = await stores.open()
    for priority in (1, 0):
        await start(store, *(job("a", priority=priority) for _ in range(3)))
    await start(store, *(job("b") for _ in range(3)))
    claimed = await store.claim(ask("a", "b", limit=5))
    assert Counter((one.type, one.priority) for one in claimed) == {("a", 1): 3, ("a", 0): 1, ("b", 0): 1}


@case()
async def turns_of_those_whose_time_has_come(stores: Stores) -> None:
    """Scheduled jobs that became due have no turn of their own: their type has it."""
    store = await stores.open()
    await start(store, *(job("a", run_at=after(seconds=0.001)) for _ in range(4)))
    await start(store, *(job("a") for _ in range(4)), *(job("b") for _ in range(4)))

    async def all_due() -> bool:
        return all(one.status is JobStatus.READY for one in await store.count_jobs())

    await eventually(all_due)
    claimed = await store.claim(ask("a", "b", limit=4))
    assert Counter(one.type for one in claimed) == {"a": 2, "b": 2}


@case()
async def worse_ranks_before_all_others(stores: Stores) -> None:
    """A claim that asks for worse ranks takes the best of these first, and then the best of all."""
    store = await stores.open()
    of = {priority: await start(store, *(job(priority=priority) for _ in range(2))) for priority in (5, 0, -1, -3)}

    async def take(after_rank: int, limit: int) -> list[str]:
        return [one.id for one in await store.claim(replace(ask(limit=limit), after_rank=after_rank))]

    assert await take(0, 1) == of[-1][:1]
    assert await take(1, 1) == of[-3][:1]
    assert await take(3, 1) == of[5][:1]
    assert sorted(await take(0, 3)) == sorted([*of[-1][1:], *of[-3][1:], *of[5][1:]])
    assert await take(7, 9) == of[0]


@case()
async def scheduled_ones_stand_where_a_claim_begins(stores: Stores) -> None:
    """Scheduled jobs whose time has come, which have no order by rank, are no better there than the ready ones."""
    store = await stores.open()
    [low] = await start(store, job(priority=-1))
    await start(store, *(job(run_at=after(seconds=0.001)) for _ in range(3)))

    async def all_due() -> bool:
        return [one.status for one in await store.count_jobs()] == [JobStatus.READY]

    await eventually(all_due)
    assert [one.id for one in await store.claim(replace(ask(limit=1), after_rank=0))] == [low]
    assert [one.priority for one in await store.claim(replace(ask(limit=9), after_rank=0))] == [0, 0, 0]


@case()
async def worse_ranks_take_turns(stores: Stores) -> None:
    """Types take turns among the worse ranks as well: here of jobs that failed, some of them with a pause after it."""
    store = await stores.open()
    await start(store, *(job(type) for type in ("a", "b") for _ in range(2)))
    failed = await store.claim(ask("a", "b", limit=4))
    await store.finish([retry(one, delay) for one, delay in zip(failed, (0.0, 0.001, 0.0, 0.001), strict=True)])
    await start(store, *(job(type) for type in ("a", "b") for _ in range(20)))

    async def all_due() -> bool:
        return all(one.status is JobStatus.READY for one in await store.count_jobs())

    await eventually(all_due)
    claims = [await store.claim(replace(ask("a", "b", limit=2), after_rank=0)) for _ in range(2)]
    assert [sorted(one.type for one in claimed) for claimed in claims] == [["a", "b"], ["a", "b"]]
    assert {one.id for claimed in claims for one in claimed} == {one.id for one in failed}


@case()
async def worse_ranks_within_limits(stores: Stores) -> None:
    """Of limited types too, by key and without one; what the limits hold back, they hold back here."""
    store = await stores.open()
    several = (
        Limits(concurrency=5),
        Limits(per_key=1),
        Limits(rate=Rate(2, per=3600)),
        Limits(concurrency=5, per_key=2),
    )
    for number, limits in enumerate(several):
        limited, free, keys = f"limited{number}", f"free{number}", ("k", "l", None)
        await start(store, *(job(limited, limit_key=key) for key in keys for _ in range(3)))
        worse = await start(store, *(job(limited, limit_key=key, priority=-1) for key in keys), job(free, priority=-1))
        request = replace(ask(limited, free, limit=4), after_rank=0, limits={limited: limits})
        assert {one.id for one in await store.claim(request)} == set(worse)
        [more] = await store.claim(replace(request, limit=1, token=ask().token))
        assert more.priority == 0


@case()
async def best_priority_first(stores: Stores) -> None:
    """A higher priority goes before age, over all types."""
    store = await stores.open()
    for type, priority in (("a", -3), ("b", 1), ("a", 0), ("b", 5)):
        await start(store, job(type, priority=priority))
    claims = [await store.claim(ask("a", "b", limit=limit)) for limit in (1, 2, 1)]
    assert [[one.priority for one in claimed] for claimed in claims] == [[5], [1, 0], [-3]]


@case()
async def each_attempt_costs_one_of_priority(stores: Stores) -> None:
    """A job that has failed twice stands behind a fresh one of one priority less."""
    store = await stores.open()
    [old] = await start(store, job(priority=1))
    for _ in range(2):
        await store.finish([retry(await claim_one(store))])
    [fresh] = await start(store, job(priority=0))
    assert [one.id for one in await store.claim(ask())] == [fresh, old]


@case()
async def stops_and_deaths_cost_no_priority(stores: Stores) -> None:
    """An attempt that a stopping worker released, or a dead one left, does not put its job behind a fresh one."""
    store = await stores.open()
    old = await lost_to_reaper(store)
    await store.finish([interrupt(await claim_one(store))])
    [fresh] = await start(store, job())
    assert [(await claim_one(store)).id for _ in range(2)] == [old.id, fresh]


@case()
async def best_of_those_whose_time_has_come(stores: Stores) -> None:
    """Scheduled jobs that became due compete by priority as well, among themselves and with ready ones."""
    store = await stores.open()
    await start(store, job(priority=0, run_at=after(seconds=0.001)))
    await start(store, job(priority=9, run_at=after(seconds=0.002)))
    await start(store, job(priority=5))

    async def all_due() -> bool:
        return [one.status for one in await store.count_jobs()] == [JobStatus.READY]

    await eventually(all_due)
    assert [one.priority for one in await store.claim(ask())] == [9, 5, 0]


@case()
async def longest_due_first(stores: Stores) -> None:
    """Of equal priority, jobs of a type that became due are claimed in the order of their times."""
    store = await stores.open()
    times = (("a", 0.04), ("b", 0.03), ("a", 0.02), ("b", 0.01))
    ids = await start(store, *(job(type, run_at=after(seconds=seconds)) for type, seconds in times))

    async def all_due() -> bool:
        return {(one.status, one.count) for one in await store.count_jobs()} == {(JobStatus.READY, 2)}

    await eventually(all_due)
    # A machine that pauses within the start may give the first job an earlier time than the third.
    due_at = {one.id: one.scheduled_at for one in await store.get_jobs(ids) if one is not None}
    claims = [await store.claim(ask("a", "b", limit=1)) for _ in ids]
    found = [one.id for claimed in claims for one in claimed]
    assert [id for id in found if id in ids[::2]] == sorted(ids[::2], key=due_at.__getitem__)
    assert [id for id in found if id in ids[1::2]] == sorted(ids[1::2], key=due_at.__getitem__)
    assert len(found) == len(ids)


@case()
async def not_before_its_time(stores: Stores) -> None:
    """A job that is scheduled for later is not claimed, even with nothing else to do."""
    store = await stores.open()
    await start(store, job(run_at=due_later(), priority=100))
    assert await store.claim(ask()) == []


@case()
async def when_its_time_has_come(stores: Stores) -> None:
    """A scheduled job is claimed without any further step once it is due, and not before by the store's clock."""
    store = await stores.open()
    [id] = await start(store, job(run_at=after(seconds=0.05)))

    async def claim() -> list[ClaimedJob]:
        return await store.claim(ask())

    [claimed] = await eventually(claim)
    assert claimed.id == id
    assert claimed.started_at >= claimed.scheduled_at


@case()
async def limit_is_kept(stores: Stores) -> None:
    """A claim takes no more than its limit; fewer mean that there are no more."""
    store = await stores.open()
    await start(store, *(job() for _ in range(5)))
    assert [len(await store.claim(ask(limit=2))) for _ in range(4)] == [2, 2, 1, 0]


@case()
async def limit_is_kept_over_many_types(stores: Stores) -> None:
    """The limit is of all types together, and none of them is left out for ever."""
    store = await stores.open()
    types = [f"type{number}" for number in range(20)]
    ids = await start(store, *(job(type) for type in types * 3))
    taken: list[str] = []
    while claimed := await store.claim(ask(*types, limit=7)):
        assert len(claimed) <= 7
        taken += [one.id for one in claimed]
    assert len(taken) == 60
    assert set(taken) == set(ids)


@case()
async def nothing_for_nothing(stores: Stores) -> None:
    """No types, or a limit of none, claim nothing."""
    store = await stores.open()
    await start(store, job())
    assert await store.claim(ClaimRequest({}, 10, "w", ask().token)) == []
    assert await store.claim(ask(limit=0)) == []
    assert await store.claim(ask("unknown")) == []


@case()
async def other_types_are_not_touched(stores: Stores) -> None:
    """Jobs of types that were not asked for stay as they are."""
    store = await stores.open()
    [other] = await start(store, job("other"))
    await start(store, job())
    assert [one.type for one in await store.claim(ask())] == ["work"]
    found = await read(store, other)
    assert (found.status, found.attempt, found.holder) == (JobStatus.READY, 0, None)


@case()
async def ready_ones_alone(stores: Stores) -> None:
    """A claim for ready jobs alone takes the best of them, as all claims do: up to its limit and its bytes, none twice,
    none of other types and none of a paused type. What is left, a later claim takes."""
    store = await stores.open()
    await start(store, job("other"))
    for priority in (0, 2, 1):
        await start(store, *sized(400, priority=priority))
    requests = [replace(ask(limit=limit), max_bytes=1000, ready_only=True) for limit in (1, 9, 9)]
    claims = [await store.claim(request) for request in requests]
    assert [[one.priority for one in claimed] for claimed in claims] == [[2], [1, 0], []]
    assert [one.token for claimed in claims for one in claimed] == [requests[0].token] + [requests[1].token] * 2
    large, small = [(await start(store, *sized(length)))[0] for length in (5000, 10)]
    requests = [replace(ask(), max_bytes=1000, ready_only=True) for _ in range(2)]
    assert [[one.id for one in await store.claim(request)] for request in requests] == [[large], [small]]
    await store.pause_job_types(["work"])
    [held] = await start(store, job())
    assert await store.claim(replace(ask(), ready_only=True)) == []
    await store.resume_job_types(["work"])
    assert [one.id for one in await store.claim(replace(ask(), ready_only=True))] == [held]
    assert await store.next_due(["work"]) is None
    assert [one.type for one in await store.claim(ask("work", "other"))] == ["other"]


@case()
async def once_only(stores: Stores) -> None:
    """A claimed job is not claimed again while its lease is held, nor when it is finished or failed."""
    store = await stores.open()
    await start(store, job())
    claimed = await claim_one(store)
    assert await store.claim(ask()) == []
    await store.finish([fail(claimed)])
    assert await store.claim(ask()) == []


@case()
async def attempts_count_up_by_one(stores: Stores) -> None:
    """Each claim is the next attempt, without gaps or repetitions, however the last one ended."""
    store = await stores.open()
    attempts = []
    lost = await lost_to_reaper(store)
    attempts.append(lost.attempt)
    for end in (retry, interrupt, retry):
        claimed = await claim_one(store)
        attempts.append(claimed.attempt)
        await store.finish([end(claimed)])
    last = await claim_one(store)
    assert [*attempts, last.attempt] == [1, 2, 3, 4, 5]
    assert (last.uncounted, last.lease_expirations, last.counted_attempts) == (1, 1, 4)


@case()
async def continuation_is_claimed_as_its_own(stores: Stores) -> None:
    """A continuation starts at attempt 1, keeps its chain's identity, and has its own type."""
    store = await stores.open()
    [root] = await start(store, job("first"))
    await store.finish([go_on(await claim_one(store, "first"), job("second", priority=4))])
    claimed = await claim_one(store, "second")
    assert (claimed.chain_id, claimed.chain_type, claimed.chain_index) == (root, "first", 1)
    assert (claimed.attempt, claimed.priority) == (1, 4)


@case(Capability.ROW_LOCKS, Capability.USER_TRANSACTIONS)
async def next_best_for_those_that_are_held(stores: Stores) -> None:
    """Jobs that a caller's transaction holds are made up for by the next best, each once; they come when it ends."""
    store, other = await stores.open_many(2)
    # From the worst to the best, and of equal ones the oldest first: so the order is not that of the rows. Those that
    # are held are of a type of their own, so that the other one has to make up for more than its share.
    worst, *equal = [(await start(store, job(priority=priority)))[0] for priority in (-1, 0, 0, 0, 0)]
    [good] = await start(store, job(priority=1))
    held, best = [(await start(store, job("held", priority=priority)))[0] for priority in (2, 3)]
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("waits", blockers=[held, best])], connection=connection)
        claimed = await other.claim(ask("held", "work", limit=4))
        assert [one.id for one in claimed] == [good, *equal[:3]]
    assert [one.id for one in await other.claim(ask("held", "work"))] == [best, held, equal[3], worst]


@case(Capability.ROW_LOCKS, Capability.USER_TRANSACTIONS)
async def ready_ones_alone_for_those_that_are_held(stores: Stores) -> None:
    """A claim for ready jobs alone takes the next best, too."""
    store, other = await stores.open_many(2)
    held, *rest = await start(store, *(job(priority=priority) for priority in (1, 0, 0)))
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("waits", blockers=[held])], connection=connection)
        claimed = await other.claim(replace(ask(limit=2), ready_only=True))
        assert sorted(one.id for one in claimed) == sorted(rest)
    assert [one.id for one in await other.claim(replace(ask(), ready_only=True))] == [held]


@case(Capability.ROW_LOCKS, Capability.USER_TRANSACTIONS)
async def limit_is_kept_where_some_are_held(stores: Stores) -> None:
    """However many types could make up for what is held, the limit is of all of them together."""
    store, other = await stores.open_many(2)
    held = await start(store, *(job(priority=1) for _ in range(4)))
    await start(store, *(job(type) for type in ("work", "b", "c") * 5))
    async with stores.user_transaction() as connection:
        await store.start_jobs([job("waits", blockers=held)], connection=connection)
        claims = [await other.claim(ask("work", "b", "c", limit=6)) for _ in range(3)]
        assert [len(claimed) for claimed in claims] == [6, 6, 3]
        assert not {one.id for claimed in claims for one in claimed}.intersection(held)
    assert sorted(one.id for one in await other.claim(ask("work", "b", "c"))) == sorted(held)


async def _drain(store: AsyncStore, limit: int, *types: str) -> list[ClaimedJob]:
    taken: list[ClaimedJob] = []
    while claimed := await store.claim(ask(*types, limit=limit)):
        assert len(claimed) <= limit
        taken += claimed
    return taken


async def _shared_out(stores: Stores, claimers: int, count: int) -> None:
    store, *others = await stores.open_many(claimers)
    types = ("a", "b", "c")
    ids = await start(store, *(job(types[number % 3]) for number in range(count)))
    shares = await asyncio.gather(*(_drain(one, 7, *types) for one in [store, *others]))
    # What one skipped because another had it locked is there in the end for whoever asks again.
    taken = [one for share in [*shares, await _drain(store, 7, *types)] for one in share]
    assert sorted(one.id for one in taken) == sorted(ids)
    assert {one.attempt for one in taken} == {1}


@case()
async def two_claimers_share(stores: Stores) -> None:
    """Two that claim at once share the jobs out: each job to one of them."""
    await _shared_out(stores, 2, 100)


@case()
async def eight_claimers_share(stores: Stores) -> None:
    """So do eight."""
    await _shared_out(stores, 8, 400)


@case()
async def eight_for_one(stores: Stores) -> None:
    """Of eight that claim one job at once, one gets it, twenty times over."""
    several = await stores.open_many(8)
    for _ in range(20):
        await start(several[0], job())
        claims = await asyncio.gather(*(one.claim(ask(limit=1)) for one in several))
        assert sum(map(len, claims)) == 1


def sized(*lengths: int, **more: Any) -> list[NewJob]:
    """Jobs with inputs of so many characters."""
    return [job(input=f'"{"x" * (length - 2)}"', **more) for length in lengths]


@case()
async def inputs_of_bounded_size(stores: Stores) -> None:
    """A claim takes jobs from the front as long as their inputs fit into its bytes; the others stay as they were."""
    store = await stores.open()
    ids = await start(store, *sized(400, 400, 400, 400, 400))
    claims = [await store.claim(replace(ask(), max_bytes=1000)) for _ in range(4)]
    assert [[one.id for one in claimed] for claimed in claims] == [ids[:2], ids[2:4], ids[4:], []]
    assert [one.attempt for claimed in claims for one in claimed] == [1] * 5


@case()
async def what_a_claim_leaves_for_its_size_is_untouched(stores: Stores) -> None:
    """No attempt is counted, no lease is held, and nobody has to wait for it."""
    store = await stores.open()
    _, left = await start(store, *sized(600, 600))
    await store.claim(replace(ask(), max_bytes=1000))
    found = await read(store, left)
    assert (found.status, found.attempt, found.lease_expires_at) == (JobStatus.READY, 0, None)
    assert await store.next_due(["work"]) == 0.0


@case()
async def one_input_that_is_larger_than_all(stores: Stores) -> None:
    """The first job is taken whatever its input measures, alone."""
    store = await stores.open()
    ids = await start(store, *sized(5000, 10))
    assert [one.id for one in await store.claim(replace(ask(), max_bytes=1000))] == ids[:1]
    assert [one.id for one in await store.claim(replace(ask(), max_bytes=1000))] == ids[1:]


@case()
async def no_small_input_goes_before_a_large_one(stores: Stores) -> None:
    """What does not fit is not skipped for what is behind it, over all types."""
    store = await stores.open()
    first, *_ = await start(store, *sized(400))
    large, *_ = await start(store, *sized(900, type="other"))
    small, *_ = await start(store, *sized(10))
    requested = [replace(ask("work", "other"), max_bytes=1000) for _ in range(2)]
    assert [[one.id for one in await store.claim(one)] for one in requested] == [[first], [large, small]]


@case()
async def inputs_of_bounded_size_by_priority(stores: Stores) -> None:
    """The best fill the bytes, whatever the order in which they were started, and scheduled ones among them."""
    store = await stores.open()
    for priority in (1, 3, 2):
        await start(store, *sized(400, priority=priority))
    await start(store, *sized(400, priority=4, run_at=after(seconds=0.001)))

    async def all_due() -> bool:
        return [one.status for one in await store.count_jobs()] == [JobStatus.READY]

    await eventually(all_due)
    claims = [await store.claim(replace(ask(), max_bytes=1000)) for _ in range(2)]
    assert [[one.priority for one in claimed] for claimed in claims] == [[4, 3], [2, 1]]


@case()
async def inputs_of_bounded_size_under_limits(stores: Stores) -> None:
    """Of types with limits as well, each kind; what is left for its size takes nothing of a limit."""
    store = await stores.open()
    limits = {"work": Limits(concurrency=10), "keyed": Limits(per_key=3), "rated": Limits(rate=Rate(5, per=3600.0))}
    for type in limits:
        ids = await start(store, *sized(400, 400, 400, 400, 400, type=type, limit_key="key"))
        found: list[str] = []
        for _ in range(2):
            request = replace(ask(type), max_bytes=1000, limits=limits)
            found += [one.id for one in await store.claim(request)]
        assert found == ids[: 3 if type == "keyed" else 4]


@case()
async def inputs_of_bounded_size_after_a_rank(stores: Stores) -> None:
    """What does not fit among the worse ranks is not skipped for better ones, and these have to fit, too."""
    store = await stores.open()
    limits = {"limited": Limits(concurrency=10), "keyed": Limits(per_key=9), "fair": Limits(fair=True)}
    for type in ("work", *limits):
        better = await start(store, *sized(10, type=type, priority=1))
        worse = await start(store, *sized(600, 600, type=type))
        request = replace(ask(type), max_bytes=1000, limits=limits, after_rank=-1)
        assert [one.id for one in await store.claim(request)] == worse[:1]
        request = replace(ask(type), max_bytes=1000, limits=limits, after_rank=-1)
        assert [one.id for one in await store.claim(request)] == [worse[1], *better]
        large = await start(store, *sized(600, type=type, priority=1))
        worse = await start(store, *sized(600, type=type))
        request = replace(ask(type), max_bytes=1000, limits=limits, after_rank=-1)
        assert [one.id for one in await store.claim(request)] == worse
        assert [one.id for one in await store.claim(replace(ask(type), max_bytes=1000))] == large
