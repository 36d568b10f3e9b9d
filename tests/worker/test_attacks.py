"""Handlers and surroundings that do what nobody should: the worker goes on, and nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Never

import pytest
from psycopg.rows import dict_row

from queuert import AsyncClient, Attempt, InProcessWorker, JobStatus, NewChain, Outcome, PostgresState
from queuert.errors import LeaseLostError
from queuert.observability.events import AttemptStarted, Event, ListenerLost, WorkerStarted, WorkerStopped
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.testing.fault_proxy import FaultProxy
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, SHORT, WATCHED, echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


class Broken:
    """An observability adapter that always raises."""

    def emit(self, event: Event) -> Never:
        raise ValueError("from an observer")


async def test_an_observer_that_raises_disturbs_nothing(harness: PostgresHarness) -> None:
    client = AsyncClient(harness.state, JOB_TYPES, observability=[Broken(), harness.log])
    harness.handles(number, echo)
    async with client, InProcessWorker(client, harness.processors):
        assert await (await client.start_chain(number, 1)).result(WAIT) == 1
    assert harness.log.of(WorkerStopped)


async def test_the_same_worker_takes_its_own_job_again_and_the_first_attempt_commits_nothing(
    harness: PostgresHarness,
) -> None:
    """The lease of an attempt is taken away; its worker claims the job anew while the old handler still runs."""
    harness.rows("create table effect (job text, attempt int)")
    let_go, refused, second = threading.Event(), threading.Event(), threading.Event()

    @harness.processors.handles(number, retry=AT_ONCE, lease=WATCHED)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            assert let_go.wait(WAIT)
        else:
            second.set()
            assert refused.wait(WAIT)
        try:
            with attempt.complete() as tx:
                tx.connection.execute("insert into effect values (%s, %s)", (attempt.job_id, attempt.number))
                return tx.finish(attempt.number)
        except LeaseLostError:
            refused.set()
            raise

    async with harness.worker(concurrency=2, poll_interval=0.05):
        chain = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(AttemptStarted, job_id=chain.id)
        harness.rows("update queuert.job set status = 'ready', lease_token = null, lease_expires_at = null")
        assert await asyncio.to_thread(second.wait, WAIT)
        let_go.set()
        assert await chain.result(WAIT) == 2
    assert harness.rows("select attempt from effect") == [(2,)]


async def test_a_handler_that_stops_its_own_worker(harness: PostgresHarness) -> None:
    workers: list[InProcessWorker] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await workers[0].stop(shutdown_timeout=0.0)
        return attempt.input

    workers.append(harness.worker())
    await workers[0].start()
    await harness.client.start_chain(number, 1)
    await harness.log.wait_for(WorkerStopped)
    await in_time(workers[0].stop())
    assert harness.one("select count(*) from queuert.job where lease_expires_at is not null") == 0


async def test_a_handler_that_cancels_the_workers_loops(harness: PostgresHarness) -> None:
    """As ``for task in asyncio.all_tasks(): task.cancel()`` does: no loop dies in silence."""
    loops = ("queuert-claimer", "queuert-completer", "queuert-reaper")

    @harness.processors.handles(number, lease=SHORT, retry=AT_ONCE)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            for task in asyncio.all_tasks():
                if task.get_name().startswith(loops):
                    task.cancel()
            raise ValueError("after that")
        return attempt.input

    harness.handles(text, echo)
    async with harness.worker(concurrency=2) as worker:
        chain = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(AttemptStarted, job_id=chain.id)
        assert await (await harness.client.start_chain(text, "on")).result(WAIT) == "on"
        assert await chain.result(WAIT) == 1
        assert worker.health().live


async def test_a_handler_that_closes_its_connection(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            if attempt.number == 1:
                await tx.connection.close()
            return tx.finish(attempt.number)

    @harness.processors.handles(text)
    def in_thread(attempt: Attempt[str, str]) -> Outcome[str]:
        with attempt.complete() as tx:
            if attempt.number == 1:
                tx.connection.close()
            return tx.finish(str(attempt.number))

    chains: list[Any] = await harness.client.start_chains([NewChain(number, one) for one in range(20)])
    chains += await harness.client.start_chains([NewChain(text, "x") for _ in range(20)])
    async with harness.worker(concurrency=4):
        closed = await harness.client.wait(chains, timeout=WAIT)
    assert {str(await chain.result()) for chain in closed} == {"2"}


async def test_how_a_handler_wants_its_rows_does_not_reach_the_next(harness: PostgresHarness) -> None:
    seen: list[Any] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            seen.append(await (await tx.connection.execute("select 1 as one")).fetchone())
            tx.connection.row_factory = dict_row
            return tx.finish(attempt.input)

    async with harness.worker():
        for value in range(6):
            await (await harness.client.start_chain(number, value)).result(WAIT)
    assert seen == [(1,)] * 6


async def test_jobs_do_not_wait_for_the_long_poll_when_notifications_cease(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening connection alone is lost, for good: the worker polls every second from then on."""
    next_due, waits = AsyncPostgresStore.next_due, asyncio.Event()

    async def noted(store: AsyncPostgresStore, types: Sequence[str]) -> float | None:
        due = await next_due(store, types)
        # With the answer the claimer begins to wait, before anybody else has a turn.
        if harness.log.of(AttemptStarted):
            waits.set()
        return due

    monkeypatch.setattr(AsyncPostgresStore, "next_due", noted)
    harness.handles(number, echo)
    with FaultProxy.before(harness.dsn) as proxy:
        state = PostgresState(harness.dsn, listen_dsn=proxy.address_in(harness.dsn))
        client = AsyncClient(state, JOB_TYPES, observability=harness.log)
        async with client, InProcessWorker(client, harness.processors):
            await until(lambda: client.notify.healthy, "notifications arrive")
            assert await (await client.start_chain(number, 1)).result(WAIT) == 1
            await in_time(waits.wait())
            proxy.refuse()
            proxy.reset()
            await harness.log.wait_for(ListenerLost)
            chain = await harness.client.start_chain(number, 2)
            assert await (await client.get_chain(chain.id, number)).result(WAIT) == 2


