"""Recurring schedules: each tick gets its chain once, whoever sees it first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from queuert.errors import ConfigurationError, ScheduleOverlapError, ScheduleOwnerError
from queuert.jobs import JobStatus
from queuert.run_at import at
from queuert.schedules import MissedRuns, Overlap, tick_id
from queuert.state import AsyncStore
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.types import NewJob, ScheduleRecord, StartedJob
from queuert.testing.conformance.builders import claim_one, complete, error_of, eventually, job, read, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
_DAY = timedelta(days=1)


def _schedule(name: str = "daily", **more: Any) -> ScheduleRecord:
    given: dict[str, Any] = {"cron": None, "every": None if more.get("cron") else 86_400.0 * 300, **more}
    return ScheduleRecord(
        name,
        given.pop("type", "work"),
        given.pop("input", "{}"),
        time_zone=given.pop("time_zone", "UTC"),
        missed=given.pop("missed", MissedRuns.ONCE),
        **given,
    )


async def _listed(store: AsyncStore, name: str = "daily") -> ScheduleRecord:
    [found] = [one for one in await store.list_schedules() if one.name == name]
    return found


async def _make_due(store: AsyncStore, name: str = "daily", tick: datetime = _LONG_AGO) -> datetime:
    """Set a schedule back to a tick that has passed."""
    upcoming = (await _listed(store, name)).next_at
    assert upcoming is not None
    assert await store.fire_schedule(name, upcoming, tick, []) == []
    return tick


def _job(tick: datetime, name: str = "daily", **more: Any) -> NewJob:
    return job(id=tick_id(name, tick), **more)


@case()
async def delays_of_all_types(stores: Stores) -> None:
    """Due schedules of all types are told with the time since their tick; paused and later ones are not."""
    store = await stores.open()
    await store.put_schedules([_schedule("a"), _schedule("b", type="other"), _schedule("c"), _schedule("later")])
    for name in ("a", "b", "c"):
        await _make_due(store, name, _LONG_AGO + (_DAY if name == "a" else timedelta()))
    await store.set_schedules_paused(["c"], True)
    delays = await store.schedule_delays()
    assert [(one.name, one.type) for one in delays] == [("b", "other"), ("a", "work")]
    assert abs(delays[0].seconds - delays[1].seconds - 86_400) < 1


# --- put, list, delete ------------------------------------------------------------------------------------------------


@case()
async def put_and_listed(stores: Stores) -> None:
    """Schedules are listed by name, as they were put, with the first tick after now by the store's clock."""
    store = await stores.open()
    assert await store.list_schedules() == []
    plain = _schedule("b")
    full = _schedule(
        "a 'quoted' é",
        type="other",
        input='{"n": [1, null]}',
        cron="30 3 * * 1-5",
        time_zone="Europe/Berlin",
        missed=MissedRuns.ALL,
        priority=-3,
        limit_key="key",
    )
    before = (await store.due_schedules(["work"])).now
    await store.put_schedules([plain, full])
    after = (await store.due_schedules(["work"])).now
    found = await store.list_schedules()
    assert [one.name for one in found] == [full.name, plain.name]
    for one, given in zip(found, (full, plain), strict=True):
        assert json.loads(one.input) == json.loads(given.input)
        assert (one.type, one.cron, one.every, one.time_zone) == (given.type, given.cron, given.every, given.time_zone)
        assert (one.missed, one.priority, one.limit_key) == (given.missed, given.priority, given.limit_key)
        assert (one.paused, one.last_at) == (False, None)
        assert one.next_at in (given.spec.next_after(before), given.spec.next_after(after))
        assert one.next_at is not None
        assert one.next_at > before


