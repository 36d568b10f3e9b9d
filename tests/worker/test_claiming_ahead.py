"""What a worker claims ahead of its places is looked after as all that it holds, and released when it should be."""

from __future__ import annotations

import asyncio

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome
from queuert.observability.events import AttemptStarted, JobsReleased
from tests.support.harness import PostgresHarness
from tests.support.job_types import WATCHED, number
from tests.support.waiting import WAIT, Gate, Turnstile, in_time, until

LONG = 10**6


class Mixed:
    """A handler that is quick, but for inputs from ``LONG`` on, which wait at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input >= LONG:
            await self.gate.pass_through(attempt)
        return attempt.input


@pytest.fixture
def handler(harness: PostgresHarness) -> Mixed:
    handler = Mixed()

    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        return await handler(attempt)

    harness.handles(number, handle, lease=WATCHED)
    return handler


def running(harness: PostgresHarness) -> int:
    return int(harness.one("select count(*) from queuert.job where status = 'running'"))


def open_jobs(harness: PostgresHarness) -> int:
    return int(harness.one("select count(*) from queuert.job where status <> 'completed'"))


def statuses(harness: PostgresHarness) -> set[str]:
    return {status for (status,) in harness.rows("select distinct status from queuert.job")}


def holders(harness: PostgresHarness) -> int:
    return int(harness.one("select count(distinct holder) from queuert.job where status = 'running'"))


@pytest.fixture
def claims_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine makes a quick handler, and for as long as a test looks at what waits."""
    monkeypatch.setattr("queuert.worker.prefetch.PREFETCH_HORIZON", 3600.0)
    monkeypatch.setattr("queuert.worker.prefetch.STALE_SECONDS", 3600.0)


async def with_some_ahead(harness: PostgresHarness, handler: Mixed) -> None:
    """A worker with one place, in which a long handler runs, and more jobs that are claimed ahead."""
    quick = [NewChain(number, one) for one in range(200)]
    long = [NewChain(number, LONG, priority=-1), *(NewChain(number, one, priority=-2) for one in range(500))]
    await harness.client.start_chains([*quick, *long])
    await harness.worker().start()
    await handler.gate.next()


async def some_wait(harness: PostgresHarness) -> None:
    """The long handler may have been the last of its claim: the next one comes then."""
    await until(lambda: running(harness) > 1, "some were claimed ahead")


@pytest.mark.usefixtures("claims_ahead")
async def test_given_back_when_the_worker_stops(harness: PostgresHarness, handler: Mixed) -> None:
    await with_some_ahead(harness, handler)
    await some_wait(harness)
    stop = asyncio.ensure_future(harness.workers[0].stop())
    await harness.log.wait_for(JobsReleased)
    await until(lambda: running(harness) == 1, "all that waited are released")
    handler.gate.open()
    await stop
    assert harness.rows(
        "select distinct status, attempt from queuert.job where input = '1'::jsonb and priority = -2"
    ) == [("ready", 0)]
    assert running(harness) == 0


@pytest.mark.usefixtures("claims_ahead")
async def test_a_worker_that_waits_hears_of_released_jobs(harness: PostgresHarness, handler: Mixed) -> None:
    """It found nothing due, and would look again after a minute."""
    await with_some_ahead(harness, handler)
    await some_wait(harness)
    await harness.worker(client=harness.new_client(), name="other").start()
    await until(lambda: statuses(harness) <= {"running", "completed"}, "all are claimed")
    await until(lambda: holders(harness) == 1, "the other one has nothing to do")
    assert running(harness) > 1
    stop = asyncio.ensure_future(harness.workers[0].stop())
    await until(lambda: open_jobs(harness) == 1, "the other one has run what was released")
    handler.gate.open()
    await stop


