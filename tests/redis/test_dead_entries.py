"""Entries of jobs that were cancelled in the middle of a long waiting list stay in it, and hide nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from queuert.jobs import JobStatus
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.testing.conformance.builders import ask, due_later, job, start
from tests.redis.harness import Keys

MANY = 2_500
"""More than one script drops."""
TYPES = ("one", "other")

Ages: TypeAlias = Callable[[AsyncRedisStore], Awaitable[dict[str, float]]]


async def cancelled_before_the_last(store: AsyncRedisStore, type: str = "work", *, priority: int = 0) -> str:
    """Start many jobs, and cancel all but the last one. Return its id."""
    *ids, last = await start(store, *(job(type, priority=priority) for _ in range(MANY + 1)))
    await store.cancel_chains(ids[::-1], reason="no")
    return last


async def counted(store: AsyncRedisStore) -> dict[str, float]:
    """The age of the oldest ready job of each type, by a count."""
    ready = [one for one in await store.count_jobs() if one.status is JobStatus.READY]
    return {one.type: one.oldest_seconds for one in ready if one.oldest_seconds is not None}


async def wanted(store: AsyncRedisStore) -> dict[str, float]:
    """The same, by the demand."""
    return {one.type: one.oldest_seconds for one in await store.get_demand() if one.oldest_seconds is not None}


ages = pytest.mark.parametrize("ages", [counted, wanted])


@ages
async def test_the_oldest_job_is_found_behind_more_dead_entries_than_a_script_drops(
    store: AsyncRedisStore, keys: Keys, ages: Ages
) -> None:
    last = {type: await cancelled_before_the_last(store, type) for type in TYPES}
    waiting = {type: keys(f"w:0:{type}") for type in TYPES}
    assert all(keys.client.llen(key) >= MANY for key in waiting.values())
    assert set(await ages(store)) == set(TYPES)
    for type, id in last.items():
        assert [entry.rpartition(":")[2] for entry in keys.client.lrange(waiting[type], 0, -1)] == [id]


@ages
async def test_a_rank_that_has_dead_entries_only_is_forgotten(store: AsyncRedisStore, keys: Keys, ages: Ages) -> None:
    better = await cancelled_before_the_last(store, priority=3)
    await start(store, job())
    await store.cancel_chains([better], reason="no")
    assert set(await ages(store)) == {"work"}
    assert keys.client.zrange(keys("ranks:work"), 0, -1) == ["0"]


async def test_what_comes_before_a_job_is_counted_without_the_dead_entries(store: AsyncRedisStore) -> None:
    """Those of better ranks and of its own."""
    await cancelled_before_the_last(store, priority=3)
    last = await cancelled_before_the_last(store)
    facts = await store.get_wait_facts(last)
    assert facts is not None
    assert facts.ahead == 1


async def test_a_job_is_claimed_behind_more_dead_entries_than_a_script_drops(store: AsyncRedisStore) -> None:
    last = await cancelled_before_the_last(store)
    assert [one.id for one in await store.claim(ask(limit=2))] == [last]


@ages
async def test_the_age_is_that_of_the_first_that_came_of_each_rank(
    store: AsyncRedisStore, keys: Keys, ages: Ages
) -> None:
    """One that was due before and came later, as it was triggered, is behind it: docs/design/listing.md says so."""
    [late] = await start(store, job(run_at=due_later()))
    long_ago = int(keys.client.hget(keys(f"j:{late}"), "created")) - 3_600_000_000
    keys.client.hset(keys(f"j:{late}"), "due", long_ago)
    keys.client.zadd(keys("sched:work"), {late: long_ago})
    assert (await ages(store))["work"] > 3_600.0
    [first] = await start(store, job())
    await store.trigger_jobs([late])
    assert (await ages(store))["work"] < 3_600.0
    await store.cancel_chains([first], reason="no")
    assert (await ages(store))["work"] > 3_600.0