@case()
async def put_again_keeps_pause_and_tick(stores: Stores) -> None:
    """Putting a schedule again replaces it, but for its pause, its last tick and, with the same times, its next one."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    await _make_due(store)
    tick = _LONG_AGO + _DAY
    assert await store.fire_schedule("daily", _LONG_AGO, tick, [_job(_LONG_AGO)])
    await store.set_schedules_paused(["daily"], True)
    await store.put_schedules([_schedule(type="other", input="[2]", priority=4, limit_key="k", missed=MissedRuns.SKIP)])
    found = await _listed(store)
    assert (found.type, json.loads(found.input), found.priority, found.limit_key) == ("other", [2], 4, "k")
    assert (found.missed, found.paused, found.next_at, found.last_at) == (MissedRuns.SKIP, True, tick, _LONG_AGO)


@case()
async def put_with_other_times_begins_anew(stores: Stores) -> None:
    """With other times, or another time zone, the next tick is the first after now; the pause stays."""
    store = await stores.open()
    for changed in (
        _schedule(every=86_400.0),
        _schedule(cron="0 3 * * *"),
        _schedule(cron="0 3 * * *", time_zone="Asia/Tokyo"),
    ):
        await store.delete_schedules(["daily"])
        await store.put_schedules([_schedule()])
        await _make_due(store)
        await store.set_schedules_paused(["daily"], True)
        now = (await store.due_schedules(["work"])).now
        await store.put_schedules([changed])
        found = await _listed(store)
        assert found.next_at is not None
        assert found.next_at > now
        assert (found.paused, found.spec.cron, found.spec.time_zone) == (True, changed.cron, changed.time_zone)


@case()
async def what_makes_no_sense_is_refused(stores: Stores) -> None:
    """A schedule whose times are not valid is refused, and none of its batch is written."""
    store = await stores.open()
    for wrong in (_schedule("wrong", cron="61 * * * *"), _schedule("wrong", time_zone="Mars/Olympus")):
        await error_of(ConfigurationError, store.put_schedules([_schedule(), wrong]))
    await store.put_schedules([])
    assert await store.list_schedules() == []


@case()
async def deleted(stores: Stores) -> None:
    """A deleted schedule is gone, its chains stay; how many there were is returned, each counted once."""
    store = await stores.open()
    await store.put_schedules([_schedule(), _schedule("other")])
    tick = await _make_due(store)
    assert await store.fire_schedule("daily", tick, tick + _DAY, [_job(tick)])
    assert await store.delete_schedules(["daily", "daily", "unknown"]) == 1
    assert await store.delete_schedules(["daily"]) == 0
    assert await store.delete_schedules([]) == 0
    assert [one.name for one in await store.list_schedules()] == ["other"]
    assert (await read(store, tick_id("daily", tick))).status is JobStatus.READY
    assert await store.fire_schedule("daily", tick + _DAY, None, [_job(tick + _DAY)]) is None


@case()
async def options_are_stored(stores: Stores) -> None:
    """All that a schedule says of its owner, its times and its chains is listed as it was put, and can be replaced."""
    store = await stores.open()
    options: dict[str, Any] = {
        "owner": "app 'é'",
        "overlap": Overlap.SKIP,
        "jitter": 12.5,
        "starts_at": _LONG_AGO,
        "ends_at": datetime(2200, 1, 1, tzinfo=UTC),
        "attributes": {"customer": "17", "tags": ("a", "b")},
        "result_ttl": 86_400.5,
    }
    plain = {name: getattr(_schedule(), name) for name in options} | {"owner": options["owner"]}
    for given in (options, plain, options):
        await store.put_schedules([_schedule(**given)])
        found = await _listed(store)
        assert {name: getattr(found, name) for name in options} == given
        assert found.last_chain_id is None
        due = await store.due_schedules(["work"])
        assert (list(due.due), due.next_in is None) == ([], False)
    await _make_due(store)
    [due_one] = (await store.due_schedules(["work"])).due
    assert {name: getattr(due_one, name) for name in options} == options


@case()
async def start_and_end_bound_the_ticks(stores: Stores) -> None:
    """The first tick is not before the start; after the end there is none; other bounds begin anew."""
    store = await stores.open()
    start, end = datetime(2190, 1, 1, tzinfo=UTC), datetime(2190, 1, 2, tzinfo=UTC)
    await store.put_schedules([_schedule(every=3600.0, starts_at=start, ends_at=end)])
    assert (await _listed(store)).next_at == start
    await store.put_schedules([_schedule(every=3600.0, ends_at=_LONG_AGO)])
    assert (await _listed(store)).next_at is None
    await store.put_schedules([_schedule(every=3600.0, starts_at=start)])
    assert (await _listed(store)).next_at == start


# --- owners -----------------------------------------------------------------------------------------------------------


@case()
async def owners_keep_their_schedules(stores: Stores) -> None:
    """A schedule of another owner, or of none, is not replaced, and none of the batch is written."""
    store = await stores.open()
    await store.put_schedules([_schedule("mine", owner="me"), _schedule("free")])
    for given in (_schedule("mine", owner="you"), _schedule("mine"), _schedule("free", owner="me")):
        error = await error_of(ScheduleOwnerError, store.put_schedules([_schedule("a", owner=given.owner), given]))
        assert (error.name, error.given) == (given.name, given.owner)
        assert error.owner == ("me" if given.name == "mine" else None)
    assert [(one.name, one.owner) for one in await store.list_schedules()] == [("free", None), ("mine", "me")]
    await store.put_schedules([_schedule("mine", owner="me", priority=3)])
    assert (await _listed(store, "mine")).priority == 3


@case()
async def deleted_by_owner(stores: Stores) -> None:
    """With an owner, only its own schedules are deleted; without one, all that are named."""
    store = await stores.open()
    await store.put_schedules([_schedule("mine", owner="me"), _schedule("yours", owner="you"), _schedule("free")])
    assert await store.delete_schedules(["mine", "yours", "free", "none"], owner="me") == 1
    assert [one.name for one in await store.list_schedules()] == ["free", "yours"]
    assert await store.delete_schedules(["yours", "free"]) == 2


# --- due --------------------------------------------------------------------------------------------------------------


@case()
async def due_by_the_clock(stores: Stores) -> None:
    """A schedule is due when its tick has come by the store's clock, and not before."""
    store = await stores.open()
    # The second one is not due before the first, however slow the machine is.
    await store.put_schedules([_schedule(every=1.0), _schedule("later")])
    upcoming = (await _listed(store)).next_at
    assert upcoming is not None

    async def due() -> bool:
        found = await store.due_schedules(["work"])
        assert [one.next_at for one in found.due] == ([upcoming] if found.now >= upcoming else [])
        if not found.due:
            assert found.next_in is not None
            assert 0 < found.next_in <= 1
        return bool(found.due)

    await eventually(due)


