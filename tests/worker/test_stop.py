"""Stopping a worker that has work under way: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, LiteralString, cast

import psycopg
import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import ClosedError, LeaseLostError
from queuert.observability.events import (
    AttemptCompleted,
    AttemptInterrupted,
    AttemptStarted,
    JobsReleased,
    StoreCallFailed,
    WorkerStopped,
    WorkerStopping,
)
from queuert.state.postgres.async_store import AsyncPostgresStore
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until

CLAIMS_THAT_WAIT: LiteralString = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    " and query like '%Leases the best due jobs%' and pid <> pg_backend_pid()"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for handlers that were told to: two seconds may be too short where they do end."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.fixture
def less_patient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they do not, all of it passes; and so much is left to write that their jobs are released."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT / 4)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing will end: all of it passes, several times."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", 0.5)


async def held_leases(harness: PostgresHarness) -> int:
    count: int = harness.one("select count(*) from queuert.job where lease_expires_at is not null")
    return count


async def test_what_runs_may_finish_within_the_grace(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    worker = harness.worker(concurrency=2)
    await worker.start()
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
    attempt = await gate.next()
    await gate.next()
    stopping = asyncio.create_task(worker.stop())
    await harness.log.wait_for(WorkerStopping, running=2)
    assert attempt.worker_stopping
    assert worker.health().stopping
    gate.open()
    await in_time(stopping)
    statuses = sorted([(await harness.job(chain.id)).status for chain in chains])
    assert statuses == [JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.READY]
    assert harness.one("select attempt from queuert.job where status = 'ready'") == 0


async def test_what_does_not_finish_is_cancelled_and_given_back(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    await in_time(worker.stop(shutdown_timeout=0.0))
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.uncounted) == (JobStatus.READY, 1, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "worker_stopping"
    assert await held_leases(harness) == 0
    assert (worker.abandoned, len(harness.log.of(AttemptInterrupted))) == (0, 1)
    gate.open()
    async with harness.worker():
        assert await chain.result(WAIT) == 1


async def test_interruptions_do_not_count_against_the_cap(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number, retry=RetryPolicy(max_attempts=2, initial_delay=0.0))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        raise ValueError("no")

    chain = await harness.client.start_chain(number, 1)
    for _ in range(3):
        worker = harness.worker()
        await worker.start()
        await gate.next()
        await in_time(worker.stop(shutdown_timeout=0.0))
    gate.open()
    async with harness.worker():
        await chain.wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.attempt, job.uncounted) == (5, 3)


async def test_a_coroutine_that_swallows_its_cancellation_and_ends_is_completed(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            await gate.pass_through(attempt)
        except asyncio.CancelledError:
            return 9
        return attempt.input

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    await in_time(worker.stop(shutdown_timeout=0.0))
    job = await harness.job(chain.id)
    assert (job.status, job.output, worker.abandoned) == (JobStatus.COMPLETED, 9, 0)


@pytest.mark.usefixtures("less_patient")
async def test_a_coroutine_that_will_not_end_is_abandoned_and_leaves_no_task(harness: PostgresHarness) -> None:
    """Its stop counts as a crash, and not as the only attempt that the job has."""
    gate, release = Gate(), asyncio.Event()

    @harness.processors.handles(number, retry=RetryPolicy(max_attempts=1))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        while not release.is_set():
            try:
                await gate.pass_through(attempt)
                await release.wait()
            except asyncio.CancelledError:
                continue
        return attempt.input

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    try:
        await in_time(worker.stop(shutdown_timeout=0.0))
        job = await harness.job(chain.id)
        assert (job.status, job.lease_expirations, worker.abandoned) == (JobStatus.READY, 1, 1)
        assert job.last_error is not None
        assert "it was left: crash 1 of max_crashes=5. Let it end when attempt.abort is set" in job.last_error.message
        assert await held_leases(harness) == 0
    finally:
        release.set()
        gate.open()


@pytest.mark.usefixtures("impatient")
async def test_a_finish_that_waits_for_its_row_is_no_handler_that_does_not_end(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    with psycopg.connect(harness.dsn) as other:
        other.execute("select from queuert.job where id = %s for update", [chain.id])
        gate.open()
        runtime = worker._runtime
        assert runtime is not None
        await until(lambda: runtime._finishing, "the handler has ended")
        await in_time(worker.stop(shutdown_timeout=0.0))
    job = await harness.job(chain.id)
    assert (job.status, job.lease_expirations, job.uncounted) == (JobStatus.RUNNING, 0, 0)
    assert worker.abandoned == 0


@pytest.mark.usefixtures("less_patient")
async def test_a_thread_that_hangs_is_abandoned_and_its_late_commit_refused(harness: PostgresHarness) -> None:
    harness.rows("create table effect (job text)")
    go_on, ended, started = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        started.set()
        assert go_on.wait(WAIT)
        try:
            with attempt.complete() as tx:
                tx.connection.execute("insert into effect values (%s)", (attempt.job_id,))
                return tx.finish(attempt.input)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    assert await asyncio.to_thread(started.wait, WAIT)
    try:
        await in_time(worker.stop(shutdown_timeout=0.0))
        job = await harness.job(chain.id)
        assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.READY, 1, 1)
        assert await held_leases(harness) == 0
    finally:
        go_on.set()
    assert await asyncio.to_thread(ended.wait, WAIT)
    assert [type(error) for error in raised] == [LeaseLostError]
    assert harness.rows("select * from effect") == []
    assert worker.abandoned == 1
    assert harness.log.of(WorkerStopped)[0].abandoned == 1
    assert harness.log.of(AttemptCompleted) == []


async def test_a_thread_that_outlives_its_worker_connects_to_nothing(harness: PostgresHarness) -> None:
    go_on, ended, started = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    async def impatient(attempt: Attempt[Any, Any], call_next: Any) -> Any:
        call = asyncio.ensure_future(call_next())
        assert await asyncio.to_thread(started.wait, WAIT)
        call.cancel()
        await asyncio.wait([call])
        return 0

    @harness.processors.handles(number, middlewares=[impatient])
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        started.set()
        try:
            assert go_on.wait(WAIT)
            with attempt.transaction() as tx:
                tx.connection.execute("select 1")
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()
        return 1

    try:
        async with harness.worker():
            assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 0
    finally:
        go_on.set()
    assert await asyncio.to_thread(ended.wait, WAIT)
    assert [type(error) for error in raised] == [ClosedError]


async def test_a_thread_may_end_by_itself_after_it_was_reported(harness: PostgresHarness) -> None:
    """It sees the abort signal, tidies up and returns: it is not abandoned, and its job is not given away meanwhile."""
    started, ended = threading.Event(), threading.Event()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        started.set()
        assert attempt.abort.wait_sync(WAIT)
        with pytest.raises(AssertionError, match="was not told"):
            harness.log.wait_for_sync(AttemptInterrupted, timeout=0.3)
        ended.set()
        return attempt.input

    worker = harness.worker()
    await worker.start()
    await harness.client.start_chain(number, 1)
    assert await asyncio.to_thread(started.wait, WAIT)
    await in_time(worker.stop(shutdown_timeout=0.0))
    assert ended.is_set()
    assert worker.abandoned == 0
    assert await held_leases(harness) == 0


async def test_a_second_stop_ends_the_grace(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    worker = harness.worker(shutdown_timeout=3600.0)
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    first = asyncio.create_task(worker.stop())
    await harness.log.wait_for(WorkerStopping)
    await in_time(worker.stop())
    await in_time(first)
    assert (await harness.job(chain.id)).uncounted == 1


async def test_a_stop_that_is_cancelled_still_closes_everything(harness: PostgresHarness) -> None:
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    worker = harness.worker(shutdown_timeout=3600.0)
    await worker.start()
    await harness.client.start_chain(number, 1)
    await gate.next()
    stopping = asyncio.create_task(worker.stop())
    await harness.log.wait_for(WorkerStopping)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(stopping)
    await in_time(worker.stop())
    assert worker.running == 0


async def test_a_stop_that_is_cancelled_while_it_abandons_a_handler_releases_its_job(
    harness: PostgresHarness, less_patient: None
) -> None:
    """The second pass took it for abandoned already: the job ran on in the store until its lease ended."""
    over, gate = asyncio.Event(), Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        gate.arrived.put_nowait(attempt)
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        return 7

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    runtime = worker._runtime
    assert runtime is not None
    abandon = runtime._abandon

    def cancelled_before_its_first_step(runner: Any) -> Any:
        runtime._abandon = abandon  # type: ignore[method-assign]
        assert worker._stopping is not None
        asyncio.get_running_loop().call_soon(worker._stopping.cancel)
        return abandon(runner)

    runtime._abandon = cancelled_before_its_first_step  # type: ignore[method-assign]
    await in_time(worker.stop(shutdown_timeout=0.0))
    over.set()
    assert (await harness.job(chain.id)).status is JobStatus.READY
    assert worker.abandoned == 1


@pytest.mark.parametrize("batched", [False, True])
async def test_a_second_ctrl_c_in_a_handler_interrupts_it(harness: PostgresHarness, batched: bool) -> None:
    """asyncio raises it wherever it hits. It is no failure of the job, which may have no further attempt."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        raise KeyboardInterrupt

    async def of_batch(attempts: Sequence[Attempt[int, int]]) -> list[Outcome[int]]:
        return [await handler(attempt) for attempt in attempts]

    once = RetryPolicy(max_attempts=1)
    if batched:
        harness.processors.handles_batch(number, size=2, retry=once)(of_batch)
    else:
        harness.processors.handles(number, retry=once)(handler)

    worker = harness.worker(shutdown_timeout=3600.0)
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await gate.next()
    stopping = asyncio.create_task(worker.stop())
    await harness.log.wait_for(WorkerStopping)
    gate.open()
    await in_time(stopping)
    assert (await harness.job(chain.id)).status is JobStatus.READY


