"""Events as metrics, read back through OpenTelemetry's own SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    NumberDataPoint,
)

from queuert.jobs import AbortReason, ChainStatus, JobError
from queuert.observability import events
from queuert.observability.metrics import METRICS, SECONDS, Source
from queuert.observability.otel import OTelObservability
from tests.observability.test_log import EVENTS, example

ATTEMPT = {"worker": "the worker", "job_id": "the job", "chain_id": "the chain", "type": "resize"}


class Metrics:
    """An adapter and what it has recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader])
        self.adapter = OTelObservability(self._provider, messaging_metrics=True)

    def read(self) -> dict[str, Metric]:
        """All metrics by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def emit(self, *given: events.Event) -> Metrics:
        for event in given:
            self.adapter.emit(event)
        return self

    def counted(self, name: str) -> list[tuple[float, dict[str, object]]]:
        """The sums of a counter, with their attributes."""
        found: list[tuple[float, dict[str, object]]] = []
        for point in self.read()[name].data.data_points:
            assert isinstance(point, NumberDataPoint)
            found.append((point.value, dict(point.attributes or {})))
        return sorted(found, key=repr)

    def measured(self, name: str) -> list[HistogramDataPoint]:
        """The points of a histogram."""
        points = [point for point in self.read()[name].data.data_points if isinstance(point, HistogramDataPoint)]
        assert points
        return points

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """An adapter of the test's own."""
    metrics = Metrics()
    yield metrics
    metrics.close()


def test_attempts_are_counted_by_outcome(metrics: Metrics) -> None:
    error = JobError("handler", "secret", "app.Broken")
    metrics.emit(
        events.AttemptStarted(**ATTEMPT, attempt=1, waited=0.3),
        events.AttemptCompleted(**ATTEMPT, attempt=1, duration=2.0),
        events.AttemptCompleted(**ATTEMPT, attempt=1, duration=2.0),
        events.AttemptContinued(**ATTEMPT, attempt=1, duration=2.0, next_type="publish", next_job_id="next"),
        events.AttemptRetried(**ATTEMPT, attempt=1, duration=2.0, error=error, retry_in=10),
        events.AttemptFailed(**ATTEMPT, attempt=1, duration=2.0, error=JobError("lease_expired", "gone")),
        events.AttemptCancelled(**ATTEMPT, attempt=1, duration=2.0, error=JobError("cancel", "enough")),
        events.AttemptInterrupted(**ATTEMPT, attempt=1, duration=2.0),
    )
    assert metrics.counted("queuert.job.attempt.started") == [(1, {"queuert.job.type": "resize"})]
    ended = {
        (attributes.pop("queuert.attempt.outcome"), attributes.get("error.type")): count
        for count, attributes in metrics.counted("queuert.job.attempt.ended")
    }
    assert ended == {
        ("completed", None): 2,
        ("continued", None): 1,
        ("retried", "app.Broken"): 1,
        ("failed", "lease_expired"): 1,
        ("cancelled", "cancel"): 1,
        ("interrupted", None): 1,
    }


def test_durations_are_seconds_in_fitting_buckets(metrics: Metrics) -> None:
    metrics.emit(
        events.AttemptStarted(**ATTEMPT, attempt=1, waited=0.3),
        events.AttemptCompleted(**ATTEMPT, attempt=1, duration=7200.0),
        events.ChainClosed(chain_id="c", type="resize", status=ChainStatus.COMPLETED, duration=0.007),
    )
    for name, value in [
        ("queuert.job.wait.duration", 0.3),
        ("queuert.job.attempt.duration", 7200.0),
        ("queuert.chain.duration", 0.007),
    ]:
        assert metrics.read()[name].unit == "s"
        (point,) = metrics.measured(name)
        assert (point.count, point.sum) == (1, value)
        assert tuple(point.explicit_bounds) == SECONDS


def test_a_chain_of_unknown_age_is_counted_and_not_measured(metrics: Metrics) -> None:
    metrics.emit(
        events.ChainStarted(chain_id="c", type="resize", in_callers_transaction=False),
        events.ChainClosed(chain_id="c", type="resize", status=ChainStatus.FAILED, duration=None),
    )
    attributes = {"queuert.chain.type": "resize", "queuert.chain.status": "failed"}
    assert metrics.counted("queuert.chain.closed") == [(1, attributes)]
    assert metrics.counted("queuert.chain.started") == [(1, {"queuert.chain.type": "resize"})]
    assert "queuert.chain.duration" not in metrics.read()


def test_leases_and_jobs_are_counted_by_number(metrics: Metrics) -> None:
    metrics.emit(
        events.LeasesRenewed(worker="w", count=10, lost=2, slack=20.0),
        events.LeasesRenewed(worker="v", count=5, lost=0, slack=None),
        events.JobsReleased(worker="w", count=4),
        events.JobReaped(**ATTEMPT, attempt=1, holder="x", failed=True),
    )
    assert metrics.counted("queuert.lease.renewed") == [(15, {})]
    assert metrics.counted("queuert.lease.lost") == [(2, {})]
    assert metrics.counted("queuert.job.released") == [(4, {})]
    assert metrics.counted("queuert.job.reaped") == [(1, {"queuert.job.type": "resize", "queuert.job.failed": True})]


