"""Demand: how many jobs workers could run now, which an autoscaler goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from queuert.limits import Limits, Rate, TypeTraits
from queuert.run_at import after
from queuert.state import AsyncStore
from queuert.state.types import ClaimedJob, NewJob, TypeDemand
from queuert.testing.conformance.builders import ask, complete, due_later, eventually, job, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores
from queuert.workers import WorkerHeartbeat

_LONG = 86_400.0
"""Seconds: a window that no test sees the end of."""


def _beat(limits: Mapping[str, Limits], *types: str) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        id="worker",
        name="worker",
        host="here",
        pid=1,
        version="1",
        job_types=types or ("work",),
        concurrency=1,
        running=0,
        uptime=0.0,
        limits=limits,
    )


def _by_client(type: str, overdue_after: float | None = None) -> TypeTraits:
    return TypeTraits(type, completed_by_client=True, overdue_after=overdue_after)


async def _limit(store: AsyncStore, limits: Limits) -> None:
    """Record the limits of type ``work``, and let the worker stop."""
    await store.record_heartbeat(_beat({"work": limits}), 60.0)
    await store.remove_worker("worker")


async def _claim(store: AsyncStore, limits: Limits, limit: int = 100) -> list[ClaimedJob]:
    return await store.claim(replace(ask(limit=limit), limits={"work": limits}))


async def _numbers(store: AsyncStore, type: str = "work") -> tuple[int, int, int, int]:
    """Ready, due, running, held back."""
    [one] = await store.get_demand([type])
    return one.ready, one.due, one.running, one.held_back


def _keyed(key: str | None) -> NewJob:
    return job(limit_key=key)


async def _until_due(store: AsyncStore, number: int) -> None:
    async def are_due() -> bool:
        found = await store.get_demand()
        return sum(one.due + one.held_back for one in found) == number

    await eventually(are_due)


@case()
async def nothing_is_demanded_of_an_empty_store(stores: Stores) -> None:
    """Types without due and running jobs are left out, also where they are named."""
    store = await stores.open()
    assert await store.get_demand() == []
    await start(store, job(run_at=due_later()))
    assert await store.get_demand() == []
    assert await store.get_demand(["work", "other"]) == []
    assert await store.get_demand([]) == []


@case()
async def ready_and_running_jobs_are_demanded(stores: Stores) -> None:
    """Ready and running jobs are counted by type; closed ones are not."""
    store = await stores.open()
    await start(store, *(job() for _ in range(4)), *(job("other") for _ in range(2)))
    one, _ = await store.claim(ask(limit=2))
    await store.finish([complete(one)])
    found = {one.type: one for one in await store.get_demand()}
    assert {type: (one.ready, one.due, one.running) for type, one in found.items()} == {
        "other": (2, 0, 0),
        "work": (2, 0, 1),
    }
    assert [one.type for one in await store.get_demand()] == ["other", "work"]
    assert found["work"].wanted == 3
    assert [one.type for one in await store.get_demand(["other"])] == ["other"]


@case()
async def scheduled_jobs_are_demanded_when_they_are_due(stores: Stores) -> None:
    """A scheduled job counts as due once its time has come, and not before."""
    store = await stores.open()
    await start(store, job(run_at=after(seconds=0.001)), job(run_at=due_later()))
    await _until_due(store, 1)
    assert await _numbers(store) == (0, 1, 0, 0)


@case()
async def the_age_is_that_of_the_longest_due(stores: Stores) -> None:
    """The age counts from when a job became due, and is None where only running jobs are left."""
    store = await stores.open()
    await start(store, job())
    [before] = await store.get_demand()
    assert before.oldest_seconds is not None
    assert before.oldest_seconds >= 0.0
    await store.claim(ask())
    assert await store.get_demand() == [TypeDemand("work", 0, 0, 1, 0, None)]


@case()
async def counting_ends_at_the_bound(stores: Stores) -> None:
    """No number is above the one at which counting ends."""
    store = await stores.open()
    await start(store, *(job() for _ in range(8)))
    await store.claim(ask(limit=4))
    [one] = await store.get_demand(counted_up_to=3)
    assert (one.ready, one.running, one.held_back) == (3, 3, 0)


@case()
async def jobs_that_clients_complete_are_held_back(stores: Stores) -> None:
    """No worker would help. It is so while no worker is alive, until one that handles the type says otherwise."""
    store = await stores.open()
    await start(store, job("approve"), job("approve"), job("work"))
    assert await store.list_type_traits() == []
    answer, approve = _by_client("answer"), _by_client("approve", 86_400.5)
    await store.record_heartbeat(replace(_beat({}), traits=(approve, answer)), 60.0)
    await store.remove_worker("worker")
    assert await store.list_type_traits() == [answer, approve]
    assert await _numbers(store, "approve") == (0, 0, 0, 2)
    assert await _numbers(store) == (1, 0, 0, 0)
    await store.record_heartbeat(_beat({}, "approve"), 60.0)
    assert await store.list_type_traits() == [answer]
    assert await _numbers(store, "approve") == (2, 0, 0, 0)
    await store.record_heartbeat(replace(_beat({}), traits=(TypeTraits("approve", closes_with_parent=True),)), 60.0)
    assert await _numbers(store, "approve") == (2, 0, 0, 0), "this alone holds nothing back"


@case()
async def a_type_that_workers_complete_again(stores: Stores) -> None:
    """A worker that knows a type as one of workers says so, whether it handles it or not; others leave it alone."""
    store = await stores.open()
    await store.record_heartbeat(replace(_beat({}), traits=(_by_client("approve"), _by_client("answer"))), 60.0)
    await store.record_heartbeat(replace(_beat({}), known_types=("work", "other")), 60.0)
    assert [one.type for one in await store.list_type_traits()] == ["answer", "approve"]
    await store.record_heartbeat(replace(_beat({}), known_types=("work", "approve")), 60.0)
    assert [one.type for one in await store.list_type_traits()] == ["answer"]


@case()
async def traits_are_changed(stores: Stores) -> None:
    """The last heartbeat decides, as for limits."""
    store = await stores.open()
    for traits in (
        _by_client("approve", 60.0),
        _by_client("approve"),
        replace(_by_client("approve", 0.5), closes_with_parent=True),
        replace(_by_client("approve", 0.5), closes_with_parent=True),
        TypeTraits("approve", closes_with_parent=True),
        _by_client("approve", 0.5),
    ):
        await store.record_heartbeat(replace(_beat({}), traits=(traits,)), 60.0)
        assert await store.list_type_traits() == [traits]


@case()
async def limits_beside_a_type_that_clients_complete(stores: Stores) -> None:
    """A worker records both, and neither is taken for the other."""
    store = await stores.open()
    limits = Limits(concurrency=1, fair=True)
    await store.record_heartbeat(replace(_beat({"work": limits}), traits=(_by_client("approve"),)), 60.0)
    approval, other, _ = await start(store, job("approve"), job("work"), job("work"))
    facts = [await store.get_wait_facts(id) for id in (approval, other)]
    assert [one and one.limits for one in facts] == [None, limits]
    assert await store.list_type_traits() == [_by_client("approve")]
    assert await _numbers(store) == (1, 0, 0, 1)


@case()
async def jobs_of_a_paused_type_are_held_back(stores: Stores) -> None:
    """What a pause holds back is no demand; what runs is."""
    store = await stores.open()
    await start(store, *(job() for _ in range(3)))
    await store.claim(ask(limit=1))
    await store.pause_job_types(["work"])
    assert await _numbers(store) == (0, 0, 1, 2)
    await store.resume_job_types(["work"])
    assert await _numbers(store) == (2, 0, 1, 0)


@case()
async def concurrency_bounds_the_demand(stores: Stores) -> None:
    """Of a type with a concurrency no more is demanded than it has slots, whether its workers are alive or not."""
    store = await stores.open()
    three = Limits(concurrency=3)
    await _limit(store, three)
    await start(store, *(job() for _ in range(5)), *(job("other") for _ in range(5)))
    assert await _numbers(store) == (3, 0, 0, 2)
    assert await _numbers(store, "other") == (5, 0, 0, 0)
    await _claim(store, three)
    assert await _numbers(store) == (0, 0, 3, 2)


@case()
async def keys_with_all_their_slots_in_use_are_held_back(stores: Stores) -> None:
    """Of each key no more is demanded than may run; jobs without a key are not limited by one."""
    store = await stores.open()
    two = Limits(per_key=2)
    await _limit(store, two)
    await start(store, *(_keyed("many") for _ in range(5)), _keyed("few"), _keyed(None), _keyed(None), _keyed(None))
    assert await _numbers(store) == (6, 0, 0, 3)
    await _claim(store, two)
    assert await _numbers(store) == (0, 0, 6, 3)


@case()
async def due_jobs_of_a_key_share_its_slots_with_ready_ones(stores: Stores) -> None:
    """A key's ready and due jobs together are no more demand than it has slots."""
    store = await stores.open()
    await _limit(store, Limits(per_key=2))
    soon = after(seconds=0.001)
    await start(
        store,
        _keyed("both"),
        *(job(limit_key="both", run_at=soon) for _ in range(3)),
        *(job(limit_key="due", run_at=soon) for _ in range(3)),
        job(run_at=soon),
    )
    await _until_due(store, 7)
    assert await _numbers(store) == (1, 4, 0, 3)


