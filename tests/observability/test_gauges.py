"""Gauges of workers and of the database, read back through OpenTelemetry's own SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, PostgresState, Processors
from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import JobStatus
from queuert.limits import ClientType
from queuert.observability import gauges as gauges_module
from queuert.observability.gauges import StoreGauges, observe_worker
from queuert.observability.metrics import BY_NAME, METRICS, Source
from queuert.observability.snapshots import StoreSnapshot, WorkerSnapshot
from queuert.state.sqlite import SQLiteState
from queuert.state.types import PoolUse, ScheduleDelay, TypeCount
from queuert.workers import WorkerRecord, WorkerState

NOW = datetime(2024, 5, 6, tzinfo=UTC)


class Gauges:
    """A provider and what its gauges show."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def read(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The values by the name of the metric, and by the values of the attributes."""
        data = self._reader.get_metrics_data()
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for resource in data.resource_metrics if data else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                assert metric.unit == BY_NAME[metric.name].unit
                values = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    assert isinstance(point, NumberDataPoint)
                    assert set(point.attributes or {}) == set(BY_NAME[metric.name].attributes)
                    values[tuple(map(str, (point.attributes or {}).values()))] = point.value
        return found


@pytest.fixture
def gauges() -> Iterator[Gauges]:
    """Gauges of the test's own."""
    made = Gauges()
    yield made
    made.provider.shutdown()


def worker_record(*types: str, state: WorkerState = WorkerState.RUNNING, running: int = 0) -> WorkerRecord:
    return WorkerRecord("id", "name", "host", 1, "1.0", types, 10, running, state, NOW, NOW)


class Worker:
    """A worker that says what it is told to."""

    def __init__(self) -> None:
        self.says: WorkerSnapshot | None = None

    def snapshot(self) -> WorkerSnapshot | None:
        return self.says


def test_a_worker_that_does_not_run_has_no_gauges(gauges: Gauges) -> None:
    observe_worker(Worker(), gauges.provider)
    assert gauges.read() == {}


def test_a_worker_shows_its_state(gauges: Gauges) -> None:
    worker = Worker()
    worker.says = WorkerSnapshot(10, 4, 7, 11, 0.25, PoolUse(in_use=3, idle=2, waiting=1))
    observe_worker(worker, gauges.provider)
    assert gauges.read() == {
        "queuert.slots": {(): 10},
        "queuert.slots.busy": {(): 4},
        "queuert.jobs.prefetched": {(): 7},
        "queuert.leases": {(): 11},
        "queuert.event_loop.lag": {(): 0.25},
        "queuert.pool.connections": {("in_use",): 3, ("idle",): 2},
        "queuert.pool.waiting": {(): 1},
    }
    assert gauges.read().keys() == {metric.name for metric in METRICS if metric.source is Source.WORKER}


def test_a_store_without_a_pool_shows_none(gauges: Gauges) -> None:
    worker = Worker()
    worker.says = WorkerSnapshot(10, 4, 7, 11, 0.25, None)
    observe_worker(worker, gauges.provider)
    assert "queuert.slots" in gauges.read()
    assert not {name for name in gauges.read() if name.startswith("queuert.pool")}


