"""Events as OpenTelemetry metrics. Needs the API only; without an SDK nothing is recorded.

:mod:`queuert.observability.metrics` has the table of all metrics, which ``docs/metrics.md`` shows. What clients write
in transactions of callers is counted when it is known to be committed; where nobody reports the commit, a start is
counted as ``queuert.chain.start_pending`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, get_meter_provider

from queuert.jobs import JobError
from queuert.observability import events
from queuert.observability.metrics import BY_NAME

_Handler: TypeAlias = Callable[[Any], None]
_Handlers: TypeAlias = Mapping[type[events.Event], _Handler]


class OTelObservability:
    """Counts and measures events with OpenTelemetry instruments; ``docs/metrics.md`` lists them.

    Args:
        meter_provider: where the instruments are made; by default the global provider, so that it may be set later.
        messaging_metrics: also record the four metrics of OpenTelemetry's messaging conventions
            (``messaging.client.sent.messages`` and so on), which some backends have dashboards for. They count the same
            events a second time, so they are off by default.
    """

    def __init__(self, meter_provider: MeterProvider | None = None, *, messaging_metrics: bool = False) -> None:
        meter = (meter_provider or get_meter_provider()).get_meter("queuert")
        groups = [
            _of_workers(meter),
            _of_calls(meter),
            _of_chains(meter),
            _of_management(meter),
            _of_maintenance(meter),
            _of_jobs(meter),
            _of_attempts(meter),
            _of_phases(meter),
            _of_lost_leases(meter),
            _of_failed_finishes(meter),
            _of_adapters(meter),
        ]
        if messaging_metrics:
            groups.append(_of_messaging(meter))
        self._handlers: dict[type[events.Event], tuple[_Handler, ...]] = {}
        for group in groups:
            for kind, handler in group.items():
                self._handlers[kind] = (*self._handlers.get(kind, ()), handler)

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether there is an instrument for events of this class."""
        return kind in self._handlers

    def emit(self, event: events.Event) -> None:
        """Record one event; those without an instrument are ignored."""
        for handler in self._handlers.get(type(event), ()):
            handler(event)


def _counter(meter: Meter, name: str) -> Counter:
    metric = BY_NAME[name]
    return meter.create_counter(metric.name, unit=metric.unit, description=metric.description)


def _histogram(meter: Meter, name: str) -> Histogram:
    metric = BY_NAME[name]
    # Without advice the SDK's buckets suit milliseconds, and nearly all durations fall into the first.
    return meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.description,
        explicit_bucket_boundaries_advisory=metric.buckets,
    )


def _of_workers(meter: Meter) -> _Handlers:
    started = _counter(meter, "queuert.worker.started")
    stopping = _counter(meter, "queuert.worker.stopping")
    stopped = _counter(meter, "queuert.worker.stopped")
    errors = _counter(meter, "queuert.worker.error")
    blocked = _counter(meter, "queuert.worker.event_loop_blocked")
    unblocked = _counter(meter, "queuert.worker.event_loop_unblocked")
    lifespans = _counter(meter, "queuert.worker.lifespan_failed")
    renewed = _counter(meter, "queuert.lease.renewed")
    lost = _counter(meter, "queuert.lease.lost")
    slack = _histogram(meter, "queuert.lease.slack")

    def leases(event: events.LeasesRenewed) -> None:
        renewed.add(event.count)
        lost.add(event.lost)
        if event.slack is not None:
            slack.record(event.slack)

    return {
        events.WorkerStarted: lambda event: started.add(1),
        events.WorkerStopping: lambda event: stopping.add(1),
        events.WorkerStopped: lambda event: stopped.add(1),
        events.LoopFailed: lambda event: errors.add(1, {"queuert.worker.loop": event.loop}),
        events.LifespanFailed: lambda event: lifespans.add(1, _error_type(event.error)),
        events.EventLoopBlocked: lambda event: blocked.add(1),
        events.EventLoopUnblocked: lambda event: unblocked.add(1),
        events.LeasesRenewed: leases,
    }


def _of_calls(meter: Meter) -> _Handlers:
    """The calls of the store that a job's way consists of."""

    def measured(name: str) -> _Handler:
        duration, size = _histogram(meter, f"queuert.{name}.duration"), _histogram(meter, f"queuert.{name}.size")

        def record(event: events.ChainsWritten | events.JobsClaimed | events.FinishesWritten) -> None:
            duration.record(event.duration)
            size.record(event.count)

        return record

    return {
        events.ChainsWritten: measured("start"),
        events.JobsClaimed: measured("claim"),
        events.FinishesWritten: measured("finish"),
    }


