"""What workers did, by minute and hour: each report counts once, and what is old is added up and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.activity import (
    BUCKETS,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityReport,
    Histogram,
)
from queuert.state import AsyncStore
from queuert.testing.conformance.builders import job, read, start
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores
from queuert.workers import WorkerHeartbeat

_TTL = 3600.0
_EVER = datetime(2001, 1, 1, tzinfo=UTC)


def _beat(id: str = "one") -> WorkerHeartbeat:
    return WorkerHeartbeat(
        id, name="name", host="host", pid=17, version="1.0", job_types=("work",), concurrency=4, running=0, uptime=0.0
    )


async def _now(store: AsyncStore) -> datetime:
    """The beginning of the minute of the store's clock."""
    return (await store.record_heartbeat(_beat("clock"), _TTL)).replace(second=0, microsecond=0)


def _did(
    at: datetime, type: str = "work", *, wait: Sequence[int] = (), run: Sequence[int] = (), **counts: int
) -> Activity:
    return Activity(at, MINUTE, type, "ignored", wait=Histogram(tuple(wait)), run=Histogram(tuple(run)), **counts)


async def _report(store: AsyncStore, worker: str, number: int, *minutes: Activity) -> None:
    await store.record_heartbeat(_beat(worker), _TTL, ActivityReport(number, minutes))


async def _all(store: AsyncStore, **wanted: Any) -> list[Activity]:
    return await store.get_activity(ActivityFilter(_EVER, **wanted))


@case()
async def a_heartbeat_returns_the_time_of_the_store(stores: Stores) -> None:
    """By which workers say in which minute they did something."""
    store = await stores.open()
    before = await store.record_heartbeat(_beat(), _TTL)
    [started] = await start(store, job())
    after = await store.record_heartbeat(_beat(), _TTL)
    assert before <= (await read(store, started)).created_at <= after
    assert after.utcoffset() == timedelta(0)


@case()
async def nothing_was_done(stores: Stores) -> None:
    """An empty store has no activity, and nothing to maintain."""
    store = await stores.open()
    await store.record_heartbeat(_beat(), _TTL, ActivityReport(1, ()))
    assert await _all(store) == []
    done = await store.maintain_activity()
    assert (done.folded, done.dropped, done.more) == (0, 0, False)


@case()
async def returned_as_reported(stores: Stores) -> None:
    """Every count and every bucket is returned, of odd names of types too."""
    store, other = await stores.open_many(2)
    now = await _now(store)
    type = "odd 7:{}%'\"ö"
    counts = {
        "started": 1, "completed": 2, "continued": 3, "retried": 4, "failed": 5,
        "cancelled": 6, "interrupted": 7, "waiting": 8, "rejected": 9, "reaped": 10**12, "snoozed": 11,
    }  # fmt: skip
    wait, run = tuple(range(1, BUCKETS + 1)), (0, 0, 5)
    await _report(store, "worker:1", 1, _did(now, type, wait=wait, run=run, **counts))
    expected = Activity(now, MINUTE, type, None, **counts, wait=Histogram(wait), run=Histogram(run))
    assert await _all(other) == [expected]
    assert await _all(other, per_worker=True) == [replace(expected, worker="worker:1")]
    [found] = await _all(other)
    assert found.begins_at.utcoffset() == timedelta(0)


@case()
async def summed_over_workers(stores: Stores) -> None:
    """By default an entry is of all workers; by option of one each."""
    store = await stores.open()
    now = await _now(store)
    await _report(store, "a", 1, _did(now, started=2, wait=(1, 1), run=(0, 0, 0, 1)))
    await _report(store, "b", 1, _did(now, started=3, wait=(0, 0, 0, 3), run=(1,)), _did(now, "other", failed=1))
    assert await _all(store) == [
        Activity(now, MINUTE, "other", failed=1),
        Activity(now, MINUTE, "work", started=5, wait=Histogram((1, 1, 0, 3)), run=Histogram((1, 0, 0, 1))),
    ]
    found = await _all(store, per_worker=True)
    assert [(one.type, one.worker, one.started) for one in found] == [
        ("other", "b", 0),
        ("work", "a", 2),
        ("work", "b", 3),
    ]


