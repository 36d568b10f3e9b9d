"""The event log: an event for each transition, in an order in which readers neither skip nor repeat any."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError, InvalidCursorError
from queuert.event_log import EventFilter, EventLevel, JobEvent
from queuert.jobs import JobError
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability
from queuert.state.paging import PageRequest
from queuert.state.types import ClaimedJob, InputEdit, Renewal, WorkerlessCompletion
from queuert.testing.conformance.builders import (
    LAST_ATTEMPT,
    ask,
    cancel,
    claim_one,
    complete,
    due_later,
    error_of,
    expire,
    fail,
    go_on,
    interrupt,
    job,
    reap,
    retry,
    snooze,
    start,
    started_and_claimed,
    stolen,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_EVERYTHING = EventFilter()

Shown = tuple[str, str, str, int, str | None]
"""The job, kind, status, attempt and worker of an event."""


async def _read(
    store: AsyncStore, filter: EventFilter = _EVERYTHING, *, after: str | None = None, limit: int = 1_000
) -> list[JobEvent]:
    """Read all events after a cursor that match, the oldest first."""
    found: list[JobEvent] = []
    cursor = after
    while True:
        page = await store.list_events(filter, PageRequest(limit, cursor, oldest_first=True))
        found += page.items
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


class _Tail:
    """Reads the new events of a store each time."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._cursor: str | None = None

    async def new(self) -> list[Shown]:
        """Return the events since the last call, by job and then in order; those of no interest are of other types."""
        found = await _read(self._store, after=self._cursor)
        if found:
            self._cursor = found[-1].cursor
        shown = [(one.job_id, one.kind, one.status.value, one.attempt, one.worker) for one in found]
        return sorted((one for one, event in zip(shown, found, strict=True) if event.type != "clock"), key=_job)


def _job(shown: Shown) -> str:
    return shown[0]


async def _held(store: AsyncStore, id: str) -> ClaimedJob:
    [claimed] = await started_and_claimed(store, id=id)
    return claimed


@case(Capability.EVENTS)
async def starts(stores: Stores) -> None:
    """A start writes that the job was created, and that it is blocked; a duplicate writes nothing."""
    store = await stores.open()
    tail = _Tail(store)
    await start(store, job(id="a"), job(id="b", run_at=due_later()))
    await start(store, job(id="c", blockers=("a",)))
    assert await tail.new() == [
        ("a", "created", "ready", 0, None),
        ("b", "created", "scheduled", 0, None),
        ("c", "created", "ready", 0, None),
        ("c", "blocked", "blocked", 0, None),
    ]
    await start(store, job(id="a", attach=True))
    assert await tail.new() == []


@case(Capability.EVENTS)
async def finishes(stores: Stores) -> None:
    """Each kind of finish writes its own event, with the worker and the error; one without the lease writes nothing."""
    store = await stores.open()
    tail = _Tail(store)
    kinds = {
        "completed": (complete, "completed"),
        "failed": (fail, "failed"),
        "cancelled": (cancel, "cancelled"),
        "retried": (retry, "ready"),
        "interrupted": (interrupt, "ready"),
    }
    for kind, (make, status) in kinds.items():
        held = await _held(store, kind)
        await tail.new()
        assert (await store.finish([make(stolen(held))]))[0].lost
        await store.finish([make(held)])
        assert await tail.new() == [(kind, kind, status, 1, "holder")]
        await store.cancel_chains([kind], reason="no more")
        await tail.new()
    held = await _held(store, "snoozed")
    await tail.new()
    await store.finish([snooze(held, due_later())])
    assert await tail.new() == [("snoozed", "snoozed", "scheduled", 1, "holder")]
    [failed] = await _read(store, EventFilter(kinds=("failed",)))
    assert failed.error == JobError("fail", "gave up") and failed.closes_chain
    [retried] = await _read(store, EventFilter(kinds=("retried",)))
    assert retried.error is not None and retried.error.kind == "handler"


@case(Capability.EVENTS)
async def continuations_and_waits(stores: Stores) -> None:
    """The next job of a chain is created with the end of the one before; a job that waits is blocked."""
    store = await stores.open()
    tail = _Tail(store)
    held = await _held(store, "a")
    await tail.new()
    await store.finish([go_on(held, job(id="b"))])
    assert await tail.new() == [("a", "continued", "continued", 1, "holder"), ("b", "created", "ready", 0, None)]
    _, created = await _read(store, EventFilter(kinds=("created",), chain_id="a"))
    assert (created.job_id, created.chain_index, created.chain_type) == ("b", 1, "work")
    held = await claim_one(store)
    await tail.new()
    await store.finish([wait(held, job("child", id="c"))])
    assert await tail.new() == [
        ("b", "waiting", "ready", 1, "holder"),
        ("b", "blocked", "blocked", 1, None),
        ("c", "created", "ready", 0, None),
    ]
    await store.finish([complete(await claim_one(store, "child"))])
    assert await tail.new() == [
        ("b", "unblocked", "ready", 1, None),
        ("c", "started", "running", 1, "holder"),
        ("c", "completed", "completed", 1, "holder"),
    ]


