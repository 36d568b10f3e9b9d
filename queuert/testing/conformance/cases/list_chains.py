"""Listing chains: filters, orders, pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from queuert.errors import InvalidCursorError
from queuert.jobs import ChainRecord, ChainStatus
from queuert.state import AsyncStore
from queuert.state.paging import ChainFilter, PageRequest, Position
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    read_chain,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.paging import pages_of
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_OLDEST = PageRequest(limit=1000, oldest_first=True)


async def _ids(store: AsyncStore, filter: ChainFilter, page: PageRequest = _OLDEST) -> list[str]:
    return [one.id for one in await store.list_chains(filter, page)]


async def _by_age(store: AsyncStore, ids: Sequence[str]) -> list[ChainRecord]:
    """The chains in the order of the listing, the oldest first."""
    return sorted([one for one in await store.get_chains(ids) if one], key=lambda one: (one.created_at, one.id))


async def _pages(store: AsyncStore, filter: ChainFilter, limit: int, *, oldest_first: bool) -> list[list[str]]:
    return await pages_of(lambda page: store.list_chains(filter, page), limit, oldest_first=oldest_first)


@case()
async def nothing_is_there(stores: Stores) -> None:
    """A list of nothing is an empty page, and the last: no chains, unknown types, no types or statuses at all."""
    store = await stores.open()
    page = await store.list_chains(ChainFilter(), PageRequest())
    assert (page.items, page.next_cursor) == ((), None)
    await start(store, job())
    for filter in (ChainFilter(types=("unknown",)), ChainFilter(types=()), ChainFilter(statuses=())):
        page = await store.list_chains(filter, PageRequest())
        assert (page.items, page.next_cursor) == ((), None)


@case()
async def chains_not_jobs(stores: Stores) -> None:
    """A chain is listed once however many jobs it has, as ``get_chains`` reads it: first identity, last result."""
    store = await stores.open()
    [long, short] = await started_and_claimed(store, 2)
    await store.finish([go_on(long, job("second"))])
    await store.finish([go_on(await claim_one(store, "second"), job("third", id="tail"))])
    await store.finish([complete(await claim_one(store, "third"), '"end"'), fail(short)])
    found = await store.list_chains(ChainFilter(), _OLDEST)
    assert list(found) == await store.get_chains([one.id for one in found])
    by_id = {one.id: one for one in found}
    assert set(by_id) == {long.id, short.id}
    assert (by_id[long.id].output, by_id[long.id].tail_type, by_id[long.id].tail_id) == ('"end"', "third", "tail")
    error = by_id[short.id].error
    assert error is not None and error.kind == "fail"


@case()
async def without_payloads(stores: Stores) -> None:
    """As ``get_chains`` reads them without, whatever the filter and the order."""
    store = await stores.open()
    held = await started_and_claimed(store, 3, attributes={"user": "17"})
    await store.finish([complete(one, "[1]") for one in held])
    bare = await store.get_chains([one.id for one in held], payloads=False)
    for filter in (ChainFilter(), ChainFilter(attributes=(("user", "17"),))):
        for page in (_OLDEST, PageRequest(limit=1000)):
            found = list(await store.list_chains(filter, page, payloads=False))
            assert sorted(found, key=lambda one: one.id) == sorted((one for one in bare if one), key=lambda one: one.id)
            assert {(one.input, one.output) for one in found} == {("", None)}


@case()
async def by_type_of_the_first_job(stores: Stores) -> None:
    """A chain is of its first job's type, wherever it has got to."""
    store = await stores.open()
    [held] = await started_and_claimed(store, type="first")
    await store.finish([go_on(held, job("second"))])
    [other] = await start(store, job("second"))
    assert await _ids(store, ChainFilter(types=("first",))) == [held.id]
    assert await _ids(store, ChainFilter(types=("second",))) == [other]
    assert await _ids(store, ChainFilter(types=("second", "unknown", "first", "second"))) == [held.id, other]


