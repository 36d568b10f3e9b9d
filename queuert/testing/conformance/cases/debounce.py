"""Debounced starts: the newest input of a deduplication key, once no start has come for a while."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from queuert.deduplication import Deduplicate
from queuert.jobs import JobStatus
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability
from queuert.state.types import NewJob, StartedJob
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    eventually,
    go_on,
    job,
    read,
    retry,
    start,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_HOUR = 3600.0
_NOW = 0.000_001
"""Seconds after which a job is due when the next statement runs."""


def _new(number: int, *, key: str = "key", debounce: float = _HOUR, id: str | None = None, **how: Any) -> NewJob:
    deduplication = Deduplicate(key, debounce=debounce, **how)
    return job(input=str(number), id=id, run_at=RunAt(delay=debounce), deduplication=deduplication)


async def _one(store: AsyncStore, new: NewJob, **how: Any) -> StartedJob:
    [started] = await store.start_jobs([new], **how)
    return started


@case()
async def waiting_job_gets_the_newest_input(stores: Stores) -> None:
    """A start finds a scheduled job of its key, gives it its input and a later due time, and reports it."""
    store = await stores.open()
    first = await _one(store, _new(1))
    assert (first.existing, first.debounced, first.status) == (False, False, JobStatus.SCHEDULED)
    before = await read(store, first.id)
    second = await _one(store, _new(2))
    assert (second.id, second.existing, second.debounced) == (first.id, True, True)
    assert (second.status, second.created_at) == (JobStatus.SCHEDULED, first.created_at)
    after = await read(store, first.id)
    assert (after.input, after.attempt, after.deduplication_key) == (2, 0, "key")
    assert after.scheduled_at > before.scheduled_at
    assert after.scheduled_at - after.created_at >= timedelta(seconds=_HOUR)
    assert sum(one.count for one in await store.count_jobs()) == 1
    assert await store.claim(ask()) == []


@case()
async def ready_job_is_pushed_back(stores: Stores) -> None:
    """A ready job that was never claimed is pushed back too, also one that a worker released; a shorter time counts."""
    store = await stores.open()
    first = await _one(store, job(input="1", deduplication=Deduplicate("key")))
    await store.release([(await claim_one(store)).lease])
    assert (await _one(store, _new(2))).id == first.id
    assert (await read(store, first.id)).status is JobStatus.SCHEDULED
    assert await store.claim(ask()) == []
    third = await _one(store, _new(3, debounce=_NOW))
    assert (third.id, third.debounced) == (first.id, True)
    assert (await claim_one(store)).input == "3"


@case()
async def keeps_other_arguments(stores: Stores) -> None:
    """Only the input and the due time are those of the newest start."""
    store = await stores.open()
    deduplication = Deduplicate("key", debounce=_HOUR)
    first = await _one(store, job(deduplication=deduplication, priority=3, limit_key="a", attributes={"n": "1"}))
    again = job(id="other", deduplication=deduplication, priority=5, limit_key="b", attributes={"n": "2"})
    assert (await _one(store, again)).id == first.id
    found = await read(store, first.id)
    assert (found.priority, found.limit_key) == (3, "a")
    [chain] = await store.get_chains([first.id])
    assert chain is not None and chain.attributes == {"n": "1"}
    assert await store.get_jobs(["other"]) == [None]


@case()
async def begun_job_is_not_changed(stores: Stores) -> None:
    """If the job has begun, a new chain is started: while it runs, after it failed once, or once its chain went on."""
    store = await stores.open()
    first = await _one(store, _new(1, debounce=_NOW))
    claimed = await claim_one(store)
    second = await _one(store, _new(2))
    assert (second.existing, second.debounced) == (False, False)
    await store.finish([retry(claimed)])
    assert (await read(store, first.id)).status is JobStatus.READY
    third = await _one(store, _new(3, excluding=[second.id]))
    assert not third.existing
    await store.finish([go_on(await claim_one(store), job("next"))])
    fourth = await _one(store, _new(4, excluding=[second.id, third.id]))
    assert len({first.id, second.id, third.id, fourth.id}) == 4
    assert (await _one(store, _new(5))).id == fourth.id
    assert [(await read(store, one.id)).input for one in (first, second, third, fourth)] == [1, 2, 3, 5]


@case()
async def closed_and_blocked_chains_do_not_match(stores: Stores) -> None:
    """A chain that was closed before it began, and one that waits for others, is left as it is."""
    store = await stores.open()
    first = await _one(store, _new(1))
    await store.cancel_chains([first.id], reason="not wanted")
    second = await _one(store, _new(2))
    assert not second.existing
    [blocker] = await start(store, job("other"))
    blocked = job(input="3", blockers=[blocker], deduplication=Deduplicate("blocked"))
    assert (await _one(store, blocked)).status is JobStatus.BLOCKED
    assert not (await _one(store, _new(4, key="blocked"))).existing
    assert (await read(store, blocked.id)).input == 3


@case()
async def max_delay_counts_from_the_first_start(stores: Stores) -> None:
    """The job is due ``max_delay`` after its creation at the latest; a later start still gives it its input."""
    store = await stores.open()
    first = await _one(store, _new(1, max_delay=2 * _HOUR))
    await _one(store, _new(2, debounce=1.5 * _HOUR, max_delay=1.5 * _HOUR))
    found = await read(store, first.id)
    assert found.scheduled_at - found.created_at == timedelta(hours=1.5)
    soon = await _one(store, _new(3, debounce=_NOW, max_delay=_NOW))
    assert (soon.id, soon.debounced) == (first.id, True)
    claimed = await claim_one(store)
    assert (claimed.id, claimed.input) == (first.id, "3")
    await store.finish([complete(claimed)])
    assert not (await _one(store, _new(4))).existing


@case()
async def due_job_keeps_its_place(stores: Stores) -> None:
    """A job that ``max_delay`` has made due is not moved behind others by the next start, and runs with its input."""
    store = await stores.open()
    first = await _one(store, _new(1, debounce=_NOW, max_delay=_NOW))
    await _one(store, _new(2, debounce=_NOW, max_delay=_NOW))
    other = await _one(store, job(input='"other"'))
    await _one(store, _new(3, debounce=_NOW, max_delay=_NOW))
    claimed = await store.claim(ask())
    assert [(one.id, one.input) for one in claimed] == [(first.id, "3"), (other.id, '"other"')]


@case()
async def plain_starts_of_the_key(stores: Stores) -> None:
    """A start without debounce gets the waiting chain of a debounced one, and changes nothing."""
    store = await stores.open()
    first = await _one(store, _new(1))
    plain = await _one(store, job(input="2", deduplication=Deduplicate("key")))
    assert (plain.id, plain.existing, plain.debounced) == (first.id, True, False)
    assert (await read(store, first.id)).input == 1


@case()
async def last_of_a_batch(stores: Stores) -> None:
    """In a batch the last start of a key gives its input, to a new chain and to a waiting one; others drop theirs."""
    store = await stores.open()
    there = await _one(store, _new(0, key="there"))
    plain = job(input="9", deduplication=Deduplicate("new"))
    batch = [_new(1, key="new"), _new(2, key="there"), _new(3, key="new"), plain, _new(4, key="there"), job()]
    started = await store.start_jobs(batch)
    assert [one.existing for one in started] == [False, True, True, True, True, False]
    assert [one.debounced for one in started] == [False, True, True, False, True, False]
    assert started[0].id == started[2].id == started[3].id == batch[0].id
    assert started[1].id == started[4].id == there.id
    assert [(await read(store, id)).input for id in (batch[0].id, there.id)] == [3, 4]


@case()
async def limited_and_cancelled(stores: Stores) -> None:
    """A job with a limit key is pushed back, claimed and cancelled as any other."""
    store = await stores.open()
    keyed = job(input="1", limit_key="tenant", deduplication=Deduplicate("key"))
    first = await _one(store, keyed)
    assert (await _one(store, _new(2))).debounced
    assert (await _one(store, _new(3, debounce=_NOW))).debounced
    claimed = await claim_one(store)
    assert (claimed.id, claimed.input) == (first.id, "3")
    await store.finish([cancel(claimed)])
    assert await store.claim(ask()) == []


@case()
async def racing_starts(stores: Stores) -> None:
    """A hundred starts of a key at once write one job; a start after them gives it its input."""
    several = await stores.open_many(5)
    started = await asyncio.gather(*(_one(store, _new(number)) for number, store in enumerate(several * 20)))
    assert len({one.id for one in started}) == 1
    assert [one.debounced for one in started].count(False) == 1
    assert (await _one(several[0], _new(100))).id == started[0].id
    assert (await read(several[0], started[0].id)).input == 100
    assert sum(one.count for one in await several[0].count_jobs()) == 1


@case()
async def starts_that_race_with_claims(stores: Stores) -> None:
    """While a worker claims, each input runs or is replaced by a newer one, and the newest runs last."""
    starter, worker = await stores.open_many(2)
    ran: list[int] = []

    async def run() -> bool:
        for claimed in await worker.claim(ask()):
            ran.append(json.loads(claimed.input))
            await worker.finish([complete(claimed)])
        return ran[-1:] == [60]

    async def start_all() -> None:
        for number in range(1, 61):
            await _one(starter, _new(number, debounce=_NOW))

    await asyncio.gather(start_all(), eventually(run))
    assert ran == sorted(set(ran))
    assert await worker.claim(ask()) == []


@case(Capability.USER_TRANSACTIONS)
async def last_to_commit_is_the_newest(stores: Stores) -> None:
    """Who starts while another transaction has debounced waits for its commit, and is the newer of the two."""
    store, other = await stores.open_many(2)
    first = await _one(store, _new(1))
    async with stores.user_transaction() as connection:
        assert (await _one(store, _new(2), connection=connection)).debounced
        later = asyncio.ensure_future(_one(other, _new(3)))
        for _ in range(20):
            await store.count_jobs()
        assert not later.done()
    assert (await later).debounced
    assert (await read(store, first.id)).input == 3