def test_lost_leases_say_why(metrics: Metrics) -> None:
    metrics.emit(
        events.AttemptAborted(**ATTEMPT, attempt=1, reason=AbortReason.CANCELLED),
        events.FinishRejected(**ATTEMPT, attempt=1, reason=AbortReason.TAKEN_BY_ANOTHER_WORKER),
    )
    assert metrics.counted("queuert.job.attempt.aborted") == [
        (1, {"queuert.job.type": "resize", "queuert.abort.reason": "cancelled"})
    ]
    assert metrics.counted("queuert.job.attempt.finish_rejected") == [
        (1, {"queuert.job.type": "resize", "queuert.abort.reason": "taken_by_another_worker"})
    ]


UNCOUNTED = {
    *(events.EventSent, events.LoopRecovered, events.PhaseStarted, events.RetentionInUse, events.SparkProgressed),
    *(events.OperatorActed, events.WebhookFailing, events.WebhookDisabled, events.WebhookEventsLost),
    *(events.WebhookEventSkipped, events.HandlerWaits, events.JobTypeUnhandled),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_counted_and_no_metric_names_a_job_or_worker(metrics: Metrics, kind: type[events.Event]) -> None:
    metrics.emit(example(kind))
    assert bool(metrics.read()) == (kind not in UNCOUNTED)
    for metric in metrics.read().values():
        assert metric.name.startswith(("queuert.", "messaging."))
        assert metric.unit
        assert metric.description
        for point in metric.data.data_points:
            values = set((point.attributes or {}).values())
            assert not values & {"the worker", "the job_id", "the chain_id", "the holder", "the next_job_id"}


def test_the_table_lists_every_metric_and_attribute(metrics: Metrics) -> None:
    metrics.emit(*map(example, EVENTS))
    metrics.emit(events.ChainClosed(chain_id="c", type="resize", status=ChainStatus.COMPLETED, duration=1.0))
    metrics.emit(events.ChainStarted(chain_id="c", type="resize", in_callers_transaction=True, committed=False))
    metrics.emit(events.LeasesRenewed(worker="w", count=1, lost=0, slack=12.0))
    found = metrics.read()
    recorded = {one.name: one for one in METRICS if one.source in (Source.EVENTS, Source.MESSAGING)}
    assert found.keys() == recorded.keys()
    for name, metric in found.items():
        assert (metric.unit, metric.description) == (recorded[name].unit, recorded[name].description)
        attributes = {attribute for point in metric.data.data_points for attribute in point.attributes or {}}
        assert attributes <= set(recorded[name].attributes)
        for point in metric.data.data_points:
            if isinstance(point, HistogramDataPoint):
                assert tuple(point.explicit_bounds) == recorded[name].buckets


def test_messaging_metrics_count_jobs_as_messages(metrics: Metrics) -> None:
    metrics.emit(
        events.ChainStarted(chain_id="c", type="resize", in_callers_transaction=False),
        events.AttemptStarted(**ATTEMPT, attempt=1, waited=0.3),
        events.AttemptContinued(**ATTEMPT, attempt=1, duration=2.0, next_type="publish", next_job_id="next"),
        events.JobsClaimed(worker="w", count=1, duration=0.002),
        events.FinishesWritten(worker="w", count=1, duration=0.003),
    )
    system = {"messaging.system": "queuert"}
    assert metrics.counted("messaging.client.sent.messages") == [
        (1, {**system, "messaging.operation.name": "send", "messaging.destination.name": "publish"}),
        (1, {**system, "messaging.operation.name": "send", "messaging.destination.name": "resize"}),
    ]
    assert metrics.counted("messaging.client.consumed.messages") == [
        (1, {**system, "messaging.operation.name": "receive", "messaging.destination.name": "resize"})
    ]
    (processed,) = metrics.measured("messaging.process.duration")
    assert (processed.count, processed.sum) == (1, 2.0)
    operations = {
        (point.attributes or {})["messaging.operation.type"]: point.sum
        for point in metrics.measured("messaging.client.operation.duration")
    }
    assert operations == {"receive": 0.002, "settle": 0.003}


def test_messaging_metrics_are_off_by_default() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    OTelObservability(provider).emit(example(events.AttemptStarted))
    data = reader.get_metrics_data()
    assert data is not None
    names = {metric.name for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics}
    assert not {name for name in names if name.startswith("messaging.")}
    provider.shutdown()


def test_without_an_sdk_nothing_happens() -> None:
    OTelObservability().emit(events.ListenerRestored(adapter="PostgresNotify"))
