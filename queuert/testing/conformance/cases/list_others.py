"""Listing the jobs of a chain and those that wait for one; blockers; what a list must not see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from queuert.errors import InvalidCursorError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore, Capability
from queuert.state.paging import ChainFilter, JobFilter, PageRequest, Position
from queuert.state.types import BlockerLink, BlockerRecord
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    fail,
    go_on,
    job,
    start,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.paging import pages_of
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_FIRST = PageRequest(limit=1000, oldest_first=True)
_LAST = PageRequest(limit=1000)


async def _chain_of(store: AsyncStore, *ids: str) -> list[str]:
    """A completed chain of these jobs."""
    await start(store, job("step", id=ids[0]))
    for following in ids[1:]:
        await store.finish([go_on(await claim_one(store, "step"), job("step", id=following))])
    await store.finish([complete(await claim_one(store, "step"))])
    return list(ids)


# --- the jobs of a chain ----------------------------------------------------------------------------------------------


@case()
async def jobs_of_a_chain_in_order(stores: Stores) -> None:
    """The jobs of a chain by their index, first to last or back, as ``get_jobs`` reads them."""
    store = await stores.open()
    ids = await _chain_of(store, "d", "c", "b", "a", "e")
    found = await store.list_chain_jobs("d", _FIRST)
    assert ([one.id for one in found], found.next_cursor) == (ids, None)
    assert [one.chain_index for one in found] == [0, 1, 2, 3, 4]
    assert list(found) == await store.get_jobs(ids)
    assert [one.id for one in await store.list_chain_jobs("d", _LAST)] == ids[::-1]


@case()
async def only_that_chain(stores: Stores) -> None:
    """Other chains are not mixed in; an unknown chain, or the id of a later job, has none."""
    store = await stores.open()
    await _chain_of(store, "a", "b")
    await _chain_of(store, "c", "d")
    assert [one.id for one in await store.list_chain_jobs("c", _FIRST)] == ["c", "d"]
    for id in ("unknown", "d"):
        page = await store.list_chain_jobs(id, _FIRST)
        assert (page.items, page.next_cursor) == ((), None)


@case()
async def pages_of_a_chain(stores: Stores) -> None:
    """Pages of any size, in both orders, make the whole chain, the first job among them."""
    store = await stores.open()
    ids = await _chain_of(store, *"fedcba")
    for oldest_first, expected in ((True, ids), (False, ids[::-1])):
        for limit in (1, 2, 5, 6, 7):
            pages = await pages_of(lambda page: store.list_chain_jobs("f", page), limit, oldest_first=oldest_first)
            assert pages == [expected[begin : begin + limit] for begin in range(0, 6, limit)]


@case()
async def chain_goes_on_between_pages(stores: Stores) -> None:
    """A job that is added while the pages are read comes at the end."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.finish([go_on(held, job("step", id="b"))])
    first = await store.list_chain_jobs(held.id, PageRequest(limit=1, oldest_first=True))
    await store.finish([go_on(await claim_one(store, "step"), job("step", id="c"))])
    rest = await store.list_chain_jobs(held.id, PageRequest(limit=5, cursor=first.next_cursor, oldest_first=True))
    assert [one.id for one in (*first, *rest)] == [held.id, "b", "c"]
    assert [one.status for one in rest] == [JobStatus.CONTINUED, JobStatus.READY]


# --- the jobs that wait for a chain -----------------------------------------------------------------------------------


@case()
async def jobs_that_wait(stores: Stores) -> None:
    """All jobs that name the chain among their blockers, by id, also when it has closed and they have run."""
    store = await stores.open()
    [held, other] = await started_and_claimed(store, 2)
    ids = ["a", "b", "c"]
    await start(store, *(job("waits", id=id, blockers=[other.id, held.id]) for id in ids[::-1]))
    await start(store, job("waits", blockers=[other.id]), job("waits"))
    found = await store.list_dependents(held.id, _FIRST)
    assert ([one.id for one in found], found.next_cursor) == (ids, None)
    assert list(found) == await store.get_jobs(ids)
    assert {one.status for one in found} == {JobStatus.BLOCKED}
    assert [one.id for one in await store.list_dependents(held.id, _LAST)] == ids[::-1]
    await store.finish([complete(held), complete(other)])
    await store.finish([complete(await claim_one(store, "waits")) for _ in range(5)])
    assert [one.id for one in await store.list_dependents(held.id, _FIRST)] == ids
    assert {one.status for one in await store.list_dependents(held.id, _FIRST)} == {JobStatus.COMPLETED}


@case()
async def nothing_waits(stores: Stores) -> None:
    """No job waits for a chain that is no blocker, or that does not exist."""
    store = await stores.open()
    [id, longer] = await start(store, job(id="chain"), job(id="chain1"))
    await start(store, job("waits", id="w", blockers=[longer]))
    for chain in (id, "w", "chai", "unknown"):
        for page in (_FIRST, _LAST):
            found = await store.list_dependents(chain, page)
            assert (found.items, found.next_cursor) == ((), None)


