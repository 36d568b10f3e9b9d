"""Listing jobs: filters, orders, pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from queuert.errors import InvalidCursorError
from queuert.jobs import Job, JobStatus
from queuert.limits import TypeTraits
from queuert.run_at import after
from queuert.state import AsyncStore
from queuert.state.paging import JobFilter, PageRequest, Position
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    eventually,
    fail,
    go_on,
    job,
    read,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.paging import pages_of
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores
from queuert.workers import WorkerHeartbeat

_OLDEST = PageRequest(limit=1000, oldest_first=True)


async def _ids(store: AsyncStore, filter: JobFilter, page: PageRequest = _OLDEST) -> list[str]:
    return [one.id for one in await store.list_jobs(filter, page)]


async def _by_age(store: AsyncStore, ids: Sequence[str]) -> list[Job]:
    """The jobs in the order of the listing, the oldest first."""
    return sorted([one for one in await store.get_jobs(ids) if one], key=lambda one: (one.created_at, one.id))


async def _pages(store: AsyncStore, filter: JobFilter, limit: int, *, oldest_first: bool) -> list[list[str]]:
    return await pages_of(lambda page: store.list_jobs(filter, page), limit, oldest_first=oldest_first)


async def _of_every_status(store: AsyncStore, type: str = "work") -> dict[JobStatus, str]:
    """A job of each status, all of one type."""
    held = await started_and_claimed(store, 5, type=type)
    [following, later, blocked, ready] = [job(type, run_at=due_later()) for _ in range(2)] + [
        job(type, blockers=[held[4].id]),
        job(type, priority=-1000),
    ]
    await store.finish([complete(held[0]), fail(held[1]), cancel(held[2]), go_on(held[3], following)])
    await start(store, later, blocked, ready)
    names = ("completed", "failed", "cancelled", "continued", "running")
    known = {JobStatus(name): one.id for name, one in zip(names, held, strict=True)}
    return known | {JobStatus.SCHEDULED: later.id, JobStatus.BLOCKED: blocked.id, JobStatus.READY: ready.id}


@case()
async def nothing_is_there(stores: Stores) -> None:
    """A list of nothing is an empty page, and the last: no jobs, unknown types, no types at all, no statuses at all."""
    store = await stores.open()
    for filter in (JobFilter(), JobFilter(types=("unknown",)), JobFilter(statuses=(JobStatus.FAILED,))):
        page = await store.list_jobs(filter, PageRequest())
        assert (page.items, page.next_cursor) == ((), None)
    await start(store, job())
    for filter in (JobFilter(types=("unknown",)), JobFilter(types=()), JobFilter(statuses=())):
        page = await store.list_jobs(filter, PageRequest())
        assert (page.items, page.next_cursor) == ((), None)


@case()
async def all_of_them(stores: Stores) -> None:
    """Without a filter all jobs are listed, first ones and continuations, of every type and status."""
    store = await stores.open()
    known = [*(await _of_every_status(store, "a")).values(), *(await _of_every_status(store, "b")).values()]
    found = await _ids(store, JobFilter())
    assert set(known) < set(found)
    assert len(found) == len(set(found)) == len(known) + 2


@case()
async def as_they_are_read(stores: Stores) -> None:
    """A listed job is what ``get_jobs`` reads, error, output and lease included."""
    store = await stores.open()
    held = await started_and_claimed(store, 4, priority=3, trace_context="00-trace")
    await store.finish([complete(held[0], '{"a": [1]}'), fail(held[1]), retry(held[2], 5000.0)])
    listed = (await store.list_jobs(JobFilter(), _OLDEST)).items
    assert list(listed) == await store.get_jobs([one.id for one in listed])
    assert {one.id for one in listed} == {one.id for one in held}


@case()
async def overdue_after_the_time_that_the_type_allows(stores: Stores) -> None:
    """It counts from when the job becomes due, for jobs that are ready or scheduled: others do not wait for a client,
    or nobody knows since when."""
    store = await stores.open()
    traits = (TypeTraits("approve", True, 90.5), TypeTraits("answer", True))
    await store.record_heartbeat(WorkerHeartbeat("w", "w", "here", 1, "1", (), 1, 0, 0.0, traits=traits), 60.0)
    known = await _of_every_status(store, "approve")
    for status, id in known.items():
        found = await read(store, id)
        assert found.status is status
        waits = status in (JobStatus.READY, JobStatus.SCHEDULED)
        assert found.overdue_at == (found.scheduled_at + timedelta(seconds=90.5) if waits else None), status
    listed = (await store.list_jobs(JobFilter(types=("approve",)), _OLDEST)).items
    assert {one.id: one.overdue_at for one in listed} == {
        one.id: one.overdue_at for one in await store.get_jobs([one.id for one in listed]) if one
    }
    for id in await start(store, job("answer"), job("work")):
        assert (await read(store, id)).overdue_at is None


@case()
async def by_type(stores: Stores) -> None:
    """Only jobs of the types asked for; unknown ones do not disturb, repeated ones are not repeated."""
    store = await stores.open()
    [a, b, _] = await start(store, job("a"), job("b"), job("c"))
    assert await _ids(store, JobFilter(types=("b",))) == [b]
    assert set(await _ids(store, JobFilter(types=("b", "a", "unknown", "b")))) == {a, b}
    assert len(await _ids(store, JobFilter(types=("b", "a", "unknown", "b")))) == 2


@case()
async def type_of_the_job_not_of_the_chain(stores: Stores) -> None:
    """A continuation is listed under its own type."""
    store = await stores.open()
    [held] = await started_and_claimed(store, type="first")
    await store.finish([go_on(held, job("second", id="next"))])
    assert await _ids(store, JobFilter(types=("second",))) == ["next"]
    assert await _ids(store, JobFilter(types=("first",))) == [held.id]


@case()
async def by_status(stores: Stores) -> None:
    """Each status lists its jobs, several statuses those of all of them."""
    store = await stores.open()
    known = await _of_every_status(store)
    await _of_every_status(store, "other")
    assert set(known) == set(JobStatus)
    for status, id in known.items():
        found = await store.list_jobs(JobFilter(types=("work",), statuses=(status,)), _OLDEST)
        assert id in [one.id for one in found]
        assert {(one.type, one.status) for one in found} == {("work", status)}
    some = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.FAILED)
    assert set(await _ids(store, JobFilter(types=("work",), statuses=some))) == {
        known[JobStatus.FAILED],
        known[JobStatus.CANCELLED],
    }


@case()
async def due_ones_are_ready_ones(stores: Stores) -> None:
    """A scheduled job whose time has come is shown as READY, and listed so: in its turn, page by page, by type."""
    store = await stores.open()
    soon = after(seconds=0.001)
    ids = await start(
        store, job(), job(run_at=soon), job(run_at=due_later()), job("other", run_at=soon), job(run_at=soon)
    )
    later = ids[2]

    async def shown() -> bool:
        return [one.status for one in await store.list_jobs(JobFilter(), _OLDEST)].count(JobStatus.READY) == 4

    await eventually(shown)
    by_age = [one.id for one in await store.list_jobs(JobFilter(), _OLDEST)]
    ready, scheduled = JobFilter(statuses=(JobStatus.READY,)), JobFilter(statuses=(JobStatus.SCHEDULED,))
    without = [id for id in by_age if id != later]
    assert await _ids(store, ready) == without
    assert await _ids(store, scheduled) == [later]
    assert await _ids(store, JobFilter(statuses=(JobStatus.READY, JobStatus.SCHEDULED))) == by_age
    assert await _ids(store, JobFilter(types=("other", "unknown"), statuses=(JobStatus.READY,))) == [ids[3]]
    assert await _ids(store, JobFilter(types=("other",), statuses=(JobStatus.SCHEDULED,))) == []
    assert await _pages(store, ready, 1, oldest_first=True) == [[id] for id in without]
    assert await _pages(store, ready, 3, oldest_first=False) == [without[:0:-1], without[:1]]
    assert {one.status for one in await store.list_jobs(ready, _OLDEST)} == {JobStatus.READY}
    await store.trigger_jobs([later])
    assert set(await _ids(store, ready)) == set(ids)
    claimed = await claim_one(store)
    assert await _ids(store, JobFilter(statuses=(JobStatus.RUNNING,))) == [claimed.id]
    assert claimed.id not in await _ids(store, ready)


@case()
async def newest_first_and_oldest_first(stores: Stores) -> None:
    """The newest first, unless the oldest are asked for; types and statuses are mixed by age."""
    store = await stores.open()
    for number in range(12):
        later = due_later() if number % 2 else None
        await start(store, job(f"type{number % 3}", id=f"{number * 5 % 12:02}", run_at=later))
    found = await _ids(store, JobFilter())
    assert found == [f"{number * 5 % 12:02}" for number in range(12)]
    assert found == [one.id for one in await _by_age(store, found)]
    assert len(found) == 12
    assert await _ids(store, JobFilter(), PageRequest()) == found[::-1]
    assert await _ids(store, JobFilter(types=("type2", "type0"))) == [
        id for number, id in enumerate(found) if number % 3 != 1
    ]
    assert await _ids(store, JobFilter(), PageRequest(limit=4)) == found[:-5:-1]


@case()
async def since_and_before(stores: Stores) -> None:
    """``since`` includes its moment, ``before`` does not; together they are a span, in either order and by pages."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(6)]
    times = [(await read(store, id)).created_at for id in ids]
    a_bit = timedelta(microseconds=1)
    assert await _ids(store, JobFilter(since=times[2])) == [
        id for id, time in zip(ids, times, strict=True) if time >= times[2]
    ]
    assert await _ids(store, JobFilter(before=times[2])) == [
        id for id, time in zip(ids, times, strict=True) if time < times[2]
    ]
    span = JobFilter(since=times[1], before=times[4] + a_bit)
    expected = [id for id, time in zip(ids, times, strict=True) if times[1] <= time <= times[4]]
    assert await _ids(store, span) == expected
    assert await _ids(store, span, PageRequest()) == expected[::-1]
    assert [id for page in await _pages(store, span, 1, oldest_first=True) for id in page] == expected
    assert [id for page in await _pages(store, span, 1, oldest_first=False) for id in page] == expected[::-1]
    assert await _ids(store, JobFilter(since=times[5] + a_bit)) == []
    assert await _ids(store, JobFilter(before=times[0])) == []
    assert await _ids(store, JobFilter(since=times[4], before=times[1])) == []


