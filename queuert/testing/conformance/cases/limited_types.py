"""Limits of several types in one claim, and of none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from queuert.limits import Limits, Rate
from queuert.state.types import Renewal
from queuert.testing.conformance.builders import ask, claim_one, job, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def limits_of_one_type_do_not_touch_another(stores: Stores) -> None:
    """A type at its limit neither holds back the other types nor counts their running jobs, whatever their keys."""
    store = await stores.open()
    for type in ("work", "other", "free"):
        await start(store, *(job(type, limit_key="a") for _ in range(3)))
    limits = {"work": Limits(concurrency=1), "other": Limits(per_key=2)}
    claimed = await store.claim(replace(ask("work", "other", "free"), limits=limits))
    assert Counter(one.type for one in claimed) == {"work": 1, "other": 2, "free": 3}
    assert await store.claim(replace(ask("work", "other", "free"), limits=limits)) == []


@case()
async def types_take_turns(stores: Stores) -> None:
    """Types with limits and without take turns within a rank, however many jobs of one were due before."""
    store = await stores.open()
    await start(store, *(job("a", limit_key=f"key{number}") for number in range(50)))
    await start(store, *(job("b") for _ in range(5)), *(job("c", priority=priority) for priority in (1, 0, 0, 0)))
    limits = {"a": Limits(per_key=1), "c": Limits(concurrency=9)}
    claims = [
        await store.claim(replace(ask(*types, limit=limit), limits=limits))
        for types, limit in (("abc", 7), ("cba", 1), ("bac", 1), ("acb", 1))
    ]
    assert Counter(one.type for one in claims[0]) == {"a": 2, "b": 2, "c": 3}
    assert [one.type for claimed in claims[1:] for one in claimed] == ["c", "b", "a"]


@case()
async def best_of_limited_and_unlimited_types(stores: Stores) -> None:
    """A claim takes the best of all its types, with limits or without, and no more than it asked for."""
    store = await stores.open()
    for type in ("free", "work"):
        await start(store, *(job(type, priority=priority) for priority in range(4)))
    request = replace(ask("free", "work", limit=3), limits={"work": Limits(concurrency=2)})
    claimed = await store.claim(request)
    assert [(one.type, one.priority) for one in claimed] == [("free", 3), ("work", 3), ("free", 2)]
    claimed = await store.claim(replace(request, token=ask().token))
    assert [(one.type, one.priority) for one in claimed] == [("work", 2), ("free", 1), ("free", 0)]
    assert await store.claim(replace(request, token=ask().token)) == []


@case()
async def each_limited_type_has_its_lease(stores: Stores) -> None:
    """Jobs of limited types are leased for their own type's time, under the claim's token and holder."""
    store = await stores.open()
    await start(store, job(), job("free"))
    request = replace(ask("work", "free", holder="me"), leases={"work": 10.0, "free": 1000.0})
    claimed = await store.claim(replace(request, limits={"work": Limits(per_key=1)}))
    assert {one.type: one.lease_seconds for one in claimed} == {"work": 10.0, "free": 1000.0}
    assert {(one.token, one.attempt) for one in claimed} == {(request.token, 1)}
    assert await store.renew([Renewal(one.lease, 60.0) for one in claimed]) == [True, True]


@case()
async def limits_of_types_not_requested_for_are_of_no_account(stores: Stores) -> None:
    """Limits that name other types than the request change nothing."""
    store = await stores.open()
    await start(store, job(), job())
    assert len(await store.claim(replace(ask(), limits={"other": Limits(concurrency=1)}))) == 2


@case()
async def nothing_for_nothing_under_limits(stores: Stores) -> None:
    """A limit of none claims nothing, nor does a type without jobs."""
    store = await stores.open()
    assert await store.claim(replace(ask(), limits={"work": Limits(per_key=1, rate=Rate(1))})) == []
    await start(store, job())
    assert await store.claim(replace(ask(limit=0), limits={"work": Limits(concurrency=1)})) == []
    assert (await claim_one(store)).attempt == 1
