"""Health and metrics of a worker over HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, PostgresState, Processors
from queuert.activity import ActivityReport
from queuert.errors import StateUnavailableError
from queuert.observability import Observers
from queuert.observability.events import LoopFailed
from queuert.testing.events import EventLog
from queuert.testing.fault_proxy import FaultProxy
from queuert.worker.endpoints import worker_endpoints
from queuert.worker.health import HealthReport
from queuert.worker.heartbeat import Heartbeat, WorkerInfo
from queuert.worker.telemetry import ActivityCounter
from queuert.workers import WorkerHeartbeat

shout = JobType("shout", input=str, output=str)
JOB_TYPES = JobTypes(shout)


def ask(port: int, path: str) -> tuple[int, str]:
    """The status and the body. Blocks."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def async_ask(port: int, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(ask, port, path)


@pytest.fixture
def log() -> EventLog:
    """What the worker reports."""
    return EventLog()


@pytest.fixture
async def client(dsn: str, log: EventLog) -> AsyncIterator[AsyncClient]:
    """A client of the test's database."""
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, observability=[log]) as client:
        yield client


def handling(handler: Any) -> Processors:
    processors = Processors(JOB_TYPES)
    processors.handles(shout)(handler)
    return processors


async def upper(attempt: Any) -> str:
    return str(attempt.input).upper()


async def test_from_start_to_stop(client: AsyncClient) -> None:
    worker = InProcessWorker(client, handling(upper), concurrency=2)
    with worker_endpoints(worker, port=0, host="127.0.0.1") as port:
        assert await async_ask(port, "/live") == (200, "ok\n")
        assert await async_ask(port, "/ready") == (503, "the worker has not started yet\n")
        async with worker:
            assert await client.start_and_wait(shout, "a") == "A"
            assert await async_ask(port, "/live") == (200, "ok\n")
            assert await async_ask(port, "/ready") == (200, "ok\n")
            status, metrics = await async_ask(port, "/metrics")
            assert status == 200
            assert 'queuert_job_attempt_ended_total{queuert_attempt_outcome="completed"' in metrics
            assert "queuert_slots 2.0" in metrics
            assert "queuert_claim_duration_seconds_bucket" in metrics
            assert "queuert_chain_duration_seconds_count" in metrics
        assert await async_ask(port, "/ready") == (503, "the worker is stopping\n")
        assert worker.snapshot() is None


async def test_a_blocked_event_loop_is_answered(client: AsyncClient) -> None:
    answers: list[tuple[int, str]] = []

    async def block(attempt: Any) -> str:
        # It asks for itself, in the event loop, which does not go on meanwhile.
        while not answers or answers[-1][0] == 200:
            answers.append(ask(port, "/live"))
        answers.append(ask(port, "/ready"))
        return "unblocked"

    worker = InProcessWorker(client, handling(block))
    with worker_endpoints(worker, port=0, host="127.0.0.1", stale_after=0.05) as port:
        async with worker:
            assert await client.start_and_wait(shout, "a", timeout=60) == "unblocked"
    for status, body in answers[-2:]:
        assert status == 503
        assert "the event loop has been blocked for " in body


async def test_a_schema_that_is_too_old(client: AsyncClient, dsn: str, log: EventLog) -> None:
    worker = InProcessWorker(client, handling(upper), poll_interval=0.02)
    with worker_endpoints(worker, port=0, host="127.0.0.1") as port:
        async with worker:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("ALTER TABLE queuert.paused_type RENAME TO away")
                await log.wait_for(LoopFailed, loop="claimer")
                status, body = await async_ask(port, "/ready")
                assert status == 503
                assert body.startswith("the schema is missing or too old: ")
                assert "run queuert migrate up" in body
                # A restart would not help.
                assert await async_ask(port, "/live") == (200, "ok\n")
                connection.execute("ALTER TABLE queuert.away RENAME TO paused_type")
            assert await client.start_and_wait(shout, "a", timeout=60) == "A"
            assert await async_ask(port, "/ready") == (200, "ok\n")