@case()
async def pages_make_the_whole(stores: Stores) -> None:
    """Pages of any size, in both orders, show every entry once; the last says that it is, even where it is full."""
    store = await stores.open()
    ids = await start(store, *(job(f"type{number % 4}") for number in range(12)))
    ordered = [one.id for one in await _by_age(store, ids)]
    for oldest_first, expected in ((True, ordered), (False, ordered[::-1])):
        for limit in (1, 5, 11, 12, 13):
            pages = await _pages(store, JobFilter(), limit, oldest_first=oldest_first)
            assert pages == [expected[begin : begin + limit] for begin in range(0, 12, limit)]


@case()
async def filters_hold_on_every_page(stores: Stores) -> None:
    """A filter of types and statuses, page by page."""
    store = await stores.open()
    jobs = [job(f"type{number % 3}", run_at=due_later() if number % 2 else None) for number in range(30)]
    ids = await start(store, *jobs)
    wanted = [id for number, id in enumerate(ids) if number % 3 != 1 and number % 2]
    filter = JobFilter(types=("type2", "type0"), statuses=(JobStatus.SCHEDULED, JobStatus.FAILED))
    expected = [one.id for one in await _by_age(store, wanted)]
    pages = await _pages(store, filter, 3, oldest_first=True)
    assert [id for page in pages for id in page] == expected
    assert [len(page) for page in pages] == [3, 3, 3, 1]