@case()
async def later_reports_add_up(stores: Stores) -> None:
    """What a worker reports of the same minute is added."""
    store = await stores.open()
    now = await _now(store)
    await _report(store, "a", 1, _did(now, started=1, completed=1, run=(1,)))
    await _report(store, "a", 2, _did(now, completed=2, run=(0, 2)), _did(now - timedelta(minutes=1), started=7))
    assert await _all(store) == [
        Activity(now - timedelta(minutes=1), MINUTE, "work", started=7),
        Activity(now, MINUTE, "work", started=1, completed=3, run=Histogram((1, 2))),
    ]


@case()
async def a_report_counts_once(stores: Stores) -> None:
    """A report that is sent again, as its answer was lost, adds nothing; a report of another worker does."""
    store, other = await stores.open_many(2)
    now = await _now(store)
    minutes = (_did(now - timedelta(minutes=1), completed=1), _did(now, completed=1), _did(now, "other", completed=1))
    for sender in (store, other, store):
        await _report(sender, "a", 3, *minutes)
    await _report(store, "b", 1, *minutes)
    await asyncio.gather(*(_report(sender, "a", 4, *minutes) for sender in (store, other) for _ in range(3)))
    await other.remove_worker("a", ActivityReport(4, minutes))
    assert [one.completed for one in await _all(store)] == [3, 3, 3]


@case()
async def a_stopping_worker_reports_the_rest(stores: Stores) -> None:
    """The removal from the list has a report too, whether the worker is listed or not."""
    store = await stores.open()
    now = await _now(store)
    await _report(store, "a", 1, _did(now, completed=1))
    await store.remove_worker("a", ActivityReport(2, [_did(now, completed=2)]))
    await store.remove_worker("a", ActivityReport(3, [_did(now, completed=4)]))
    assert [one.completed for one in await _all(store)] == [7]
    assert [one.id for one in await store.list_workers()] == ["clock"]


@case()
async def by_type_and_time(stores: Stores) -> None:
    """Minutes count that end after ``since`` and begin before ``until``."""
    store = await stores.open()
    now = await _now(store)
    minute = timedelta(minutes=1)
    await _report(
        store, "a", 1, *(_did(now - at * minute, type, started=at) for at in (1, 2, 3, 4) for type in ("x", "y", "z"))
    )

    async def found(since: datetime, until: datetime | None = None, *types: str) -> list[tuple[str, int]]:
        filter = ActivityFilter(since, until, types or None)
        return [(one.type, one.started) for one in await store.get_activity(filter)]

    assert await found(now - 2 * minute, None, "y") == [("y", 2), ("y", 1)]
    assert await found(now - 2 * minute + minute / 2, None, "y") == [("y", 2), ("y", 1)]
    assert await found(now - minute, None, "y", "x", "none") == [("x", 1), ("y", 1)]
    assert await found(now - 4 * minute, now - 3 * minute, "z") == [("z", 4)]
    assert await found(now - 4 * minute, now - 3 * minute + minute / 4, "z") == [("z", 4), ("z", 3)]
    assert await found(now) == []
    assert await store.get_activity(ActivityFilter(now - minute, types=())) == []


@case()
async def by_the_hour(stores: Stores) -> None:
    """Minutes are added up to their hour, and hours stay what they are."""
    store = await stores.open()
    hour = (await _now(store)).replace(minute=0) - timedelta(hours=1)
    await _report(
        store, "a", 1, *(_did(hour + timedelta(minutes=at), started=1, wait=(0, 1)) for at in (-1, 0, 30, 59, 60))
    )
    found = await _all(store, by="hour")
    assert [(one.begins_at, one.seconds, one.started) for one in found] == [
        (hour - timedelta(hours=1), HOUR, 1),
        (hour, HOUR, 3),
        (hour + timedelta(hours=1), HOUR, 1),
    ]
    assert found[1].wait == Histogram((0, 3))
    assert [one.worker for one in await _all(store, by="hour", per_worker=True)] == ["a", "a", "a"]


@case()
async def selected_workers_and_sums_over_all_types(stores: Stores) -> None:
    """What some workers did, and what all types did together, also by worker."""
    store = await stores.open()
    now = await _now(store)
    for number, worker in enumerate("abc", 1):
        await _report(store, worker, 1, _did(now, started=number, run=(0, 1)), _did(now, "other", started=10))
    assert [(one.type, one.started) for one in await _all(store, workers=("a", "c"))] == [("other", 20), ("work", 4)]
    assert await _all(store, workers=()) == []
    assert await _all(store, per_type=False) == [Activity(now, MINUTE, "", started=36, run=Histogram((0, 3)))]
    found = await _all(store, per_type=False, per_worker=True, types=("work",))
    assert [(one.type, one.worker, one.started) for one in found] == [("", "a", 1), ("", "b", 2), ("", "c", 3)]