@case()
async def due_ones_in_order(stores: Stores) -> None:
    """The due schedules of the types asked for are found, the longest due first, and when the next one is."""
    store = await stores.open()
    assert (await store.due_schedules(["work"])).next_in is None
    names = [f"s{number}" for number in range(5)]
    await store.put_schedules([_schedule(name, type="work" if name < "s4" else "other") for name in names])
    await store.put_schedules([_schedule("later", type="later")])
    for name, days in zip(names, (3, 1, 2, 0, 0), strict=True):
        await _make_due(store, name, _LONG_AGO + days * _DAY)
    found = await store.due_schedules(["work", "later"])
    assert [one.name for one in found.due] == ["s3", "s1", "s2", "s0"]
    assert found.next_in is not None
    assert found.next_in > 0
    assert (await store.due_schedules(["work"])).next_in is None
    assert [one.name for one in (await store.due_schedules(["other", "later"])).due] == ["s4"]
    first = await store.due_schedules(["work"], limit=3)
    assert ([one.name for one in first.due], first.next_in) == (["s3", "s1", "s2"], 0)
    assert (await store.due_schedules([])).due == []


@case()
async def paused_ones_are_not_due(stores: Stores) -> None:
    """A paused schedule is not due and cannot be fired; when it goes on, it is at the tick where it was paused."""
    store = await stores.open()
    await store.put_schedules([_schedule(), _schedule("other")])
    tick = await _make_due(store)
    assert await store.set_schedules_paused(["daily", "daily", "unknown"], True) == 1
    assert await store.set_schedules_paused([], True) == 0
    assert (await store.due_schedules(["work"])).due == []
    assert await store.fire_schedule("daily", tick, None, [_job(tick)]) is None
    assert [one.paused for one in await store.list_schedules()] == [True, False]
    assert await store.set_schedules_paused(["daily"], False) == 1
    assert [one.next_at for one in (await store.due_schedules(["work"])).due] == [tick]


# --- fire -------------------------------------------------------------------------------------------------------------


