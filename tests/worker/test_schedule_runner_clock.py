"""Recurring schedules after the store's clock was wrong: neither silence nor a second chain of one tick."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from queuert import JobTypes, RecurringSchedule
from queuert.notify import InProcessNotify
from queuert.observability.events import ChainStarted
from queuert.schedules import TickSpec, earlier_tick, tick_id, tick_of
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStore
from queuert.state.types import NewJob
from tests.support.harness import Harness
from tests.support.job_types import echo, number

JOB_TYPES = JobTypes(number)
NAME = "often"
AHEAD = timedelta(days=1)


class ScheduleHarness(Harness):
    """A client whose schedule ticks every second, and workers that report what they start."""

    def __init__(self, state: StateAdapter) -> None:
        super().__init__(state, notify=InProcessNotify())
        self.schedule = RecurringSchedule(NAME, number, 7, every=1, missed="all")
        self.handles(number, echo)

    async def store(self) -> AsyncStore:
        """The client's."""
        return await self.client._open_store()

    async def next_at(self) -> datetime:
        """The schedule's next tick."""
        [listed] = await self.client.list_schedules()
        assert listed.next_at is not None
        return listed.next_at

    async def tick_while_the_clock_is_ahead(self) -> datetime | None:
        """What a worker does when it looks while the clock is a day ahead; the tick, if nobody else fired meanwhile."""
        tick = datetime.now(UTC).replace(microsecond=0) + AHEAD
        job = NewJob(id=tick_id(NAME, tick), type=number.name, input="7", id_chosen=True)
        store = await self.store()
        fired = await store.fire_schedule(NAME, await self.next_at(), tick + timedelta(seconds=1), [job])
        return None if fired is None else tick


@pytest.fixture
async def harness(state: StateAdapter) -> AsyncIterator[ScheduleHarness]:
    """A client with a schedule that is put."""
    harness = ScheduleHarness(state)
    await harness.client.put_schedules([harness.schedule], owner="tests")
    yield harness
    await harness.close()


async def test_a_schedule_ticks_on_after_a_restart_when_the_clock_had_been_ahead(harness: ScheduleHarness) -> None:
    """Also if the worker that starts puts the same schedule again, which keeps its next tick."""
    ahead = await harness.tick_while_the_clock_is_ahead()
    assert ahead is not None
    async with harness.worker(schedules=[harness.schedule], schedule_owner="tests"):
        started = await harness.log.wait_for(ChainStarted, times=2)
    assert tick_of(started.chain_id) < ahead
    assert await harness.next_at() < ahead


async def test_a_running_worker_notices_that_the_clock_had_been_ahead(
    harness: ScheduleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's look was at the wrong time, and nobody starts anew."""
    monkeypatch.setattr("queuert.worker.schedule_runner.CLOCK_CHECK_INTERVAL", 0.0)
    monkeypatch.setattr("queuert.worker.schedule_runner.POLL_WITH_NOTIFY", 0.05)
    async with harness.worker():
        await harness.log.wait_for(ChainStarted)
        ahead = None
        while ahead is None:  # The worker's own tick may come between the look and the write.
            ahead = await harness.tick_while_the_clock_is_ahead()
        started = await harness.log.wait_for(ChainStarted, times=len(harness.log.of(ChainStarted)) + 2)
    assert tick_of(started.chain_id) < ahead


async def test_ticks_that_have_chains_are_not_started_again_when_the_clock_goes_back(harness: ScheduleHarness) -> None:
    """The schedule goes back to them, and finds them started."""
    now = datetime.now(UTC).replace(microsecond=0)
    ticks = [now + timedelta(seconds=n) for n in range(1, 4)]
    done = [NewJob(id=tick_id(NAME, tick), type=number.name, input="7", id_chosen=True) for tick in ticks]
    last = now + timedelta(minutes=10)
    done.append(NewJob(id=tick_id(NAME, last), type=number.name, input="7", id_chosen=True))
    store = await harness.store()
    assert await store.fire_schedule(NAME, await harness.next_at(), last + timedelta(seconds=1), done) is not None
    async with harness.worker():
        await harness.log.wait_for(ChainStarted, times=2)
    reported = [tick_of(event.chain_id) for event in harness.log.of(ChainStarted)]
    assert not set(reported) & {*ticks, last}
    assert len(reported) == len(set(reported))


NOW = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)


def _ahead(**more: float) -> datetime:
    return datetime(2030, 1, 1, 12, tzinfo=UTC) + timedelta(**more)


@pytest.mark.parametrize(
    ("next_at", "last_at", "expected"),
    [
        pytest.param(_ahead(minutes=1), _ahead(minutes=0), None, id="right"),
        pytest.param(_ahead(minutes=-5), _ahead(minutes=-6), None, id="due"),
        pytest.param(_ahead(days=1), None, _ahead(minutes=1), id="ahead, and never started"),
        pytest.param(_ahead(days=1), _ahead(minutes=0), _ahead(minutes=1), id="ahead, and ticks were skipped"),
        pytest.param(_ahead(days=1), _ahead(hours=23), _ahead(minutes=1), id="ahead, and started"),
        pytest.param(_ahead(minutes=2), _ahead(minutes=1), None, id="corrected a little"),
    ],
)
def test_the_tick_to_go_back_to(next_at: datetime, last_at: datetime | None, expected: datetime | None) -> None:
    """The next one by the clock as it is, unless it may have been started a moment ago."""
    spec = TickSpec(cron="* * * * *", every=None, time_zone="UTC")
    assert earlier_tick(spec, next_at, last_at, NOW) == expected
