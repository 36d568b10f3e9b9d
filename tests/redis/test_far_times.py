"""Times at the end of the calendar, which are beyond what a number of the scripts holds exactly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from queuert.event_log import EventFilter
from queuert.run_at import RunAt, at
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.redis import decode
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.types import ClaimedJob, InputEdit
from queuert.testing.conformance.builders import ask, claim_one, complete, go_on, job, read, retry, snooze, wait
from tests.redis.harness import Keys

LAST = datetime.max.replace(tzinfo=UTC)
NEVER = at(LAST)


async def started(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.start_jobs([job(id="far", run_at=NEVER)])


async def snoozed(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.finish([snooze(claimed, NEVER)])


async def continued(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.finish([go_on(claimed, job(id="far", run_at=NEVER))])


async def waited_for(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.finish([wait(claimed, job(id="far", run_at=NEVER))])


async def changed(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.finish([retry(claimed)])
    await store.change_waiting_jobs([claimed.id], run_at=NEVER)


async def changed_while_blocked(store: AsyncRedisStore, claimed: ClaimedJob) -> None:
    await store.start_jobs([job(id="far", blockers=[claimed.id])])
    await store.change_waiting_jobs(["far"], run_at=NEVER)
    await store.finish([complete(claimed)])


@pytest.mark.parametrize("due", [started, snoozed, continued, waited_for, changed, changed_while_blocked])
async def test_the_last_moment_there_is_can_be_read(
    store: AsyncRedisStore, due: Callable[[AsyncRedisStore, ClaimedJob], Awaitable[None]]
) -> None:
    """As it was passed, as on Postgres."""
    await store.start_jobs([job(id="near")])
    await due(store, await claim_one(store))
    jobs = await store.list_jobs(JobFilter(), PageRequest())
    assert LAST in [one.scheduled_at for one in jobs.items]
    assert (await store.list_chains(ChainFilter(), PageRequest())).items
    events = await store.list_events(EventFilter(), PageRequest())
    assert LAST in [one.scheduled_at for one in events.items]
    assert await store.next_due(["work"]) is not None


async def test_a_far_job_can_be_edited_and_made_due(store: AsyncRedisStore) -> None:
    await store.start_jobs([job(id="far", run_at=NEVER)])
    await store.change_waiting_jobs(["far"], edit=InputEdit("far", '"edited"'))
    assert (await read(store, "far")).scheduled_at == LAST
    await store.change_waiting_jobs(["far"], run_at=RunAt(delay=0.0))
    assert [one.input for one in await store.claim(ask())] == ['"edited"']


async def test_a_time_that_was_stored_beyond_the_calendar_is_its_end(store: AsyncRedisStore, keys: Keys) -> None:
    """The year 10,000, of which no datetime can be made: scripts stored it before they bounded due times."""
    await store.start_jobs([job(id="far", run_at=NEVER)])
    keys.client.hset(keys("j:far"), "due", "253402300800000000")
    keys.client.zadd(keys("sched:work"), {"far": 253402300800000000})
    assert (await read(store, "far")).scheduled_at == LAST


@pytest.mark.parametrize(
    ("microseconds", "time"),
    [
        ("1", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("253402300799999967", LAST.replace(microsecond=999967)),
        ("253402300799999968", LAST),
        ("253402300800000000", LAST),
        (b"9" * 40, LAST),
        ("-62135596800000001", datetime.min.replace(tzinfo=UTC)),
        ("-" + "9" * 40, datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_no_stored_number_is_outside_the_calendar(microseconds: str | bytes, time: datetime) -> None:
    assert decode.moment(microseconds) == time