@case()
async def fired_chains_are_due_jobs(stores: Stores) -> None:
    """Firing starts the chains, ready at once, with priority and limit key, and moves the schedule on."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    ticks = [tick, tick + _DAY, tick + 2 * _DAY]
    jobs = [_job(one, input='{"n": 1}', priority=number, limit_key="k") for number, one in enumerate(ticks)]
    started = await store.fire_schedule("daily", tick, tick + 3 * _DAY, jobs)
    assert started is not None
    assert [(one.id, one.type, one.status, one.existing) for one in started] == [
        (given.id, "work", JobStatus.READY, False) for given in jobs
    ]
    found = await _listed(store)
    assert (found.next_at, found.last_at) == (tick + 3 * _DAY, ticks[-1])
    written = await read(store, jobs[1].id)
    assert (written.input, written.priority, written.limit_key) == ({"n": 1}, 1, "k")
    claimed = await claim_one(store)
    assert claimed.id == jobs[2].id
    assert (await store.finish([complete(claimed)]))[0].written


@case()
async def a_tick_that_was_fired_is_refused(stores: Stores) -> None:
    """A tick that is not the schedule's next one any more starts nothing and moves nothing."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    assert await store.fire_schedule("daily", tick, tick + _DAY, []) == []
    assert (await _listed(store)).last_at is None
    assert await store.fire_schedule("daily", tick, tick + 2 * _DAY, [_job(tick)]) is None
    assert await store.fire_schedule("unknown", tick, tick + _DAY, [_job(tick)]) is None
    assert (await _listed(store)).next_at == tick + _DAY
    assert await store.get_jobs([tick_id("daily", tick)]) == [None]


@case()
async def chains_that_exist_are_left_as_they_are(stores: Stores) -> None:
    """A tick whose chain is there starts no other one; the schedule moves on, and the other ticks get theirs."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    await start(store, _job(tick, input="7"))
    jobs = [_job(tick, input="8"), _job(tick + _DAY)]
    started = await store.fire_schedule("daily", tick, tick + 2 * _DAY, jobs)
    assert started is not None
    assert [(one.id, one.type, one.existing) for one in started] == [
        (jobs[0].id, "work", True),
        (jobs[1].id, "work", False),
    ]
    assert (await read(store, jobs[0].id)).input == 7
    assert (await _listed(store)).next_at == tick + 2 * _DAY


@case()
async def a_tick_whose_id_another_type_has_is_not_lost(stores: Stores) -> None:
    """A chain of another type does not stand for a tick, whoever took its id: the tick's chain gets a new one."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    ticks = [tick, tick + _DAY, tick + 2 * _DAY]
    await start(store, _job(ticks[0], input="7", type="other"))
    await start(store, _job(ticks[2], input="8", type="other"))
    jobs = [_job(one, input="9", priority=3, limit_key="k") for one in ticks]
    started = await store.fire_schedule("daily", tick, tick + 3 * _DAY, jobs)
    assert started is not None
    assert [(one.type, one.status, one.existing) for one in started] == [("work", JobStatus.READY, False)] * 3
    assert [one.id == wanted.id for one, wanted in zip(started, jobs, strict=True)] == [False, True, False]
    for one in started:
        written = await read(store, one.id)
        assert (written.type, written.chain_id, written.input) == ("work", one.id, 9)
        assert (written.priority, written.limit_key) == (3, "k")
    assert [(await read(store, jobs[at].id)).input for at in (0, 2)] == [7, 8]
    found = await _listed(store)
    assert (found.next_at, found.last_at) == (tick + 3 * _DAY, ticks[-1])


@case()
async def the_last_tick(stores: Stores) -> None:
    """A schedule without a next tick stays, and is never due again."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    assert await store.fire_schedule("daily", tick, None, [_job(tick)])
    assert (await _listed(store)).next_at is None
    found = await store.due_schedules(["work"])
    assert (list(found.due), found.next_in) == ([], None)


@case()
async def chains_have_what_their_jobs_say(stores: Stores) -> None:
    """The chain of a tick has the attributes and the TTL that its job has, and is due when it says."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    tick = await _make_due(store)
    late = datetime(2190, 1, 1, tzinfo=UTC)
    jobs = [
        _job(tick, attributes={"customer": "17"}, result_ttl=3600.0, run_at=at(tick)),
        _job(tick + _DAY, run_at=at(late)),
    ]
    started = await store.fire_schedule("daily", tick, tick + 2 * _DAY, jobs)
    assert started is not None
    assert [one.status for one in started] == [JobStatus.READY, JobStatus.SCHEDULED]
    assert (await read(store, jobs[1].id)).scheduled_at == late
    [listed] = await store.list_chains(ChainFilter(attributes=(("customer", "17"),)), PageRequest())
    assert listed.id == jobs[0].id
    claimed = await claim_one(store)
    assert claimed.result_ttl == 3600.0


# --- overlap ----------------------------------------------------------------------------------------------------------