async def test_a_loop_that_only_fails(client: AsyncClient, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(maintenance: Any) -> float:
        raise RuntimeError("no sweeping today")

    monkeypatch.setattr("queuert.worker.maintenance.Maintenance._step", broken)
    worker = InProcessWorker(client, handling(upper))
    with worker_endpoints(worker, port=0, host="127.0.0.1", stale_after=0.0) as port:
        async with worker:
            await log.wait_for(LoopFailed)
            for path in ("/live", "/ready"):
                status, body = await async_ask(port, path)
                assert status == 503
                assert "seconds: RuntimeError: no sweeping today" in body


async def test_metrics_are_counted_where_nothing_else_observes(dsn: str) -> None:
    """A worker makes only the events that somebody wants; those of the messaging conventions on request."""
    async with AsyncClient(PostgresState(dsn), JOB_TYPES) as client:
        for messaging_metrics in (False, True):
            worker = InProcessWorker(client, handling(upper))
            with worker_endpoints(worker, port=0, host="127.0.0.1", messaging_metrics=messaging_metrics) as port:
                async with worker:
                    assert await client.start_and_wait(shout, "a") == "A"
                    _, metrics = await async_ask(port, "/metrics")
            assert 'queuert_job_attempt_ended_total{queuert_attempt_outcome="completed"' in metrics
            assert "queuert_claim_duration_seconds_bucket" in metrics
            assert ("messaging_client_consumed_messages_total" in metrics) is messaging_metrics


async def test_a_store_that_is_lost(dsn: str, log: EventLog) -> None:
    with FaultProxy.before(dsn) as proxy:
        state = PostgresState(proxy.address_in(dsn))
        async with AsyncClient(state, JOB_TYPES, observability=[log]) as client:
            worker = InProcessWorker(client, handling(upper), poll_interval=0.02)
            with worker_endpoints(worker, port=0, host="127.0.0.1") as port:
                async with worker:
                    proxy.refuse()
                    proxy.reset()
                    # A claim may wait for a connection for half a minute before it fails.
                    await log.wait_for(LoopFailed, loop="claimer", timeout=60.0)
                    status, body = await async_ask(port, "/ready")
                    assert status == 503
                    assert "the store cannot be reached: " in body
                    assert await async_ask(port, "/live") == (200, "ok\n")
                    proxy.heal()


async def test_a_claimer_that_makes_no_progress(dsn: str) -> None:
    with FaultProxy.before(dsn) as proxy:
        async with AsyncClient(PostgresState(proxy.address_in(dsn)), JOB_TYPES) as client:
            worker = InProcessWorker(client, handling(upper), poll_interval=0.02)
            async with worker:
                proxy.black_hole()
                report = HealthReport((), ())
                while not any("the claimer makes no progress" in reason for reason in report.not_live):
                    await asyncio.sleep(0)
                    report = worker.health_report(stale_after=0.05)
                assert set(report.not_live) <= set(report.not_ready)
                proxy.heal()
                proxy.reset()


class Registry:
    """A store that knows nothing but heartbeats."""

    lost = True

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None) -> datetime:
        if self.lost:
            raise StateUnavailableError("nobody answers")
        return datetime.now(UTC)


def test_a_failed_heartbeat_is_remembered_until_the_next() -> None:
    store: Any = Registry()
    info = WorkerInfo("id", "name", ("shout",), 1, lambda: 0, lambda: False)
    heartbeat = Heartbeat(info, observers=Observers(), activity=ActivityCounter())
    heartbeat.record_if_due(lambda: store)
    assert isinstance(heartbeat.error, StateUnavailableError)
    store.lost = False
    heartbeat.renew_now()
    heartbeat.record_if_due(lambda: store)
    assert heartbeat.error is None
