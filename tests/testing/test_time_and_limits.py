"""The queue of users' tests on each store: limits, pauses and schedules do not keep it busy, and time is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from queuert import (
    Attempt,
    ChainStatus,
    Deduplicate,
    JobStatus,
    JobType,
    JobTypes,
    Limits,
    Outcome,
    Processors,
    Rate,
    RecurringSchedule,
    RetryPolicy,
    after,
)
from queuert.errors import ConfigurationError, EventTimeoutError
from queuert.ids import new_token
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.types import ClaimRequest, ReapRequest
from queuert.testing import AsyncJobQueue
from queuert.testing.redis_scan import scan
from tests.support.waiting import WAIT

plain = JobType("plain", input=int, output=int)
rated = JobType("rated", input=int, output=int)
keyed = JobType("keyed", input=int, output=int)
single = JobType("single", input=int, output=int)
JOB_TYPES = JobTypes(plain, rated, keyed, single)
processors = Processors(JOB_TYPES, retry=RetryPolicy(initial_delay=3600.0, max_delay=3600.0, jitter=0.0))


@processors.handles(plain)
@processors.handles(rated, limits=Limits(rate=Rate(2, per=3600)))
@processors.handles(keyed, limits=Limits(rate=Rate(1, per=600), per_key=1))
@processors.handles(single, limits=Limits(concurrency=1))
async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.retry() if attempt.input < 0 and attempt.number == 1 else attempt.input


async def ran(queue: AsyncJobQueue) -> int:
    return len(await queue.run_until_idle(processors, timeout=WAIT))


async def test_what_a_rate_holds_back_is_left_until_its_window_has_passed(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        for number in range(5):
            await queue.client.start_chain(rated, number)
        first = await queue.run_until_idle(processors)
        assert len(first) == 2
        assert [str(left) for left in first.left] == ["rated: 3 held back by limits"]
        await queue.advance(minutes=59)
        assert await ran(queue) == 0
        await queue.advance(minutes=1)
        assert await ran(queue) == 2
        await queue.advance(hours=1)
        assert (await queue.run_until_idle(processors)).left == ()


async def test_rates_of_keys(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        for key in ("ada", "ada", "bob", "bob"):
            await queue.client.start_chain(keyed, 1, limit_key=key)
        assert await ran(queue) == 2
        await queue.advance(minutes=10)
        assert await ran(queue) == 2


async def test_what_a_client_is_to_complete_is_left(state: StateAdapter) -> None:
    """A test completes it, in the place of a person, and the queue goes on."""
    approve = JobType("approve", input=int, output=int, continues_with=plain, completed_by="client")
    async with AsyncJobQueue(state, JobTypes(*JOB_TYPES, approve)) as queue:
        chain = await queue.client.start_chain(approve, 1)
        await queue.client.start_chain(approve, 2, run_at=after(hours=2))
        idle = await queue.run_until_idle(processors)
        assert (len(idle), [(one.held_back, one.for_clients, one.scheduled) for one in idle.left]) == (0, [(0, 1, 1)])
        assert str(idle.left[0]).startswith("approve: 1 scheduled, the first for 20")
        assert str(idle.left[0]).endswith(", 1 for a client to complete")
        await queue.advance(hours=2)
        assert [str(one) for one in (await queue.run_until_idle(processors)).left] == [
            "approve: 2 for a client to complete"
        ]
        await queue.client.continue_chain(chain, plain, 3)
        assert len(await queue.run_until_idle(processors)) == 1
        assert await chain.result() == 3


async def test_a_limit_of_slots_holds_nothing_back_in_the_end(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        for number in range(5):
            await queue.client.start_chain(single, number)
        done = await queue.run_until_idle(processors)
        assert (len(done), done.left) == (5, ())


async def test_what_is_paused_scheduled_or_blocked_is_left(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        await queue.client.pause_job_types([rated])
        later = await queue.client.start_chain(plain, 1, run_at=after(hours=2))
        await queue.client.start_chain(plain, -1)
        await queue.client.start_chain(plain, 2, blockers=[later])
        await queue.client.start_chain(rated, 3)
        done = await queue.run_until_idle(processors)
        assert [one.outcome for one in done] == ["retried"]
        left = {one.type: one for one in done.left}
        assert (left["rated"].held_back, left["rated"].paused, str(left["rated"])) == (
            1, True, "rated: 1 held back by a pause"
        )  # fmt: skip
        assert (left["plain"].scheduled, left["plain"].blocked, left["plain"].held_back) == (2, 1, 0)
        first = min(job.scheduled_at for job in await queue.jobs() if job.status is JobStatus.SCHEDULED)
        assert left["plain"].due_at == first
        assert f"2 scheduled, the first for {first:%Y-%m-%d %H:%M:%S} UTC, 1 blocked by other" in str(left["plain"])
        await queue.client.resume_job_types([rated])
        await queue.advance(hours=2)
        last = await queue.run_until_idle(processors)
        assert (len(last), last.left) == (4, ())


async def test_sleeps_and_waits_for_events_end_with_the_time(state: StateAdapter) -> None:
    waiting = Processors(JOB_TYPES)

    @waiting.handles(plain)
    async def waits(attempt: Attempt[int, int]) -> Outcome[int]:
        await attempt.sleep("pause", 3600)
        first = await attempt.wait_for_event("number", int, 3600)
        with pytest.raises(EventTimeoutError):
            await attempt.wait_for_event("number", int, 3600, key=2)
        return first

    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        chain = await queue.client.start_chain(plain, 0)
        assert [one.outcome for one in await queue.run_until_idle(waiting)] == ["snoozed"]
        await queue.advance(hours=1)
        assert [one.outcome for one in await queue.run_until_idle(waiting)] == ["snoozed"]
        assert len(await queue.run_until_idle(waiting)) == 0
        await queue.client.send_event(chain, "number", 5)
        assert [one.outcome for one in await queue.run_until_idle(waiting)] == ["snoozed"]
        await queue.advance(minutes=59)
        assert len(await queue.run_until_idle(waiting)) == 0
        await queue.advance(minutes=1)
        assert [one.outcome for one in await queue.run_until_idle(waiting)] == ["completed"]
        assert await chain.result(timeout=0) == 5


async def test_steps_grow_older_with_their_jobs(state: StateAdapter) -> None:
    """All their times move: a sleep still ends an hour after it was recorded."""
    phased = JobType("phased", input=int, output=int, phases=("count",))
    recording = Processors(JobTypes(phased))

    @recording.handles(phased)
    async def records(attempt: Attempt[int, int]) -> Outcome[int]:
        await attempt.phase("count", int, 5)
        await attempt.wait_for_event("go", int, 3600)
        await attempt.sleep("pause", 3600)
        return 0

    async with AsyncJobQueue(state, JobTypes(phased)) as queue:
        chain = await queue.client.start_chain(phased, 0)
        await queue.run_until_idle(recording)
        await queue.client.send_event(chain, "go", 5)
        await queue.run_until_idle(recording)
        before = await queue.client.get_steps(chain.id)
        await queue.advance(hours=1)
        after_an_hour = await queue.client.get_steps(chain.id)
    times = ("recorded_at", "started_at", "wake_at", "answered_at")
    assert [[getattr(step, time) is not None for time in times] for step in before] == [
        [True, True, False, False], [True, False, True, True], [True, False, True, False],
    ]  # fmt: skip
    for old, new in zip(before, after_an_hour, strict=True):
        for time in times:
            if (moment := getattr(old, time)) is not None:
                assert moment - getattr(new, time) == timedelta(hours=1), (old.name, time)


async def test_windows_expiry_and_order(state: StateAdapter) -> None:
    once = Deduplicate("k", scope="any", window=3600)
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        chains = [await queue.client.start_chain(plain, 1, deduplication=once) for _ in range(2)]
        kept = await queue.client.start_chain(plain, 1, id="kept", result_ttl=3600, attributes={"user": 17})
        assert await ran(queue) == 2
        await queue.advance(minutes=30)
        chains.append(await queue.client.start_chain(plain, 1, deduplication=once))
        await queue.advance(minutes=30)
        chains.append(await queue.client.start_chain(plain, 1, deduplication=once))
        assert [chain.deduplicated for chain in chains] == [False, True, True, False]
        again = await queue.client.start_chain(plain, 1, id="kept", attach=True, attributes={"user": 17})
        assert not again.deduplicated, "expired"
        assert [chain.id for chain in await queue.client.list_chains(attributes={"user": 17})] == [kept.id]
        listed = await queue.client.list_chains(oldest_first=True)
        assert [chain.id for chain in listed] == [chains[0].id, chains[3].id, "kept"]
        assert (await chains[0].refresh()).created_at < (await chains[3].refresh()).created_at
        assert await ran(queue) == 2
        assert (await chains[3].refresh()).status is ChainStatus.COMPLETED


async def test_schedules_tick(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        hourly = RecurringSchedule("hourly", plain, 1, every=3600, missed="once")
        await queue.client.put_schedules([hourly])
        assert await ran(queue) == 0
        for _ in range(2):
            await queue.advance(hours=1)
            assert await ran(queue) == 1


_ADVANCES = [
    timedelta(hours=1),
    timedelta(hours=1, seconds=1),
    timedelta(hours=2),
    timedelta(days=1),
    timedelta(days=1, minutes=5),
    timedelta(days=7),
    timedelta(days=7, milliseconds=1),
]


@pytest.mark.parametrize("by", _ADVANCES, ids=str)
async def test_schedules_tick_at_each_advance_whether_it_lands_on_a_tick_or_not(
    state: StateAdapter, by: timedelta
) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        cron = "0 * * * *" if by < timedelta(days=1) else "0 3 * * *"
        await queue.client.put_schedules([RecurringSchedule("own", plain, 1, cron=cron, missed="once")])
        counts = []
        for _ in range(4):
            await queue.advance(by)
            counts.append(await ran(queue))
        assert counts == [1, 1, 1, 1]
        assert len(await queue.jobs()) == 4


async def test_a_schedule_makes_up_for_all_ticks_of_each_advance(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        noon = (datetime.now(UTC) + timedelta(hours=12)).hour
        await queue.client.put_schedules([RecurringSchedule("all", plain, 1, cron=f"0 {noon} * * *", missed="all")])
        counts = []
        for _ in range(3):
            await queue.advance(days=7, minutes=5)
            counts.append(await ran(queue))
        assert counts == [7, 7, 7]


async def advance_by_centuries(queue: AsyncJobQueue) -> None:
    for _ in range(30):
        await queue.advance(days=36_500)


async def test_time_does_not_pass_where_a_store_has_no_times(state: StateAdapter) -> None:
    """A queue that has refused it goes on as before."""
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        await queue.client.start_chain(plain, 1, run_at=after(hours=1))
        with pytest.raises(ConfigurationError, match="must stay after the year"):
            await advance_by_centuries(queue)
        assert [job.type for job in await queue.jobs()] == ["plain"]
        await queue.advance(hours=1)
        assert await ran(queue) == 1


async def test_a_schedule_without_jobs_does_not_tick_where_a_store_has_no_times(state: StateAdapter) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        await queue.client.put_schedules([RecurringSchedule("own", plain, 1, every=3_600, missed="once")])
        with pytest.raises(ConfigurationError, match="must stay after the year"):
            await advance_by_centuries(queue)
        assert [one.name for one in await queue.client.list_schedules()] == ["own"]
        await queue.advance(hours=1)
        assert await ran(queue) == 1


@pytest.mark.parametrize("leases", [False, True])
async def test_leases_pass_only_if_they_are_to(state: StateAdapter, leases: bool) -> None:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        await queue.client.start_chain(plain, 1)
        store = await queue._opened()
        await store.claim(ClaimRequest({plain.name: 60.0}, limit=1, holder="gone", token=new_token()))
        await queue.advance(seconds=61, leases=leases)
        policies: Any = {plain.name: RetryPolicy()}
        assert len((await store.reap(ReapRequest(policies))).reaped) == (1 if leases else 0)


async def test_a_namespace_of_redis_stays_in_order(redis_url: str) -> None:
    """Whatever its jobs do: waiting, with and without a key, scheduled, running, blocked and done."""
    async with AsyncJobQueue(RedisState(redis_url), JOB_TYPES) as queue:
        await queue.client.start_chain(plain, 1)
        await queue.client.start_chain(rated, 1)
        assert await ran(queue) == 2
        running = await queue.client.start_chain(plain, 1, priority=9, limit_key="key")
        store = await queue._opened()
        await store.claim(ClaimRequest({plain.name: 60.0}, limit=1, holder="gone", token=new_token()))
        for key in (None, "ada", "bob", "ada"):
            await queue.client.start_chain(keyed, 1, limit_key=key, attributes={"user": "ada"})
            await queue.client.start_chain(plain, 1, deduplication=Deduplicate(str(key)), blockers=[running])
        await queue.client.start_chain(plain, 1, run_at=after(hours=1), result_ttl=5)
        before = await queue.jobs()
        for leases in (False, True):
            await queue.advance(days=1, leases=leases)
            with redis.Redis.from_url(redis_url) as client:
                assert scan(client) == []
        now = await queue.jobs()
        assert [job.id for job in now] == [job.id for job in before]
        assert {(old.created_at - new.created_at).days for old, new in zip(before, now, strict=True)} == {2}
        assert {(old.scheduled_at - new.scheduled_at).days for old, new in zip(before, now, strict=True)} == {2}
