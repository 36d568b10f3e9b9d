"""Every metric with its kind, unit, attributes and meaning: the one table that instruments and docs are made from.

``docs/metrics.md`` is generated from it by ``scripts/metrics_page.py``. No attribute names a job, a chain or a worker:
with one worker a container the number of time series would grow without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
"""The bounds of the buckets of durations: jobs take milliseconds or hours."""

CALL_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""The bounds of the buckets of calls of the store."""

SIZES: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""The bounds of the buckets of numbers of jobs."""

SLACK_SECONDS: Final = (0, 1, 2, 5, 10, 15, 20, 30, 40, 60, 120, 300, 900, 3600)
"""The bounds of the buckets of the time that leases had left."""


class Kind(StrEnum):
    """What an instrument records."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Source(StrEnum):
    """Where a metric comes from."""

    EVENTS = "events"
    """Events of a client or worker: its own process only."""
    WORKER = "worker"
    """The state of a worker, read when it is scraped."""
    STORE = "store"
    """The whole database, read by one process for all."""
    MESSAGING = "messaging"
    """Events, under the names of OpenTelemetry's messaging conventions."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    unit: str
    """``s`` for seconds, or what is counted in braces."""
    description: str
    attributes: tuple[str, ...] = ()
    source: Source = Source.EVENTS
    buckets: tuple[float, ...] | None = None
    """The bounds of the buckets of a histogram."""

    @property
    def prometheus_name(self) -> str:
        """The name that Prometheus shows: of a histogram without ``_bucket``, ``_count`` and ``_sum``."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            return f"{name}_seconds"
        return f"{name}_total" if self.kind is Kind.COUNTER else name


_TYPE = "queuert.job.type"
_CHAIN = "queuert.chain.type"
_OUTCOME = "queuert.attempt.outcome"
_REASON = "queuert.abort.reason"
_OPERATION = "queuert.adapter.operation"
_ADAPTER = "queuert.adapter.name"


