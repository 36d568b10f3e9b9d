"""Limits: how many jobs of a type, and of a key, run at once or begin in a time, whoever claims them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from queuert.limits import Limits, Rate
from queuert.run_at import after
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, Finish, NewJob
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    complete,
    due_later,
    eventually,
    fail,
    go_on,
    interrupt,
    job,
    reap,
    retry,
    run_out,
    start,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_RACERS = 8
_LONG = 86_400.0
"""Seconds: a window that no test sees the end of."""


async def _claim(store: AsyncStore, limits: Limits, *types: str, limit: int = 100) -> list[ClaimedJob]:
    """Claim jobs, by default of type ``work``, which alone has limits."""
    return await store.claim(replace(ask(*types, limit=limit), limits={"work": limits}))


# --- concurrency ------------------------------------------------------------------------------------------------------


@case()
async def no_more_of_a_type_than_its_concurrency(stores: Stores) -> None:
    """A claim takes the best of a type, as many as its concurrency has left, and none when it has nothing left."""
    store = await stores.open()
    ids = [(await start(store, job(priority=priority)))[0] for priority in (1, 3, 2, 0)]
    two = Limits(concurrency=2)
    assert [one.id for one in await _claim(store, two)] == [ids[1], ids[2]]
    assert await _claim(store, two) == []
    assert [one.id for one in await _claim(store, Limits(concurrency=3))] == [ids[0]]


@case()
async def never_exceeded_by_claims_at_once(stores: Stores) -> None:
    """Eight stores that claim at once, again and again, never hold more than the concurrency, and use all of it."""
    several = await stores.open_many(_RACERS)
    await start(several[0], *(job() for _ in range(200)))
    three = Limits(concurrency=3)
    for _ in range(15):
        claims = await asyncio.gather(*(_claim(store, three, limit=2) for store in several))
        held = [one for claimed in claims for one in claimed]
        assert len(held) == 3
        await asyncio.gather(*(store.finish([complete(one)]) for store, one in zip(several, held, strict=False)))


@case()
async def never_exceeded_while_attempts_end(stores: Stores) -> None:
    """Eight holders that claim and end as fast as they can, each on a store of its own, never run too many at once."""
    several = await stores.open_many(_RACERS)
    await start(several[0], *(_keyed(f"key{number % 3}") for number in range(90)))
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    left = 90

    async def work(store: AsyncStore) -> None:
        nonlocal left
        while left:
            claimed = await _claim(store, Limits(concurrency=4, per_key=2), limit=3)
            for name in [name for one in claimed for name in ("all", one.input)]:
                running[name] += 1
                most[name] = max(most[name], running[name])
            await asyncio.sleep(0.003)
            left -= len(claimed)
            running.subtract([name for one in claimed for name in ("all", one.input)])
            await store.finish([complete(one) for one in claimed])

    await asyncio.gather(*map(work, several))
    assert most["all"] <= 4
    assert max(most[f'"key{number}"'] for number in range(3)) <= 2


@case()
async def freed_by_every_finish(stores: Stores) -> None:
    """Whatever ends an attempt frees its slot: completion, failure, a retry's pause, a continuation, a stop."""
    store = await stores.open()
    await start(store, *(job() for _ in range(10)))
    one = Limits(concurrency=1)

    def again(claimed: ClaimedJob) -> Finish:
        return retry(claimed, delay=3600.0)

    def elsewhere(claimed: ClaimedJob) -> Finish:
        return go_on(claimed, job("other"))

    for finish in (complete, fail, cancel, again, elsewhere, interrupt):
        [claimed] = await _claim(store, one)
        assert await _claim(store, one) == []
        await store.finish([finish(claimed)])
    assert len(await _claim(store, one)) == 1


@case()
async def freed_by_release(stores: Stores) -> None:
    """Jobs that are released unstarted free their slots, one by one or with the whole claim."""
    store = await stores.open()
    await start(store, job(), job())
    request = replace(ask(), limits={"work": Limits(concurrency=1)})
    assert len(await store.claim(request)) == 1
    assert await store.release_claim(request) == (1, 0)
    [claimed] = await _claim(store, Limits(concurrency=1))
    assert await store.release([claimed.lease]) == 1
    assert len(await _claim(store, Limits(concurrency=1))) == 1


@case()
async def freed_by_the_reaper_and_not_before(stores: Stores) -> None:
    """The slot of a dead worker is taken until its lease was reaped, and free from then on."""
    store = await stores.open()
    await start(store, _keyed("a"), _keyed("a"))
    one = Limits(concurrency=1, per_key=1)
    [dead] = await _claim(store, one)
    await run_out(store, dead)
    assert await _claim(store, one) == []
    await reap(store)
    assert len(await _claim(store, one)) == 1


