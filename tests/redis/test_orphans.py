"""Ids whose jobs are gone, by an eviction or a manual edit: what finds one drops it and goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from queuert.jobs import JobStatus
from queuert.limits import Limits
from queuert.policies import Keep, Retention
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.types import NewJob, PruneRequest
from queuert.testing.conformance.builders import ask, claim_one, complete, job
from tests.redis.harness import Keys

NONE_KEPT = {"work": Retention(completed=Keep(count=0))}


async def closed(store: AsyncRedisStore, *jobs: NewJob) -> None:
    """Start chains and complete them."""
    await store.start_jobs(jobs)
    for _ in jobs:
        await store.finish([complete(await claim_one(store))])


async def pruned(store: AsyncRedisStore, request: PruneRequest) -> list[str]:
    """Prune to the end, by rounds of which each may be the last."""
    found: list[str] = []
    for _ in range(20):
        result = await store.prune(request)
        found += result.chain_ids
        if result.cursor is None:
            return found
        request = replace(request, cursor=result.cursor)
    raise AssertionError(f"pruning must end, got {found} and more")


@pytest.mark.parametrize("before", [None, datetime(2100, 1, 1, tzinfo=UTC)], ids=["all", "read"])
async def test_pruning_goes_on_after_an_expired_one(
    store: AsyncRedisStore, keys: Keys, before: datetime | None
) -> None:
    await closed(store, job(id="stays", result_ttl=3600.0), job(id="expired", result_ttl=0.0))
    keys.client.zadd(keys("expires"), {"gone": 1, "gone too": 2})
    assert await pruned(store, PruneRequest(limit=1, closed_before=before)) == ["expired"]
    assert keys.client.zrange(keys("expires"), 0, -1) == ["stays"]


async def test_pruning_goes_on_after_a_closed_one(store: AsyncRedisStore, keys: Keys) -> None:
    await closed(store, job(id="first"), job(id="second"))
    key = keys("closed:4:work:completed")
    keys.client.zadd(key, {"gone": 1})
    assert await pruned(store, PruneRequest(NONE_KEPT, preview=True)) == ["first", "second"]
    assert keys.client.zrange(key, 0, -1) == ["gone", "first", "second"]
    assert await pruned(store, PruneRequest(NONE_KEPT, limit=1)) == ["first", "second"]
    assert keys.names("closed:*") == []


async def test_a_key_has_its_turn_although_the_first_of_its_jobs_are_gone(store: AsyncRedisStore, keys: Keys) -> None:
    await store.start_jobs([job(id="there", limit_key="a")])
    gone = {f"00000000000:{number:017d}:{number:015d}:gone": 0 for number in range(3)}
    for kind in ("kz:work", "kk:4:work:a", "kk:4:work:b"):
        keys.client.zadd(keys(kind), gone)
    keys.client.zadd(keys("keys:work"), {"b": 0})
    request = replace(ask(limit=1), limits={"work": Limits(per_key=1, fair=True)})
    assert [one.id for one in await store.claim(request)] == ["there"]
    assert await store.claim(request) == []


async def test_a_key_without_jobs_is_dropped_where_keys_are_tried(store: AsyncRedisStore, keys: Keys) -> None:
    """As behind a thousand jobs of a key that is full. The claim goes on with the keys that are left."""
    await store.start_jobs([job(limit_key="full") for _ in range(1_001)])
    await store.start_jobs([job(id="there", limit_key="other")])
    request = replace(ask(limit=1), limits={"work": Limits(per_key=1)})
    assert len(await store.claim(request)) == 1
    keys.client.zadd(keys("keys:work"), dict.fromkeys(("a", "b", "z"), 0))
    assert [one.id for one in await store.claim(request)] == ["there"]
    assert await store.claim(request) == []
    assert set(keys.client.zrange(keys("keys:work"), 0, -1)) == {"full"}
    counted = {one.status: one.count for one in await store.count_jobs()}
    assert counted == {JobStatus.READY: 1_000, JobStatus.RUNNING: 2}


async def test_dead_entries_go_with_the_last_job_of_a_type(store: AsyncRedisStore, keys: Keys) -> None:
    """Nobody looks at the lists of a type without jobs: neither a sweep nor, if no worker has it, a claim."""
    ids = [f"job-{number}" for number in range(300)]
    await store.start_jobs([job(id=id, priority=number % 2) for number, id in enumerate(ids)])
    await store.start_jobs([job("other", id="other")])
    # In the order of the lists their first entries would go with them.
    await store.delete_chains(ids[::-1])
    assert keys.names("w:*") == ["w:0:other"]
    assert keys.names("ranks:*") == ["ranks:other"]
    await store.start_jobs([job(id="new")])
    assert [one.id for one in await store.claim(ask())] == ["new"]
