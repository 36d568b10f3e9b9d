"""Batches of finishes of which the store refuses one."""

from __future__ import annotations

from dataclasses import replace

from queuert.errors import JobIdConflictError
from queuert.jobs import JobStatus
from queuert.testing.conformance.builders import (
    ask,
    complete,
    error_of,
    go_on,
    job,
    read,
    start,
    started_and_claimed,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def writes_and_hides_nothing(stores: Stores) -> None:
    """A batch with one that the store refuses writes nothing; asked one by one, the others say what became due."""
    store = await stores.open()
    await start(store, job(id="taken"))
    before, closing, refused, waiting, behind = await started_and_claimed(store, 5, type="parent")
    await start(store, job("dependent", blockers=[closing.id]))
    ends = [
        go_on(before, job("next")),
        complete(replace(closing, has_dependents=True)),
        wait(waiting, job("child")),
        go_on(refused, job("next", id="taken")),
        go_on(behind, job("last")),
    ]
    await error_of(JobIdConflictError, store.finish(ends))
    assert [(await read(store, one.job.id)).status for one in ends] == [JobStatus.RUNNING] * 5
    reported = [await store.finish([one]) for one in ends if one.job is not refused]
    assert [one.due_types for [one] in reported] == [("next",), ("dependent",), ("child",), ("last",)]
    found = await store.claim(ask("next", "dependent", "child", "last"))
    assert sorted(one.type for one in found) == ["child", "dependent", "last", "next"]
    await error_of(JobIdConflictError, store.finish([ends[3]]))
    assert (await store.finish([complete(refused)]))[0].written


@case()
async def what_one_creates_counts_for_the_others(stores: Stores) -> None:
    """Two of a batch cannot create one id; a chain that one starts is there for the next to wait for."""
    store = await stores.open()
    first, second, third = await started_and_claimed(store, 3, type="parent")
    twice = [go_on(first, job("next", id="a")), go_on(second, job("next", id="a"))]
    await error_of(JobIdConflictError, store.finish([complete(third), *twice]))
    assert [(await read(store, one.id)).status for one in (first, second, third)] == [JobStatus.RUNNING] * 3
    assert await store.claim(ask("next")) == []
    starts = wait(first, job("child", id="child"))
    assert all(one.written for one in await store.finish([starts, wait(second, others=["child"])]))
    assert (await read(store, second.id)).open_blockers == 1
