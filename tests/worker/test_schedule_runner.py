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
from tests.worker.support import JOB_TYPES, WAIT, Stage, echo, in_time, number, text, until

FAR = 86_400.0 * 300
"""Seconds. Ticks of every day come at midnight, and a missed one counts as on time for a minute after it: a test that
runs just then would see one more."""
LONG_AGO = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)


def far(name: str = "far", job_type: JobType[Any, Any] = number, input: Any = 1, **more: Any) -> RecurringSchedule:
    """A schedule that does not tick while a test runs."""
    return RecurringSchedule(name, job_type, input, every=FAR, **more)


def make_due(stage: Stage, name: str = "far", tick: datetime = LONG_AGO) -> datetime:
    stage.rows("update queuert.schedule set next_at = %s where name = %s", tick, name)
    return tick


def make_missed(stage: Stage, ticks: int, *names: str) -> None:
    """Let it be so long ago that schedules were looked at that each of these has missed so many ticks."""
    since = timedelta(seconds=FAR * ticks)
    stage.rows("update queuert.schedule set next_at = next_at - %s where name = any(%s)", since, list(names))


async def test_a_tick_is_run(stage: Stage) -> None:
    """A schedule that a running worker's client puts ticks by itself, with its input, priority and id."""
    stage.handles(number, echo)
    async with stage.worker():
        await stage.client.put_schedules([RecurringSchedule("often", number, 7, every=1, priority=3, limit_key="k")])
        started = await stage.log.wait_for(ChainStarted)
        chain = await stage.client.get_chain(started.chain_id, number)
        assert await chain.result(20) == 7
    [listed] = await stage.client.list_schedules()
    assert listed.last_at is not None
    assert listed.last_at >= tick_of(started.chain_id)
    job = await stage.job(chain.id)
    assert (job.priority, job.limit_key) == (3, "k")
    assert job.created_at >= tick_of(chain.id)


async def test_tick_after_tick(stage: Stage) -> None:
    """A schedule goes on ticking by itself, one tick after the other, beside one that is far away."""
    stage.handles(number, echo)
    async with stage.worker():
        await stage.client.put_schedules([far(), RecurringSchedule("often", number, 7, every=1, missed="all")])
        await stage.log.wait_for(ChainStarted, times=3)
    first, second, third = (tick_of(event.chain_id) for event in stage.log.of(ChainStarted)[:3])
    assert (second - first, third - second) == (timedelta(seconds=1), timedelta(seconds=1))


async def test_put_schedules_wakes_the_schedule_runner(stage: Stage) -> None:
    """A worker that has nothing scheduled learns at once of what is put, though it would look much later."""
    stage.handles(number, echo)
    notify = InProcessNotify()
    client = AsyncClient(stage.state, JOB_TYPES, notify=notify, observability=stage.log)
    worker = InProcessWorker(client, stage.processors)
    async with client, worker:
        for times, name in enumerate(("a", "b"), 1):
            await stage.client.put_schedules([far(name)])
            make_due(stage, name)
            await client.put_schedules([far(name)])
            await stage.log.wait_for(AttemptCompleted, times=times)
            assert stage.rows("select name from queuert.schedule where next_at < now()") == []


@pytest.mark.parametrize(("missed", "chains"), [("once", 1), ("skip", 0), ("all", 5)])
async def test_missed_ticks(stage: Stage, missed: str, chains: int) -> None:
    """Ticks for which no worker was there are made up for by the schedule's policy when one comes."""
    stage.handles(number, echo)
    schedule = far(missed=missed)
    await stage.client.put_schedules([schedule])
    make_missed(stage, 5, "far")
    async with stage.worker():
        await until(lambda: stage.one("select next_at > now() from queuert.schedule"), "the schedule moved on")
        await stage.log.wait_for(AttemptCompleted, times=chains) if chains else None
    ids = [row[0] for row in stage.rows("select id from queuert.job order by id")]
    upcoming = schedule.spec.next_after(datetime.now(UTC))
    assert upcoming is not None
    assert ids == [tick_id("far", upcoming - timedelta(seconds=FAR * back)) for back in range(chains, 0, -1)]