@pytest.mark.timeout(6 * WAIT)
async def test_many_workers_come_and_go_while_jobs_run(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a worker has not released by then is lost for as long as its lease lasts: here it may be slow in it.
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT / 4)
    harness.rows("create table effect (job text)")

    @harness.processors.handles(number, retry=AT_ONCE)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into effect values (%s)", (attempt.job_id,))
            await asyncio.sleep(0)
            return tx.finish(attempt.input)

    chains = await harness.client.start_chains([NewChain(number, one) for one in range(300)])
    waiting = asyncio.create_task(harness.client.wait(chains, timeout=3 * WAIT))
    generation = 0
    while not waiting.done() and generation < 30:
        generation += 1
        worker = harness.worker(concurrency=5)
        await worker.start()
        await harness.log.wait_for(WorkerStarted, times=generation)
        running = asyncio.create_task(harness.log.wait_for(AttemptStarted, worker=worker.name, times=20))
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await in_time(worker.stop(shutdown_timeout=0.0))
    await waiting
    assert harness.one("select count(*) from effect") == 300
    assert harness.one("select count(distinct job) from effect") == 300
    expired = harness.rows("select id from queuert.job where lease_expirations > 0")
    assert [[event for event in harness.log.events if getattr(event, "job_id", "") == one] for (one,) in expired] == []


async def test_a_middleware_may_not_run_the_handler_twice(harness: PostgresHarness) -> None:
    ran: list[int] = []

    async def twice(attempt: Attempt[Any, Any], call_next: Any) -> Any:
        await call_next()
        return await call_next()

    @harness.processors.handles(number, middlewares=[twice])
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        ran.append(attempt.number)
        async with attempt.complete() as tx:
            return tx.finish(attempt.input)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 4)
        assert await chain.result(WAIT) == 4
    assert (await harness.job(chain.id)).attempt == 1


async def test_an_attempt_used_after_its_end_is_refused(harness: PostgresHarness) -> None:
    kept: list[Attempt[int, int]] = []
    gate = Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        kept.append(attempt)
        return attempt.input

    @harness.processors.handles(text)
    async def other(attempt: Attempt[str, str]) -> Outcome[str]:
        await gate.pass_through(attempt)
        return attempt.input

    async with harness.worker(concurrency=2):
        chain = await harness.client.start_chain(number, 4)
        await chain.result(WAIT)
        try:
            async with kept[0].complete() as tx:
                tx.finish(9)
        except LeaseLostError as error:
            assert error.reason == "already_completed"  # noqa: PT017
    job = await harness.job(chain.id)
    assert (job.status, job.output) == (JobStatus.COMPLETED, 4)
