"""Recurring schedules: put by clients and workers, fired by whoever comes first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuert import AsyncClient, Client, JobType, JobTypes
from queuert.errors import (
    ConfigurationError,
    DefinitionError,
    InvalidIdentifierError,
    StateUnavailableError,
    UnknownJobTypeError,
)
from queuert.notify import InProcessNotify
from queuert.observability.events import AttemptCompleted, ChainStarted, LoopFailed, TickIdTaken
from queuert.schedules import MissedRuns, RecurringSchedule, tick_id, tick_of
from queuert.state.types import NewJob
from queuert.worker import InProcessWorker
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number, text
from tests.support.waiting import WAIT, in_time, until

FAR = 86_400.0 * 300
"""Seconds. Ticks of every day come at midnight, and a missed one counts as on time for a minute after it: a test that
runs just then would see one more."""
LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)


def far(name: str = "far", job_type: JobType[Any, Any] = number, input: Any = 1, **more: Any) -> RecurringSchedule:
    """A schedule that does not tick while a test runs."""
    return RecurringSchedule(name, job_type, input, every=FAR, **more)


def make_due(harness: PostgresHarness, name: str = "far", tick: datetime = LONG_AGO) -> datetime:
    harness.rows("update queuert.schedule set next_at = %s where name = %s", tick, name)
    return tick


def make_missed(harness: PostgresHarness, ticks: int, *names: str) -> None:
    """Let it be so long ago that schedules were looked at that each of these has missed so many ticks."""
    since = timedelta(seconds=FAR * ticks)
    harness.rows("update queuert.schedule set next_at = next_at - %s where name = any(%s)", since, list(names))


async def test_a_tick_is_run(harness: PostgresHarness) -> None:
    """A schedule that a running worker's client puts ticks by itself, with its input, priority and id."""
    harness.handles(number, echo)
    async with harness.worker():
        await harness.client.put_schedules([RecurringSchedule("often", number, 7, every=1, priority=3, limit_key="k")])
        started = await harness.log.wait_for(ChainStarted)
        chain = await harness.client.get_chain(started.chain_id, number)
        assert await chain.result(WAIT) == 7
    [listed] = await harness.client.list_schedules()
    assert listed.last_at is not None
    assert listed.last_at >= tick_of(started.chain_id)
    job = await harness.job(chain.id)
    assert (job.priority, job.limit_key) == (3, "k")
    assert job.created_at >= tick_of(chain.id)


async def test_tick_after_tick(harness: PostgresHarness) -> None:
    """A schedule goes on ticking by itself, one tick after the other, beside one that is far away."""
    harness.handles(number, echo)
    async with harness.worker():
        await harness.client.put_schedules([far(), RecurringSchedule("often", number, 7, every=1, missed="all")])
        await harness.log.wait_for(ChainStarted, times=3)
    first, second, third = (tick_of(event.chain_id) for event in harness.log.of(ChainStarted)[:3])
    assert (second - first, third - second) == (timedelta(seconds=1), timedelta(seconds=1))


async def test_put_schedules_wakes_the_schedule_runner(harness: PostgresHarness) -> None:
    """A worker that has nothing scheduled learns at once of what is put, though it would look much later."""
    harness.handles(number, echo)
    notify = InProcessNotify()
    client = AsyncClient(harness.state, JOB_TYPES, notify=notify, observability=harness.log)
    worker = InProcessWorker(client, harness.processors)
    async with client, worker:
        for times, name in enumerate(("a", "b"), 1):
            await harness.client.put_schedules([far(name)])
            make_due(harness, name)
            await client.put_schedules([far(name)])
            await harness.log.wait_for(AttemptCompleted, times=times)
            assert harness.rows("select name from queuert.schedule where next_at < now()") == []


@pytest.mark.parametrize(("missed", "chains"), [("once", 1), ("skip", 0), ("all", 5)])
async def test_missed_ticks(harness: PostgresHarness, missed: str, chains: int) -> None:
    """Ticks for which no worker was there are made up for by the schedule's policy when one comes."""
    harness.handles(number, echo)
    schedule = far(missed=missed)
    await harness.client.put_schedules([schedule])
    make_missed(harness, 5, "far")
    async with harness.worker():
        await until(lambda: harness.one("select next_at > now() from queuert.schedule"), "the schedule moved on")
        await harness.log.wait_for(AttemptCompleted, times=chains) if chains else None
    ids = [row[0] for row in harness.rows("select id from queuert.job order by id")]
    upcoming = schedule.spec.next_after(datetime.now(UTC))
    assert upcoming is not None
    assert ids == [tick_id("far", upcoming - timedelta(seconds=FAR * back)) for back in range(chains, 0, -1)]


