"""What decides whether a job can be claimed now: the limits of its type, what is used of them, and who comes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from queuert.limits import Limits, Rate
from queuert.run_at import after
from queuert.state import AsyncStore, Capability
from queuert.state.steps import EventWait, NewStep
from queuert.state.types import NAMED_HOLDERS, HeldJob, WaitFacts
from queuert.testing.conformance.builders import ask, claim_one, fail, job, retry, start
from queuert.testing.conformance.cases.demand import _beat
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_LONG = 86_400.0
"""Seconds: a window that no test sees the end of."""


async def _facts(store: AsyncStore, id: str) -> WaitFacts:
    found = await store.get_wait_facts(id)
    assert found is not None
    return found


async def _claim(store: AsyncStore, limits: Limits, limit: int) -> None:
    """Record the limits of type ``work``, and claim jobs under them."""
    await store.record_heartbeat(_beat({"work": limits}), 60.0)
    claimed = await store.claim(replace(ask(limit=limit), limits={"work": limits}))
    assert len(claimed) == limit


@case()
async def of_an_unknown_job(stores: Stores) -> None:
    """There are none."""
    assert await (await stores.open()).get_wait_facts("nowhere") is None


@case()
async def without_limits(stores: Stores) -> None:
    """The store's clock, and the running jobs of the type."""
    store = await stores.open()
    first, second, _ = await start(store, job(), job(), job("other"))
    await claim_one(store)
    await claim_one(store, "other")
    found = await _facts(store, second)
    [read] = await store.get_jobs([first])
    assert read is not None
    assert read.started_at is not None
    assert timedelta(0) <= found.now - read.started_at < timedelta(minutes=5)
    assert found == WaitFacts(found.now, None, 1, 0, 0, None, 0, held=(HeldJob(first, "holder"),))


@case()
async def in_which_step_it_sleeps(stores: Stores) -> None:
    """The last one, if it is a sleep that is not over: no other step, and no wait for an event."""
    store = await stores.open()
    await start(store, job())
    held = await claim_one(store)
    for step, sleep in (
        (NewStep(1, "charge", 1, result="1"), None),
        (NewStep(2, "over", 1, wake_at=after(seconds=0)), None),
        (NewStep(3, "cool down", 1, wake_at=after(hours=1)), "cool down"),
        (NewStep(4, "ship", 1, result="2"), None),
    ):
        await store.record_step(held.lease, step)
        assert (await _facts(store, held.id)).sleep == sleep
    await store.wait_for_event(held.lease, EventWait(5, "approved", 1, "approved", 60.0))
    facts = await _facts(store, held.id)
    assert (facts.event, facts.sleep) == ("approved", None)


@case()
async def who_holds_a_limit(stores: Stores) -> None:
    """Some of the running jobs of the type, and of the job's key, with their holders."""
    store = await stores.open()
    a, b, c, d, waiting = await start(
        store, *(job(limit_key=key) for key in ("a", "b", "a", "a")), job(limit_key="b", priority=-1)
    )
    for holder in ("one", "two"):
        await store.claim(ask(limit=2, holder=holder))
    found = await _facts(store, waiting)
    everyone = {HeldJob(a, "one"), HeldJob(b, "one"), HeldJob(c, "two"), HeldJob(d, "two")}
    assert len(set(found.held)) == NAMED_HOLDERS
    assert everyone.issuperset(found.held)
    assert found.held_of_key == (HeldJob(b, "one"),)
    # Of the key with three.
    assert set((await _facts(store, d)).held_of_key) == everyone - {HeldJob(b, "one")}


@case()
async def jobs_that_come_first(stores: Stores) -> None:
    """Ready jobs of the type: those of a better rank, and those of its rank that were due before."""
    store = await stores.open()
    ids = await start(store, job(), job(priority=5), job(), job(run_at=after(seconds=_LONG)), job("other"), job())
    ranked = [(await _facts(store, id)).ahead for id in ids]
    assert ranked[:3] == [1, 0, 2]
    assert ranked[4:] == [0, 3]


@case()
async def a_retried_job_comes_later(stores: Stores) -> None:
    """Each failed attempt lowers its rank by one."""
    store = await stores.open()
    [failed] = await start(store, job())
    await store.finish([retry(await claim_one(store))])
    await start(store, job(), job())
    assert (await _facts(store, failed)).ahead == 2