@case()
async def freed_from_outside(stores: Stores) -> None:
    """Cancelling a running chain frees its slot at once."""
    store = await stores.open()
    await start(store, job(), job())
    [claimed] = await _claim(store, Limits(concurrency=1))
    await store.cancel_chains([claimed.chain_id], reason="not wanted")
    assert len(await _claim(store, Limits(concurrency=1))) == 1


@case()
async def what_an_unlimited_claim_took_counts(stores: Stores) -> None:
    """Running jobs count, whoever claimed them; only the claim that brings limits is held to them."""
    store = await stores.open()
    await start(store, *(job() for _ in range(4)))
    assert len(await store.claim(ask(limit=2))) == 2
    assert await _claim(store, Limits(concurrency=2)) == []
    assert len(await store.claim(ask())) == 2


@case()
async def scheduled_and_retried_jobs_are_limited_too(stores: Stores) -> None:
    """Jobs whose time has come are claimed under the limits, not before their time, and count as others do."""
    store = await stores.open()
    await start(store, *(_keyed("a", run_at=after(seconds=0.001)) for _ in range(2)), _keyed("b"))
    await start(store, _keyed("c", run_at=due_later()))
    held: list[ClaimedJob] = []

    async def both() -> bool:
        held.extend(await _claim(store, Limits(per_key=1)))
        return len(held) == 2

    await eventually(both)
    assert {one.input for one in held} == {'"a"', '"b"'}
    assert await _claim(store, Limits(per_key=1)) == []


# --- keys -------------------------------------------------------------------------------------------------------------


@case()
async def no_more_of_a_key_than_its_share(stores: Stores) -> None:
    """Of each key as many run as ``per_key`` says, the best ones; the concurrency bounds all keys together."""
    store = await stores.open()
    await start(store, *(_keyed(key, priority=number) for key in "abc" for number in range(4)))
    claimed = await _claim(store, Limits(per_key=2))
    assert sorted((one.input, one.priority) for one in claimed) == [
        (f'"{key}"', priority) for key in "abc" for priority in (2, 3)
    ]
    assert await _claim(store, Limits(per_key=2)) == []
    await store.finish([complete(one) for one in claimed])
    assert len(await _claim(store, Limits(concurrency=3, per_key=2))) == 3


@case()
async def keys_of_any_kind(stores: Stores) -> None:
    """Keys are texts of any kind, each its own."""
    store = await stores.open()
    keys = [" ", "a", "A", "a ", "é", "e\u0301", "%", "'", "\\", "\n", "😀", "x" * 500]
    await start(store, *(job(limit_key=key) for key in keys * 2))
    assert len(await _claim(store, Limits(per_key=1))) == len(keys)
    assert await _claim(store, Limits(per_key=1)) == []


@case()
async def best_keys_first(stores: Stores) -> None:
    """Over all keys, the best jobs are claimed first, whatever their keys are called."""
    store = await stores.open()
    await start(store, *(_keyed(f"key{number}", priority=number * 7 % 10) for number in range(10)))
    await start(store, *(job(priority=priority) for priority in (10, -1)))
    claims = [await _claim(store, Limits(per_key=1), limit=4) for _ in range(4)]
    assert [[one.priority for one in claimed] for claimed in claims] == [[10, 9, 8, 7], [6, 5, 4, 3], [2, 1, 0, -1], []]


@case()
async def per_key_never_exceeded_by_claims_at_once(stores: Stores) -> None:
    """Eight stores that claim at once never hold more than one job of a key, and between them one of each key."""
    several = await stores.open_many(_RACERS)
    await start(several[0], *(_keyed(f"key{number % 5}") for number in range(100)))
    for _ in range(15):
        claims = await asyncio.gather(*(_claim(store, Limits(per_key=1), limit=2) for store in several))
        held = [one for claimed in claims for one in claimed]
        assert sorted(one.input for one in held) == [f'"key{number}"' for number in range(5)]
        await asyncio.gather(*(store.finish([complete(one)]) for store, one in zip(several, held, strict=False)))


@case()
async def a_saturated_key_does_not_hold_back_others(stores: Stores) -> None:
    """Behind many better jobs of a key that has its share, those of other keys and of none are claimed."""
    store = await stores.open()
    await start(store, *(_keyed("busy", priority=9) for _ in range(1_500)))
    await start(store, _keyed("quiet"), job(input='"none"'))
    [first] = await _claim(store, Limits(per_key=1), limit=1)
    assert first.input == '"busy"'
    claimed = await _claim(store, Limits(per_key=1), limit=5)
    assert [one.input for one in claimed] == ['"quiet"', '"none"']


