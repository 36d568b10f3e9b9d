"""Ticks while an earlier chain is open, jitter, and chains of a schedule out of turn, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    Processors,
)
from queuert.client import async_cascades
from queuert.client.schedules import tick_job
from queuert.errors import ConfigurationError, ScheduleNotFoundError, StateUnavailableError
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.limits import TypeTraits
from queuert.notify import InProcessNotify
from queuert.observability.events import AttemptStarted, ChainClosed, ChainStarted, LoopFailed, TickSkipped
from queuert.schedules import Overlap, RecurringSchedule, jitter_of, tick_id, tick_of
from queuert.state.adapter import StateAdapter
from queuert.state.types import NewJob, ScheduleRecord
from queuert.testing.conformance.builders import claim_one, wait
from queuert.worker.schedule_runner import ScheduleRunner
from queuert.workers import WorkerHeartbeat
from tests.support.harness import Harness
from tests.support.job_types import JOB_TYPES, echo, number
from tests.support.waiting import WAIT

FAR = 86_400.0 * 300
DAY = timedelta(days=1)


@pytest.fixture
async def harness(state: StateAdapter) -> AsyncIterator[Harness]:
    """A client, and workers that report what they do."""
    harness = Harness(state, notify=InProcessNotify())
    yield harness
    await harness.close()


def far(**more: Any) -> RecurringSchedule:
    """A schedule that does not tick while a test runs."""
    return RecurringSchedule("far", number, 1, **{"every": FAR, **more})


async def make_due(harness: Harness) -> datetime:
    """Set the schedule's next tick back to the last one before now, and return it."""
    [schedule] = await harness.client.list_schedules()
    assert schedule.next_at is not None
    tick = schedule.spec.next_after(schedule.next_at - timedelta(seconds=1.5 * FAR))
    assert tick is not None
    store = await harness.client._open_store()
    assert await store.fire_schedule("far", schedule.next_at, tick, []) == []
    return tick