async def test_a_tick_whose_chain_is_there_starts_and_tells_nothing(harness: PostgresHarness) -> None:
    """Somebody has started it by its id: it is the tick's chain, and only the other tick's is started."""
    harness.handles(number, echo)
    schedule = far(missed="all")
    await harness.client.put_schedules([schedule])
    make_missed(harness, 2, "far")
    upcoming = schedule.spec.next_after(datetime.now(UTC))
    assert upcoming is not None
    there, other = (tick_id("far", upcoming - timedelta(seconds=FAR * back)) for back in (2, 1))
    await harness.client.start_chain(number, 5, id=there)
    async with harness.worker():
        await harness.log.wait_for(AttemptCompleted, times=2)
    assert [event.chain_id for event in harness.log.of(ChainStarted)] == [there, other]
    assert (await harness.job(there)).input == 5


@pytest.mark.timeout(12 * WAIT)
async def test_eight_schedule_runners_and_many_ticks(harness: PostgresHarness) -> None:
    """Eight workers race for sixty schedules with twenty missed ticks each: every tick gets exactly one chain."""
    harness.handles(number, echo)
    workers = [harness.worker(name=f"w{n}") for n in range(8)]
    await asyncio.gather(*(worker.start() for worker in workers))
    for batch in range(5):
        names = [f"s{batch}-{n}" for n in range(12)]
        schedules = [far(name, missed=MissedRuns.ALL) for name in names]
        await harness.client.put_schedules(schedules)
        make_missed(harness, 20, *names)
        await harness.client.put_schedules(schedules)
        await harness.log.wait_for(ChainStarted, times=12 * 20 * (batch + 1), timeout=2 * WAIT)
    await until(lambda: harness.one("select min(next_at) > now() from queuert.schedule"), "all schedules moved on")
    reported = [event.chain_id for event in harness.log.of(ChainStarted)]
    assert len(reported) == len(set(reported)) == harness.one("select count(*) from queuert.job") == 5 * 12 * 20
    assert harness.log.of(LoopFailed) == []


async def test_a_worker_that_dies_between_looking_and_firing(harness: PostgresHarness) -> None:
    """What one saw as due and did not fire is fired by the next; what it tries later is refused."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far()])
    tick = make_due(harness)
    store = harness.state.async_store()
    await store.open()
    found = await store.due_schedules(["number"])
    assert [one.name for one in found.due] == ["far"]
    async with harness.worker():
        await harness.log.wait_for(AttemptCompleted)
    [listed] = await harness.client.list_schedules()
    assert listed.next_at is not None
    assert listed.next_at > found.now
    assert await store.fire_schedule("far", tick, LONG_AGO, []) is None
    await store.aclose()


async def test_one_that_makes_no_sense_does_not_hold_up_others(harness: PostgresHarness) -> None:
    """A schedule with a time zone that this host does not know is told of; the others tick."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far("bad"), far("good")])
    harness.rows("update queuert.schedule set time_zone = 'Mars/Olympus' where name = 'bad'")
    make_due(harness, "bad")
    make_due(harness, "good")
    async with harness.worker() as worker:
        await harness.log.wait_for(AttemptCompleted)
        failed = await harness.log.wait_for(LoopFailed)
        assert (failed.worker, failed.loop) == (worker.name, "schedule_runner")
        assert "Mars/Olympus" in failed.error
    assert [row[0] for row in harness.rows("select name from queuert.schedule where next_at < now()")] == ["bad"]


