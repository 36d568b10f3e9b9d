"""Events as OpenTelemetry metrics. Needs the API only; without an SDK nothing is recorded.

Counters (the attributes in brackets). What clients write in transactions of callers is counted when it is known to be
committed, and where nobody says so only as ``start_pending``:

- ``queuert.worker.started``, ``.stopping``, ``.stopped``, ``.retention_missing``,
  ``.event_loop_blocked``, ``.event_loop_unblocked``; ``queuert.worker.error`` (``queuert.worker.loop``)
- ``queuert.chain.started`` (``queuert.chain.type``): those that are known to be committed
- ``queuert.chain.start_pending`` (``queuert.chain.type``): those written in a transaction of a caller's, which nobody
  says the end of
- ``queuert.schedule.id_taken``: chains of schedules that were started under another id than their ticks'
- ``queuert.chain.closed`` (``queuert.chain.type``, ``queuert.chain.status``)
- from outside: ``queuert.chain.continued`` and ``.retried`` (``queuert.chain.type``), ``queuert.chain.deleted``,
  ``queuert.job.triggered``
- what workers tidy away: ``queuert.chain.pruned``; ``queuert.bulk_write.staging_dropped``, ``.not_tended``;
  ``queuert.event_log.tended``, ``.postponed``, ``.not_tended``
- ``queuert.job.reaped`` (``queuert.job.type``, ``queuert.job.failed``), ``queuert.job.released``,
  ``queuert.job.swept``
- ``queuert.job.attempt.started`` (``queuert.job.type``)
- ``queuert.job.attempt.ended`` (``queuert.job.type``, ``queuert.attempt.outcome``, and ``error.type`` if there is one)
- ``queuert.job.attempt.aborted``, ``.killed``, ``.refused`` (``queuert.job.type``, ``queuert.abort.reason``)
- ``queuert.job.attempt.broken``, ``.error_after_completion``, ``.hook_error`` (``queuert.job.type``, ``error.type``)
- ``queuert.lease.renewed``, ``.lost``
- ``queuert.state_adapter.error`` and ``queuert.spark.error`` (``queuert.adapter.operation``)
- ``queuert.state_adapter.at_risk``, ``queuert.notify_adapter.lost``, ``.restored``, ``.dropped`` and
  ``queuert.observability_adapter.error`` (``queuert.adapter.name``)

Histograms, in seconds:

- ``queuert.job.wait.duration`` (``queuert.job.type``): from due to started, what a queue's users feel
- ``queuert.job.attempt.duration`` (``queuert.job.type``, ``queuert.attempt.outcome``)
- ``queuert.chain.duration`` (``queuert.chain.type``, ``queuert.chain.status``)

No attribute names a job, a chain or a worker: with one worker a container their number would grow without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, get_meter_provider

from queuert.jobs import AbortReason, JobError
from queuert.observability import events

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
"""The advised bounds of the histograms' buckets: jobs take milliseconds or hours."""

_Handler: TypeAlias = Callable[[Any], None]


class OTelObservability:
    """Counts and measures events with OpenTelemetry instruments; the module's table lists them.

    Args:
        meter_provider: where the instruments are made; by default the global provider, so that it may be set later.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = (meter_provider or get_meter_provider()).get_meter("queuert")
        self._handlers: dict[type[events.Event], _Handler] = {
            **_of_workers(meter),
            **_of_chains(meter),
            **_of_updates(meter),
            **_of_jobs(meter),
            **_of_event_log(meter),
            **_of_attempts(meter),
            **_of_lost_leases(meter),
            **_of_odd_finishes(meter),
            **_of_adapters(meter),
        }

    def emit(self, event: events.Event) -> None:
        """Record one event; those without an instrument are ignored."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)


def _counter(meter: Meter, name: str, unit: str, description: str) -> Counter:
    return meter.create_counter(f"queuert.{name}", unit=f"{{{unit}}}", description=description)


def _histogram(meter: Meter, name: str, description: str) -> Histogram:
    # Without advice the SDK's buckets suit milliseconds, and nearly all durations fall into the first.
    return meter.create_histogram(
        f"queuert.{name}", unit="s", description=description, explicit_bucket_boundaries_advisory=SECONDS
    )