@case()
async def a_rate_bounds_the_demand(stores: Stores) -> None:
    """What a rate holds back until its window has passed is no demand; jobs without a key share one rate."""
    store = await stores.open()
    rated = Limits(rate=Rate(2, per=_LONG))
    await _limit(store, rated)
    await start(store, *(_keyed("a") for _ in range(3)), *(_keyed(None) for _ in range(3)))
    assert await _numbers(store) == (4, 0, 0, 2)
    await _claim(store, rated)
    assert await _numbers(store) == (0, 0, 4, 2)


@case()
async def limits_that_are_gone_hold_nothing_back(stores: Stores) -> None:
    """The limits of a type are those of the last worker that recorded any, or none."""
    store = await stores.open()
    await start(store, *(job() for _ in range(5)))
    await _limit(store, Limits(concurrency=1))
    await _limit(store, Limits(concurrency=2))
    assert await _numbers(store) == (2, 0, 0, 3)
    await store.record_heartbeat(_beat({}, "other"), 60.0)
    assert await _numbers(store) == (2, 0, 0, 3)
    await store.record_heartbeat(_beat({}), 60.0)
    assert await _numbers(store) == (5, 0, 0, 0)


@case()
async def ready_and_due_jobs_share_a_concurrency(stores: Stores) -> None:
    """A type's ready and due jobs together are no more demand than it has slots."""
    store = await stores.open()
    await _limit(store, Limits(concurrency=3))
    soon = after(seconds=0.001)
    await start(store, job(), job(), *(job(run_at=soon) for _ in range(4)))
    await _until_due(store, 4)
    assert await _numbers(store) == (2, 1, 0, 3)


@case()
async def the_age_counts_due_jobs_and_those_with_a_key(stores: Stores) -> None:
    """A scheduled job has an age from when it is due, and a job with a key from when it is ready."""
    store = await stores.open()
    await start(store, job(limit_key="one"), job("other", run_at=after(seconds=0.001)))
    await _until_due(store, 1)
    found = {one.type: one.oldest_seconds for one in await store.get_demand()}
    assert [found[type] is not None for type in ("other", "work")] == [True, True]