@case(Capability.EVENTS)
async def claims_and_releases(stores: Stores) -> None:
    """A claim writes that the attempt started; the number of a released attempt is used again."""
    store = await stores.open()
    tail = _Tail(store)
    held = await _held(store, "a")
    await store.release([held.lease, stolen(held).lease])
    request = ask()
    assert len(await store.claim(request)) == 1
    await store.release_claim(request)
    released = [("a", "started", "running", 1, "holder"), ("a", "released", "ready", 1, "holder")]
    assert await tail.new() == [("a", "created", "ready", 0, None), *released, *released]
    started = (await _read(store, EventFilter(kinds=("started",))))[0]
    assert started.started_at is not None and started.scheduled_at is not None


@case(Capability.EVENTS)
async def expired_leases(stores: Stores) -> None:
    """A lease that expires is an event of its worker, with the status that the job gets."""
    store = await stores.open()
    tail = _Tail(store)
    held = await _held(store, "a")
    await expire(store, held)
    await reap(store)
    assert (await tail.new())[-1] == ("a", "lease_expired", "ready", 1, "holder")
    held = await claim_one(store)
    await expire(store, held)
    await reap(store, LAST_ATTEMPT)
    assert (await tail.new())[-1] == ("a", "lease_expired", "failed", 2, "holder")


@case(Capability.EVENTS)
async def changes_by_clients(stores: Stores) -> None:
    """What clients do to chains is an event without a worker; what changes nothing is none."""
    store = await stores.open()
    tail = _Tail(store)
    await start(store, job(id="a"), job(id="b"), job(id="d", run_at=due_later()))
    await tail.new()
    await store.complete_chains([WorkerlessCompletion("b", "b", None, job(id="c"))])
    assert await tail.new() == [("b", "continued", "continued", 0, None), ("c", "created", "ready", 0, None)]
    for _ in range(2):
        await store.cancel_chains(["a"], reason="no")
    assert await tail.new() == [("a", "cancelled", "cancelled", 0, None)]
    await store.retry_chains(["a"])
    assert await tail.new() == [("a", "retried_by_hand", "ready", 0, None)]
    await store.change_waiting_jobs(["a"], run_at=None, priority=3)
    await store.change_waiting_jobs(["a"], run_at=RunAt(delay=60.0), priority=None)
    await store.change_waiting_jobs(["a"], edit=InputEdit("a", "7"))
    assert await tail.new() == [
        ("a", "reprioritized", "ready", 0, None),
        ("a", "rescheduled", "scheduled", 0, None),
        ("a", "edited", "scheduled", 0, None),
    ]
    for _ in range(2):
        await store.trigger_jobs(["d"])
    assert await tail.new() == [("d", "triggered", "ready", 0, None)]
    await store.delete_chains(["b"])
    assert await tail.new() == [("b", "deleted", "continued", 0, None), ("c", "deleted", "ready", 0, None)]


@case(Capability.EVENTS)
async def a_chain_that_waits_again(stores: Stores) -> None:
    """A job that is retried by hand, and whose blocker is open again, is blocked again."""
    store = await stores.open()
    tail = _Tail(store)
    await start(store, job(id="a"))
    await start(store, job(id="b", blockers=("a",)))
    await store.cancel_chains(["a", "b"], reason="no")
    await store.retry_chains(["a"])
    await tail.new()
    await store.retry_chains(["b"])
    assert await tail.new() == [("b", "retried_by_hand", "ready", 0, None), ("b", "blocked", "blocked", 0, None)]


@case(Capability.EVENTS)
async def debounced_starts(stores: Stores) -> None:
    """A start that only postpones a waiting job writes that."""
    store = await stores.open()
    tail = _Tail(store)
    key = Deduplicate("key", debounce=3600.0)
    await start(store, job(id="a", run_at=due_later(), deduplication=key))
    await tail.new()
    await start(store, job(id="b", run_at=due_later(), deduplication=key))
    assert await tail.new() == [("a", "debounced", "scheduled", 0, None)]


@case(Capability.EVENTS)
async def progress(stores: Stores) -> None:
    """A renewal writes progress that is to be logged, if its lease holds; other renewals write nothing."""
    store = await stores.open()
    tail = _Tail(store)
    held = await _held(store, "a")
    await tail.new()
    text = json.dumps({"attempt": 1, "at": "2026-01-02T03:04:05+00:00", "done": 3})
    await store.renew([Renewal(held.lease, 60.0, text)])
    await store.renew([Renewal(stolen(held).lease, 60.0, text, logs_progress=True)])
    assert await tail.new() == []
    await store.renew([Renewal(held.lease, 60.0, text, logs_progress=True)])
    assert await tail.new() == [("a", "progressed", "running", 1, "holder")]
    [event] = await _read(store, EventFilter(kinds=("progressed",)))
    assert event.progress is not None and event.progress.done == 3
    text = json.dumps({"attempt": 1, "at": "2026-01-02T03:04:05+00:00", "done": 4})
    await store.finish([replace(complete(held), progress=text)])
    assert await tail.new() == [
        ("a", "progressed", "running", 1, "holder"),
        ("a", "completed", "completed", 1, "holder"),
    ]
    *_, event = await _read(store, EventFilter(kinds=("progressed",)))
    assert event.progress is not None and event.progress.done == 4