@case()
async def pages_of_jobs_that_wait(stores: Stores) -> None:
    """Pages of any size, in both orders, whatever the characters of the ids."""
    store = await stores.open()
    [chain, _, _] = await start(store, job(id="c"), job(id="b"), job(id="d"))
    ids = ["!", "A", "a", "b'", "é", "\U0010ffff", "\U0010ffff\U0010ffff"]
    await start(store, *(job("waits", id=id, blockers=["b", "c", "d"]) for id in ids))
    for oldest_first, expected in ((True, ids), (False, ids[::-1])):
        for limit in (1, 2, 6, 7, 8):
            pages = await pages_of(lambda page: store.list_dependents(chain, page), limit, oldest_first=oldest_first)
            assert pages == [expected[begin : begin + limit] for begin in range(0, 7, limit)]


# --- blockers ---------------------------------------------------------------------------------------------------------


@case()
async def blockers_in_the_order_given(stores: Stores) -> None:
    """The chains that a job waits for, in the order in which they were given, however each stands."""
    store = await stores.open()
    held = await started_and_claimed(store, 4)
    await store.finish([complete(held[0], "[1]"), fail(held[1]), cancel(held[2])])
    [id] = await start(store, job("waits", blockers=[held[at].id for at in (3, 1, 0, 2)]))
    found = await store.get_blockers(id)
    assert [one.chain_id for one in found] == [held[at].id for at in (3, 1, 0, 2)]
    expected = [ChainStatus.OPEN, ChainStatus.FAILED, ChainStatus.COMPLETED, ChainStatus.CANCELLED]
    assert [one.status for one in found] == expected
    assert [one.output for one in found] == [None, None, "[1]", None]
    assert [one.error.kind if one.error else None for one in found] == [None, "fail", None, "cancel"]
    without = await store.get_blockers(id, outputs=False)
    assert without == [replace(one, output=None, error=None) for one in found]


@case()
async def blocker_of_several_jobs(stores: Stores) -> None:
    """Of a chain that went on: the type of its first job, and the type and output of its last."""
    store = await stores.open()
    [held] = await started_and_claimed(store, type="first")
    [id] = await start(store, job("waits", blockers=[held.id]))
    await store.finish([go_on(held, job("last"))])
    open_one = BlockerRecord(held.id, "first", ChainStatus.OPEN, "last", None, None)
    assert await store.get_blockers(id) == [open_one]
    await store.finish([complete(await claim_one(store, "last"), "7")])
    assert await store.get_blockers(id) == [BlockerRecord(held.id, "first", ChainStatus.COMPLETED, "last", "7", None)]


@case()
async def no_blockers(stores: Stores) -> None:
    """A job that waits for nothing, and one that does not exist, have none."""
    store = await stores.open()
    [id] = await start(store, job())
    assert list(await store.get_blockers(id)) == list(await store.get_blockers("unknown")) == []


@case()
async def links_to_blockers_of_all_jobs(stores: Stores) -> None:
    """Of all jobs of the chains, in the order of the chains, of their jobs, and of the blockers of a job."""
    store = await stores.open()
    a, b, c = await start(store, job("child", id="a"), job("child", id="b"), job("child", id="c"))
    [parent] = await started_and_claimed(store, id="parent")
    await store.finish([wait(parent, others=[b, a])])
    [other] = await start(store, job("other", blockers=[c, b]))
    await store.finish([complete(await claim_one(store, "child")) for _ in (a, b)])
    again = await claim_one(store)
    await store.finish([go_on(again, job("next", id="next"))])
    await store.finish([wait(await claim_one(store, "next"), others=[c])])
    links = await store.get_blocker_links([other, "parent", other, "unknown", "next", a], limit=10)
    assert links == [
        BlockerLink(other, other, c),
        BlockerLink(other, other, b),
        BlockerLink("parent", "parent", b),
        BlockerLink("parent", "parent", a),
        BlockerLink("parent", "next", c),
    ]
    assert await store.get_blocker_links([other, "parent"], limit=1) == [links[0], links[2]]
    assert await store.get_blocker_links(["parent"], limit=3) == links[2:]
    assert await store.get_blocker_links([], limit=3) == []


