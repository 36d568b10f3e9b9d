"""Chains of a limit key that run in the order of their starts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import Any

from queuert.limits import Limits, Rate
from queuert.run_at import after
from queuert.state import AsyncStore, Capability
from queuert.state.types import ClaimedJob, Finish
from queuert.testing.conformance.builders import (
    AT_ONCE,
    LAST_ATTEMPT,
    ask,
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
    snooze,
    start,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.ORDERED_KEYS
_ORDERED = Limits(ordered=True)


async def _claim(store: AsyncStore, limit: int = 100, *, limits: Limits = _ORDERED, **more: Any) -> list[ClaimedJob]:
    """Claim jobs of type ``work``, whose keys have an order."""
    return await store.claim(replace(ask(limit=limit), limits={"work": limits}, **more))


async def _ids(store: AsyncStore, **more: Any) -> list[str]:
    return [one.id for one in await _claim(store, **more)]


async def _start(store: AsyncStore, *keys: str, **more: Any) -> list[str]:
    """Start one job after the other, with these keys."""
    return [id for key in keys for id in await start(store, job(limit_key=key, **more))]


@case(_NEEDS)
async def one_after_the_other(stores: Stores) -> None:
    """A claim takes the first chain of each key, and the next one when that is closed, however it was closed."""
    store = await stores.open()
    first, other, second, third, fourth = await _start(store, "a", "b", "a", "a", "a")
    claimed = await _claim(store)
    assert {one.id for one in claimed} == {first, other}
    assert await _claim(store) == []
    by_id = {one.id: one for one in claimed}
    await store.finish([complete(by_id[first])])
    for id, finish in ((second, fail), (third, cancel)):
        [one] = await _claim(store)
        assert one.id == id
        assert await _claim(store) == []
        await store.finish([finish(one)])
    assert await _ids(store) == [fourth]


@case(_NEEDS)
async def neither_priority_nor_age_changes_it(stores: Stores) -> None:
    """The order is that of the starts."""
    store = await stores.open()
    [first] = await _start(store, "a", priority=-5)
    [second] = await _start(store, "a", priority=9)
    for expected in (first, second):
        [claimed] = await _claim(store)
        assert claimed.id == expected
        await store.finish([complete(claimed)])


@case(_NEEDS)
async def jobs_without_a_key_have_none(stores: Stores) -> None:
    """They run side by side."""
    store = await stores.open()
    await start(store, job(), job(), job(limit_key="a"), job(limit_key="a"))
    assert len(await _claim(store)) == 3


@case(_NEEDS)
async def held_until_a_retry_ends(stores: Stores) -> None:
    """The next chain waits while the one before is retried at once or later, snoozes, or its worker stops."""
    store = await stores.open()
    first, second = await _start(store, "a", "a")

    def sleeps(claimed: ClaimedJob) -> Finish:
        return snooze(claimed)

    for finish in (retry, interrupt, sleeps):
        [claimed] = await _claim(store)
        assert claimed.id == first
        await store.finish([finish(claimed)])
    [claimed] = await _claim(store)
    await store.finish([retry(claimed, delay=3600.0)])
    assert await _claim(store) == []
    await store.trigger_jobs([first])
    [claimed] = await _claim(store)
    assert claimed.id == first
    await store.finish([complete(claimed)])
    assert await _ids(store) == [second]


@case(_NEEDS)
async def held_while_a_lease_is_lost(stores: Stores) -> None:
    """Until the reaper has made it a failed attempt, and while that is retried. After the last one the next begins."""
    store = await stores.open()
    first, second = await _start(store, "a", "a")
    [claimed] = await _claim(store)
    await run_out(store, claimed)
    assert await _claim(store) == []
    await reap(store, AT_ONCE)
    [claimed] = await _claim(store)
    assert claimed.id == first
    await run_out(store, claimed)
    await reap(store, LAST_ATTEMPT)
    assert await _ids(store) == [second]


@case(_NEEDS)
async def held_by_a_chain_that_is_not_due(stores: Stores) -> None:
    """One that is scheduled or blocked keeps its place before those that were started later."""
    store = await stores.open()
    [blocker] = await start(store, job("other"))
    [scheduled] = await _start(store, "a", run_at=after(seconds=3600.0))
    [blocked] = await _start(store, "b", blockers=[blocker])
    later = await _start(store, "a", "b")
    assert await _claim(store) == []
    await store.cancel_chains([scheduled], reason="not wanted")
    assert await _ids(store) == [later[0]]
    await store.finish([complete(await claim_one(store, "other"))])
    assert await _ids(store) == [blocked]


@case(_NEEDS)
async def held_until_the_chain_closes(stores: Stores) -> None:
    """The unit is the chain: the next one waits for all jobs of the one before, of whichever type."""
    store = await stores.open()
    first, second = await _start(store, "a", "a")
    [claimed] = await _claim(store)
    again, other = job(limit_key="a"), job("other")
    await store.finish([go_on(claimed, again)])
    [claimed] = await _claim(store)
    assert (claimed.id, claimed.chain_id) == (again.id, first)
    await store.finish([go_on(claimed, other)])
    assert await _claim(store) == []
    await store.finish([complete(await claim_one(store, "other"))])
    assert await _ids(store) == [second]


@case(_NEEDS)
async def held_while_a_job_waits_for_children(stores: Stores) -> None:
    """A job that waits for other chains holds its key."""
    store = await stores.open()
    _, second = await _start(store, "a", "a")
    [claimed] = await _claim(store)
    await store.finish([wait(claimed, job("other"))])
    assert await _claim(store) == []
    await store.finish([complete(await claim_one(store, "other"))])
    [claimed] = await _claim(store)
    await store.finish([complete(claimed)])
    assert await _ids(store) == [second]


@case(_NEEDS)
async def deleted_chains_hold_nothing(stores: Stores) -> None:
    """A chain that is deleted leaves the order."""
    store = await stores.open()
    first, second = await _start(store, "a", "a")
    await store.delete_chains([first])
    assert await _ids(store) == [second]


@case(_NEEDS)
async def a_retried_chain_waits_for_the_one_that_has_begun(stores: Stores) -> None:
    """A client that retries a closed chain does not let two run at once. It goes before those that have not begun."""
    store = await stores.open()
    first, second, third = await _start(store, "a", "a", "a")
    [claimed] = await _claim(store)
    await store.finish([fail(claimed)])
    [claimed] = await _claim(store)
    assert claimed.id == second
    await store.retry_chains([first])
    assert await _claim(store) == []
    await store.finish([complete(claimed)])
    [claimed] = await _claim(store)
    assert claimed.id == first
    await store.finish([complete(claimed)])
    assert await _ids(store) == [third]


@case(_NEEDS)
async def with_a_rate_and_turns(stores: Stores) -> None:
    """A key whose rate is used up is passed over; keys take turns."""
    store = await stores.open()
    limits = Limits(rate=Rate(1, per=86_400.0), fair=True, ordered=True)
    ids = await _start(store, "a", "a", "a", "b")
    claimed = [one for _ in range(2) for one in await _claim(store, 1, limits=limits)]
    assert {one.id for one in claimed} == {ids[0], ids[3]}
    await store.finish([complete(one) for one in claimed])
    assert await _claim(store, limits=limits) == []


@case(_NEEDS)
async def kept_by_claims_at_once(stores: Stores) -> None:
    """Stores that claim, retry and complete at once never run two chains of a key at once, nor one before another."""
    several = await stores.open_many(6)
    expected: dict[str, list[str]] = defaultdict(list)
    for number in range(60):
        key = "abc"[number % 3]
        expected[key] += await _start(several[0], key, input=f'"{key}"')
    running: set[str] = set()
    done: dict[str, list[str]] = defaultdict(list)

    async def work(store: AsyncStore) -> None:
        while sum(map(len, done.values())) < 60:
            for claimed in await _claim(store, 2):
                key = (claimed.input or "").strip('"')
                assert key not in running
                running.add(key)
                await asyncio.sleep(0)
                ended = claimed.attempt == 2 or len(done[key]) % 4 != 0
                if ended:
                    done[key].append(claimed.id)
                running.discard(key)
                await store.finish([complete(claimed) if ended else retry(claimed)])

    await asyncio.gather(*map(work, several))
    assert done == expected