async def test_given_back_when_a_handler_turns_out_to_be_long(
    harness: PostgresHarness, handler: Mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker gets the jobs that waited behind it."""
    # As long as may be: a quick handler that the machine held up for a moment must not pass for a long one.
    monkeypatch.setattr("queuert.worker.prefetch.PREFETCH_HORIZON", 0.9)
    await with_some_ahead(harness, handler)
    await harness.log.wait_for(JobsReleased)
    await until(lambda: running(harness) == 1, "all that waited are released")
    await harness.worker(name="other").start()
    waiting = "select count(*) from queuert.job where status <> 'completed'"
    await until(lambda: harness.one(waiting) == 1, "all but the long one are completed")
    handler.gate.open()


@pytest.mark.usefixtures("claims_ahead")
async def test_renewed_while_they_wait(harness: PostgresHarness, handler: Mixed) -> None:
    await with_some_ahead(harness, handler)
    await some_wait(harness)
    first = "select min(lease_expires_at) from queuert.job where status = 'running'"
    before = harness.one(first)
    await until(lambda: harness.one(first) > before, "all leases were renewed")
    assert running(harness) > 1
    handler.gate.open()
    await until(
        lambda: harness.one("select count(*) from queuert.job where status <> 'completed'") == 0, "all completed"
    )
    assert harness.one("select max(attempt) from queuert.job") == 1


@pytest.mark.usefixtures("claims_ahead")
async def test_none_waits_beside_a_job_that_has_cost_a_lease(harness: PostgresHarness, handler: Mixed) -> None:
    """If it kills its worker again, the others were not even claimed."""
    await harness.client.start_chains([NewChain(number, one) for one in range(200)])
    suspect = await harness.client.start_chain(number, LONG, priority=-1)
    await harness.client.start_chains([NewChain(number, one, priority=-2) for one in range(300)])
    harness.rows("update queuert.job set lease_expirations = 1, attempt = 1 where id = %s", suspect.id)
    await harness.worker().start()
    await handler.gate.next()
    await until(lambda: running(harness) == 1, "it runs alone")
    handler.gate.open()
    assert await suspect.result(WAIT) == LONG


async def test_one_handler_at_a_time(harness: PostgresHarness) -> None:
    """However many are claimed ahead, and whatever is being written meanwhile."""
    at_once: list[int] = []
    inside = 0

    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        await asyncio.sleep(0)
        inside -= 1
        return attempt.input

    harness.handles(number, handle)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(300)])
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    assert at_once == [1] * 300
    assert len(harness.log.of(AttemptStarted)) == len(chains)


async def test_the_next_handler_does_not_wait_for_the_finish_before(harness: PostgresHarness) -> None:
    """With the finish of a job locked by somebody else, the next one runs all the same."""

    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 0:
            await locked.wait()
        return attempt.input

    locked = asyncio.Event()
    harness.handles(number, handle)
    first = await harness.client.start_chain(number, 0)
    second = await harness.client.start_chain(number, 1)
    async with harness.worker():
        await harness.log.wait_for(AttemptStarted, job_id=first.id)
        harness.rows("begin")
        harness.rows("select 1 from queuert.job where id = %s for update", first.id)
        locked.set()
        assert await second.result(WAIT) == 1
        assert (await harness.job(first.id)).status is JobStatus.RUNNING
        harness.rows("rollback")
        assert await in_time(first.result()) == 0


@pytest.mark.usefixtures("claims_ahead")
async def test_none_is_claimed_ahead_while_jobs_have_cost_leases(harness: PostgresHarness, handler: Mixed) -> None:
    """After an outage many have: they are claimed as places become free, and not to be released."""
    gate = handler.gate = Turnstile()
    await harness.client.start_chains([NewChain(number, one) for one in range(200)])
    await harness.client.start_chains([NewChain(number, LONG, priority=-1) for one in range(60)])
    harness.rows("update queuert.job set lease_expirations = 1, attempt = 1 where priority = -1")
    await harness.worker(concurrency=4).start()
    for _ in range(4):
        await gate.next()
    for _ in range(20):
        gate.turn()
        await gate.next()
    # With the first of them come as many as were claimed ahead of quick ones.
    assert len(harness.log.of(JobsReleased)) <= 1
    gate.turn(60)


@pytest.mark.quick
async def test_all_places_begin_with_jobs_that_have_cost_leases(harness: PostgresHarness, handler: Mixed) -> None:
    """What begins is not released, though it begins a moment after the claim."""
    await harness.client.start_chains([NewChain(number, LONG) for _ in range(4)])
    harness.rows("update queuert.job set lease_expirations = 1, attempt = 1")
    await harness.worker(concurrency=4).start()
    for _ in range(4):
        await handler.gate.next()
    assert harness.log.of(JobsReleased) == []
    handler.gate.open()