@case()
async def none_of_many_keys_starves(stores: Stores) -> None:
    """However many keys have their share, claims come round to the one that has not."""
    store = await stores.open()
    keys = [f"key{number:04}" for number in range(1_200)]
    await start(store, *(_keyed(key, priority=1) for key in keys))
    taken: list[str] = []

    async def all_of_them() -> bool:
        claimed = await _claim(store, Limits(per_key=1), limit=400)
        taken.extend(one.input for one in claimed)
        return len(taken) == len(keys)

    await eventually(all_of_them)
    assert len(set(taken)) == len(keys)
    await start(store, *(_keyed(key) for key in keys), _keyed("last"), _keyed("first"))
    found: list[ClaimedJob] = []

    async def the_free_ones() -> bool:
        found.extend(await _claim(store, Limits(per_key=1), limit=2))
        return len(found) == 2

    await eventually(the_free_ones)
    assert {one.input for one in found} == {'"first"', '"last"'}


@case()
async def without_a_key_only_the_type_counts(stores: Stores) -> None:
    """Jobs without a key are bounded by the concurrency alone, and take its slots as others do."""
    store = await stores.open()
    await start(store, *(job() for _ in range(5)))
    assert len(await _claim(store, Limits(per_key=1), limit=2)) == 2
    assert len(await _claim(store, Limits(concurrency=4, per_key=1))) == 2
    await start(store, _keyed("a", priority=9))
    assert await _claim(store, Limits(concurrency=4, per_key=1)) == []


@case()
async def a_locked_job_does_not_hold_back_its_key(stores: Stores) -> None:
    """A job that its holder has just lost, and one that is the best of its key, leave the slots to the next best."""
    store = await stores.open()
    [first, second, other] = await start(store, *(_keyed("a", priority=priority) for priority in (2, 1, 0)))
    [claimed] = await _claim(store, Limits(per_key=1))
    assert claimed.id == first
    await store.cancel_chains([first], reason="not wanted")
    [claimed] = await _claim(store, Limits(per_key=1))
    assert claimed.id == second
    await store.delete_chains([second])
    assert [one.id for one in await _claim(store, Limits(per_key=1))] == [other]


# --- rate -------------------------------------------------------------------------------------------------------------


@case()
async def no_more_starts_than_the_rate(stores: Stores) -> None:
    """Of each key no more attempts begin in the window than the rate says, even when those before have ended."""
    store = await stores.open()
    await start(store, *(_keyed(key) for key in "aab" * 2))
    rate = Limits(rate=Rate(3, per=_LONG))
    claimed = await _claim(store, rate, limit=3)
    await store.finish([complete(one) for one in claimed])
    claimed += await _claim(store, rate)
    assert Counter(one.input for one in claimed) == {'"a"': 3, '"b"': 2}
    await store.finish([complete(one) for one in claimed[3:]])
    assert await _claim(store, rate) == []


@case()
async def retries_are_starts(stores: Stores) -> None:
    """Every attempt counts against the rate, those of one job too."""
    store = await stores.open()
    await start(store, _keyed("a"))
    rate = Limits(rate=Rate(3, per=_LONG))
    for attempt in (1, 2, 3):
        [claimed] = await _claim(store, rate)
        assert claimed.attempt == attempt
        await store.finish([retry(claimed)])
    assert await _claim(store, rate) == []


@case()
async def jobs_without_a_key_share_a_rate(stores: Stores) -> None:
    """All jobs without a key share one rate, which those with a key do not touch."""
    store = await stores.open()
    await start(store, *(job() for _ in range(4)), _keyed("a", priority=9))
    rate = Limits(rate=Rate(2, per=_LONG))
    assert [one.input for one in await _claim(store, rate, limit=1)] == ['"a"']
    assert [one.input for one in await _claim(store, rate)] == ["{}", "{}"]
    assert await _claim(store, rate) == []


@case()
async def the_window_moves_on(stores: Stores) -> None:
    """When the first starts have left the window, as many begin again."""
    store = await stores.open()
    await start(store, *(_keyed("a") for _ in range(6)))
    rate = Limits(rate=Rate(2, per=0.2))
    held: list[ClaimedJob] = []

    async def all_of_them() -> bool:
        held.extend(await _claim(store, rate))
        return len(held) == 6

    await eventually(all_of_them)
    begun = sorted(one.started_at for one in held)
    # A start leaves the window when exactly its length has passed.
    assert all((later - earlier).total_seconds() >= 0.2 for earlier, later in zip(begun, begun[2:], strict=False))


@case()
async def rate_never_exceeded_by_claims_at_once(stores: Stores) -> None:
    """Eight stores that claim at once begin no more than the rate allows."""
    several = await stores.open_many(_RACERS)
    await start(several[0], *(_keyed("a") for _ in range(60)))
    for allowed in range(3, 45, 3):
        rate = Limits(rate=Rate(allowed, per=_LONG))
        claims = await asyncio.gather(*(_claim(store, rate, limit=2) for store in several))
        held = [one for claimed in claims for one in claimed]
        assert len(held) == 3
        await several[0].finish([complete(one) for one in held])


def _keyed(key: str, **more: Any) -> NewJob:
    """A job whose input is its limit key."""
    return job(input=f'"{key}"', limit_key=key, **more)