@case()
async def old_minutes_become_hours(stores: Stores) -> None:
    """Minutes are added up, without their workers, when their hour is over for long; nothing of them is lost."""
    store = await stores.open()
    hour = (await _now(store)).replace(minute=0)
    old = hour - timedelta(seconds=MINUTES_KEPT, hours=1)
    for worker in ("a", "b"):
        await _report(
            store,
            worker,
            1,
            *(_did(old + timedelta(minutes=at), started=1, run=(0, 1)) for at in (0, 59)),
            _did(old, "other", failed=1),
            _did(hour, started=5),
        )
    expected = await _all(store, by="hour")
    done = await store.maintain_activity()
    assert (done.folded, done.dropped, done.more) == (6, 0, False)
    assert await _all(store, by="hour") == expected
    assert await _all(store) == [
        Activity(old, HOUR, "other", failed=2),
        Activity(old, HOUR, "work", started=4, run=Histogram((0, 4))),
        Activity(hour, MINUTE, "work", started=10),
    ]
    assert {one.worker for one in await _all(store, per_worker=True)} == {None, "a", "b"}
    assert (await store.maintain_activity()).folded == 0
    # What comes late is added to its hour.
    await _report(store, "a", 2, _did(old, started=1))
    assert (await store.maintain_activity()).folded == 1
    assert [one.started for one in await _all(store, types=("work",))] == [5, 10]


@case()
async def minutes_of_an_hour_that_is_not_over_for_long_stay(stores: Stores) -> None:
    """The youngest hour that is added up ended before the minutes that are kept."""
    store = await stores.open()
    hour = (await _now(store)).replace(minute=0)
    at = hour - timedelta(seconds=MINUTES_KEPT)
    await _report(store, "a", 1, _did(at, started=1), _did(at + timedelta(minutes=59), started=1))
    await store.maintain_activity()
    # An hour may have ended between the two calls.
    assert (await _now(store)).replace(minute=0) > hour or len(await _all(store)) == 2


@case()
async def old_hours_are_dropped(stores: Stores) -> None:
    """Hours that began long ago are deleted, and younger ones are kept."""
    store = await stores.open()
    hour = (await _now(store)).replace(minute=0)
    kept = timedelta(seconds=HOURS_KEPT)
    ages = (kept + timedelta(hours=1), kept - timedelta(hours=2), timedelta(days=1))
    await _report(store, "a", 1, *(_did(hour - age, started=1) for age in ages))
    rounds = [await store.maintain_activity(), await store.maintain_activity()]
    assert sum(one.dropped for one in rounds) == 1
    assert [one.begins_at for one in await _all(store)] == [hour - age for age in ages[1:]]


@case()
async def rounds_are_bounded(stores: Stores) -> None:
    """A round takes about as many rows as it may, and says that there are more; together they take all."""
    store, other = await stores.open_many(2)
    hour = (await _now(store)).replace(minute=0)
    old = hour - timedelta(seconds=MINUTES_KEPT, hours=2)
    await _report(store, "a", 1, *(_did(old + timedelta(minutes=at), started=1) for at in range(100)))
    first = await store.maintain_activity(limit=10)
    assert (first.folded, first.more) == (10, True)
    assert sum(one.started for one in await _all(store)) == 100
    more = True
    while more:
        rounds = await asyncio.gather(store.maintain_activity(limit=10), other.maintain_activity(limit=10))
        more = any(one.more for one in rounds)
    assert [(one.seconds, one.started) for one in await _all(store)] == [(HOUR, 60), (HOUR, 40)]


@case()
async def many_minutes_are_read(stores: Stores) -> None:
    """Many minutes are read, whatever a store reads at once."""
    store = await stores.open()
    now = await _now(store)
    await _report(store, "a", 1, *(_did(now - timedelta(minutes=at), started=at) for at in range(1, 101)))
    assert [one.started for one in await _all(store)] == list(range(100, 0, -1))