# --- overlap ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", Overlap)
async def test_a_tick_while_the_last_chain_is_open(harness: Harness, overlap: Overlap) -> None:
    """A worker starts its chain, skips it, or cancels the open one and starts it, and says so."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far(overlap=overlap)])
    await harness.client.pause_job_types([number])
    first = await harness.client.run_schedule("far")
    assert first is not None
    tick = await make_due(harness)
    async with harness.worker():
        if overlap is Overlap.SKIP:
            skipped = await harness.log.wait_for(TickSkipped)
            assert (skipped.schedule, skipped.tick, skipped.open_chain_id) == ("far", tick, first.id)
        else:
            await harness.log.wait_for(ChainStarted, chain_id=tick_id("far", tick))
    first = await first.refresh()
    assert first.status is (ChainStatus.CANCELLED if overlap is Overlap.CANCEL else ChainStatus.OPEN)
    assert bool(harness.log.of(ChainClosed, chain_id=first.id)) == (overlap is Overlap.CANCEL)
    if overlap is Overlap.CANCEL:
        assert "schedule 'far' takes its place" in str(first.error)
    ids = [chain.id for chain in (await harness.client.list_chains()).items]
    assert (tick_id("far", tick) in ids) == (overlap is not Overlap.SKIP)


async def test_what_the_last_chain_waits_for_closes_with_it(harness: Harness) -> None:
    """If its type says so: nobody else would end it."""
    child = JobType("child", input=int, output=int, completed_by="client", closes_with_parent=True)
    job_types = JobTypes(number, child)
    processors = Processors(job_types)

    @processors.handles(number)
    async def ask(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.wait_for(NewChain(child, 1, id=f"child of {attempt.chain_id}"))

    async with AsyncClient(harness.state, job_types, notify=InProcessNotify(), observability=harness.log) as client:
        await client.put_schedules([far(overlap="cancel")])
        async with InProcessWorker(client, processors, poll_interval=0.05):
            first = await client.run_schedule("far")
            assert first is not None
            async with asyncio.timeout(WAIT):
                while (await client.get_job(first.id)).status is not JobStatus.BLOCKED:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            second = await client.run_schedule("far")
            assert second is not None
        assert (await first.refresh()).status is ChainStatus.CANCELLED
        assert (await client.get_chain(f"child of {first.id}")).status is ChainStatus.CANCELLED


async def moved_on(harness: Harness, tick: datetime) -> ScheduleRecord:
    """Run a worker until the schedule has another tick than this one."""
    async with harness.worker(), asyncio.timeout(WAIT):
        while (await harness.client.list_schedules())[0].next_at in (tick, None):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    [schedule] = await (await harness.client._open_store()).list_schedules()
    return schedule


@pytest.mark.parametrize("ahead", [False, True], ids=["its own chain", "that of a later tick"])
async def test_a_tick_that_comes_again_cancels_nothing(harness: Harness, ahead: bool) -> None:
    """As after the clock was set back: its chain exists, so that nothing would be started in the place of another."""
    harness.handles(number, echo)
    await harness.client.put_schedules([far(overlap="cancel")])
    await harness.client.pause_job_types([number])
    tick = await make_due(harness)
    schedule = await moved_on(harness, tick)
    if ahead:
        await harness.client.cancel_chain(tick_id("far", tick))
        assert schedule.next_at is not None
        later = tick_job(schedule, schedule.next_at)
        assert await (await harness.client._open_store()).fire_schedule("far", schedule.next_at, tick, [later])
        last = later.id
    else:
        assert await make_due(harness) == tick
        last = tick_id("far", tick)
    assert (await moved_on(harness, tick)).last_chain_id == last
    assert (await harness.client.get_chain(last)).status is ChainStatus.OPEN


async def test_a_schedule_that_was_paused_meanwhile_cancels_nothing(harness: Harness) -> None:
    """Between the look at what is due and the tick: nothing would take the place of the chain."""
    await harness.client.put_schedules([far(overlap="cancel")])
    first = await harness.client.run_schedule("far")
    assert first is not None
    await make_due(harness)
    store = await harness.client._open_store()
    found = await store.due_schedules([number.name])
    await harness.client.pause_schedules(["far"])
    runner = ScheduleRunner(
        store, harness.client.notify, [number.name], worker="worker", observers=harness.client.observers
    )
    [schedule] = found.due
    await runner._run_ticks(schedule, found.now)
    assert (await first.refresh()).status is ChainStatus.OPEN
    await harness.client.resume_schedules(["far"])
    await runner._run_ticks(schedule, found.now)
    assert (await first.refresh()).status is ChainStatus.CANCELLED


async def test_a_chain_with_too_many_children_is_replaced_without_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule would stand still for ever."""
    monkeypatch.setattr(async_cascades, "MAX_CASCADE", 1)
    harness.handles(number, echo)
    store = await harness.client._open_store()
    traits = (TypeTraits("child", closes_with_parent=True),)
    await store.record_heartbeat(WorkerHeartbeat("w", "w", "here", 1, "1", (), 1, 0, 0.0, traits=traits), 60.0)
    await harness.client.put_schedules([far(overlap="cancel")])
    first = await harness.client.run_schedule("far")
    assert first is not None
    job = await claim_one(store, number.name)
    children = [NewJob(f"child-{one}", "child", "1") for one in range(2)]
    await store.finish([wait(job, *children)])
    tick = await make_due(harness)
    async with harness.worker():
        await harness.log.wait_for(ChainStarted, chain_id=tick_id("far", tick))
    assert (await first.refresh()).status is ChainStatus.CANCELLED
    found = await store.get_chains([one.id for one in children])
    assert [one and one.status for one in found] == [ChainStatus.OPEN] * 2