@case()
async def pages_while_others_are_added(stores: Stores) -> None:
    """Entries that are added or deleted between two pages shift nothing: none of the others is repeated or left out."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(6)]
    first = await store.list_jobs(JobFilter(), PageRequest(limit=3))
    assert [one.id for one in first] == ids[:2:-1]
    [added] = await start(store, job())
    await store.delete_chains([ids[3], ids[1]])
    second = await store.list_jobs(JobFilter(), PageRequest(limit=3, cursor=first.next_cursor))
    assert ([one.id for one in second], second.next_cursor) == ([ids[2], ids[0]], None)
    oldest = await store.list_jobs(JobFilter(), PageRequest(limit=4, oldest_first=True))
    [last] = await start(store, job())
    rest = await store.list_jobs(JobFilter(), PageRequest(limit=4, cursor=oldest.next_cursor, oldest_first=True))
    assert [one.id for one in (*oldest, *rest)] == [ids[0], ids[2], ids[4], ids[5], added, last]


@case()
async def statuses_change_between_pages(stores: Stores) -> None:
    """A job that changes its status keeps its place: a list of all statuses shows it once."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(4)]
    first = await store.list_jobs(JobFilter(), PageRequest(limit=2))
    for _ in ids:
        await store.finish([complete(await claim_one(store))])
    second = await store.list_jobs(JobFilter(), PageRequest(limit=2, cursor=first.next_cursor))
    assert [one.id for one in (*first, *second)] == ids[::-1]


