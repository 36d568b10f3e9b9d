"""The queue of users' tests: what it runs, what it says, and how it moves time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from queuert import (
    AsyncClient,
    Attempt,
    ChainStatus,
    Client,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    Outcome,
    PostgresState,
    Processors,
    RecurringSchedule,
    RetryPolicy,
    SQLiteState,
    after,
)
from queuert.deduplication import Deduplicate
from queuert.errors import ClosedError, ConfigurationError, DefinitionError, JobNotFoundError
from queuert.ids import new_token
from queuert.observability.events import Event
from queuert.policies import LeasePolicy
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest
from queuert.testing import AsyncJobQueue, JobQueue, RanAttempt, UnexpectedFailureError, async_queue
from queuert.testing.attempts import ran_attempts
from queuert.testing.events import EventLog
from queuert.testing.idle import is_idle, remaining_jobs
from queuert.testing.single_job_state import OneJobState
from tests.support.waiting import in_time


class Mail(BaseModel):
    to: str
    subject: str = "hello"


class Receipt(BaseModel):
    id: int


archive = JobType("archive", input=str, output=int)
send = JobType("send", input=Mail, output=Receipt)
relay = JobType("relay", input=str, continues_with=archive)
fragile = JobType("fragile", input=str, output=str)
plain = JobType("plain", input=dict[str, int], output=int)
JOB_TYPES = JobTypes(archive, send, relay, fragile, plain)

# Nothing that is tried again comes back by itself while a test runs, however slowly that may go.
processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=3, initial_delay=3600.0, max_delay=3600.0))


@processors.handles(archive)
async def do_archive(attempt: Attempt[str, int]) -> Outcome[int]:
    return len(attempt.input)


@processors.handles(send)
def do_send(attempt: Attempt[Mail, Receipt]) -> Outcome[Receipt]:
    return Receipt(id=1)


@processors.handles(relay)
async def do_relay(attempt: Attempt[str, int]) -> Outcome[int]:
    return attempt.continue_with(archive, attempt.input * 2)


@processors.handles(fragile)
async def do_fragile(attempt: Attempt[str, str]) -> Outcome[str]:
    if attempt.input == "fail":
        return attempt.fail("gave up")
    if attempt.input == "later" and attempt.number == 1:
        return attempt.retry(after=600)
    if attempt.input == "raise":
        raise ZeroDivisionError("a bug")
    return attempt.input


@pytest.fixture
def state(dsn: str) -> PostgresState:
    return PostgresState(dsn)


@pytest.fixture
async def queue(state: PostgresState) -> AsyncIterator[AsyncJobQueue]:
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        yield queue


# --- run until idle --------------------------------------------------------------------------------------------------


async def test_nothing_runs_until_the_test_says_so(queue: AsyncJobQueue) -> None:
    chain = await queue.client.start_chain(relay, "ab")
    assert (await queue.client.get_job(chain.id)).status is JobStatus.READY
    ran = await queue.run_until_idle(processors)
    assert [(one.type, one.number, one.outcome) for one in ran] == [
        ("relay", 1, "continued"),
        ("archive", 1, "completed"),
    ]
    assert {one.chain_id for one in ran} == {chain.id}
    assert await chain.result(timeout=0) == 4


async def test_the_lifespan_of_the_processors_is_run(queue: AsyncJobQueue) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[list[str]]:
        steps.append("entered")
        yield steps
        steps.append("left")

    with_resources = Processors(JOB_TYPES, lifespan=lifespan)

    @with_resources.handles(archive)
    async def handler(attempt: Attempt[str, int, list[str]]) -> Outcome[int]:
        attempt.resources.append(attempt.input)
        return 1

    await queue.client.start_chain(archive, "idle")
    await queue.run_until_idle(with_resources)
    chain = await queue.client.start_chain(archive, "one")
    await queue.process_job(with_resources, chain)
    assert steps == ["entered", "idle", "left", "entered", "one", "left"]


async def test_a_queue_that_is_entered_by_the_wrong_with_says_what_to_write() -> None:
    in_coroutines: Any = AsyncJobQueue(SQLiteState(), JOB_TYPES)
    in_functions: Any = JobQueue(SQLiteState(), JOB_TYPES)
    with pytest.raises(DefinitionError, match=r"write async with AsyncJobQueue\(\.\.\.\), got with"), in_coroutines:
        pass
    with pytest.raises(DefinitionError, match=r"write with JobQueue\(\.\.\.\), got async with"):
        async with in_functions:
            pass


async def test_idle_with_nothing_to_do(queue: AsyncJobQueue) -> None:
    assert await queue.run_until_idle(processors) == []


async def test_many_chains_and_those_that_wait_for_them(queue: AsyncJobQueue) -> None:
    words = [await queue.client.start_chain(relay, "x" * n) for n in range(1, 20)]
    last = await queue.client.start_chain(archive, "abc", blockers=words)
    ran = await queue.run_until_idle(processors)
    assert len(ran) == 2 * 19 + 1
    # By the store's clock: of two finishes that are written at once, either may be told of first.
    began = (await queue.client.get_job(last.id)).started_at
    assert began is not None
    assert all(job.finished_at and job.finished_at <= began for job in await queue.jobs() if job.id != last.id)


async def test_jobs_of_other_processors_are_left(queue: AsyncJobQueue) -> None:
    only = Processors(JOB_TYPES)
    only.handles(archive)(do_archive)
    chain = await queue.client.start_chain(send, Mail(to="ada"))
    assert await queue.run_until_idle(only) == []
    assert (await chain.refresh()).status is ChainStatus.OPEN


@pytest.mark.parametrize(("input", "outcome"), [("fail", "failed"), ("raise", "retried")])
async def test_failures_are_raised_unless_allowed(queue: AsyncJobQueue, input: str, outcome: str) -> None:
    await queue.client.start_chain(fragile, input)
    fine = await queue.client.start_chain(archive, "abc")
    with pytest.raises(UnexpectedFailureError) as caught:
        await queue.run_until_idle(processors)
    assert [one.outcome for one in caught.value.attempts] == [outcome]
    assert str(caught.value).endswith("pass allow_failures=True")
    assert "gave up" in str(caught.value) or 'raise ZeroDivisionError("a bug")' in str(caught.value)
    assert (await fine.refresh()).status is ChainStatus.COMPLETED, "all that was ready has run"
    await queue.client.start_chain(fragile, input)
    ran = await queue.run_until_idle(processors, allow_failures=True)
    assert [one.outcome for one in ran] == [outcome]
    assert ran[0].went_wrong


async def test_a_retry_that_was_requested_for_is_no_failure(queue: AsyncJobQueue) -> None:
    await queue.client.start_chain(fragile, "later")
    [first] = await queue.run_until_idle(processors)
    assert (first.outcome, first.went_wrong) == ("retried", False)
    assert await queue.run_until_idle(processors) == []
    await queue.advance(minutes=10)
    [second] = await queue.run_until_idle(processors)
    assert (second.number, second.outcome) == (2, "completed")


async def test_a_job_that_hangs_is_named(queue: AsyncJobQueue) -> None:
    stuck = Processors(JOB_TYPES)

    @stuck.handles(archive)
    async def wait_for_ever(attempt: Attempt[str, int]) -> Outcome[int]:
        await asyncio.Event().wait()
        return 0

    chain = await queue.client.start_chain(archive, "abc")
    with pytest.raises(AssertionError, match=rf"(?s)not idle after 0.3 s.*archive {chain.id}: running"):
        await queue.run_until_idle(stuck, timeout=0.3)


class CancelledAtWork:
    """A handler whose chain a client cancels that shares no notifications with the queue: it hears of that late."""

    def __init__(self, state: PostgresState) -> None:
        self.processors = Processors(JOB_TYPES, lease=LeasePolicy(seconds=3.0, renew_every=0.2))
        self.ended = asyncio.Event()

        @self.processors.handles(archive)
        async def cancels_its_chain(attempt: Attempt[str, int]) -> Outcome[int]:
            try:
                async with AsyncClient(state, JOB_TYPES) as client:
                    await client.cancel_chain(attempt.chain_id)
                await asyncio.Event().wait()
            finally:  # It may hear of the cancellation while the client is closed.
                self.ended.set()
            return 0


async def test_a_handler_whose_job_was_cancelled_still_runs(queue: AsyncJobQueue, state: PostgresState) -> None:
    """The store has no running job then. The handler is not cut off by the end of the call."""
    cancelled = CancelledAtWork(state)
    await queue.client.start_chain(archive, "abc")
    [ran] = await queue.run_until_idle(cancelled.processors)
    assert ran.outcome == "aborted"
    assert cancelled.ended.is_set()


async def test_the_one_attempt_has_ended_when_its_handler_has(
    queue: AsyncJobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that runs out of time is aborted first; its result is known when its handler has ended."""
    timed_out, found = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1)), asyncio.Event()

    @timed_out.handles(archive, timeout=0.05)
    async def ends_late(attempt: Attempt[str, int]) -> Outcome[int]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await in_time(found.wait())
            raise
        return 0

    def look(events: Iterable[Event]) -> list[RanAttempt]:
        ran = ran_attempts(events)
        if ran:
            found.set()
        return ran

    monkeypatch.setattr(async_queue, "ran_attempts", look)
    chain = await queue.client.start_chain(archive, "abc")
    assert (await queue.process_job(timed_out, chain)).outcome == "failed"