async def test_a_chain_that_cannot_be_cancelled_now_holds_up_no_other_schedule(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a handler has locked it. The one that is due longest comes first in each round."""

    async def refuse(*what: object) -> None:
        raise StateUnavailableError("it is locked")

    monkeypatch.setattr("queuert.worker.schedule_runner.cancel_closing", refuse)
    harness.handles(number, echo)
    await harness.client.put_schedules([far(overlap="cancel"), RecurringSchedule("other", number, 1, every=FAR)])
    await harness.client.pause_job_types([number])
    first = await harness.client.run_schedule("far")
    assert first is not None
    store = await harness.client._open_store()
    tick = None
    for schedule in await store.list_schedules():
        assert schedule.next_at is not None
        tick = schedule.spec.next_after(schedule.next_at - timedelta(seconds=1.5 * FAR))
        assert await store.fire_schedule(schedule.name, schedule.next_at, tick, []) == []
    assert tick is not None
    async with harness.worker():
        await harness.log.wait_for(ChainStarted, chain_id=tick_id("other", tick))
        failed = await harness.log.wait_for(LoopFailed, loop="schedule_runner")
    assert "of an earlier tick cannot be cancelled now: it is locked" in failed.error
    assert (await first.refresh()).status is ChainStatus.OPEN


async def test_a_running_chain_is_cancelled(harness: Harness) -> None:
    """The handler of the chain that is replaced is told, and the chain of the tick runs."""
    reasons: list[AbortReason | None] = []

    async def wait(attempt: Attempt[int, int]) -> int:
        if attempt.chain_id == first.id:
            try:
                await attempt.abort.wait()
            finally:
                reasons.append(attempt.abort.reason)
        return 1

    harness.handles(number, wait)
    await harness.client.put_schedules([far(overlap="cancel")])
    started = await harness.client.run_schedule("far")
    assert started is not None
    first = started
    async with harness.worker():
        await harness.log.wait_for(AttemptStarted)
        second = await harness.client.run_schedule("far")
        assert second is not None
        assert await second.result(WAIT) == 1
    assert (await first.refresh()).status is ChainStatus.CANCELLED
    assert reasons == [AbortReason.CANCELLED]


# --- jitter, attributes, TTL ------------------------------------------------------------------------------------------


async def test_a_tick_with_jitter(harness: Harness) -> None:
    """The chain is started at the tick; its job is due later, always by the same time."""
    harness.handles(number, echo)
    schedule = RecurringSchedule("often", number, 7, every=1, jitter=86_400, attributes={"a": 1}, result_ttl=60)
    await harness.client.put_schedules([schedule])
    async with harness.worker():
        started = await harness.log.wait_for(ChainStarted)
    job = await harness.job(started.chain_id)
    late = jitter_of("often", tick_of(started.chain_id), 86_400)
    assert (job.status, job.scheduled_at) == (JobStatus.SCHEDULED, tick_of(started.chain_id) + late)
    listed = await harness.client.list_chains(attributes={"a": 1})
    assert started.chain_id in [chain.id for chain in listed.items]


# --- out of turn ------------------------------------------------------------------------------------------------------


async def test_run_now(harness: Harness) -> None:
    """A chain with the time of the call as its tick; the schedule's ticks stay, also while it is paused."""
    await harness.client.put_schedules([far(jitter=600, attributes={"a": 1}, result_ttl=60)])
    await harness.client.pause_schedules(["far"])
    [before] = await harness.client.list_schedules()
    chain = await harness.client.run_schedule("far")
    assert chain is not None
    [after] = await harness.client.list_schedules()
    assert (after.next_at, after.last_at, after.paused) == (before.next_at, None, True)
    assert after.last_chain_id == chain.id
    job = await harness.job(chain.id)
    assert job.status is JobStatus.READY
    harness.handles(number, echo)
    async with harness.worker():
        assert await chain.result(WAIT) == 1
    assert abs(tick_of(chain.id) - job.created_at) < timedelta(minutes=1)


async def test_run_now_with_one_moment_starts_one_chain(harness: Harness) -> None:
    """Whatever the policy: the call that is repeated cancels nothing, and gets the chain of the first one."""
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    for overlap in Overlap:
        await harness.client.put_schedules([far(overlap=overlap)])
        chains = [await harness.client.run_schedule("far", at=moment) for _ in range(2)]
        assert [chain and (chain.id, chain.deduplicated) for chain in chains] == [
            ("far@2030-01-02T03:04:05Z", False),
            ("far@2030-01-02T03:04:05Z", True),
        ]
        assert (await harness.client.get_chain("far@2030-01-02T03:04:05Z")).status is ChainStatus.OPEN
        other = await harness.client.run_schedule("far", at=moment + DAY)
        assert (other is None) == (overlap is Overlap.SKIP)
        await harness.client.run_schedule("far", at=moment)
        if other is not None:
            assert (await harness.client.get_chain(other.id)).status is ChainStatus.OPEN
        listed = await harness.client.list_chains(job_types=[number])
        await harness.client.cancel_chains([chain.id for chain in listed.items])
        await harness.client.delete_chains([chain.id for chain in listed.items])
    with pytest.raises(ConfigurationError, match="at must be a datetime with a time zone"):
        await harness.client.run_schedule("far", at=datetime(2030, 1, 2))


async def test_run_now_takes_no_tick(harness: Harness) -> None:
    """Its chain would be that of the tick, which has another due time, and would get no other."""
    await harness.client.put_schedules([far(cron="0 3 * * *", time_zone="Asia/Tokyo", every=None, jitter=600)])
    tick = datetime(2030, 1, 2, 18, tzinfo=UTC)
    for moment in (tick, tick.astimezone(ZoneInfo("America/New_York"))):
        with pytest.raises(
            ConfigurationError, match=r"no tick of .*'far', got 2030-01-02T18:00:00\+00:00: call backfill"
        ):
            await harness.client.run_schedule("far", at=moment)
    assert not (await harness.client.list_chains()).items
    for moment in (
        tick + timedelta(microseconds=1),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ):
        chain = await harness.client.run_schedule("far", at=moment)
        assert chain is not None
        assert (chain.id, chain.deduplicated) == (tick_id("far", moment), False)


async def test_moments_outside_of_the_calendar_are_refused(harness: Harness) -> None:
    await harness.client.put_schedules([far()])
    latest = datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))
    earliest = datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
    for moment in (latest, earliest):
        with pytest.raises(ConfigurationError, match="at must be between the years 1 and 9999"):
            await harness.client.run_schedule("far", at=moment)
    with pytest.raises(ConfigurationError, match="since must be between the years 1 and 9999"):
        await harness.client.backfill_schedule("far", since=earliest, before=datetime.now(UTC))
    with pytest.raises(ConfigurationError, match="at most 1,000 ticks"):
        await harness.client.backfill_schedule(
            "far", since=datetime.min.replace(tzinfo=UTC), before=datetime(2000, 1, 1, tzinfo=UTC)
        )


