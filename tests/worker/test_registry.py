"""The worker registry: workers are listed while they live, and nothing depends on it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.activity import ActivityReport
from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.limits import ClientType
from queuert.notify.in_process import InProcessNotify
from queuert.observability.adapter import Observers
from queuert.observability.events import JobReaped, StoreCallFailed, WorkerStarted, WorkerStopping
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimRequest
from queuert.worker import heartbeat, leases
from queuert.worker.heartbeat import Heartbeat, WorkerInfo
from queuert.worker.telemetry import ActivityCounter
from queuert.workers import WorkerHeartbeat, WorkerRecord, WorkerState
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number, text
from tests.support.waiting import WAIT, Gate, in_time, until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for a second, at its end, for its entry to be taken away: too short for a busy machine."""
    monkeypatch.setattr(leases, "_STOP_TIMEOUT", WAIT)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers beat all the time."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    monkeypatch.setattr(heartbeat, "RETRY_AFTER", 0.01)


def listed(harness: PostgresHarness) -> list[WorkerRecord]:
    """The workers, as a client of the other mode sees them."""
    with Client(harness.state, harness.client.job_types, notify=InProcessNotify()) as client:
        return client.list_workers()


async def test_listed_while_it_lives(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    harness.handles(text, echo)
    first, second = harness.worker(name="one", concurrency=3), harness.worker(name="two")
    async with first:
        async with second:
            found = await harness.client.list_workers()
            assert [one.id for one in found] == [first.name, second.name]
            assert found == listed(harness)
            shown = found[0]
            assert (shown.name, shown.host, shown.pid) == ("one", socket.gethostname(), os.getpid())
            assert (shown.job_types, shown.concurrency, shown.running) == (("number", "text"), 3, 0)
            assert shown.state is WorkerState.RUNNING
            assert shown.version != "unknown"
            assert shown.started_at <= shown.seen_at
        assert [one.id for one in await harness.client.list_workers()] == [first.name]
    assert await harness.client.list_workers() == []
    assert harness.rows("select id from queuert.worker") == []


async def test_listed_after_a_lifespan_that_took_longer_than_a_heartbeat_lasts(harness: PostgresHarness) -> None:
    @contextmanager
    def slow() -> Iterator[None]:
        harness.one("update queuert.worker set expires_at = now() - interval '1 second' returning id")
        yield

    processors = harness.new_processors(lifespan=slow)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    async with worker:
        assert [one.id for one in await harness.client.list_workers()] == [worker.name]


async def test_it_records_what_clients_complete(harness: PostgresHarness) -> None:
    """Of all job types that it knows, so that nobody misses a worker for them; it stays when the worker is gone."""
    approve = JobType("approve", input=int, output=int, completed_by="client", overdue_after=60)
    job_types = JobTypes(number, approve)
    processors = Processors(job_types)
    processors.handles(number)(echo)
    async with AsyncClient(harness.state, job_types, notify=InProcessNotify()) as client:
        assert await harness.client.list_client_types() == []
        assert await client.list_client_types() == [ClientType("approve", 60.0)], "its own definitions are among them"
        async with InProcessWorker(client, processors):
            chain = await client.start_chain(approve, 1)
        assert await harness.client.list_client_types() == [ClientType("approve", 60.0)]
        assert [(one.type, one.wanted, one.held_back) for one in await client.get_demand()] == [("approve", 0, 1)]
        await client.complete_chain(chain, 2)
        assert await chain.result() == 2


async def test_a_job_that_ran_when_its_type_became_one_of_clients(harness: PostgresHarness) -> None:
    """Its worker died: workers that know the type take it back, though they have no handler, and it waits again."""
    approve = JobType("approve", input=int, output=int, completed_by="client")
    job_types = JobTypes(number, approve)
    processors = Processors(job_types)
    processors.handles(number)(echo)
    async with AsyncClient(harness.state, job_types, notify=InProcessNotify(), observability=harness.log) as client:
        chain = await client.start_chain(approve, 1)
        store = await client._open_store()
        [held] = await store.claim(ClaimRequest({"approve": 0.001}, 1, "dead", new_token()))
        async with InProcessWorker(client, processors):
            assert (await harness.log.wait_for(JobReaped)).job_id == held.id
        await client.complete_chain(chain, 2)
        assert await chain.result() == 2


async def test_its_name_is_that_of_the_holder(harness: PostgresHarness) -> None:
    """It is there before anything is claimed, and is found from the job that it holds."""
    gate = Gate()
    seen: list[str] = []

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.extend(one.id for one in await harness.client.list_workers())
        await gate.pass_through(attempt)
        return 1

    harness.handles(number, handler)
    chain = await harness.client.start_chain(number, 1)
    async with harness.worker():
        await gate.next()
        assert seen == [(await harness.job(chain.id)).holder]
        gate.open()


@pytest.mark.usefixtures("often")
async def test_tells_what_it_holds_and_that_it_stops(harness: PostgresHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return 1

    harness.handles(number, handler)
    worker = harness.worker(concurrency=2, shutdown_timeout=3_600.0)
    await worker.start()
    begun = listed(harness)[0]
    chains = [await harness.client.start_chain(number, 1) for _ in range(2)]
    await until(lambda: [one.running for one in listed(harness)] == [2], "it tells that it holds two jobs")
    assert listed(harness)[0].started_at == begun.started_at
    assert listed(harness)[0].seen_at > begun.seen_at
    stopping = asyncio.create_task(worker.stop())
    await until(lambda: [one.state for one in listed(harness)] == [WorkerState.STOPPING], "it tells that it stops")
    gate.open()
    await in_time(stopping)
    assert listed(harness) == []
    assert [await chain.result() for chain in chains] == [1, 1]


async def test_tells_at_once_that_it_stops(harness: PostgresHarness) -> None:
    """Without waiting for the next beat."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return 1

    harness.handles(number, handler)
    worker = harness.worker(shutdown_timeout=3_600.0)
    await worker.start()
    await harness.client.start_chain(number, 1)
    await gate.next()
    stopping = asyncio.create_task(worker.stop())
    await harness.log.wait_for(WorkerStopping)
    await until(lambda: [one.state for one in listed(harness)] == [WorkerState.STOPPING], "it tells that it stops")
    gate.open()
    await in_time(stopping)


@pytest.mark.usefixtures("often")
async def test_a_blocked_event_loop_does_not_make_it_look_dead(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker():
        # Nothing but the worker's thread can move it on: the loop does nothing but look.
        begun = listed(harness)[0].seen_at
        nobody = threading.Event()
        assert any(listed(harness)[0].seen_at > begun or nobody.wait(0.005) for _ in range(2000))


@pytest.mark.usefixtures("often")
async def test_a_failing_registry_disturbs_nobody(harness: PostgresHarness) -> None:
    """Without its table a worker starts, works, keeps leases and stops; each failure is told."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    harness.rows("alter table queuert.worker rename to elsewhere")
    harness.handles(number, handler)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 7)
    await gate.next()
    await harness.log.wait_for(StoreCallFailed, operation="record_heartbeat", times=5)
    assert worker.health().live
    gate.open()
    assert await in_time(chain.result()) == 7
    harness.rows("alter table queuert.elsewhere rename to worker")
    await until(lambda: [one.id for one in listed(harness)] == [worker.name], "it is listed when it can be")
    await in_time(worker.stop())
    assert listed(harness) == []


async def test_emptying_the_registry_by_hand_costs_nothing(harness: PostgresHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    async with harness.worker(), harness.worker():
        chain = await harness.client.start_chain(number, 7)
        await gate.next()
        harness.rows("delete from queuert.worker")
        gate.open()
        assert await in_time(chain.result()) == 7
        assert (await harness.job(chain.id)).attempt == 1


async def test_one_that_was_stopped_before_it_began_is_not_listed(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    worker = harness.worker()
    await worker.stop()
    await worker.start()
    assert harness.log.of(WorkerStarted) == []
    assert harness.rows("select id from queuert.worker") == []


async def test_one_that_stops_at_once_is_not_listed(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    for _ in range(3):
        worker = harness.worker()
        await worker.start()
        await in_time(worker.stop(shutdown_timeout=0))
    assert harness.rows("select id from queuert.worker") == []


def test_nothing_else_reads_the_registry() -> None:
    """The statement that lists, and those that write it, are all that name its table."""
    sql = Statements("queuert")
    naming = {name for name, text in vars(sql).items() if isinstance(text, bytes) and b'"queuert".worker' in text}
    writing = {"record_heartbeat", "delete_stale_workers", "remove_worker"}
    assert naming == {*writing, "adopt_plan", "doctor_pools", "list_workers"}


def test_a_worker_stays_listed_while_two_beats_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is there until the next beat arrives, though each of the two takes as long as the pause between."""
    now, takes, lost = 1000.0, heartbeat.INTERVAL, False
    written: list[tuple[float, float]] = []

    class Store:
        def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None) -> datetime:
            nonlocal now
            if lost:
                now += takes
                raise StateUnavailableError("no answer")
            written.append((now, now + ttl))
            return datetime.fromtimestamp(now, UTC)

    def store() -> Any:
        return Store()

    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    info = WorkerInfo("holder", "name", ("number",), 1, running=lambda: 0, stopping=lambda: False, started_at=now)
    registered = Heartbeat(info, observers=Observers(), activity=ActivityCounter())

    def record() -> float:
        """The pause after the next heartbeat; before it, it is called whenever a minute ends."""
        nonlocal now
        while now < registered._next_at:
            now += registered.record_if_due(store)
        return registered.record_if_due(store)

    for outcome in ("written", "lost", "lost", "written", "lost", "lost", "written"):
        lost = outcome == "lost"
        record()
    assert len(written) == 3
    assert all(later[0] <= earlier[1] for earlier, later in pairwise(written))
    # One that is refused at once is told again soon.
    lost, takes = True, 0.0
    assert record() <= heartbeat.RETRY_AFTER


async def test_workers_of_two_clients(harness: PostgresHarness) -> None:
    """Whoever looks sees the workers of all processes."""
    harness.handles(number, echo)
    async with (
        harness.worker(),
        AsyncClient(harness.state, harness.client.job_types, notify=InProcessNotify()) as other,
    ):
        other_worker = InProcessWorker(other, harness.processors, name="other")
        async with other_worker:
            assert {one.name for one in await harness.client.list_workers()} == {"worker", "other"}