def _of_chains(meter: Meter) -> _Handlers:
    started = _counter(meter, "queuert.chain.started")
    pending = _counter(meter, "queuert.chain.start_pending")
    closed = _counter(meter, "queuert.chain.closed")
    duration = _histogram(meter, "queuert.chain.duration")
    taken = _counter(meter, "queuert.schedule.id_taken")
    skipped = _counter(meter, "queuert.schedule.tick_skipped")
    removed = _counter(meter, "queuert.schedule.removed")

    def close(event: events.ChainClosed) -> None:
        if not event.committed:
            return
        attributes = {"queuert.chain.type": event.type, "queuert.chain.status": event.status.value}
        closed.add(1, attributes)
        if event.duration is not None:
            duration.record(event.duration, attributes)

    return {
        events.ChainStarted: lambda event: (started if event.committed else pending).add(
            1, {"queuert.chain.type": event.type}
        ),
        events.ChainClosed: close,
        events.TickIdTaken: lambda event: taken.add(1),
        events.TickSkipped: lambda event: skipped.add(1),
        events.SchedulesRemoved: lambda event: removed.add(len(event.schedules)),
    }


def _of_management(meter: Meter) -> _Handlers:
    continued = _counter(meter, "queuert.chain.continued")
    retried = _counter(meter, "queuert.chain.retried")
    deleted = _counter(meter, "queuert.chain.deleted")
    triggered = _counter(meter, "queuert.job.triggered")
    return {
        events.ChainContinued: lambda event: continued.add(int(event.committed), {"queuert.chain.type": event.type}),
        events.ChainRetried: lambda event: retried.add(int(event.committed), {"queuert.chain.type": event.type}),
        events.ChainsDeleted: lambda event: deleted.add(event.count * event.committed),
        events.JobsTriggered: lambda event: triggered.add(event.count * event.committed),
    }


def _of_maintenance(meter: Meter) -> _Handlers:
    pruned = _counter(meter, "queuert.chain.pruned")
    stale = _counter(meter, "queuert.chain.became_stale")
    hook_failed = _counter(meter, "queuert.chain.retention_hook_error")
    stranded = _counter(meter, "queuert.job.stranded_released")
    staging = _counter(meter, "queuert.bulk_write.staging_dropped")
    no_cleanup = _counter(meter, "queuert.bulk_write.cleanup_failed")
    maintained = _counter(meter, "queuert.event_log.maintained")
    postponed = _counter(meter, "queuert.event_log.postponed")
    failed = _counter(meter, "queuert.event_log.maintenance_failed")
    return {
        events.ChainsPruned: lambda event: pruned.add(event.count),
        events.ChainsBecameStale: lambda event: stale.add(event.count),
        events.RetentionHookFailed: lambda event: hook_failed.add(1, {"queuert.chain.type": event.type}),
        events.StrandedJobsReleased: lambda event: stranded.add(event.count),
        events.StagingCleaned: lambda event: staging.add(len(event.dropped)),
        events.StagingCleanupFailed: lambda event: no_cleanup.add(1),
        events.EventLogMaintained: lambda event: maintained.add(1),
        events.EventLogMaintenancePostponed: lambda event: postponed.add(1),
        events.EventLogMaintenanceFailed: lambda event: failed.add(1),
    }


def _of_jobs(meter: Meter) -> _Handlers:
    reaped = _counter(meter, "queuert.job.reaped")
    released = _counter(meter, "queuert.job.released")
    waited = _histogram(meter, "queuert.job.wait.duration")
    started = _counter(meter, "queuert.job.attempt.started")

    def reap(event: events.JobReaped) -> None:
        reaped.add(1, {"queuert.job.type": event.type, "queuert.job.failed": event.failed})

    def start(event: events.AttemptStarted) -> None:
        attributes = {"queuert.job.type": event.type}
        started.add(1, attributes)
        waited.record(event.waited, attributes)

    return {
        events.JobReaped: reap,
        events.JobsReleased: lambda event: released.add(event.count),
        events.AttemptStarted: start,
    }


_OUTCOMES: Final[dict[type[events.Event], str]] = {
    events.AttemptCompleted: "completed",
    events.AttemptContinued: "continued",
    events.AttemptRetried: "retried",
    events.AttemptFailed: "failed",
    events.AttemptCancelled: "cancelled",
    events.AttemptInterrupted: "interrupted",
    events.AttemptWaiting: "waiting",
    events.AttemptSnoozed: "snoozed",
}


