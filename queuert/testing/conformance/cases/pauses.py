"""Pauses: types of which nothing is claimed until they are resumed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from queuert.jobs import JobStatus
from queuert.limits import Limits, Rate
from queuert.run_at import after
from queuert.state.types import ClaimedJob, Renewal
from queuert.testing.conformance.builders import (
    ask,
    claim_one,
    complete,
    due_later,
    eventually,
    job,
    read,
    retry,
    start,
    started_and_claimed,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


@case()
async def nothing_is_claimed_of_a_paused_type(stores: Stores) -> None:
    """Of a paused type nothing is claimed by any store, ready or due, until it is resumed."""
    store, other = await stores.open_many(2)
    await start(store, job(priority=9), job(run_at=after(seconds=0.001), priority=8), job("other"))
    await store.pause_job_types(["work"])
    assert [one.type for one in await other.claim(ask("work", "other"))] == ["other"]
    assert await other.claim(ask()) == []
    assert await store.resume_job_types(["work"]) == ["work"]

    async def both() -> bool:
        taken.extend(await other.claim(ask()))
        return len(taken) == 2

    taken: list[ClaimedJob] = []
    await eventually(both)


@case()
async def running_jobs_of_a_paused_type_go_on(stores: Stores) -> None:
    """What runs when its type is paused is renewed and ended as ever; a retry waits for the resume."""
    store = await stores.open()
    one, two = await started_and_claimed(store, 2)
    await store.pause_job_types(["work"])
    assert await store.renew([Renewal(one.lease, 60.0)]) == [True]
    assert [result.written for result in await store.finish([complete(one), retry(two)])] == [True, True]
    assert await store.claim(ask()) == []
    await store.resume_job_types(["work"])
    assert (await claim_one(store)).id == two.id


@case()
async def starts_of_a_paused_type_go_on(stores: Stores) -> None:
    """Jobs of a paused type are started, and due, as others are."""
    store = await stores.open()
    await store.pause_job_types(["work"])
    [id] = await start(store, job())
    assert (await read(store, id)).status is JobStatus.READY


@case()
async def nothing_of_a_paused_type_is_due(stores: Stores) -> None:
    """The next due time is that of the types that are not paused."""
    store = await stores.open()
    await start(store, job(), job("other", run_at=due_later()))
    assert await store.next_due(["work", "other"]) == 0
    await store.pause_job_types(["work"])
    assert await store.next_due(["work"]) is None
    assert (await store.next_due(["work", "other"]) or 0) > 60
    await store.pause_job_types(["other"])
    assert await store.next_due(["work", "other"]) is None
    await store.resume_job_types(["work"])
    assert await store.next_due(["work", "other"]) == 0


@case()
async def paused_types_with_limits(stores: Stores) -> None:
    """Limits change nothing about a pause, whichever they are, and whether the type has any itself."""
    store = await stores.open()
    await start(store, *(job(type, limit_key=key) for type in ("work", "other", "free") for key in ("a", None)))
    limits = {"work": Limits(per_key=1, rate=Rate(9)), "other": Limits(concurrency=5)}
    request = replace(ask("work", "other", "free"), limits=limits)
    await store.pause_job_types(["work", "other"])
    assert {one.type for one in await store.claim(request)} == {"free"}
    await store.pause_job_types(["free"])
    assert await store.claim(request) == []
    await store.resume_job_types(["work", "other"])
    assert len(await store.claim(request)) == 4


@case()
async def pauses_are_listed(stores: Stores) -> None:
    """The paused types are listed by name, with the reason; pausing again keeps what it does not say anew."""
    store = await stores.open()
    assert await store.list_paused_job_types() == []
    await store.pause_job_types(["b", "a"], reason="the printer is on fire")
    [first, second] = await store.list_paused_job_types()
    assert (first.type, second.type, first.reason) == ("a", "b", "the printer is on fire")
    assert first.paused_at.utcoffset() is not None
    await store.pause_job_types(["a"])
    await store.pause_job_types(["b", "c"], reason="so is the desk")
    again = await store.list_paused_job_types()
    assert again[0] == first
    assert [(one.type, one.reason) for one in again[1:]] == [("b", "so is the desk"), ("c", "so is the desk")]
    assert again[1].paused_at == second.paused_at


@case()
async def pauses_say_who_paused(stores: Stores) -> None:
    """Who paused a type is listed, and kept when somebody pauses it again; after a resume it is forgotten."""
    store = await stores.open()
    await store.pause_job_types(["a", "b"], by="ana")
    await store.pause_job_types(["b", "c"], reason="again", by="ben")
    await store.pause_job_types(["a"])
    assert [(one.type, one.by) for one in await store.list_paused_job_types()] == [
        ("a", "ana"),
        ("b", "ana"),
        ("c", "ben"),
    ]
    await store.resume_job_types(["a"])
    await store.pause_job_types(["a"])
    assert (await store.list_paused_job_types())[0].by is None


@case()
async def resume_says_what_was_paused(stores: Stores) -> None:
    """Resuming returns the types that were paused, each once, and is nothing for others."""
    store = await stores.open()
    await store.pause_job_types(["a", "b", "a"])
    await store.pause_job_types([])
    assert await store.resume_job_types(["unknown", "b", "a", "b"]) == ["a", "b"]
    assert await store.resume_job_types(["a"]) == []
    assert await store.resume_job_types([]) == []
    assert await store.list_paused_job_types() == []


@case()
async def pauses_and_resumes_at_once(stores: Stores) -> None:
    """Pauses and resumes of the same types that overlap, in any order of names, all come to their end."""
    several = await stores.open_many(8)
    types = [f"type{number}" for number in range(20)]
    for _ in range(10):
        await asyncio.gather(
            *(
                store.pause_job_types(types[:: 1 - place % 2 * 2]) if place % 3 else store.resume_job_types(types[::-1])
                for place, store in enumerate(several)
            )
        )
    await several[0].pause_job_types(types)
    assert sorted(await several[1].resume_job_types(types)) == sorted(types)
