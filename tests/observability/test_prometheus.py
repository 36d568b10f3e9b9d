"""The exposition for Prometheus: parsed by its own library, checked by its own tool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import ClientType
from queuert.observability import events
from queuert.observability import gauges as gauges_module
from queuert.observability.gauges import StoreGauges, observe_worker
from queuert.observability.metrics import METRICS, Kind
from queuert.observability.prometheus import PrometheusMetrics
from queuert.observability.snapshots import StoreSnapshot, WorkerSnapshot
from queuert.state.sqlite import SQLiteState
from queuert.state.types import PoolUse, ScheduleDelay, TypeCount
from scripts import metrics_page
from tests.observability.test_gauges import Worker, worker_record
from tests.observability.test_log import EVENTS, example

TYPES = {"counter": Kind.COUNTER, "histogram": Kind.HISTOGRAM, "gauge": Kind.GAUGE}


def everything(metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every metric have a value."""
    for kind in EVENTS:
        metrics.observability.emit(example(kind))
    closed = events.ChainClosed(chain_id="c", type="resize", status=ChainStatus.COMPLETED, duration=1.0)
    metrics.observability.emit(closed)
    metrics.observability.emit(events.LeasesRenewed(worker="w", count=1, lost=0, slack=12.0))
    started = events.ChainStarted(chain_id="c", type="resize", in_callers_transaction=True)
    metrics.observability.emit(replace(started, committed=False))
    worker = Worker()
    worker.says = WorkerSnapshot(10, 4, 7, 11, 0.25, PoolUse(in_use=3, idle=2, waiting=1))
    observe_worker(worker, metrics.provider)
    snapshot = StoreSnapshot(
        counts=[TypeCount("resize", JobStatus.READY, 12, 90.5)],
        paused_types=[],
        client_types=[ClientType("approve", 3600.0)],
        workers=[worker_record("resize")],
        delays=[ScheduleDelay("hourly", "report", 61.0)],
        event_log_lag=4.5,
    )
    monkeypatch.setattr(gauges_module, "read_store", lambda state, store: snapshot)
    database = StoreGauges(SQLiteState(":memory:"), metrics.provider)
    database.read()
    database.close()


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    """Metrics of the test's own."""
    made = PrometheusMetrics(messaging_metrics=True)
    yield made
    made.close()


def test_every_metric_is_shown_by_its_name(metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(metrics, monkeypatch)
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    expected = {metric.prometheus_name.removesuffix("_total"): metric for metric in METRICS}
    assert families.keys() == expected.keys()
    for name, metric in expected.items():
        assert (TYPES[families[name].type], families[name].documentation) == (metric.kind, metric.description)
        labels = {label for sample in families[name].samples for label in sample.labels} - {"le"}
        assert labels <= {attribute.replace(".", "_") for attribute in metric.attributes}
        if metric.kind is Kind.COUNTER:
            assert {sample.name for sample in families[name].samples} == {metric.prometheus_name}


def test_promtool_finds_nothing_wrong(metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    everything(metrics, monkeypatch)
    body, _ = metrics.exposition()
    checked = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_openmetrics_if_the_client_accepts_it(metrics: PrometheusMetrics) -> None:
    metrics.observability.emit(events.WorkerStarted(worker="w", types=("resize",), concurrency=1))
    response = metrics.response("application/openmetrics-text; version=1.0.0")
    assert response.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert response.body.endswith(b"# EOF\n")
    assert b"queuert_worker_started_total 1.0" in response.body


def test_each_has_metrics_of_its_own(metrics: PrometheusMetrics) -> None:
    other = PrometheusMetrics()
    other.observability.emit(events.WorkerStopped(worker="w", abandoned=0))
    assert b"queuert_worker_stopped_total" in other.exposition()[0]
    assert b"queuert_worker_stopped_total" not in metrics.exposition()[0]
    other.close()


def test_the_page_of_metrics_is_up_to_date() -> None:
    text = metrics_page.PAGE.read_text(encoding="utf-8")
    assert metrics_page.generated(text) == text, "run make format"