async def test_a_handler_that_goes_on_after_its_job_was_cancelled_is_named(queue: AsyncJobQueue) -> None:
    stubborn = Processors(JOB_TYPES)

    @stubborn.handles(archive)
    async def goes_on(attempt: Attempt[str, int]) -> Outcome[int]:
        await queue.client.cancel_chain(attempt.chain_id)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        return 0

    chain = await queue.client.start_chain(archive, "abc")
    message = rf"(?s)not idle after 0.3 s.*archive {chain.id}: cancelled, but the handler of attempt 1 still runs"
    with pytest.raises(AssertionError, match=message):
        await queue.run_until_idle(stubborn, timeout=0.3)


async def test_what_is_idle(queue: AsyncJobQueue, state: PostgresState) -> None:
    """Whatever a worker could take now, or holds, counts: also what is stored as scheduled and has become due."""
    store, types, log = state.async_store(), [archive.name, fragile.name], EventLog()
    worker = InProcessWorker(queue.client, processors)
    await store.open()
    try:
        assert await is_idle(store, worker, log, types)
        await queue.client.start_chain(send, Mail(to="ada"))
        await queue.client.start_chain(archive, "a", run_at=after(hours=1))
        assert await is_idle(store, worker, log, types), "of other types, or later"
        await queue.advance(hours=1)
        assert not await is_idle(store, worker, log, types), "due, and stored as scheduled"
        claim = ClaimRequest({archive.name: 60.0}, limit=1, holder="h", token=new_token())
        [job] = await store.claim(claim)
        assert not await is_idle(store, worker, log, types), "running"
        await store.release([job.lease])
        assert not await is_idle(store, worker, log, types), "ready"
        assert await is_idle(store, worker, log, [fragile.name])
        await queue.client.put_schedules([RecurringSchedule("daily", fragile, "a", every=timedelta(days=1))])
        await queue.client.pause_job_types([fragile])
        assert await is_idle(store, worker, log, [fragile.name]), "its next tick is not due"
        await queue.advance(days=1)
        assert not await is_idle(store, worker, log, [fragile.name]), "due: a tick of a paused type starts a chain"
    finally:
        await store.aclose()