@case()
async def jobs_with_a_limit_key_come_first_as_well(stores: Stores) -> None:
    """Keys change nothing in the order."""
    store = await stores.open()
    keyed, free, late = await start(store, job(limit_key="a"), job(), job(limit_key="b"))
    assert [(await _facts(store, id)).ahead for id in (keyed, free, late)] == [0, 1, 2]


@case()
async def jobs_of_the_same_key_come_first_where_keys_take_turns(stores: Stores) -> None:
    """The jobs of other keys are not counted; jobs without a key count as those of one."""
    store = await stores.open()
    limits = Limits(fair=True)
    await store.record_heartbeat(_beat({"work": limits}), 60.0)
    keys = ("a", "b", "a", None, "a", None)
    ids = [id for key in keys for id in await start(store, job(limit_key=key))]
    found = [await _facts(store, id) for id in ids]
    assert [one.ahead for one in found] == [0, 0, 1, 0, 2, 1]
    assert found[0].limits == limits


@case(Capability.ORDERED_KEYS)
async def the_chain_that_goes_first(stores: Stores) -> None:
    """A chain whose type has an order waits for the first one of its key, and a retried one for the one that runs."""
    store = await stores.open()
    limits = Limits(ordered=True, rate=Rate(9))
    await store.record_heartbeat(_beat({"work": limits}), 60.0)
    first, second, other, free = [id for key in ("a", "a", "b", None) for id in await start(store, job(limit_key=key))]
    found = {id: await _facts(store, id) for id in (first, second, other, free)}
    assert {id: one.behind_chain for id, one in found.items()} == {first: None, second: first, other: None, free: None}
    assert found[first].limits == limits
    request = replace(ask(limit=1), limits={"work": limits})
    [claimed] = await store.claim(request)
    assert (await _facts(store, second)).behind_chain == first
    await store.finish([fail(claimed)])
    assert (await _facts(store, second)).behind_chain is None
    [claimed] = [one for one in await store.claim(replace(request, limit=9)) if one.id == second]
    await store.retry_chains([first])
    assert (await _facts(store, first)).behind_chain == second
    assert (await _facts(store, second)).behind_chain is None


@case()
async def limits_by_type_and_key(stores: Stores) -> None:
    """The limits that a worker recorded, and the running jobs that count towards them."""
    store = await stores.open()
    limits = Limits(concurrency=3, per_key=1)
    await start(store, job(limit_key="a"), job(limit_key="b"))
    await _claim(store, limits, 2)
    same, free = await start(store, job(limit_key="a"), job())
    found = await _facts(store, same)
    assert (found.limits, found.running, found.running_of_key) == (limits, 2, 1)
    assert (await _facts(store, free)).running_of_key == 0


@case()
async def a_rate_by_key(stores: Stores) -> None:
    """A key whose rate is used up is free again when the oldest of its attempts leaves the window."""
    store = await stores.open()
    limits = Limits(rate=Rate(2, per=_LONG))
    first, _, _ = await start(store, job(limit_key="a"), job(limit_key="a"), job(limit_key="b"))
    await _claim(store, limits, 3)
    used_up, free = await start(store, job(limit_key="a"), job(limit_key="b"))
    found, other = await _facts(store, used_up), await _facts(store, free)
    [read] = await store.get_jobs([first])
    assert read is not None
    assert read.started_at is not None
    assert (found.limits, found.begun, other.begun, other.rate_free_at) == (limits, 2, 1, None)
    assert found.rate_free_at is not None
    # Each store writes the start of the attempt and its record within one claim.
    assert abs(found.rate_free_at - read.started_at - timedelta(seconds=_LONG)) < timedelta(minutes=5)


@case()
async def a_rate_without_keys(stores: Stores) -> None:
    """Jobs without a key share one rate."""
    store = await stores.open()
    await start(store, job())
    await _claim(store, Limits(rate=Rate(1, per=_LONG)), 1)
    [waiting] = await start(store, job())
    found = await _facts(store, waiting)
    assert found.begun == 1
    assert found.rate_free_at is not None
    assert found.rate_free_at > found.now