def test_the_database_shows_its_state(gauges: Gauges, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = StoreSnapshot(
        counts=[
            TypeCount("resize", JobStatus.READY, 12, 90.5),
            TypeCount("resize", JobStatus.FAILED, 2, 3600.0),
            TypeCount("mail", JobStatus.READY, 20_000, None, estimated=True),
        ],
        paused_types=["mail"],
        client_types=[ClientType("approve", 3600.0), ClientType("mail", None)],
        workers=[
            worker_record("resize", running=8),
            worker_record("resize", "publish", running=3),
            worker_record("resize", state=WorkerState.STOPPING, running=1),
        ],
        delays=[ScheduleDelay("hourly", "report", 61.0), ScheduleDelay("daily", "report", 2.0)],
        event_log_lag=4.5,
    )
    monkeypatch.setattr(gauges_module, "read_store", lambda state, store: snapshot)
    database = StoreGauges(SQLiteState(":memory:"), gauges.provider)
    database.read()
    found = gauges.read()
    database.close()
    assert found.keys() == {metric.name for metric in METRICS if metric.source is Source.STORE}
    assert {key: value for key, value in found["queuert.jobs"].items() if value} == {
        ("resize", "ready"): 12,
        ("resize", "failed"): 2,
        ("mail", "ready"): 20_000,
    }
    assert len(found["queuert.jobs"]) == 4 * len(JobStatus)
    # Where it costs too much to find the oldest, nothing is shown rather than 0.
    assert found["queuert.jobs.oldest_ready.age"] == {("resize",): 90.5, ("publish",): 0.0, ("approve",): 0.0}
    assert found["queuert.jobs.paused"] == {("resize",): 0, ("publish",): 0, ("mail",): 1, ("approve",): 0}
    by_clients = found["queuert.jobs.completed_by_clients"]
    assert by_clients == {("resize",): 0, ("publish",): 0, ("mail",): 1, ("approve",): 1}
    assert found["queuert.jobs.overdue_after"] == {("approve",): 3600.0}
    assert found["queuert.workers"] == {("running",): 2, ("stopping",): 1}
    assert found["queuert.workers.of_type"] == {("resize",): 2, ("publish",): 1, ("mail",): 0, ("approve",): 0}
    assert found["queuert.workers.slots"] == {(): 20}
    assert found["queuert.workers.jobs"] == {(): 12}
    assert found["queuert.schedules.late"] == {(): 1}
    assert found["queuert.schedules.delay"] == {(): 61.0}
    assert found["queuert.event_log.lag"] == {(): 4.5}
    assert found["queuert.store.up"] == {(): 1}


def test_each_worker_claims_bulk_operations_unless_it_is_stopping(
    gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker has their type among those of its processors; the alert of types without workers looks at this."""
    snapshot = StoreSnapshot(
        counts=[TypeCount(BULK_OPERATION_TYPE, JobStatus.READY, 1, 0.5)],
        paused_types=[],
        client_types=[],
        workers=[worker_record("resize"), worker_record("mail"), worker_record(state=WorkerState.STOPPING)],
        delays=[],
        event_log_lag=None,
    )
    monkeypatch.setattr(gauges_module, "read_store", lambda state, store: snapshot)
    database = StoreGauges(SQLiteState(":memory:"), gauges.provider)
    database.read()
    found = gauges.read()
    database.close()
    assert found["queuert.workers.of_type"] == {(BULK_OPERATION_TYPE,): 2, ("resize",): 1, ("mail",): 1}


def test_a_database_that_cannot_be_read_shows_only_that(gauges: Gauges) -> None:
    database = StoreGauges(PostgresState("host=127.0.0.1 port=1 dbname=none"), gauges.provider)
    with pytest.raises(StateUnavailableError):
        database.read()
    assert gauges.read() == {"queuert.store.up": {(): 0}}
    assert "could not be read" in database.not_ready()[0]
    database.close()


def test_an_old_reading_is_not_shown(gauges: Gauges, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(gauges_module, "time", SimpleNamespace(monotonic=lambda: now))
    database = StoreGauges(SQLiteState(":memory:"), gauges.provider, interval=10)
    database.read()
    now += 30
    assert "queuert.workers" in gauges.read()
    now += 1
    assert gauges.read() == {"queuert.store.up": {(): 1}}
    assert database.not_ready() == ("the database has not been read yet",)
    database.close()


def test_the_interval_must_be_above_0() -> None:
    with pytest.raises(ConfigurationError, match="above 0 seconds, got 0"):
        StoreGauges(SQLiteState(":memory:"), interval=0)


task = JobType("task", input=str, output=str)


class Signalling(StoreGauges):
    """Says when it has read the database."""

    has_read = threading.Event()

    def read(self) -> StoreSnapshot:
        snapshot = super().read()
        self.has_read.set()
        return snapshot


def test_the_thread_reads_the_database(dsn: str, gauges: Gauges) -> None:
    with Client(PostgresState(dsn), JobTypes(task)) as client:
        client.start_chain(task, "1")
    with Signalling(PostgresState(dsn), gauges.provider, interval=3600) as database:
        assert database.has_read.wait(60)
        found = gauges.read()
    assert found["queuert.jobs"]["task", "ready"] == 1
    assert found["queuert.event_log.lag"] == {(): 0}


def test_gauges_whose_thread_cannot_start_can_be_closed_and_opened_again(
    gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_store = StoreGauges(SQLiteState(), meter_provider=gauges.provider)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            of_store.open()
    of_store.open()
    assert of_store._thread is not None
    of_store.close()
    assert not of_store._thread.is_alive()


async def test_a_running_worker_shows_its_slots_and_pool(dsn: str, gauges: Gauges) -> None:
    job_types = JobTypes(task)
    processors = Processors(job_types)
    seen: list[dict[str, dict[tuple[str, ...], float]]] = []

    @processors.handles(task)
    async def run(attempt: object) -> str:
        seen.append(gauges.read())
        return "done"

    async with AsyncClient(PostgresState(dsn), job_types) as client:
        worker = InProcessWorker(client, processors, concurrency=3)
        observe_worker(worker, gauges.provider)
        assert gauges.read() == {}
        async with worker:
            assert await client.start_and_wait(task, "1") == "done"
        assert worker.snapshot() is None
    [during] = seen
    assert during["queuert.slots"] == {(): 3}
    assert during["queuert.slots.busy"] == {(): 1}
    assert during["queuert.leases"] == {(): 1}
    assert sum(during["queuert.pool.connections"].values()) >= 1