async def test_a_claim_under_way_at_the_stop_is_given_back(harness: PostgresHarness) -> None:
    """The claim waits for a lock on the table; what it takes when it goes on belongs to nobody."""
    harness.handles(number, echo)
    worker = harness.worker(concurrency=3)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(5)])
    with psycopg.connect(harness.dsn) as connection:
        connection.execute("lock table queuert.job in exclusive mode")
        await worker.start()
        # The reaper waits for the lock as well, and comes first.
        await until(lambda: harness.one(CLAIMS_THAT_WAIT) == 1, "the claim waits")
        stopping = asyncio.create_task(worker.stop())
        await harness.log.wait_for(WorkerStopping)
        connection.rollback()
    await in_time(stopping)
    assert harness.log.of(AttemptStarted) == []
    for chain in chains:
        job = await harness.job(chain.id)
        assert (job.status, job.attempt, job.uncounted) == (JobStatus.READY, 0, 0)
    released: list[Any] = harness.log.of(JobsReleased)
    assert [event.count for event in released] == [3]


@pytest.mark.timeout(6 * WAIT)
async def test_it_stops_at_once_in_the_midst_of_many_short_jobs(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(2_000)])
    worker = harness.worker(concurrency=20)
    await worker.start()
    await harness.log.wait_for(AttemptCompleted, times=50)
    await in_time(worker.stop())
    assert await held_leases(harness) == 0
    assert harness.one("select count(*) from queuert.job where status not in ('ready', 'completed')") == 0
    assert harness.one("select count(*) from queuert.job where attempt > 1 or uncounted > 0") == 0
    assert harness.one("select count(*) from queuert.job where status = 'ready' and attempt > 0") == 0
    async with harness.worker(concurrency=20):
        await harness.client.wait(chains, timeout=3 * WAIT)