async def _fired(store: AsyncStore, tick: datetime) -> list[StartedJob] | None:
    return await store.fire_schedule("daily", tick, tick + _DAY, [_job(tick)])


async def _held_by(store: AsyncStore, tick: datetime) -> str:
    """The chain that must be cancelled before the tick is fired."""
    try:
        await _fired(store, tick)
    except ScheduleOverlapError as error:
        return error.chain_id
    raise AssertionError("the tick was fired beside an open chain")


@case()
async def overlapping_ticks(stores: Stores) -> None:
    """While the chain of the last tick is open, the next one is started, skipped, or waits for its cancellation."""
    store = await stores.open()
    for overlap in Overlap:
        await store.put_schedules([_schedule(overlap=overlap)])
        tick = await _make_due(store, tick=_LONG_AGO + (len(overlap.value) * 100) * _DAY)
        assert await _fired(store, tick)
        first = tick_id("daily", tick)
        assert (await _listed(store)).last_chain_id == first
        if overlap is Overlap.CANCEL:
            assert await _held_by(store, tick + _DAY) == first
            second = None
        else:
            second = await _fired(store, tick + _DAY)
        found = await _listed(store)
        if overlap is Overlap.ALLOW:
            assert second is not None
            assert [one.id for one in second] == [tick_id("daily", tick + _DAY)]
            assert (found.last_at, found.last_chain_id) == (tick + _DAY, second[0].id)
        elif overlap is Overlap.SKIP:
            assert second == []
            assert (found.next_at, found.last_at, found.last_chain_id) == (tick + 2 * _DAY, tick, first)
            assert await store.get_jobs([tick_id("daily", tick + _DAY)]) == [None]
        else:
            assert (found.next_at, found.last_at, found.last_chain_id) == (tick + _DAY, tick, first)
        await store.cancel_chains([first], reason="test")
        if overlap is Overlap.CANCEL:
            assert await _fired(store, tick + _DAY)
        elif overlap is Overlap.SKIP:
            assert await _fired(store, tick + 2 * _DAY)
        await store.delete_schedules(["daily"])


@case()
async def overlap_with_a_new_id(stores: Stores) -> None:
    """If the tick's chain has a new id, since another type has its own, that is the chain which must close."""
    store = await stores.open()
    await store.put_schedules([_schedule(overlap=Overlap.SKIP)])
    tick = await _make_due(store)
    await start(store, _job(tick, type="other"))
    started = await _fired(store, tick)
    assert started is not None
    assert (await _listed(store)).last_chain_id == started[0].id != tick_id("daily", tick)
    assert await _fired(store, tick + _DAY) == []


@case()
async def advanced_without_jobs(stores: Stores) -> None:
    """A schedule is advanced without starting a chain whatever is open, such as for ticks that were missed."""
    store = await stores.open()
    for overlap in Overlap:
        await store.put_schedules([_schedule(overlap=overlap)])
        tick = await _make_due(store, tick=_LONG_AGO + (len(overlap.value) * 100) * _DAY)
        started = await _fired(store, tick)
        assert started is not None
        assert await store.fire_schedule("daily", tick + _DAY, tick + 2 * _DAY, []) == []
        assert (await _listed(store)).last_chain_id == started[0].id
        await store.delete_schedules(["daily"])


# --- out of turn ------------------------------------------------------------------------------------------------------


@case()
async def run_out_of_turn(stores: Stores) -> None:
    """A schedule can be run out of turn, also while it is paused; its ticks stay as they are."""
    store = await stores.open()
    await store.put_schedules([_schedule()])
    before = replace(await _listed(store), paused=True)
    await store.set_schedules_paused(["daily"], True)
    started = await store.run_schedule("daily", [_job(_LONG_AGO, input="7")], overlap=False)
    assert started is not None
    assert [(one.id, one.existing) for one in started] == [(tick_id("daily", _LONG_AGO), False)]
    assert (await read(store, started[0].id)).input == 7
    assert await _listed(store) == replace(before, last_chain_id=started[0].id)
    again = await store.run_schedule("daily", [_job(_LONG_AGO), _job(_LONG_AGO + _DAY)], overlap=True)
    assert again is not None
    assert [one.existing for one in again] == [True, False]
    assert (await _listed(store)).last_chain_id == started[0].id
    assert await store.run_schedule("unknown", [_job(_LONG_AGO)], overlap=True) is None
    assert await store.run_schedule("daily", [_job(_LONG_AGO + 9 * _DAY, type="other")], overlap=True) is None


