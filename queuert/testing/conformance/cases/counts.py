"""Counting jobs: exact where there are few, honest where there are many."""

from __future__ import annotations

from queuert.jobs import JobStatus
from queuert.run_at import after
from queuert.state.paging import JobFilter, PageRequest
from queuert.state.types import TypeCount
from queuert.testing.conformance.builders import (
    complete,
    due_later,
    eventually,
    fail,
    go_on,
    job,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_AGE_IS_CHEAP = (JobStatus.READY, JobStatus.SCHEDULED)
"""What waits is in the order in which it is due; of the others a store need not know the oldest."""


def _numbers(found: list[TypeCount]) -> dict[tuple[str, JobStatus], int]:
    numbers = {(one.type, one.status): one.count for one in found}
    assert len(numbers) == len(found)
    return numbers


@case()
async def nothing_to_count(stores: Stores) -> None:
    """No jobs, no numbers: what there is none of is left out."""
    store = await stores.open()
    assert list(await store.count_jobs()) == []
    [held] = await started_and_claimed(store)
    assert _numbers(await store.count_jobs()) == {("work", JobStatus.RUNNING): 1}
    await store.delete_chains([held.id])
    assert list(await store.count_jobs()) == []


@case()
async def few_are_exact(stores: Stores) -> None:
    """Up to ``exact_up_to`` the number is exact, and says so: at the boundary too."""
    store = await stores.open()
    await start(store, *(job("a") for _ in range(5)), *(job("b") for _ in range(4)), job("b", run_at=due_later()))
    expected = {("a", JobStatus.READY): 5, ("b", JobStatus.READY): 4, ("b", JobStatus.SCHEDULED): 1}
    for found in (
        await store.count_jobs(),
        await store.count_jobs(exact_up_to=5),
        await store.count_jobs(["b", "a", "b"]),
    ):
        assert _numbers(found) == expected
        assert not any(one.estimated for one in found)


@case()
async def many_are_no_fewer(stores: Stores) -> None:
    """Above ``exact_up_to`` a number may be an estimate, and then says so; it is not below what is known."""
    store = await stores.open()
    await start(store, *(job("a") for _ in range(5)), job("b"))
    for exact_up_to in (4, 1, 0):
        found = {one.type: one for one in await store.count_jobs(exact_up_to=exact_up_to)}
        assert set(found) == {"a", "b"}
        assert found["a"].count > exact_up_to
        assert found["a"].estimated or found["a"].count == 5
        assert exact_up_to == 0 or (found["b"].count, found["b"].estimated) == (1, False)


@case()
async def types_are_those_of_the_jobs(stores: Stores) -> None:
    """A continuation counts under its own type, each job of a chain once."""
    store = await stores.open()
    [held] = await started_and_claimed(store, type="first")
    await store.finish([go_on(held, job("second"))])
    expected = {("first", JobStatus.CONTINUED): 1, ("second", JobStatus.READY): 1}
    assert _numbers(await store.count_jobs()) == expected


@case()
async def due_and_ready_are_one_number(stores: Stores) -> None:
    """Scheduled jobs whose time has come and ready ones are counted together, as ready, apart from the others."""
    store = await stores.open()
    await start(store, job(), job(run_at=after(seconds=0.001)), job(run_at=due_later()), job(priority=5))

    async def due() -> bool:
        return _numbers(await store.count_jobs())["work", JobStatus.READY] == 3

    await eventually(due)
    assert _numbers(await store.count_jobs())["work", JobStatus.SCHEDULED] == 1


@case()
async def age_of_the_oldest_with_limit_keys(stores: Stores) -> None:
    """It is that of the oldest of all, whatever its key and priority, or whether it has a key."""
    store = await stores.open()

    async def ages() -> list[float]:
        [count] = [one for one in await store.count_jobs() if one.status is JobStatus.READY]
        [demand] = await store.get_demand()
        assert count.oldest_seconds is not None and demand.oldest_seconds is not None
        return [count.oldest_seconds, demand.oldest_seconds]

    await start(store, job(limit_key="a", priority=-5))
    before = await ages()
    await start(
        store, *(job(limit_key=key, priority=rank) for key in "abc" for rank in (-9, -5, 0, 7)), job(priority=9)
    )
    assert all(now >= age >= 0 for now, age in zip(await ages(), before, strict=True))
    [first] = await store.list_jobs(JobFilter(), PageRequest(limit=1, oldest_first=True))
    await store.cancel_chains([first.chain_id], reason="test")
    after_cancel = await ages()
    await start(store, job())
    assert all(now >= age for now, age in zip(await ages(), after_cancel, strict=True))


@case()
async def age_of_the_oldest(stores: Stores) -> None:
    """The age is that of the oldest, by when it became due or ended: the later half of the jobs does not lower it."""
    store = await stores.open()
    held = await started_and_claimed(store, 2)
    await start(store, job(priority=-5), job(run_at=due_later()))
    await store.finish([complete(held[0]), fail(held[1])])
    before = {(one.type, one.status): one.oldest_seconds for one in await store.count_jobs()}
    await start(store, *(job(priority=number) for number in range(-9, 9)), job(run_at=due_later()))
    await store.finish([complete(one) for one in await started_and_claimed(store, 3, priority=100)])
    after_ = {(one.type, one.status): one.oldest_seconds for one in await store.count_jobs()}
    assert set(after_) == set(before)
    for key, age in before.items():
        now = after_[key]
        if age is None and key[1] not in _AGE_IS_CHEAP:
            assert now is None
        else:
            assert age is not None and now is not None and now >= age >= 0
    assert before["work", JobStatus.SCHEDULED] == 0