async def test_threads_are_reused_and_end_with_the_worker(harness: PostgresHarness) -> None:
    names: set[str] = set()

    @harness.processors.handles(text)
    def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        names.add(threading.current_thread().name)
        return attempt.input

    chains = await harness.client.start_chains([NewChain(text, "x") for _ in range(200)])
    async with harness.worker(concurrency=4):
        await harness.client.wait(chains, timeout=WAIT)
    # Four, and some more: one that has told its result is not idle yet when the next job comes, if it is held up there.
    assert len(names) <= 40


async def test_it_stops_though_all_threads_of_the_event_loop_are_taken(harness: PostgresHarness) -> None:
    """By handlers that were cancelled and have left them: the worker closes its parts in threads of its own."""
    gate, release = Gate(), threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        blocked = asyncio.ensure_future(asyncio.to_thread(release.wait))
        await gate.pass_through(attempt)
        await blocked
        return attempt.input

    worker = harness.worker()
    await worker.start()
    await harness.client.start_chain(number, 1)
    await gate.next()
    try:
        await in_time(worker.stop(shutdown_timeout=0.0))
        assert not [thread.name for thread in threading.enumerate() if thread.name == "queuert-leases"]
    finally:
        release.set()
        threads.shutdown()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("operation", ["reap", "claim", "aclose"])
async def test_it_stops_though_the_store_neither_answers_nor_gives_up(
    harness: PostgresHarness, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a driver may that waits for the server's word, whoever cancels it."""
    requested, answer = asyncio.Event(), asyncio.Event()
    within: list[asyncio.Task[Any]] = []
    answered = getattr(AsyncPostgresStore, operation)

    async def hang(*values: Any, **named: Any) -> Any:
        requested.set()
        within.append(cast("asyncio.Task[Any]", asyncio.current_task()))
        while not answer.is_set():
            with suppress(asyncio.CancelledError):
                await answer.wait()
        return await answered(*values, **named)

    monkeypatch.setattr(AsyncPostgresStore, operation, hang)
    harness.processors.handles(number)(lambda attempt: attempt.input)
    worker = harness.worker()
    await worker.start()
    if operation != "aclose":
        await in_time(requested.wait())
    try:
        await in_time(worker.stop(shutdown_timeout=0.0))
        assert harness.log.of(WorkerStopped)
        assert harness.log.of(StoreCallFailed, error="no answer in time")
    finally:
        answer.set()
        await asyncio.wait(within)


@pytest.mark.usefixtures("impatient")
async def test_a_second_stop_does_not_wait_for_a_claim_that_waits(harness: PostgresHarness) -> None:
    harness.processors.handles(number)(lambda attempt: attempt.input)
    await harness.client.start_chain(number, 1)
    worker = harness.worker()
    with psycopg.connect(harness.dsn) as connection:
        connection.execute("lock table queuert.job in exclusive mode")
        await worker.start()
        await until(lambda: harness.one(CLAIMS_THAT_WAIT) == 1, "the claim waits")
        stopping = asyncio.create_task(worker.stop(shutdown_timeout=3_600.0))
        await harness.log.wait_for(WorkerStopping)
        await in_time(worker.stop())
        await in_time(stopping)
        connection.rollback()