@case()
async def run_out_of_turn_while_open(stores: Stores) -> None:
    """Out of turn, the policy of the schedule holds, unless it is left aside; and the next tick minds the chain."""
    store = await stores.open()
    for overlap in Overlap:
        await store.put_schedules([_schedule(overlap=overlap)])
        tick = await _make_due(store, tick=_LONG_AGO + (len(overlap.value) * 100) * _DAY)
        [first] = await store.run_schedule("daily", [_job(tick + _DAY / 2)], overlap=False) or []
        second = await store.run_schedule("daily", [_job(tick + _DAY / 4)], overlap=False)
        assert (second is None, not second) == (overlap is Overlap.CANCEL, overlap is not Overlap.ALLOW)
        assert len(await store.run_schedule("daily", [_job(tick + _DAY / 8)], overlap=True) or []) == 1
        if overlap is not Overlap.ALLOW:
            assert (await _listed(store)).last_chain_id == first.id
        if overlap is Overlap.SKIP:
            assert await _fired(store, tick) == []
        elif overlap is Overlap.CANCEL:
            assert await _held_by(store, tick) == first.id
        await store.delete_schedules(["daily"])


@case()
async def run_again_out_of_turn(stores: Stores) -> None:
    """A chain that exists is not the one that the schedule started last, unless it is."""
    store = await stores.open()
    for overlap in Overlap:
        await store.put_schedules([_schedule(overlap=overlap)])
        tick = _LONG_AGO + (len(overlap.value) * 100) * _DAY
        [first] = await store.run_schedule("daily", [_job(tick)], overlap=False) or []
        await store.cancel_chains([first.id], reason="test")
        [second] = await store.run_schedule("daily", [_job(tick + _DAY)], overlap=False) or []
        for again in (tick, tick + _DAY):
            [found] = await store.run_schedule("daily", [_job(again)], overlap=False) or []
            assert (found.id, found.existing) == (tick_id("daily", again), True)
            assert (await _listed(store)).last_chain_id == second.id
        await store.delete_schedules(["daily"])


@case()
async def one_of_many_at_once(stores: Stores) -> None:
    """With SKIP, of eight stores that run a schedule at once, one starts a chain."""
    several = await stores.open_many(8)
    await several[0].put_schedules([_schedule(overlap=Overlap.SKIP)])
    ids = [_LONG_AGO + number * _DAY for number in range(8)]
    results = await asyncio.gather(
        *(store.run_schedule("daily", [_job(one)], overlap=False) for store, one in zip(several, ids, strict=True))
    )
    assert sorted(len(result or ()) for result in results) == [0] * 7 + [1]


@case()
async def each_tick_once_by_racers(stores: Stores) -> None:
    """Of eight stores that fire every tick at once, exactly one starts its chain, thirty ticks long."""
    several = await stores.open_many(8)
    await several[0].put_schedules([_schedule()])
    await _make_due(several[0])
    ticks = [_LONG_AGO + number * _DAY for number in range(31)]
    for tick, upcoming in pairwise(ticks):
        results = await asyncio.gather(
            *(store.fire_schedule("daily", tick, upcoming, [_job(tick)]) for store in several)
        )
        [started] = [result for result in results if result is not None]
        assert [(one.id, one.existing) for one in started] == [(tick_id("daily", tick), False)]
    assert (await _listed(several[0])).next_at == ticks[-1]


@case()
async def put_and_deleted_at_once(stores: Stores) -> None:
    """Stores that put, pause and delete the same schedules at once, in any order of names, come to their end."""
    several = await stores.open_many(8)
    schedules = [_schedule(f"s{number}") for number in range(20)]
    names = [one.name for one in schedules]
    ways: list[Callable[[AsyncStore], Awaitable[object]]] = [
        lambda store: store.put_schedules(schedules),
        lambda store: store.put_schedules([*schedules[10:], *schedules[:10]]),
        lambda store: store.put_schedules([replace(one, priority=7) for one in reversed(schedules)]),
        lambda store: store.set_schedules_paused(names[::-1], True),
        lambda store: store.set_schedules_paused(names, False),
        lambda store: store.delete_schedules(names),
    ]
    for number in range(15):
        await asyncio.gather(*(ways[(number + place) % len(ways)](store) for place, store in enumerate(several)))
    await several[0].put_schedules(schedules)
    assert await several[0].delete_schedules(names) == 20
