"""Attributes: what chains are found by."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from queuert.deduplication import Deduplicate
from queuert.errors import InvalidCursorError, JobIdConflictError, StateError
from queuert.jobs import Attributes, ChainStatus
from queuert.state import AsyncStore, Capability
from queuert.state.paging import ChainFilter, PageRequest, Position
from queuert.state.types import Finish, FinishKind, PruneRequest
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    error_of,
    eventually,
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
_MINE = ("user", "17")
_SMILES = "\U0001f600" * 250
"""As long as an id or a value may be, in bytes."""


async def _ids(store: AsyncStore, *pairs: tuple[str, str], page: PageRequest = _OLDEST) -> list[str]:
    return [one.id for one in await store.list_chains(ChainFilter(attributes=pairs), page)]


async def _pages(
    store: AsyncStore, pairs: tuple[tuple[str, str], ...], limit: int, *, oldest_first: bool
) -> list[list[str]]:
    filter = ChainFilter(attributes=pairs)
    return await pages_of(lambda page: store.list_chains(filter, page), limit, oldest_first=oldest_first)


async def _of_user(store: AsyncStore, user: str = "17", **what: Any) -> str:
    return (await start(store, job(attributes={"user": user}, **what)))[0]


@case()
async def kept_as_given(stores: Stores) -> None:
    """A chain shows what it was started with: a text as text, a list as a list, of none, one and several texts."""
    store = await stores.open()
    given: Attributes = {"user": "17", "tags": ("b", "a"), "none": (), "one": ("x",)}
    [id] = await start(store, job(attributes=given))
    assert (await read_chain(store, id)).attributes == given
    [listed] = await store.list_chains(ChainFilter(), PageRequest())
    assert listed.attributes == given
    [found] = await store.list_chains(ChainFilter(attributes=(_MINE,)), PageRequest())
    assert found == listed


@case()
async def none_by_default(stores: Stores) -> None:
    """A chain that was started without any has none, whatever others of its batch have."""
    store = await stores.open()
    ids = await start(store, job(), job(attributes={}), job(attributes={"user": "17"}), job())
    assert [dict((await read_chain(store, id)).attributes) for id in ids] == [{}, {}, {"user": "17"}, {}]
    assert await _ids(store, _MINE) == [ids[2]]


@case()
async def found_by_each_element(stores: Stores) -> None:
    """A chain is found by each text of a list, by its name alone, and by nothing that is only like it."""
    store = await stores.open()
    [id] = await start(store, job(attributes={"tags": ("a", "b", "a b"), "user": "17"}))
    for value in ("a", "b", "a b"):
        assert await _ids(store, ("tags", value)) == [id]
    for pair in (
        ("tags", "A"),
        ("tags", ""),
        ("tags", "17"),
        ("user", "a"),
        ("user", "1"),
        ("tag", "a"),
        ("Tags", "a"),
    ):
        assert await _ids(store, pair) == []


@case()
async def odd_texts(stores: Stores) -> None:
    """Values of any characters are kept and found: separators, quotes, all of Unicode, the longest allowed."""
    store = await stores.open()
    values = (
        "a:b",
        "a=b",
        '{"x": 1}',
        "%",
        "_",
        "\\",
        "'",
        "new\nline",
        "\x01\x1f",
        "été",
        "\U0001f600" * 250,
        "x" * 512,
        " ",
    )
    name = "a_B.c:d/e-0" * 5
    [id] = await start(store, job(id=_SMILES, attributes={name: values}))
    assert (await read_chain(store, id)).attributes == {name: values}
    for value in values:
        assert await _ids(store, (name, value)) == [id], value
    assert await _ids(store, (name, "a"), (name, "%")) == []


@case()
async def all_of_them(stores: Stores) -> None:
    """Of several pairs a chain must have all; a pair that is asked for twice is one."""
    store = await stores.open()
    [both, first, second] = await start(
        store,
        job(attributes={"user": "17", "tags": ("a", "b")}),
        job(attributes={"user": "17", "tags": ("a",)}),
        job(attributes={"user": "18", "tags": ("a", "b")}),
    )
    assert set(await _ids(store, ("tags", "a"))) == {both, first, second}
    assert set(await _ids(store, ("tags", "a"), ("tags", "b"))) == {both, second}
    assert set(await _ids(store, _MINE, ("tags", "a"), _MINE)) == {both, first}
    assert await _ids(store, ("tags", "b"), _MINE, ("tags", "a")) == [both]
    assert await _ids(store, _MINE, ("tags", "c")) == []
    assert await _ids(store, ("tags", "c"), _MINE) == []


@case()
async def with_the_other_filters(stores: Stores) -> None:
    """Types, statuses and times narrow down what the attributes find."""
    store = await stores.open()
    ids = [await _of_user(store, type=type) for type in ("a", "b", "a", "b")]
    await _of_user(store, "18", type="a")
    await store.finish([complete(one) for one in await store.claim(ask("a", limit=1))])
    times = [(await read_chain(store, id)).created_at for id in ids]

    async def found(**what: Any) -> list[str]:
        filter = ChainFilter(attributes=(_MINE,), **what)
        return [one.id for one in await store.list_chains(filter, _OLDEST)]

    assert await found(types=("a",)) == [ids[0], ids[2]]
    assert await found(types=("a", "b", "c")) == ids
    assert await found(types=()) == await found(statuses=()) == []
    assert await found(statuses=(ChainStatus.COMPLETED,)) == [ids[0]]
    assert await found(statuses=(ChainStatus.OPEN,), types=("a",)) == [ids[2]]
    assert await found(since=times[1], before=times[3]) == [
        id for id, time in zip(ids, times, strict=True) if times[1] <= time < times[3]
    ]
    assert await found(since=times[3] + timedelta(microseconds=1)) == []


@case()
async def pages_make_the_whole(stores: Stores) -> None:
    """Pages of any size, in both orders, of one attribute and of two, show every chain that fits once."""
    store = await stores.open()
    jobs = [job(f"type{at % 3}", attributes={"user": "17", "tags": ("a", str(at % 2))}) for at in range(12)]
    await start(store, *jobs, *(job(attributes={"user": "18", "tags": ("a", "0")}) for _ in range(5)))
    every = [one.id for one in await store.list_chains(ChainFilter(), _OLDEST)]
    even = {one.id for one in jobs[::2]}
    for pairs, fitting in (((_MINE,), {one.id for one in jobs}), ((("tags", "0"), _MINE), even)):
        ordered = [id for id in every if id in fitting]
        for oldest_first, expected in ((True, ordered), (False, ordered[::-1])):
            for limit in (1, 5, 6, 13):
                pages = await _pages(store, pairs, limit, oldest_first=oldest_first)
                assert pages == [expected[begin : begin + limit] for begin in range(0, len(expected), limit)]


@case()
async def cursors_are_those_of_chains(stores: Stores) -> None:
    """A cursor goes on behind a place in time; what is none of such a list is refused."""
    store = await stores.open()
    ids = [await _of_user(store) for _ in range(4)]
    page = await store.list_chains(ChainFilter(attributes=(_MINE,)), PageRequest(limit=2))
    assert [one.id for one in page] == ids[:1:-1]
    assert await _ids(store, _MINE, page=PageRequest(cursor=page.next_cursor)) == ids[1::-1]
    for cursor in ("", "x", Position("3", "id").encode()):
        await error_of(InvalidCursorError, _ids(store, _MINE, page=PageRequest(cursor=cursor)))


@case()
async def stay_with_the_chain(stores: Stores) -> None:
    """However a chain goes on, closes or is retried, it is found by what it was started with, once."""
    store = await stores.open()
    [held] = await started_and_claimed(store, attributes={"user": "17"})
    await store.finish([go_on(held, job("second"))])
    assert await _ids(store, _MINE) == [held.id]
    await store.finish([fail(await claim_one(store, "second"))])
    await store.retry_chains([held.id])
    await store.finish([complete(await claim_one(store, "second"))])
    [found] = await store.list_chains(ChainFilter(attributes=(_MINE,)), PageRequest())
    assert (found.id, found.status, found.attributes) == (held.id, ChainStatus.COMPLETED, {"user": "17"})


@case()
async def of_started_children(stores: Stores) -> None:
    """Chains that a handler starts and waits for have those that it gave them, and its own has its."""
    store = await stores.open()
    [held] = await started_and_claimed(store, attributes={"user": "17"})
    child = job("child", attributes={"user": "18", "parent": held.id})
    await store.finish([Finish(held, FinishKind.WAIT, starts=(child, job("child")), blockers=(child.id,))])
    assert await _ids(store, ("parent", held.id)) == [child.id]
    assert (await read_chain(store, child.id)).attributes == {"user": "18", "parent": held.id}
    assert await _ids(store, _MINE) == [held.id]


@case()
async def not_changed_by_duplicates(stores: Stores) -> None:
    """A start that finds a chain in its place changes nothing of it: by key, by id, and within one batch."""
    store = await stores.open()
    ways: list[dict[str, Any]] = [{"deduplication": Deduplicate("key")}, {"id": "chosen", "attach": True}]
    for how in ways:
        first = job(**how, attributes={"user": "17", "first": "1"})
        again = job(**how, attributes={"user": "19", "more": "1"})
        [written, twin] = await start(store, first, again)
        assert written == twin == (await start(store, again))[0]
        assert (await read_chain(store, written)).attributes == first.attributes
        assert await _ids(store, ("user", "19")) == await _ids(store, ("more", "1")) == []
    assert len(await _ids(store, _MINE)) == 2


@case()
async def not_kept_of_a_refused_start(stores: Stores) -> None:
    """Of a batch that is refused nothing is found."""
    store = await stores.open()
    await start(store, job(id="taken"))
    refused = [job(attributes={"user": "17"}), job(id="taken", attributes={"user": "17"})]
    await error_of(JobIdConflictError, store.start_jobs(refused))
    assert await _ids(store, _MINE) == []


@case()
async def many_at_once(stores: Stores) -> None:
    """A thousand starts with the most values allowed, half of them new ones of taken ids, are all there."""
    store = await stores.open()
    tags = tuple(f"tag{number}" for number in range(63))
    batch = [job(id=f"id{at}", attach=at % 2 == 0, attributes={"tags": tags, "at": str(at)}) for at in range(1000)]
    await start(store, *batch[:500:2])
    await start(store, *(one for one in batch[:500] if not one.attach), *batch[500:], *batch[:500:2])
    page = await store.list_chains(ChainFilter(attributes=(("tags", "tag62"),)), PageRequest(limit=1000))
    assert {one.id for one in page} == {one.id for one in batch}
    assert page.next_cursor is None
    for at in (0, 1, 998, 999):
        assert await _ids(store, ("at", str(at)), ("tags", "tag0")) == [f"id{at}"]


@case()
async def go_with_the_chain(stores: Stores) -> None:
    """Of a deleted chain nothing is found, and a new one of its id has its own only."""
    store = await stores.open()
    attributes: Attributes = {"user": "17", "tags": ("a", "b")}
    [held, kept] = await started_and_claimed(store, 2, attributes=attributes)
    await store.finish([go_on(held, job("second"))])
    await store.delete_chains([held.id])
    assert await _ids(store, _MINE) == await _ids(store, ("tags", "b")) == [kept.id]
    await start(store, job(id=held.id, attributes={"tags": ("b",)}))
    assert await _ids(store, _MINE) == [kept.id]
    assert set(await _ids(store, ("tags", "b"))) == {kept.id, held.id}
    assert (await read_chain(store, held.id)).attributes == {"tags": ("b",)}


@case()
async def go_with_expired_chains(stores: Stores) -> None:
    """Of chains that were pruned nothing is found; a chain that is started anew has its own only."""
    store = await stores.open()
    [first, second] = await started_and_claimed(store, 2, attributes={"user": "17"}, result_ttl=0.001)
    [open_one] = await start(store, job(attributes={"user": "17"}))
    await store.finish([complete(first), complete(second)])

    async def gone() -> bool:
        return await store.get_chains([first.id, second.id]) == [None, None]

    await eventually(gone)
    [again] = await start(store, job(id=first.id, attributes={"user": "18"}))
    await store.prune(PruneRequest())
    assert await _ids(store, _MINE) == [open_one]
    assert await _ids(store, ("user", "18")) == [again]


@case()
async def starts_and_deletions_at_once(stores: Stores) -> None:
    """However starts and deletions of the same ids meet, what is found is what is there."""
    opened = await stores.open_many(4)

    async def churn(store: AsyncStore, user: str) -> None:
        for at in range(15):
            await store.start_jobs([job(id=f"id{at % 3}", attach=True, attributes={"user": user, "all": "1"})])
            await store.delete_chains([f"id{(at + 1) % 3}"])

    await asyncio.gather(*(churn(store, str(user)) for user, store in enumerate(opened)))
    [store, *_] = opened
    there = {one.id: one.attributes["user"] for one in await store.list_chains(ChainFilter(), _OLDEST)}
    assert set(await _ids(store, ("all", "1"))) == set(there)
    for user in map(str, range(4)):
        assert set(await _ids(store, ("user", user))) == {id for id, owner in there.items() if owner == user}


@case(Capability.USER_TRANSACTIONS)
async def stand_when_the_caller_commits(stores: Stores) -> None:
    """In the caller's transaction they are written and deleted with the chain, when it commits."""
    store = await stores.open()
    [old] = await start(store, job(attributes={"user": "17"}))
    async with stores.user_data.transaction(stores.mode) as connection:
        [new] = await store.start_jobs([job(attributes={"user": "17"})], connection=connection)
        await store.delete_chains([old], connection=connection)
        assert await _ids(store, _MINE) == [old]
    assert await _ids(store, _MINE) == [new.id]

    async def refused() -> None:
        async with stores.user_data.transaction(stores.mode) as connection:
            await store.start_jobs([job(attributes={"user": "17"})], connection=connection)
            await store.delete_chains([new.id], connection=connection)
            raise StateError("the caller's own")

    await error_of(StateError, refused())
    assert await _ids(store, _MINE) == [new.id]