async def test_run_now_while_a_chain_is_open(harness: Harness) -> None:
    """The policy holds: beside it, not at all, or in its place."""
    for overlap in Overlap:
        await harness.client.put_schedules([far(overlap=overlap)])
        first = await harness.client.run_schedule("far")
        second = await harness.client.run_schedule("far")
        assert first is not None
        assert (second is None) == (overlap is Overlap.SKIP)
        assert ((await first.refresh()).status is ChainStatus.OPEN) == (overlap is not Overlap.CANCEL)
        await harness.client.delete_schedules(["far"])
    with pytest.raises(ScheduleNotFoundError, match="'far'"):
        await harness.client.run_schedule("far")


async def test_backfill(harness: Harness) -> None:
    """Each tick of the range gets a chain, once, whatever the policy; the schedule stays as it is."""
    schedule = RecurringSchedule(
        "daily", number, 1, cron="@daily", overlap="skip", starts_at=datetime(2024, 1, 3, tzinfo=UTC)
    )
    await harness.client.put_schedules([schedule])
    before = await harness.client.list_schedules()
    first, last = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC)
    chains = await harness.client.backfill_schedule("daily", since=first, before=last)
    assert [chain.id for chain in chains] == [tick_id("daily", first + days * DAY) for days in (2, 3, 4)]
    assert not any(chain.deduplicated for chain in chains)
    again = await harness.client.backfill_schedule("daily", since=first, before=last + DAY)
    assert [chain.deduplicated for chain in again] == [True, True, True, False]
    assert await harness.client.backfill_schedule("daily", since=last, before=last) == []
    assert await harness.client.list_schedules() == before


async def test_a_backfill_that_makes_no_sense_is_refused(harness: Harness) -> None:
    """Ranges without a time zone, backwards, in the future or with too many ticks; schedules that do not exist."""
    await harness.client.put_schedules([RecurringSchedule("often", number, 1, every=60)])
    day = datetime(2024, 1, 1, tzinfo=UTC)
    for since, before, message in (
        (day.replace(tzinfo=None), day, "since must be a datetime with a time zone"),
        (day, day.replace(tzinfo=None), "before must be a datetime with a time zone"),
        (day, day - DAY, "before must not be earlier than since"),
        (day, day + DAY, "at most 1,000 ticks"),
        (day, datetime.now(UTC) + DAY, "before must not be in the future"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            await harness.client.backfill_schedule("often", since=since, before=before)
    with pytest.raises(ScheduleNotFoundError, match="'never'"):
        await harness.client.backfill_schedule("never", since=day, before=day)
    assert not (await harness.client.list_chains()).items


def test_a_sync_client_runs_and_backfills(state: StateAdapter) -> None:
    """The synchronous client does the same."""
    with Client(state, JOB_TYPES, notify=InProcessNotify()) as client:
        client.put_schedules([RecurringSchedule("daily", number, 1, cron="@daily")], owner="me")
        chain = client.run_schedule("daily")
        assert chain is not None
        day = datetime(2024, 1, 1, tzinfo=UTC)
        [tick] = client.backfill_schedule("daily", since=day, before=day + DAY)
        assert tick.id == tick_id("daily", day)