async def test_only_schedules_of_its_own_types(harness: PostgresHarness) -> None:
    """A worker leaves the schedules of types that it has no handler for to others."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far("other", text, "x"), far("own")])
    make_due(harness, "other")
    make_due(harness, "own")
    async with harness.worker():
        await harness.log.wait_for(AttemptCompleted)
    assert harness.rows("select type from queuert.job") == [("number",)]


async def test_paused_schedules(harness: PostgresHarness) -> None:
    """A paused schedule starts nothing; resumed, it makes up for what it missed, at once."""
    harness.handles(number, echo)
    async with harness.worker():
        await harness.client.put_schedules([far(), far("other")])
        assert await harness.client.pause_schedules(["far", "unknown"]) == 1
        tick = make_due(harness)
        make_due(harness, "other")
        await harness.client.put_schedules([far("other")])
        await harness.log.wait_for(AttemptCompleted)
        assert [one.paused for one in await harness.client.list_schedules()] == [True, False]
        assert harness.one("select next_at from queuert.schedule where name = 'far'") == tick
        assert await harness.client.resume_schedules(["far"]) == 1
        await harness.log.wait_for(AttemptCompleted, times=2)
        assert await harness.client.delete_schedules(["far", "other"]) == 2
        assert await harness.client.list_schedules() == []


async def test_schedules_of_the_worker(harness: PostgresHarness) -> None:
    """A worker puts the schedules that it is given when it starts, keeping their ticks from one start to the next."""
    harness.handles(number, echo)
    worker = InProcessWorker(harness.client, harness.processors, schedules=[far()])
    assert await harness.client.list_schedules() == []
    async with worker:
        [first] = await harness.client.list_schedules()
    await harness.client.pause_schedules(["far"])
    async with InProcessWorker(harness.client, harness.processors, schedules=[far(input=2), far("new")]):
        [again, _] = await harness.client.list_schedules()
    assert (again.next_at, again.paused, again.input) == (first.next_at, True, "2")


async def test_a_worker_that_cannot_put_its_schedules(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not start, leaves nothing behind, and can be started when the store is there again."""
    from queuert.state.postgres.async_store import AsyncPostgresStore

    harness.handles(number, echo)
    worker = InProcessWorker(harness.client, harness.processors, schedules=[far()])

    async def unreachable(store: AsyncPostgresStore, schedules: object) -> None:
        raise StateUnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(AsyncPostgresStore, "put_schedules", unreachable)
        with pytest.raises(StateUnavailableError):
            await worker.start()
    async with worker:
        assert len(await harness.client.list_schedules()) == 1


async def test_refused_schedules(harness: PostgresHarness) -> None:
    """What is not valid is refused before anything is written."""
    harness.handles(number, echo)
    stranger: JobType[int, int] = JobType("stranger", input=int, output=int)
    schedules = [far(job_type=stranger)]
    with pytest.raises(DefinitionError, match="stranger"):
        InProcessWorker(harness.client, harness.processors, schedules=schedules)
    with pytest.raises(UnknownJobTypeError):
        await harness.client.put_schedules(schedules)
    with pytest.raises(ConfigurationError, match="names of schedules must be unique"):
        await harness.client.put_schedules([far(), far()])
    with pytest.raises(ConfigurationError, match="priority"):
        await harness.client.put_schedules([far(), far("b", priority=10**9)])
    with pytest.raises(ConfigurationError, match="RecurringSchedule"):
        await harness.client.put_schedules(["far"])  # type: ignore[list-item]
    for call in (harness.client.delete_schedules, harness.client.pause_schedules, harness.client.resume_schedules):
        for wrong in ("far", [""], [7]):
            with pytest.raises(InvalidIdentifierError):
                await call(wrong)  # type: ignore[arg-type]
    assert await harness.client.list_schedules() == []


def test_the_synchronous_client(dsn: str) -> None:
    """Both modes of the client have the same operations."""
    from queuert import PostgresState

    with Client(PostgresState(dsn), JobTypes(number)) as client:
        client.put_schedules([far(time_zone="Europe/Berlin")])
        assert (client.pause_schedules(["far"]), client.resume_schedules(["far"])) == (1, 1)
        assert [(one.name, one.time_zone) for one in client.list_schedules()] == [("far", "Europe/Berlin")]
        assert client.delete_schedules(["far"]) == 1
        client.pause_job_types([number, "text"], reason="x")
        assert [one.type for one in client.list_paused_job_types()] == ["number", "text"]
        assert client.resume_job_types(["number", text]) == ["number", "text"]


async def test_a_tick_whose_id_is_taken_by_another_type_runs_and_is_reported_of(harness: PostgresHarness) -> None:
    """Whoever may start chains can take the id: the tick runs under another one, and an event says so."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far(input=7)])
    [listed] = await harness.client.list_schedules()
    assert listed.next_at is not None
    make_missed(harness, 1, "far")
    taken = tick_id("far", listed.next_at - timedelta(seconds=FAR))
    store = harness.state.async_store()
    await store.open()
    await store.start_jobs([NewJob(taken, "of another type", "1", id_chosen=True)])
    await store.aclose()
    async with harness.worker() as worker:
        reported = await in_time(harness.log.wait_for(TickIdTaken))
        chain = await harness.client.get_chain(reported.chain_id, number)
        assert await chain.result(WAIT) == 7
    assert (reported.worker, reported.schedule, reported.taken_id) == (worker.name, "far", taken)
    assert [one.chain_id for one in harness.log.of(ChainStarted)] == [reported.chain_id]
