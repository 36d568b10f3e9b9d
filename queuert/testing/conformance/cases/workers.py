"""The worker registry: who told of itself, and not too long ago."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

from queuert.job_types import BULK_OPERATION_TYPE
from queuert.state import AsyncStore
from queuert.testing.conformance.builders import ask, claim_one, complete, eventually, job, read, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores
from queuert.workers import WorkerHeartbeat, WorkerRecord, WorkerState

_LONG = 3600.0


def _beat(id: str = "one", **reported: Any) -> WorkerHeartbeat:
    beat = WorkerHeartbeat(
        id, name="name", host="host", pid=17, version="1.0", job_types=("a", "b"), concurrency=4, running=2, uptime=0.0
    )
    return replace(beat, **reported)


async def _ids(store: AsyncStore) -> list[str]:
    return [one.id for one in await store.list_workers()]


async def _only(store: AsyncStore) -> WorkerRecord:
    [found] = await store.list_workers()
    return found


@case()
async def nobody_is_there(stores: Stores) -> None:
    """Without workers the list is empty, and to forget one that is not there is no error."""
    store = await stores.open()
    await store.remove_worker("nobody")
    assert await store.list_workers() == []


@case()
async def listed_as_reported(stores: Stores) -> None:
    """A worker is listed as it told of itself, odd texts among it, with times by the store's clock."""
    store, other = await stores.open_many(2)
    reported = _beat(
        "h-ö'\":{}%-1", name="n\n", host="h=1", pid=2**31, job_types=(), running=0, state=WorkerState.STOPPING
    )
    await store.record_heartbeat(reported, _LONG)
    found = await _only(other)
    shared = {field.name for field in fields(WorkerRecord)} & {field.name for field in fields(WorkerHeartbeat)}
    assert len(shared) == 9
    assert {name: getattr(found, name) for name in shared} == {name: getattr(reported, name) for name in shared}
    assert found.started_at == found.seen_at
    [clock] = await start(store, job())
    assert found.seen_at <= (await read(store, clock)).created_at


@case()
async def leased_jobs_are_counted_by_holder(stores: Stores) -> None:
    """As they are now, of all types; those that have none are left out."""
    store, other = await stores.open_many(2)
    odd = "h-ö'\":{}%-1"
    assert await other.count_held([odd, "two"]) == {}
    await start(store, *(job() for _ in range(3)), job("other"))
    [first] = await store.claim(ask(limit=1, holder=odd))
    await store.claim(ask("work", "other", holder="two"))
    assert await other.count_held([odd, "two", "nobody"]) == {odd: 1, "two": 3}
    assert await other.count_held(["two"]) == {"two": 3}
    assert await other.count_held([]) == {}
    await store.finish([complete(first)])
    assert await other.count_held([odd, "two"]) == {"two": 3}


@case()
async def batches_of_bulk_operations_are_not_counted(stores: Stores) -> None:
    """A worker does them beside its slots."""
    store, other = await stores.open_many(2)
    await start(store, job(BULK_OPERATION_TYPE), job(BULK_OPERATION_TYPE), *(job() for _ in range(2)))
    await store.claim(ask(BULK_OPERATION_TYPE, limit=1, holder="one"))
    await store.claim(ask(limit=1, holder="one"))
    await store.claim(ask(BULK_OPERATION_TYPE, limit=1, holder="two"))
    assert await other.count_held(["one", "two"]) == {"one": 1}


@case()
async def beats_replace_what_was_reported(stores: Stores) -> None:
    """Another beat replaces all but the start, and moves ``seen_at`` on."""
    store = await stores.open()
    await store.record_heartbeat(_beat(uptime=100.0), _LONG)
    first = await _only(store)
    assert 99.0 < (first.seen_at - first.started_at).total_seconds() < 101.0
    changes: dict[str, Any] = {"host": "elsewhere", "pid": 18, "job_types": ("c",), "concurrency": 5, "running": 5}
    await store.record_heartbeat(_beat(**changes, state=WorkerState.STOPPING, uptime=7.0), _LONG)
    second = await _only(store)
    assert second.seen_at > first.seen_at
    assert second == replace(first, **changes, state=WorkerState.STOPPING, seen_at=second.seen_at)


@case()
async def one_whose_time_is_over(stores: Stores) -> None:
    """A worker is not listed any more when its ttl is over, and is there again when it beats again."""
    store = await stores.open()
    await store.record_heartbeat(_beat(uptime=60.0), 0.0)
    await store.record_heartbeat(_beat("other"), _LONG)
    assert await _ids(store) == ["other"]
    await store.record_heartbeat(_beat(uptime=60.0), _LONG)
    assert await _ids(store) == ["one", "other"]
    # A shorter one counts as well.
    await store.record_heartbeat(_beat(), 0.001)

    async def over() -> bool:
        return await _ids(store) == ["other"]

    await eventually(over)


@case()
async def forgotten(stores: Stores) -> None:
    """One that was forgotten is gone at once; the others stay."""
    store, other = await stores.open_many(2)
    await store.record_heartbeat(_beat("one"), _LONG)
    await store.record_heartbeat(_beat("two"), _LONG)
    await other.remove_worker("one")
    assert await _ids(store) == ["two"]
    await store.record_heartbeat(_beat("one", uptime=5.0), _LONG)
    assert await _ids(store) == ["one", "two"]


@case()
async def longest_running_first(stores: Stores) -> None:
    """They are listed by their start, whenever they were seen."""
    store = await stores.open()
    for id, uptime in (("b", 50.0), ("c", 500.0), ("a", 5.0)):
        await store.record_heartbeat(_beat(id, uptime=uptime), _LONG)
    assert await _ids(store) == ["c", "b", "a"]
    await store.record_heartbeat(_beat("b", uptime=50.0), _LONG)
    assert await _ids(store) == ["c", "b", "a"]


@case()
async def no_lease_depends_on_it(stores: Stores) -> None:
    """A worker that is over, or forgotten, keeps its leases, and may end its jobs; one that lives saves nobody's."""
    store = await stores.open()
    await store.record_heartbeat(_beat("dead"), 0.0)
    await store.record_heartbeat(_beat("gone"), _LONG)
    await start(store, job(), job())
    held = [await claim_one(store, holder=holder) for holder in ("dead", "gone")]
    await store.remove_worker("gone")
    await store.record_heartbeat(_beat("other"), _LONG)
    assert [result.written for result in await store.finish([complete(one) for one in held])] == [True, True]


@case()
async def many_at_once(stores: Stores) -> None:
    """Beats, the end of others' time, and forgetting get in nobody's way, whatever meets."""
    opened = await stores.open_many(6)

    async def live(at: int, store: AsyncStore) -> None:
        for round in range(12):
            await store.record_heartbeat(_beat(f"mine{at}"), _LONG)
            await store.record_heartbeat(_beat(f"shared{round % 3}"), 0.0)
            await store.record_heartbeat(_beat(f"shared{(round + at) % 3}"), 0.0 if at % 2 else _LONG)
            await store.remove_worker(f"shared{round % 3}")
            await store.list_workers()

    await asyncio.gather(*(live(at, store) for at, store in enumerate(opened)))
    found = await _ids(opened[0])
    assert [id for id in sorted(found) if id.startswith("mine")] == [f"mine{at}" for at in range(6)]