async def test_what_has_just_become_due_is_not_held_back(queue: AsyncJobQueue, state: PostgresState) -> None:
    """It became due after the queue was idle: nothing holds it back, and its time says so."""
    chain = await queue.client.start_chain(archive, "a", run_at=after(hours=1))
    await queue.advance(hours=1)
    store = state.async_store()
    await store.open()
    try:
        [left] = await remaining_jobs(store, [archive.name], [])
    finally:
        await store.aclose()
    job = await queue.client.get_job(chain.id)
    assert (left.held_back, left.scheduled, left.due_at) == (0, 1, job.scheduled_at)


# --- one job ---------------------------------------------------------------------------------------------------------


async def test_one_attempt_of_one_job(queue: AsyncJobQueue) -> None:
    first = await queue.client.start_chain(relay, "a", priority=5)
    second = await queue.client.start_chain(relay, "b")
    ran = await queue.process_job(processors, second)
    assert (ran.job_id, ran.outcome, ran.number) == (second.id, "continued", 1)
    before = await queue.client.get_job(first.id)
    assert (before.status, before.attempt) == (JobStatus.READY, 0)
    [tail] = await queue.assert_started(archive)
    assert tail.status is JobStatus.READY
    assert (await queue.process_job(processors, tail)).outcome == "completed"
    assert (await queue.process_job(processors, first.id)).outcome == "continued"
    assert (await queue.process_job(processors, first.id)).type == "archive", "a chain's last job"