def _of_workers(meter: Meter) -> dict[type[events.Event], _Handler]:
    started = _counter(meter, "worker.started", "worker", "Workers that began to claim")
    stopping = _counter(meter, "worker.stopping", "worker", "Workers that were told to stop")
    stopped = _counter(meter, "worker.stopped", "worker", "Workers that have stopped")
    errors = _counter(meter, "worker.error", "error", "Failures of the workers' loops, which are started again")
    blocked = _counter(meter, "worker.event_loop_blocked", "block", "Times that a worker's event loop did not run")
    unblocked = _counter(meter, "worker.event_loop_unblocked", "block", "Times that it ran again")
    beyond_retention = _counter(
        meter, "worker.retention_missing", "worker", "Workers with types whose chains fill the memory"
    )
    renewed = _counter(meter, "lease.renewed", "lease", "Leases extended")
    lost = _counter(meter, "lease.lost", "lease", "Leases that could not be extended, since somebody took them away")

    def leases(event: events.LeasesRenewed) -> None:
        renewed.add(event.count)
        lost.add(event.lost)

    return {
        events.WorkerStarted: lambda event: started.add(1),
        events.WorkerStopping: lambda event: stopping.add(1),
        events.WorkerStopped: lambda event: stopped.add(1),
        events.LoopFailed: lambda event: errors.add(1, {"queuert.worker.loop": event.loop}),
        events.RetentionMissing: lambda event: beyond_retention.add(1),
        events.EventLoopBlocked: lambda event: blocked.add(1),
        events.EventLoopUnblocked: lambda event: unblocked.add(1),
        events.LeasesRenewed: leases,
    }


def _of_chains(meter: Meter) -> dict[type[events.Event], _Handler]:
    started = _counter(meter, "chain.started", "chain", "Chains written")
    pending = _counter(meter, "chain.start_pending", "chain", "Chains written in transactions of callers, end unknown")
    closed = _counter(meter, "chain.closed", "chain", "Chains closed, by an attempt or from outside")
    duration = _histogram(meter, "chain.duration", "From a chain's start to its end")
    taken = _counter(meter, "schedule.id_taken", "chain", "Chains of schedules whose ids jobs of other types had")

    def close(event: events.ChainClosed) -> None:
        attributes = {"queuert.chain.type": event.type, "queuert.chain.status": event.status.value}
        if not event.committed:
            return
        closed.add(1, attributes)
        if event.duration is not None:
            duration.record(event.duration, attributes)

    return {
        events.ChainStarted: lambda event: (started if event.committed else pending).add(
            1, {"queuert.chain.type": event.type}
        ),
        events.ChainClosed: close,
        events.TickIdTaken: lambda event: taken.add(1),
    }


def _of_updates(meter: Meter) -> dict[type[events.Event], _Handler]:
    continued = _counter(meter, "chain.continued", "chain", "Chains that a client led to their next job")
    retried = _counter(meter, "chain.retried", "chain", "Closed chains that a client opened again")
    deleted = _counter(meter, "chain.deleted", "chain", "Chains that a client deleted")
    pruned = _counter(meter, "chain.pruned", "chain", "Closed chains that a worker deleted: they need not be kept")
    staging = _counter(meter, "bulk_write.staging_dropped", "table", "Staging tables of dead drivers that were dropped")
    untended = _counter(
        meter, "bulk_write.not_tended", "look", "Looks after staging that the worker's role has no right to"
    )
    triggered = _counter(meter, "job.triggered", "job", "Scheduled jobs that a client made due")
    return {
        events.ChainContinued: lambda event: continued.add(int(event.committed), {"queuert.chain.type": event.type}),
        events.ChainRetried: lambda event: retried.add(int(event.committed), {"queuert.chain.type": event.type}),
        events.ChainsDeleted: lambda event: deleted.add(event.count * event.committed),
        events.ChainsPruned: lambda event: pruned.add(event.count),
        events.StagingCleaned: lambda event: staging.add(len(event.dropped)),
        events.StagingCleanupFailed: lambda event: untended.add(1),
        events.JobsTriggered: lambda event: triggered.add(event.count * event.committed),
    }


def _of_event_log(meter: Meter) -> dict[type[events.Event], _Handler]:
    maintained = _counter(meter, "event_log.tended", "look", "Looks that made or dropped days of the event log")
    postponed = _counter(meter, "event_log.postponed", "look", "Looks that a transaction was in the way of")
    failed = _counter(meter, "event_log.not_tended", "look", "Looks that the worker's role has no right to")
    return {
        events.EventLogMaintained: lambda event: maintained.add(1),
        events.EventLogMaintenancePostponed: lambda event: postponed.add(1),
        events.EventLogMaintenanceFailed: lambda event: failed.add(1),
    }