async def test_a_tick_whose_chain_is_there_starts_and_tells_nothing(stage: Stage) -> None:
    """Somebody has started it by its id: it is the tick's chain, and only the other tick's is started."""
    stage.handles(number, echo)
    schedule = far(missed="all")
    await stage.client.put_schedules([schedule])
    make_missed(stage, 2, "far")
    upcoming = schedule.spec.next_after(datetime.now(UTC))
    assert upcoming is not None
    there, other = (tick_id("far", upcoming - timedelta(seconds=FAR * back)) for back in (2, 1))
    await stage.client.start_chain(number, 5, id=there)
    async with stage.worker():
        await stage.log.wait_for(AttemptCompleted, times=2)
    assert [event.chain_id for event in stage.log.of(ChainStarted)] == [there, other]
    assert (await stage.job(there)).input == 5


@pytest.mark.timeout(12 * WAIT)
async def test_eight_schedule_runners_and_many_ticks(stage: Stage) -> None:
    """Eight workers race for sixty schedules with twenty missed ticks each: every tick gets exactly one chain."""
    stage.handles(number, echo)
    workers = [stage.worker(name=f"w{n}") for n in range(8)]
    await asyncio.gather(*(worker.start() for worker in workers))
    for batch in range(5):
        names = [f"s{batch}-{n}" for n in range(12)]
        schedules = [far(name, missed=MissedRuns.ALL) for name in names]
        await stage.client.put_schedules(schedules)
        make_missed(stage, 20, *names)
        await stage.client.put_schedules(schedules)
        await stage.log.wait_for(ChainStarted, times=12 * 20 * (batch + 1), timeout=2 * WAIT)
    await until(lambda: stage.one("select min(next_at) > now() from queuert.schedule"), "all schedules moved on")
    reported = [event.chain_id for event in stage.log.of(ChainStarted)]
    assert len(reported) == len(set(reported)) == stage.one("select count(*) from queuert.job") == 5 * 12 * 20
    assert stage.log.of(LoopFailed) == []


async def test_a_worker_that_dies_between_looking_and_firing(stage: Stage) -> None:
    """What one saw as due and did not fire is fired by the next; what it tries later is refused."""
    stage.handles(number, echo)
    await stage.client.put_schedules([far()])
    tick = make_due(stage)
    store = stage.state.async_store()
    await store.open()
    found = await store.due_schedules(["number"])
    assert [one.name for one in found.due] == ["far"]
    async with stage.worker():
        await stage.log.wait_for(AttemptCompleted)
    [listed] = await stage.client.list_schedules()
    assert listed.next_at is not None
    assert listed.next_at > found.now
    assert await store.fire_schedule("far", tick, LONG_AGO, []) is None
    await store.aclose()


async def test_one_that_makes_no_sense_does_not_hold_up_others(stage: Stage) -> None:
    """A schedule with a time zone that this host does not know is told of; the others tick."""
    stage.handles(number, echo)
    await stage.client.put_schedules([far("bad"), far("good")])
    stage.rows("update queuert.schedule set time_zone = 'Mars/Olympus' where name = 'bad'")
    make_due(stage, "bad")
    make_due(stage, "good")
    async with stage.worker() as worker:
        await stage.log.wait_for(AttemptCompleted)
        failed = await stage.log.wait_for(LoopFailed)
        assert (failed.worker, failed.loop) == (worker.name, "schedule_runner")
        assert "Mars/Olympus" in failed.error
    assert [row[0] for row in stage.rows("select name from queuert.schedule where next_at < now()")] == ["bad"]


async def test_only_schedules_of_its_own_types(stage: Stage) -> None:
    """A worker leaves the schedules of types that it has no handler for to others."""
    stage.handles(number, echo)
    await stage.client.put_schedules([far("other", text, "x"), far("own")])
    make_due(stage, "other")
    make_due(stage, "own")
    async with stage.worker():
        await stage.log.wait_for(AttemptCompleted)
    assert stage.rows("select type from queuert.job") == [("number",)]