async def test_only_one_attempt_even_if_the_next_is_due_at_once(queue: AsyncJobQueue) -> None:
    at_once = Processors(JOB_TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0))
    at_once.handles(fragile)(do_fragile)
    chain = await queue.client.start_chain(fragile, "raise")
    for number in range(1, 6):
        assert (await queue.process_job(at_once, chain)).number == number
        assert (await queue.client.get_job(chain.id)).attempt == number


async def test_one_job_that_is_scheduled(queue: AsyncJobQueue) -> None:
    chain = await queue.client.start_chain(fragile, "later", run_at=after(days=1))
    assert [(await queue.process_job(processors, chain)).outcome for _ in range(2)] == ["retried", "completed"]


async def test_one_job_behind_inputs_that_fill_a_claim(queue: AsyncJobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.prefetch.CLAIM_BYTES", 1_000)
    first = await queue.client.start_chain(archive, "a" * 900, priority=5)
    wanted = await queue.client.start_chain(archive, "b" * 900)
    assert (await queue.process_job(processors, wanted)).outcome == "completed"
    assert (await queue.client.get_job(first.id)).attempt == 0


async def test_one_job_that_cannot_run(queue: AsyncJobQueue) -> None:
    chain = await queue.client.start_chain(archive, "a")
    blocked = await queue.client.start_chain(archive, "b", blockers=[chain])
    with pytest.raises(AssertionError, match="is blocked"):
        await queue.process_job(processors, blocked)
    await queue.process_job(processors, chain)
    with pytest.raises(AssertionError, match="is completed"):
        await queue.process_job(processors, chain)
    with pytest.raises(JobNotFoundError):
        await queue.process_job(processors, "nobody")
    only = Processors(JOB_TYPES)
    only.handles(archive)(do_archive)
    other = await queue.client.start_chain(relay, "a")
    with pytest.raises(AssertionError, match="no handler for 'relay' among 'archive'"):
        await queue.process_job(only, other)


# --- what was started ------------------------------------------------------------------------------------------------


async def test_what_was_started(queue: AsyncJobQueue) -> None:
    await queue.client.start_chain(send, Mail(to="ada"))
    await queue.client.start_chain(send, Mail(to="bob", subject="again"))
    await queue.client.start_chain(plain, {"a": 1})
    [job] = await queue.assert_started(send, to="ada")
    assert job.input["to"] == "ada"
    await queue.assert_started(send, count=2)
    await queue.assert_started(send, count=None, where=lambda mail: mail.subject == "again")
    await queue.assert_started(plain, a=1)
    await queue.assert_not_started(plain, a=2)
    await queue.assert_not_started(plain, b=1)
    await queue.assert_not_started(archive)
    await queue.assert_not_started(send, to="carl")
    with pytest.raises(AssertionError) as caught:
        await queue.assert_started(send, to="carl")
    message = str(caught.value)
    assert message.startswith("1 job of type 'send' with to='carl' expected, 0 started\nothers that were started:")
    assert '{"to": "bob", "subject": "again"}: ready, job ' in message
    with pytest.raises(AssertionError, match=r"(?s)0 jobs of type 'send' expected, 2 started\nthese fit:.*plain"):
        await queue.assert_not_started(send)
    with pytest.raises(TypeError, match="no field 'too'"):
        await queue.assert_started(send, too="ada")


async def test_nothing_was_started(queue: AsyncJobQueue) -> None:
    with pytest.raises(AssertionError, match="at least 1 job of type 'send' expected, 0 started\nnothing else"):
        await queue.assert_started(send, count=None)


async def test_chains_of_the_programs_own_client_are_seen(queue: AsyncJobQueue, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, Client(PostgresState(dsn), JOB_TYPES) as client:
        client.start_chain(send, Mail(to="ada"), connection=connection)
        await queue.assert_not_started(send)
        connection.commit()
    await queue.assert_started(send)


# --- time ------------------------------------------------------------------------------------------------------------


async def test_what_is_due_later_is_due_now(queue: AsyncJobQueue) -> None:
    await queue.client.start_chain(archive, "abc", run_at=after(minutes=5))
    await queue.advance(minutes=4)
    assert await queue.run_until_idle(processors) == []
    await queue.advance(minutes=1)
    assert len(await queue.run_until_idle(processors)) == 1


async def test_a_blocked_job_that_is_scheduled(queue: AsyncJobQueue) -> None:
    first = await queue.client.start_chain(archive, "a")
    await queue.client.start_chain(archive, "b", blockers=[first], run_at=after(hours=1))
    assert len(await queue.run_until_idle(processors)) == 1
    await queue.advance(hours=1)
    assert len(await queue.run_until_idle(processors)) == 1


async def test_chains_expire(queue: AsyncJobQueue) -> None:
    chain = await queue.client.start_chain(archive, "a", id="a", result_ttl=3600)
    assert len(await queue.run_until_idle(processors)) == 1
    await queue.advance(minutes=59)
    assert (await queue.client.get_chain(chain.id)).closed_at is not None
    await queue.advance(minutes=1)
    again = await queue.client.start_chain(archive, "a", id="a", attach=True)
    assert not again.deduplicated


async def test_windows_of_deduplication_pass(queue: AsyncJobQueue) -> None:
    once_an_hour = Deduplicate("k", scope="any", window=3600)
    chains = [await queue.client.start_chain(archive, "a", deduplication=once_an_hour) for _ in range(2)]
    await queue.advance(hours=1)
    chains.append(await queue.client.start_chain(archive, "a", deduplication=once_an_hour))
    assert [chain.deduplicated for chain in chains] == [False, True, False]


async def test_everything_grows_older_alike(queue: AsyncJobQueue, dsn: str) -> None:
    """Ages and pauses keep their lengths: nothing that was in order gets out of it."""
    await queue.client.start_chain(relay, "a")
    await queue.run_until_idle(processors)
    before = await queue.jobs()
    await queue.advance(days=2)
    times = ("created_at", "scheduled_at", "started_at", "finished_at")
    for old, new in zip(before, await queue.jobs(), strict=True):
        assert [(getattr(old, name) - getattr(new, name)).total_seconds() for name in times] == [2 * 86_400] * 4


async def test_chains_are_found_by_their_attributes_whatever_their_age(queue: AsyncJobQueue) -> None:
    """In the order of their starts, by one attribute and by two, and gone when they are deleted."""
    user: dict[str, Any] = {"user": 17, "tags": ["a"]}
    first = await queue.client.start_chain(archive, "a", attributes=user)
    await queue.advance(days=2)
    second = await queue.client.start_chain(archive, "b", attributes=user)
    await queue.advance(days=2)
    for requested in ({"user": 17}, user):
        page = await queue.client.list_chains(attributes=requested, limit=1)
        rest = await queue.client.list_chains(attributes=requested, limit=1, cursor=page.next_cursor)
        assert ([one.id for one in page], [one.id for one in rest]) == ([second.id], [first.id])
    await queue.client.delete_chains([first])
    again = await queue.client.start_chain(archive, "a", id=first.id)
    assert [one.id for one in await queue.client.list_chains(attributes=user)] == [second.id]
    assert (await again.refresh()).attributes == {}


async def test_rates_and_schedules_grow_older_too(queue: AsyncJobQueue, dsn: str) -> None:
    """Ticks are kept apart: two hourly ones of an hour each would get one id, and be one chain."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into queuert.limit_start values ('2026-01-01 12:00Z', 'archive', 'k')")
        connection.execute(
            "insert into queuert.schedule (next_at, last_at, every, name, type, time_zone, missed, input)"
            " values ('2026-01-01 13:00Z', '2026-01-01 12:00Z', 3600, 's', 'archive', 'UTC', 'once', '1')"
        )
        ticks = []
        for _ in range(3):
            await queue.advance(hours=1)
            row = connection.execute("select next_at from queuert.schedule").fetchone()
            connection.execute("update queuert.schedule set next_at = '2026-01-01 13:00Z'")
            assert row is not None
            ticks.append(row[0])
        assert len(set(ticks)) == 3
        assert all(abs((tick - ticks[0]).total_seconds()) < 1 for tick in ticks)
        assert (datetime(2026, 1, 1, 12, tzinfo=UTC) - ticks[0]).total_seconds() == pytest.approx(0, abs=1)
        query = "select last_at, (select started_at from queuert.limit_start) from queuert.schedule"
        assert connection.execute(query).fetchone() == (datetime(2026, 1, 1, 9, tzinfo=UTC),) * 2


async def test_leases_stay_unless_they_are_to_pass(queue: AsyncJobQueue, dsn: str) -> None:
    leases: list[Any] = []
    long = Processors(JOB_TYPES)

    def lease() -> Any:
        with psycopg.connect(dsn) as connection:
            row = connection.execute("select lease_expires_at from queuert.job where status = 'running'").fetchone()
            return row and row[0]

    @long.handles(archive, lease=LeasePolicy(seconds=600))
    async def look(attempt: Attempt[str, int]) -> Outcome[int]:
        for passes in (False, True):
            leases.append(lease())
            await queue.advance(seconds=60, leases=passes)
        leases.append(lease())
        return 1

    await queue.client.start_chain(archive, "a")
    await queue.run_until_idle(long)
    assert leases[0] == leases[1]
    assert (leases[1] - leases[2]).total_seconds() == 60


async def test_time_does_not_go_back(queue: AsyncJobQueue) -> None:
    with pytest.raises(ConfigurationError):
        await queue.advance(minutes=-1)


# --- synchronous -----------------------------------------------------------------------------------------------------


async def test_it_connects_once_and_lets_go_of_all(state: PostgresState, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, stores = AsyncPostgresStore.open, list[AsyncPostgresStore]()

    async def note(store: AsyncPostgresStore) -> None:
        stores.append(store)
        await connect(store)

    monkeypatch.setattr(AsyncPostgresStore, "open", note)
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        assert not any(await asyncio.gather(queue.jobs(), queue.jobs()))
        late = asyncio.create_task(AsyncJobQueue.jobs(other := AsyncJobQueue(state, JOB_TYPES)))
        while len(stores) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await other.aclose()
        with pytest.raises(ClosedError):
            await late
    with pytest.raises(ClosedError):
        await queue.jobs()
    assert len(stores) == 3
    for store in stores:
        with pytest.raises(ClosedError):
            await store.get_jobs(["any"])


def test_in_a_synchronous_test(state: PostgresState) -> None:
    with JobQueue(state, JOB_TYPES) as queue:
        queue.client.start_chain(send, Mail(to="ada"), run_at=after(hours=1))
        queue.assert_started(send, to="ada")
        queue.assert_not_started(archive)
        assert queue.run_until_idle(processors) == []
        queue.advance(hours=1)
        assert [one.outcome for one in queue.run_until_idle(processors)] == ["completed"]
        chain = queue.client.start_chain(fragile, "raise")
        assert queue.process_job(processors, chain).outcome == "retried"
        assert [job.type for job in queue.jobs()] == ["send", "fragile"]


async def test_a_synchronous_queue_in_a_coroutine_says_so(state: PostgresState) -> None:
    with JobQueue(state, JOB_TYPES) as queue, pytest.raises(ConfigurationError, match="use AsyncJobQueue"):
        queue.run_until_idle(processors)


# --- other stores ----------------------------------------------------------------------------------------------------


async def test_the_times_of_other_stores_are_given(state: PostgresState) -> None:
    class Times:
        def __init__(self) -> None:
            self.shifted: list[tuple[float, bool]] = []

        def shift(self, seconds: float, *, leases: bool) -> None:
            self.shifted.append((seconds, leases))

    times = Times()
    async with AsyncJobQueue(state, JOB_TYPES, times=times) as queue:
        await queue.advance(minutes=1, leases=True)
    assert times.shifted == [(60.0, True)]
    other: Any = object()
    async with AsyncJobQueue(state, JOB_TYPES) as queue:
        queue.state = other
        with pytest.raises(ConfigurationError, match="pass times= to the queue"):
            await queue.advance(minutes=1)


async def test_the_one_job_is_claimed_within_the_bound_of_bytes_and_others_are_left(
    queue: AsyncJobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = [await queue.client.start_chain(archive, "x" * 1_000) for _ in range(4)]
    state = OneJobState(queue.state, chains[-1].id, archive.name)
    store = queue.state.async_store()
    await store.open()
    try:
        request = ClaimRequest({archive.name: 60.0}, 1, "worker", new_token(), max_bytes=1_500)
        requests: list[ClaimRequest] = []
        claim = store.claim

        async def claimed(one: ClaimRequest) -> list[ClaimedJob]:
            requests.append(one)
            return await claim(one)

        monkeypatch.setattr(store, "claim", claimed)
        [job] = await state.claim(store, request)
    finally:
        await store.aclose()
    assert job.id == chains[-1].id
    assert {one.max_bytes for one in requests} == {1_500}
    assert len(requests) > 1
    others = [one for one in await queue.jobs() if one.id != job.id]
    assert {(one.status, one.attempt) for one in others} == {(JobStatus.READY, 0)}