@case()
async def not_a_cursor(stores: Stores) -> None:
    """What is no cursor of a list by time is refused."""
    store = await stores.open()
    good = Position("2024-01-01T00:00:00+00:00", "id").encode()
    for cursor in (
        "", "x", "=", "é", "\ud800", "e30=", "W10=", "bnVsbA==", "WyJhIiwiYiJd", good[:-4], good + "=", "*" + good,
        "W" * 5000, Position("3", "id").encode(), Position("", "id").encode(),
        Position("2024-01-01T00:00:00", "id").encode(), Position("2024-01-01T00:00:00+00:00", "\0").encode(),
        Position("0001-01-01T00:00:00+14:00", "id").encode(),
        Position("2024-01-01T00:00:00+00:00", "\ud800").encode(),
    ):  # fmt: skip
        error = await error_of(InvalidCursorError, store.list_jobs(JobFilter(), PageRequest(cursor=cursor)))
        assert error.cursor == cursor


@case()
async def cursor_of_an_entry_that_is_gone(stores: Stores) -> None:
    """A cursor is a place, not an entry: it holds when its entry is deleted, and when everything is."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(3)]
    page = await store.list_jobs(JobFilter(), PageRequest(limit=2))
    await store.delete_chains([ids[1]])
    rest = PageRequest(limit=2, cursor=page.next_cursor)
    assert await _ids(store, JobFilter(), rest) == [ids[0]]
    await store.delete_chains(ids)
    assert await _ids(store, JobFilter(), rest) == []


@case()
async def strange_names(stores: Stores) -> None:
    """Types and ids of any characters are listed, also across a cursor."""
    store = await stores.open()
    names = ("a'b", 'a"b', "%s", "{x}", "é", "\U0010ffff", "a\\b", "null", "0")
    ids = [(await start(store, job(name, id=f"id-{name}")))[0] for name in names]
    assert await _ids(store, JobFilter()) == ids
    assert await _ids(store, JobFilter(types=names)) == ids
    assert await _pages(store, JobFilter(), 1, oldest_first=False) == [[id] for id in ids[::-1]]