def _of_jobs(meter: Meter) -> dict[type[events.Event], _Handler]:
    reaped = _counter(meter, "job.reaped", "job", "Jobs taken back because their lease had expired")
    released = _counter(meter, "job.released", "job", "Jobs claimed and released unstarted")
    swept = _counter(meter, "job.swept", "job", "Blocked jobs that waited for nothing any more, and were released")
    waited = _histogram(meter, "job.wait.duration", "From the moment a job is due to the start of its handler")
    started = _counter(meter, "job.attempt.started", "attempt", "Attempts whose handler began")

    def reap(event: events.JobReaped) -> None:
        reaped.add(1, {"queuert.job.type": event.type, "queuert.job.failed": event.failed})

    def start(event: events.AttemptStarted) -> None:
        attributes = {"queuert.job.type": event.type}
        started.add(1, attributes)
        waited.record(event.waited, attributes)

    return {
        events.JobReaped: reap,
        events.JobsReleased: lambda event: released.add(event.count),
        events.StrandedJobsReleased: lambda event: swept.add(event.count),
        events.AttemptStarted: start,
    }


_OUTCOMES: Final[dict[type[events.Event], str]] = {
    events.AttemptCompleted: "completed",
    events.AttemptContinued: "continued",
    events.AttemptRetried: "retried",
    events.AttemptFailed: "failed",
    events.AttemptCancelled: "cancelled",
    events.AttemptReleased: "interrupted",
    events.AttemptWaiting: "waiting",
}


def _of_attempts(meter: Meter) -> dict[type[events.Event], _Handler]:
    ended = _counter(meter, "job.attempt.ended", "attempt", "Attempts whose finish was stored")
    duration = _histogram(meter, "job.attempt.duration", "From the start of a handler to its stored finish")

    def end(event: Any) -> None:
        attributes: dict[str, str] = {
            "queuert.job.type": event.type,
            "queuert.attempt.outcome": _OUTCOMES[type(event)],
        }
        duration.record(event.duration, attributes)
        ended.add(1, attributes | _error_type(getattr(event, "error", None)))

    return dict.fromkeys(_OUTCOMES, end)


def _error_type(error: JobError | None) -> dict[str, str]:
    return {} if error is None else {"error.type": error.type or error.kind}


def _of_lost_leases(meter: Meter) -> dict[type[events.Event], _Handler]:
    aborted = _counter(meter, "job.attempt.aborted", "attempt", "Attempts told to stop: lease lost, or out of time")
    killed = _counter(meter, "job.attempt.killed", "attempt", "Attempts whose process was killed")
    refused = _counter(meter, "job.attempt.refused", "attempt", "Finishes not stored because the lease was lost")

    def attributes(job_type: str, reason: AbortReason) -> dict[str, str]:
        return {"queuert.job.type": job_type, "queuert.abort.reason": reason.value}

    return {
        events.AttemptAborted: lambda event: aborted.add(1, attributes(event.type, event.reason)),
        events.HandlerKilled: lambda event: killed.add(1, attributes(event.type, event.reason)),
        events.FinishRejected: lambda event: refused.add(1, attributes(event.type, event.reason)),
    }


def _of_odd_finishes(meter: Meter) -> dict[type[events.Event], _Handler]:
    broken = _counter(meter, "job.attempt.broken", "attempt", "Attempts whose finish could not be stored")
    late = _counter(meter, "job.attempt.error_after_completion", "attempt", "Handlers that raised after completing")
    unheeded = _counter(meter, "job.attempt.hook_error", "attempt", "Attempts whose after_attempt could not be heeded")

    def count(counter: Counter) -> _Handler:
        return lambda event: counter.add(1, {"queuert.job.type": event.type, **_error_type(event.error)})

    return {
        events.FinishFailed: count(broken),
        events.ErrorAfterCompletion: count(late),
        events.AfterAttemptFailed: count(unheeded),
    }


def _of_adapters(meter: Meter) -> dict[type[events.Event], _Handler]:
    failed = _counter(meter, "state_adapter.error", "error", "Operations that the store did not do")
    at_risk = _counter(meter, "state_adapter.at_risk", "risk", "Settings of a server with which jobs may get lost")
    lost = _counter(meter, "notify_adapter.lost", "connection", "Losses of the connection for notifications")
    restored = _counter(meter, "notify_adapter.restored", "connection", "Recoveries of that connection")
    dropped = _counter(meter, "notify_adapter.dropped", "notification", "Notifications that could not be sent")
    broken = _counter(meter, "observability_adapter.error", "error", "Exceptions of observability adapters")
    unreached = _counter(meter, "spark.error", "error", "Times that Spark could not be asked or told for an attempt")

    def count(counter: Counter) -> _Handler:
        return lambda event: counter.add(1, {"queuert.adapter.name": event.adapter})

    return {
        events.StoreCallFailed: lambda event: failed.add(1, {"queuert.adapter.operation": event.operation}),
        events.StoreWarningRaised: count(at_risk),
        events.ListenerLost: count(lost),
        events.ListenerRestored: count(restored),
        events.NotificationDropped: count(dropped),
        events.ObserverFailed: count(broken),
        events.SparkUnreachable: lambda event: unreached.add(1, {"queuert.adapter.operation": event.operation}),
    }