@case()
async def by_status(stores: Stores) -> None:
    """Open, completed, failed, cancelled: by how the whole chain stands."""
    store = await stores.open()
    held = await started_and_claimed(store, 5)
    await store.finish([complete(held[0]), fail(held[1]), cancel(held[2]), go_on(held[3], job("second"))])
    [later, blocked] = await start(store, job(run_at=due_later()), job(blockers=[held[4].id]))
    expected = {
        ChainStatus.COMPLETED: {held[0].id},
        ChainStatus.FAILED: {held[1].id},
        ChainStatus.CANCELLED: {held[2].id},
        ChainStatus.OPEN: {held[3].id, held[4].id, later, blocked},
    }
    for status, ids in expected.items():
        assert set(await _ids(store, ChainFilter(statuses=(status,)))) == ids
    dead = (ChainStatus.FAILED, ChainStatus.CANCELLED)
    assert set(await _ids(store, ChainFilter(types=("work",), statuses=dead))) == {held[1].id, held[2].id}
    await store.finish([fail(await claim_one(store, "second"))])
    assert set(await _ids(store, ChainFilter(statuses=dead))) == {held[1].id, held[2].id, held[3].id}


@case()
async def newest_first_and_oldest_first(stores: Stores) -> None:
    """The newest first, unless the oldest are asked for; types are mixed by age."""
    store = await stores.open()
    ids = [(await start(store, job(f"type{number % 3}", id=f"{number * 4 % 9}")))[0] for number in range(9)]
    assert await _ids(store, ChainFilter(), PageRequest()) == ids[::-1]
    assert await _ids(store, ChainFilter()) == ids
    assert await _ids(store, ChainFilter(), PageRequest(limit=4)) == ids[:-5:-1]


@case()
async def since_and_before(stores: Stores) -> None:
    """``since`` includes its moment, ``before`` does not."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(5)]
    times = [(await read_chain(store, id)).created_at for id in ids]
    filter = ChainFilter(since=times[1], before=times[3])
    expected = [id for id, time in zip(ids, times, strict=True) if times[1] <= time < times[3]]
    assert await _ids(store, filter) == expected
    assert await _ids(store, filter, PageRequest()) == expected[::-1]
    assert [id for page in await _pages(store, filter, 1, oldest_first=False) for id in page] == expected[::-1]
    assert await _ids(store, ChainFilter(since=times[4] + timedelta(microseconds=1))) == []


@case()
async def pages_make_the_whole(stores: Stores) -> None:
    """Pages of any size, in both orders, show every chain once; the last says that it is, even where it is full."""
    store = await stores.open()
    ids = await start(store, *(job(f"type{number % 5}") for number in range(10)))
    ordered = [one.id for one in await _by_age(store, ids)]
    for oldest_first, expected in ((True, ordered), (False, ordered[::-1])):
        for limit in (1, 3, 9, 10, 11):
            pages = await _pages(store, ChainFilter(), limit, oldest_first=oldest_first)
            assert pages == [expected[begin : begin + limit] for begin in range(0, 10, limit)]


@case()
async def pages_while_others_are_added(stores: Stores) -> None:
    """Chains that are started, closed or deleted between two pages shift nothing."""
    store = await stores.open()
    ids = [(await start(store, job()))[0] for _ in range(6)]
    first = await store.list_chains(ChainFilter(), PageRequest(limit=3))
    await start(store, job())
    await store.delete_chains([ids[4], ids[2]])
    await store.finish([complete(await claim_one(store))])
    second = await store.list_chains(ChainFilter(), PageRequest(limit=3, cursor=first.next_cursor))
    assert ([one.id for one in second], second.next_cursor) == ([ids[1], ids[0]], None)


@case()
async def dead_letters_leave_the_list_when_retried(stores: Stores) -> None:
    """Failed chains are listed until they are retried: page by page, all are reached."""
    store = await stores.open()
    held = await started_and_claimed(store, 7)
    await store.finish([fail(one) for one in held])
    filter = ChainFilter(types=("work",), statuses=(ChainStatus.FAILED,))
    retried: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await store.list_chains(filter, PageRequest(limit=2, cursor=cursor, oldest_first=True))
        await store.retry_chains([one.id for one in page])
        retried += [one.id for one in page]
        cursor = page.next_cursor
    assert cursor is None
    assert sorted(retried) == sorted(one.id for one in held)
    assert await _ids(store, filter) == []


@case()
async def not_a_cursor(stores: Stores) -> None:
    """What is no cursor of a list by time is refused."""
    store = await stores.open()
    for cursor in ("", "x", "W10=", Position("3", "id").encode(), Position("", "id").encode()):
        await error_of(InvalidCursorError, store.list_chains(ChainFilter(), PageRequest(cursor=cursor)))