def _of_attempts(meter: Meter) -> _Handlers:
    ended = _counter(meter, "queuert.job.attempt.ended")
    duration = _histogram(meter, "queuert.job.attempt.duration")

    def end(event: Any) -> None:
        attributes: dict[str, str] = {
            "queuert.job.type": event.type,
            "queuert.attempt.outcome": _OUTCOMES[type(event)],
        }
        duration.record(event.duration, attributes)
        ended.add(1, attributes | _error_type(getattr(event, "error", None)))

    return dict.fromkeys(_OUTCOMES, end)


def _of_phases(meter: Meter) -> _Handlers:
    duration = _histogram(meter, "queuert.job.phase.duration")

    def ended(outcome: str) -> _Handler:
        return lambda event: duration.record(
            event.duration,
            {"queuert.job.type": event.type, "queuert.phase.name": event.phase, "queuert.phase.outcome": outcome},
        )

    return {events.PhaseCompleted: ended("completed"), events.PhaseFailed: ended("failed")}


def _error_type(error: JobError | None) -> dict[str, str]:
    return {} if error is None else {"error.type": error.type or error.kind}


def _of_lost_leases(meter: Meter) -> _Handlers:
    def counted(name: str) -> _Handler:
        counter = _counter(meter, name)
        return lambda event: counter.add(
            1, {"queuert.job.type": event.type, "queuert.abort.reason": event.reason.value}
        )

    return {
        events.AttemptAborted: counted("queuert.job.attempt.aborted"),
        events.HandlerKilled: counted("queuert.job.attempt.killed"),
        events.FinishRejected: counted("queuert.job.attempt.finish_rejected"),
    }


def _of_failed_finishes(meter: Meter) -> _Handlers:
    def counted(name: str) -> _Handler:
        counter = _counter(meter, name)
        return lambda event: counter.add(1, {"queuert.job.type": event.type, **_error_type(event.error)})

    return {
        events.FinishFailed: counted("queuert.job.attempt.finish_failed"),
        events.ErrorAfterCompletion: counted("queuert.job.attempt.error_after_completion"),
        events.AfterAttemptFailed: counted("queuert.job.attempt.after_attempt_error"),
    }


def _of_adapters(meter: Meter) -> _Handlers:
    def by_operation(name: str) -> _Handler:
        counter = _counter(meter, name)
        return lambda event: counter.add(1, {"queuert.adapter.operation": event.operation})

    def by_adapter(name: str) -> _Handler:
        counter = _counter(meter, name)
        return lambda event: counter.add(1, {"queuert.adapter.name": event.adapter})

    return {
        events.StoreCallFailed: by_operation("queuert.state_adapter.error"),
        events.StoreWarningRaised: by_adapter("queuert.state_adapter.warning"),
        events.ListenerLost: by_adapter("queuert.notify_adapter.lost"),
        events.ListenerRestored: by_adapter("queuert.notify_adapter.restored"),
        events.NotificationDropped: by_adapter("queuert.notify_adapter.dropped"),
        events.ObserverFailed: by_adapter("queuert.observability_adapter.error"),
        events.SparkUnreachable: by_operation("queuert.spark.error"),
    }


# --- the messaging conventions ---------------------------------------------------------------------------------------


def _of_messaging(meter: Meter) -> _Handlers:
    """The four metrics of the messaging conventions; a job counts as a message, its type as the destination."""
    sent = _counter(meter, "messaging.client.sent.messages")
    consumed = _counter(meter, "messaging.client.consumed.messages")
    operation = _histogram(meter, "messaging.client.operation.duration")
    process = _histogram(meter, "messaging.process.duration")

    def of_job(name: str, destination: str) -> dict[str, str]:
        return {
            "messaging.system": "queuert",
            "messaging.operation.name": name,
            "messaging.destination.name": destination,
        }

    def called(name: str) -> _Handler:
        types = {"messaging.operation.type": name, "messaging.operation.name": name, "messaging.system": "queuert"}
        return lambda event: operation.record(event.duration, types)

    def processed(event: Any) -> None:
        error = _error_type(getattr(event, "error", None))
        process.record(event.duration, of_job("process", event.type) | error)

    def continued(event: events.AttemptContinued) -> None:
        sent.add(1, of_job("send", event.next_type))
        processed(event)

    return {
        events.ChainStarted: lambda event: sent.add(int(event.committed), of_job("send", event.type)),
        events.AttemptStarted: lambda event: consumed.add(1, of_job("receive", event.type)),
        events.ChainsWritten: called("send"),
        events.JobsClaimed: called("receive"),
        events.FinishesWritten: called("settle"),
        **dict.fromkeys(_OUTCOMES, processed),
        events.AttemptContinued: continued,
    }