@case(Capability.EVENTS)
async def levels(stores: Stores) -> None:
    """Of a type are written all events, those of its ends, or none; others without a level have the default."""
    store = await stores.open()
    tail = _Tail(store)
    await store.set_event_level(EventLevel.TERMINAL, ["ends"])
    await store.set_event_level(EventLevel.OFF, ["nothing"])
    for type in ("ends", "nothing", "work"):
        await started_and_claimed(store, type=type, id=type)
        await store.cancel_chains([type], reason="no")
    assert [shown[:2] for shown in await tail.new()] == [
        ("ends", "cancelled"),
        ("work", "created"),
        ("work", "started"),
        ("work", "cancelled"),
    ]
    await store.set_event_level(None, ["ends"])
    await store.set_event_level(EventLevel.OFF)
    await store.set_event_retention(3)
    log = await store.get_event_log()
    assert (log.level, log.levels, log.keep_days) == (EventLevel.OFF, {"nothing": EventLevel.OFF}, 3)
    await start(store, job(id="b"))
    assert await tail.new() == []
    await error_of(ConfigurationError, store.set_event_retention(0))


@case(Capability.EVENTS)
async def pages_and_filters(stores: Stores) -> None:
    """Pages are in order, either way, whatever their length; filters select."""
    store = await stores.open()
    ids = [f"{number}" for number in range(7)]
    for id in ids:
        await start(store, job("even" if int(id) % 2 == 0 else "odd", id=id))
    for limit in (1, 3, 7):
        assert [event.job_id for event in await _read(store, limit=limit)] == ids
    newest = await store.list_events(_EVERYTHING, PageRequest(4))
    older = await store.list_events(_EVERYTHING, PageRequest(4, newest.next_cursor))
    assert [event.job_id for event in (*newest, *older)] == ids[::-1] and older.next_cursor is None
    assert [event.job_id for event in await _read(store, EventFilter(types=("odd",)), limit=2)] == ["1", "3", "5"]
    assert [event.job_id for event in await _read(store, EventFilter(chain_id="3"))] == ["3"]
    assert await _read(store, EventFilter(kinds=("started",))) == []
    assert await _read(store, EventFilter(types=())) == []
    for cursor in ("", "x", "WyIxIiwgIngiXQ==", "WyJ4IiwgIjEiXQ=="):
        await error_of(InvalidCursorError, store.list_events(_EVERYTHING, PageRequest(cursor=cursor)))


@case(Capability.EVENTS)
async def resumes_from_every_cursor(stores: Stores) -> None:
    """After each event, and after the end of the log at a time, a reader gets what follows, once."""
    store = await stores.open()
    ends = [(0, (await store.event_log_end()).cursor)]
    for number in range(5):
        held = await _held(store, f"{number}")
        await store.finish([complete(held)])
        ends.append((3 * (number + 1), (await store.event_log_end()).cursor))
    events = await _read(store)
    assert len(events) == 15
    for place, event in enumerate(events, start=1):
        ends.append((place, event.cursor))
    for place, cursor in ends:
        assert await _read(store, after=cursor, limit=4) == events[place:]
    assert sorted({(event.tx, event.seq) for event in events}) == [(event.tx, event.seq) for event in events]
    end = await store.event_log_end()
    assert events[-1].tx < end.written and end.settled <= end.written


@case(Capability.EVENTS)
async def follows_writers(stores: Stores) -> None:
    """A reader that follows while several stores write gets each event once."""
    store = await stores.open()
    writers = [await stores.open() for _ in range(4)]

    async def write(number: int) -> None:
        for turn in range(25):
            await start(writers[number], job(id=f"{number}-{turn}"))

    writing = asyncio.gather(*map(write, range(4)))
    seen: list[JobEvent] = []
    while True:
        last = writing.done()
        found = await _read(store, after=seen[-1].cursor if seen else None, limit=10)
        seen += found
        if last and not found:
            break
        await asyncio.sleep(0)
    await writing
    ids = [event.job_id for event in seen]
    assert sorted(ids) == sorted(f"{number}-{turn}" for number in range(4) for turn in range(25))


@case(Capability.EVENTS)
async def nothing_of_what_failed(stores: Stores) -> None:
    """A start that is refused, and a block that is rolled back, leave no events; nor does maintenance lose any."""
    store = await stores.open()
    tail = _Tail(store)
    held = await _held(store, "a")
    await tail.new()
    await error_of(Exception, store.start_jobs([job(id="b"), job(id="a")]))
    await error_of(RuntimeError, _failing_block(store, held))
    await store.maintain_event_log()
    assert await tail.new() == []
    assert len(await _read(store)) == 2


async def _failing_block(store: AsyncStore, held: ClaimedJob) -> None:
    async with store.transaction(held) as transaction:
        await transaction.finish(complete(held))
        raise RuntimeError