async def test_paused_schedules(stage: Stage) -> None:
    """A paused schedule starts nothing; resumed, it makes up for what it missed, at once."""
    stage.handles(number, echo)
    async with stage.worker():
        await stage.client.put_schedules([far(), far("other")])
        assert await stage.client.pause_schedules(["far", "unknown"]) == 1
        tick = make_due(stage)
        make_due(stage, "other")
        await stage.client.put_schedules([far("other")])
        await stage.log.wait_for(AttemptCompleted)
        assert [one.paused for one in await stage.client.list_schedules()] == [True, False]
        assert stage.one("select next_at from queuert.schedule where name = 'far'") == tick
        assert await stage.client.resume_schedules(["far"]) == 1
        await stage.log.wait_for(AttemptCompleted, times=2)
        assert await stage.client.delete_schedules(["far", "other"]) == 2
        assert await stage.client.list_schedules() == []


async def test_schedules_of_the_worker(stage: Stage) -> None:
    """A worker puts the schedules that it is given when it starts, keeping their ticks from one start to the next."""
    stage.handles(number, echo)
    worker = InProcessWorker(stage.client, stage.processors, schedules=[far()])
    assert await stage.client.list_schedules() == []
    async with worker:
        [first] = await stage.client.list_schedules()
    await stage.client.pause_schedules(["far"])
    async with InProcessWorker(stage.client, stage.processors, schedules=[far(input=2), far("new")]):
        [again, _] = await stage.client.list_schedules()
    assert (again.next_at, again.paused, again.input) == (first.next_at, True, "2")


async def test_a_worker_that_cannot_put_its_schedules(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not start, leaves nothing behind, and can be started when the store is there again."""
    from queuert.state.postgres.async_store import AsyncPostgresStore

    stage.handles(number, echo)
    worker = InProcessWorker(stage.client, stage.processors, schedules=[far()])

    async def unreachable(store: AsyncPostgresStore, schedules: object) -> None:
        raise StateUnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(AsyncPostgresStore, "put_schedules", unreachable)
        with pytest.raises(StateUnavailableError):
            await worker.start()
    async with worker:
        assert len(await stage.client.list_schedules()) == 1


async def test_refused_schedules(stage: Stage) -> None:
    """What is not valid is refused before anything is written."""
    stage.handles(number, echo)
    stranger: JobType[int, int] = JobType("stranger", input=int, output=int)
    schedules = [far(job_type=stranger)]
    with pytest.raises(DefinitionError, match="stranger"):
        InProcessWorker(stage.client, stage.processors, schedules=schedules)
    with pytest.raises(UnknownJobTypeError):
        await stage.client.put_schedules(schedules)
    with pytest.raises(ConfigurationError, match="names of schedules must be unique"):
        await stage.client.put_schedules([far(), far()])
    with pytest.raises(ConfigurationError, match="priority"):
        await stage.client.put_schedules([far(), far("b", priority=10**9)])
    with pytest.raises(ConfigurationError, match="RecurringSchedule"):
        await stage.client.put_schedules(["far"])  # type: ignore[list-item]
    for call in (stage.client.delete_schedules, stage.client.pause_schedules, stage.client.resume_schedules):
        for wrong in ("far", [""], [7]):
            with pytest.raises(InvalidIdentifierError):
                await call(wrong)  # type: ignore[arg-type]
    assert await stage.client.list_schedules() == []


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


async def test_a_tick_whose_id_is_taken_by_another_type_runs_and_is_reported_of(stage: Stage) -> None:
    """Whoever may start chains can take the id: the tick runs under another one, and an event says so."""
    stage.handles(number, echo)
    await stage.client.put_schedules([far(input=7)])
    [listed] = await stage.client.list_schedules()
    assert listed.next_at is not None
    make_missed(stage, 1, "far")
    taken = tick_id("far", listed.next_at - timedelta(seconds=FAR))
    store = stage.state.async_store()
    await store.open()
    await store.start_jobs([NewJob(taken, "of another type", "1", id_chosen=True)])
    await store.aclose()
    async with stage.worker() as worker:
        reported = await in_time(stage.log.wait_for(TickIdTaken))
        chain = await stage.client.get_chain(reported.chain_id, number)
        assert await chain.result(20) == 7
    assert (reported.worker, reported.schedule, reported.taken_id) == (worker.name, "far", taken)
    assert [one.chain_id for one in stage.log.of(ChainStarted)] == [reported.chain_id]