@case()
async def links_to_dependents(stores: Stores) -> None:
    """Jobs of the statuses, in the order of the chains and of their ids, but for those of some chains."""
    store = await stores.open()
    a, b = await start(store, job("child", id="a"), job("child", id="b"))
    [parent] = await started_and_claimed(store, id="parent")
    await store.finish([wait(parent, others=[b, a])])
    await start(store, job("other", id="other", blockers=[b]), job("closed", id="closed", blockers=[b]))
    await store.cancel_chains(["closed"], reason="no")
    await start(store, job("later", id="later", run_at=due_later()))
    first, second, third = (
        BlockerLink("other", "other", b),
        BlockerLink("parent", "parent", b),
        BlockerLink("parent", "parent", a),
    )
    blocked = (JobStatus.BLOCKED,)
    links = await store.get_dependent_links([b, "unknown", a, "later", b], statuses=blocked, limit=10)
    assert links == [first, second, third]
    assert await store.get_dependent_links([b, a], statuses=blocked, limit=1) == [first, third]
    assert await store.get_dependent_links([b, a], statuses=blocked, limit=1, excluding=["x", "other"]) == [
        second,
        third,
    ]
    assert await store.get_dependent_links([b, a], statuses=blocked, limit=9, excluding=["other", "parent"]) == []
    cancelled = await store.get_dependent_links([b, a], statuses=(JobStatus.CANCELLED, JobStatus.FAILED), limit=9)
    assert cancelled == [BlockerLink("closed", "closed", b)]
    assert await store.get_dependent_links([], statuses=blocked, limit=9) == []
    await store.finish([complete(await claim_one(store, "child")) for _ in (a, b)])
    await store.finish([go_on(await claim_one(store), job("next", id="next", blockers=["later"]))])
    assert await store.get_dependent_links([a], statuses=blocked, limit=9) == []
    assert await store.get_dependent_links([a], statuses=(JobStatus.CONTINUED,), limit=9) == [third]
    assert await store.get_dependent_links(["later"], statuses=blocked, limit=9) == [
        BlockerLink("parent", "next", "later")
    ]


# --- cursors ----------------------------------------------------------------------------------------------------------


@case()
async def not_a_cursor(stores: Stores) -> None:
    """What is no cursor of the list is refused; so are those of lists of another kind."""
    store = await stores.open()
    time = Position("2024-01-01T00:00:00+00:00", "id").encode()
    index, id = Position("3", "id").encode(), Position("", "id").encode()
    odd = [Position(key, "id").encode() for key in ("-1", "03", "3.0", "³", "99999999999", "\0")]
    for cursor in ("", "x", "W10=", time, id, *odd):
        await error_of(InvalidCursorError, store.list_chain_jobs("c", PageRequest(cursor=cursor)))
    for cursor in ("", "x", "W10=", time, index, *odd):
        await error_of(InvalidCursorError, store.list_dependents("c", PageRequest(cursor=cursor)))


# --- what others have not committed -----------------------------------------------------------------------------------


async def _everything(store: AsyncStore, chain_id: str) -> list[object]:
    """What all reads say."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.list_jobs(JobFilter(), _FIRST),
        lambda: store.list_chains(ChainFilter(), _FIRST),
        lambda: store.list_chain_jobs(chain_id, _FIRST),
        lambda: store.list_dependents(chain_id, _FIRST),
        lambda: store.get_blockers("waits"),
        lambda: store.get_dependent_links([chain_id], statuses=(JobStatus.BLOCKED,), limit=10),
        lambda: store.get_jobs([chain_id, "waits", "new", "next"]),
        lambda: store.get_chains([chain_id, "waits", "new"]),
    ]
    counts = [(one.type, one.status, one.count) for one in await store.count_jobs()]
    return [*[await call() for call in calls], counts]


async def _unseen(store: AsyncStore, chain_id: str, before: list[object]) -> None:
    now = await _everything(store, chain_id)
    assert now == before


@case(Capability.USER_TRANSACTIONS)
async def uncommitted_starts_are_not_seen(stores: Stores) -> None:
    """Chains that a transaction has started, and what waits for them, are in no list until it commits."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await start(store, job("waits", id="waits", blockers=[held.id]))
    before = await _everything(store, held.id)
    async with stores.user_transaction() as connection:
        await store.start_jobs([job(id="new"), job("waits", blockers=[held.id])], connection=connection)
        await _unseen(store, held.id, before)
    after = await _everything(store, held.id)
    assert all(one != other for one, other in zip(after[:2], before[:2], strict=True))
    assert after[3] != before[3]


@case(Capability.USER_TRANSACTIONS)
async def uncommitted_finishes_are_not_seen(stores: Stores) -> None:
    """A finish or a continuation is in no list until its transaction commits."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await start(store, job("waits", id="waits", blockers=[held.id]))
    before = await _everything(store, held.id)
    async with store.transaction(held) as transaction:
        await transaction.finish(go_on(held, job("step", id="next")))
        await _unseen(store, held.id, before)
    middle = await _everything(store, held.id)
    assert middle[0] != before[0] and middle[2] != before[2]
    last = await claim_one(store, "step")
    before = await _everything(store, held.id)
    async with store.transaction(last) as transaction:
        await transaction.finish(complete(last))
        await _unseen(store, held.id, before)
    after = await _everything(store, held.id)
    assert [one == other for one, other in zip(after, before, strict=True)] == [False] * 9


@case(Capability.USER_TRANSACTIONS)
async def uncommitted_deletions_are_not_seen(stores: Stores) -> None:
    """What a transaction has deleted is listed until it commits."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await start(store, job("waits", id="waits", blockers=[held.id]))
    before = await _everything(store, held.id)
    async with stores.user_transaction() as connection:
        await store.delete_chains([held.id, "waits"], connection=connection)
        await _unseen(store, held.id, before)
    assert await _everything(store, held.id) != before
    assert len(await store.list_jobs(JobFilter(), _FIRST)) == 0