def _counter(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(f"queuert.{name}", Kind.COUNTER, f"{{{unit}}}", description, attributes)


def _seconds(name: str, description: str, *attributes: str, buckets: tuple[float, ...] = SECONDS) -> Metric:
    return Metric(f"queuert.{name}", Kind.HISTOGRAM, "s", description, attributes, buckets=buckets)


def _sizes(name: str, description: str) -> Metric:
    return Metric(f"queuert.{name}", Kind.HISTOGRAM, "{job}", description, buckets=SIZES)


def _gauge(source: Source, name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(
        f"queuert.{name}", Kind.GAUGE, unit if unit == "s" else f"{{{unit}}}", description, attributes, source
    )


_CLIENTS = (
    _counter("chain.started", "chain", "Chains whose start is known to be committed", _CHAIN),
    _counter("chain.start_pending", "chain", "Chains started in a caller's transaction whose end is unknown", _CHAIN),
    _counter("chain.closed", "chain", "Chains that closed, whoever closed them", _CHAIN, "queuert.chain.status"),
    _counter("chain.continued", "chain", "Chains that a client continued with their next job", _CHAIN),
    _counter("chain.retried", "chain", "Closed chains that a client opened again", _CHAIN),
    _counter("chain.deleted", "chain", "Chains that a client deleted"),
    _counter("job.triggered", "job", "Scheduled jobs that a client made due"),
    _seconds("chain.duration", "From the start of a chain to its end", _CHAIN, "queuert.chain.status"),
    _seconds("start.duration", "The write of new chains by one call", buckets=CALL_SECONDS),
    _sizes("start.size", "Chains written by one call"),
)

_ATTEMPTS = (
    _counter("job.attempt.started", "attempt", "Attempts whose handler began", _TYPE),
    _counter("job.attempt.ended", "attempt", "Attempts whose finish was written", _TYPE, _OUTCOME, "error.type"),
    _counter("job.attempt.aborted", "attempt", "Attempts that were told to stop", _TYPE, _REASON),
    _counter("job.attempt.killed", "attempt", "Attempts whose process was killed", _TYPE, _REASON),
    _counter("job.attempt.finish_rejected", "attempt", "Finishes rejected as the lease was lost", _TYPE, _REASON),
    _counter("job.attempt.finish_failed", "attempt", "Finishes that could not be written", _TYPE, "error.type"),
    _counter(
        "job.attempt.error_after_completion", "attempt", "Handlers that raised after completing", _TYPE, "error.type"
    ),
    _counter("job.attempt.after_attempt_error", "attempt", "Errors of after_attempt", _TYPE, "error.type"),
    _seconds("job.wait.duration", "From the moment a job is due to the start of its handler", _TYPE),
    _seconds("job.attempt.duration", "From the start of a handler to its end", _TYPE, _OUTCOME),
    _seconds("job.phase.duration", "Of a phase of a job", _TYPE, "queuert.phase.name", "queuert.phase.outcome"),
    _counter("job.reaped", "job", "Expired leases turned into failed attempts", _TYPE, "queuert.job.failed"),
    _counter("job.released", "job", "Jobs claimed and released before they started"),
    _counter("job.stranded_released", "job", "Stranded jobs released: blocked jobs without open blockers"),
)

_WORKERS = (
    _counter("worker.started", "worker", "Workers that began to claim"),
    _counter("worker.stopping", "worker", "Workers that were told to stop"),
    _counter("worker.stopped", "worker", "Workers that have stopped"),
    _counter("worker.error", "error", "Failures of a worker's loop, which is started again", "queuert.worker.loop"),
    _counter("worker.event_loop_blocked", "block", "Times that a worker's event loop did not run"),
    _counter("worker.event_loop_unblocked", "block", "Times that it ran again"),
    _counter("worker.lifespan_failed", "error", "Lifespans of processors that raised or ended early", "error.type"),
    _seconds("claim.duration", "One claim of jobs", buckets=CALL_SECONDS),
    _sizes("claim.size", "Jobs taken by one claim"),
    _seconds("finish.duration", "The write of finishes by one statement", buckets=CALL_SECONDS),
    _sizes("finish.size", "Finishes written by one statement"),
    _counter("lease.renewed", "lease", "Leases renewed"),
    _counter("lease.lost", "lease", "Leases that could not be renewed because they were lost"),
    _seconds(
        "lease.slack", "Time that was left, of the leases renewed together, to the shortest", buckets=SLACK_SECONDS
    ),
    _counter("chain.pruned", "chain", "Closed chains deleted by retention"),
    _counter("chain.became_stale", "chain", "Closed chains marked as stale by retention"),
    _counter("chain.retention_hook_error", "error", "Errors of before_stale and before_delete", _CHAIN),
    _counter("schedule.id_taken", "chain", "Ticks whose chain id was taken by a job of another type"),
    _counter("schedule.tick_skipped", "tick", "Ticks that started no chain, since an earlier chain was open"),
    _counter("schedule.removed", "schedule", "Schedules that a worker removed, since its code has them no more"),
    _counter("bulk_write.staging_dropped", "table", "Staging tables dropped whose drivers died"),
    _counter("bulk_write.cleanup_failed", "error", "Cleanups of staging that the worker's role may not do"),
    _counter("event_log.maintained", "round", "Rounds that created or dropped partitions of the event log"),
    _counter("event_log.postponed", "round", "Rounds in whose way a transaction was"),
    _counter("event_log.maintenance_failed", "error", "Rounds that the worker's role may not do"),
)

_ADAPTERS = (
    _counter("state_adapter.error", "error", "Operations that failed at the store", _OPERATION),
    _counter("state_adapter.warning", "warning", "Settings of the server with which jobs may get lost", _ADAPTER),
    _counter("notify_adapter.lost", "connection", "Losses of the listener's connection", _ADAPTER),
    _counter("notify_adapter.restored", "connection", "Recoveries of the listener's connection", _ADAPTER),
    _counter("notify_adapter.dropped", "notification", "Notifications that could not be sent", _ADAPTER),
    _counter("observability_adapter.error", "error", "Exceptions of observability adapters", _ADAPTER),
    _counter("spark.error", "error", "Requests that Spark did not answer", _OPERATION),
)

_WORKER_GAUGES = (
    _gauge(Source.WORKER, "slots", "slot", "Slots of this worker: its concurrency"),
    _gauge(Source.WORKER, "slots.busy", "slot", "Slots in which an attempt runs"),
    _gauge(Source.WORKER, "jobs.prefetched", "job", "Jobs claimed ahead of a free slot"),
    _gauge(Source.WORKER, "leases", "lease", "Leases that this worker holds"),
    _gauge(Source.WORKER, "event_loop.lag", "s", "The longest delay of the event loop in the last half minute"),
    _gauge(Source.WORKER, "pool.connections", "connection", "Connections of the pool", "queuert.pool.state"),
    _gauge(Source.WORKER, "pool.waiting", "request", "Calls that wait for a connection of the pool"),
)

_STORE_GAUGES = (
    _gauge(Source.STORE, "store.up", "store", "1 if the last reading of the database succeeded, otherwise 0"),
    _gauge(
        Source.STORE, "jobs", "job", "Jobs by type and status; above 10,000 an estimate", _TYPE, "queuert.job.status"
    ),
    _gauge(Source.STORE, "jobs.oldest_ready.age", "s", "Since when the oldest ready job is due; 0 if none is", _TYPE),
    _gauge(Source.STORE, "jobs.paused", "type", "1 if claims of the job type are paused, otherwise 0", _TYPE),
    _gauge(
        Source.STORE,
        "jobs.completed_by_clients",
        "type",
        "1 if clients complete jobs of the type, otherwise 0",
        _TYPE,
    ),
    _gauge(Source.STORE, "jobs.overdue_after", "s", "For how long a job of the type may wait for a client", _TYPE),
    _gauge(Source.STORE, "workers", "worker", "Workers with a heartbeat in the last minute", "queuert.worker.state"),
    _gauge(Source.STORE, "workers.of_type", "worker", "Running workers that claim jobs of the type", _TYPE),
    _gauge(Source.STORE, "workers.slots", "slot", "Slots of all running workers"),
    _gauge(Source.STORE, "workers.jobs", "job", "Jobs leased by all workers, as of their last heartbeats"),
    _gauge(Source.STORE, "schedules.late", "schedule", "Schedules whose tick is over for a minute without a chain"),
    _gauge(Source.STORE, "schedules.delay", "s", "Since when the latest tick without a chain is over; 0 if none is"),
    _gauge(Source.STORE, "event_log.lag", "s", "Since when an event waits for an open transaction; 0 if none does"),
)

_SYSTEM = "messaging.system"
_NAMES = (_SYSTEM, "messaging.operation.name")
_DESTINATION = "messaging.destination.name"

_MESSAGING = (
    Metric(
        "messaging.client.sent.messages", Kind.COUNTER, "{message}", "Jobs written: starts and continuations",
        (*_NAMES, _DESTINATION), Source.MESSAGING,
    ),
    Metric(
        "messaging.client.consumed.messages", Kind.COUNTER, "{message}", "Jobs handed to a handler",
        (*_NAMES, _DESTINATION), Source.MESSAGING,
    ),
    Metric(
        "messaging.client.operation.duration", Kind.HISTOGRAM, "s", "One successful start, claim or write of finishes",
        (*_NAMES, "messaging.operation.type"), Source.MESSAGING, CALL_SECONDS,
    ),
    Metric(
        "messaging.process.duration", Kind.HISTOGRAM, "s", "From the start of a handler to its end",
        (*_NAMES, _DESTINATION, "error.type"), Source.MESSAGING, SECONDS,
    ),
)  # fmt: skip

METRICS: Final[tuple[Metric, ...]] = (
    *_CLIENTS, *_ATTEMPTS, *_WORKERS, *_ADAPTERS, *_WORKER_GAUGES, *_STORE_GAUGES, *_MESSAGING
)  # fmt: skip
"""All metrics, in the order of the documentation."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
"""All metrics by name."""
