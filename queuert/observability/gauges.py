"""Gauges: the state of a worker, and of the database, as OpenTelemetry's observable gauges.

A worker's gauges are about its own process. The gauges of the database are the same for all, so one process reads them
for all: ``queuert metrics --serve``, or a :class:`StoreGauges` of your own. If each worker read them, every dashboard
would show the backlog once for each worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from queuert.errors import ConfigurationError
from queuert.jobs import JobStatus
from queuert.observability.escaping import escape
from queuert.observability.metrics import BY_NAME
from queuert.observability.snapshots import StoreSnapshot, WorkerSnapshot, read_store
from queuert.state.adapter import StateAdapter
from queuert.state.sync_store import Store
from queuert.workers import WorkerState

_log = logging.getLogger("queuert.observability")

_T = TypeVar("_T")

Values: TypeAlias = Iterable[tuple[float, dict[str, str]]]

LATE_SECONDS = 60.0
"""A schedule counts as late when its tick is over for so long: workers look for ticks at least as often."""

_FRESH = 0.5
"""Seconds for which one reading of a worker is used, so that all gauges of a scrape show the same moment."""

_MISSED_READINGS = 3
"""After so many intervals without a reading the gauges of the database are left out, rather than be out of date."""


class Observable(Protocol):
    """A worker, such as :class:`~queuert.worker.InProcessWorker`."""

    def snapshot(self) -> WorkerSnapshot | None:
        """Return its state now; None while it does not run. Called from any thread."""
        ...


def observe_worker(worker: Observable, meter_provider: MeterProvider | None = None) -> None:
    """Make the gauges of a worker; they end with it.

    Args:
        worker: an ``InProcessWorker``, started or not.
        meter_provider: where the gauges are made; by default the global provider.

    Example::

        worker = InProcessWorker(client, processors)
        observe_worker(worker)
        async with worker:
            await shutdown.wait()
    """
    read = _Cached(worker.snapshot)
    for name, values in _WORKER_GAUGES.items():
        _gauge(meter_provider, name, read, values)


class _Cached:
    """Reads a worker once for all gauges of one scrape."""

    def __init__(self, read: Callable[[], WorkerSnapshot | None]) -> None:
        self._read = read
        self._until = 0.0
        self._last: WorkerSnapshot | None = None

    def __call__(self) -> WorkerSnapshot | None:
        now = time.monotonic()
        if self._last is None or now >= self._until:
            self._last = self._read()
            self._until = now + _FRESH
        return self._last


def _pool_connections(snapshot: WorkerSnapshot) -> Values:
    if snapshot.pool is not None:
        yield snapshot.pool.in_use, {"queuert.pool.state": "in_use"}
        yield snapshot.pool.idle, {"queuert.pool.state": "idle"}


def _pool_waiting(snapshot: WorkerSnapshot) -> Values:
    if snapshot.pool is not None:
        yield snapshot.pool.waiting, {}


_WORKER_GAUGES: Mapping[str, Callable[[WorkerSnapshot], Values]] = {
    "queuert.slots": lambda one: [(one.slots, {})],
    "queuert.slots.busy": lambda one: [(one.busy, {})],
    "queuert.jobs.prefetched": lambda one: [(one.prefetched, {})],
    "queuert.leases": lambda one: [(one.leases, {})],
    "queuert.event_loop.lag": lambda one: [(one.event_loop_lag, {})],
    "queuert.pool.connections": _pool_connections,
    "queuert.pool.waiting": _pool_waiting,
}


class StoreGauges:
    """Reads the database at an interval, and shows what it found as gauges.

    One process does this for all. A scrape never waits for the database: it shows the last reading, and after three
    intervals without one nothing but ``queuert.store.up`` at 0.

    Args:
        state: the adapter of the store; the role of an observer is enough.
        meter_provider: where the gauges are made; by default the global provider.
        interval: seconds from one reading to the next, above 0.

    Raises:
        ConfigurationError: the interval is not above 0.

    Example::

        with StoreGauges(PostgresState(dsn)):
            serve_until_stopped()
    """

    def __init__(
        self, state: StateAdapter, meter_provider: MeterProvider | None = None, *, interval: float = 15.0
    ) -> None:
        if not interval > 0:
            raise ConfigurationError(f"interval must be above 0 seconds, got {interval}")
        self._state = state
        self._interval = interval
        self._store: Store | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: tuple[float, StoreSnapshot] | None = None
        self.error: Exception | None = None
        """Why the last reading failed; None if it did not."""
        for name, values in _STORE_GAUGES.items():
            _gauge(meter_provider, name, self._current, values)
        _gauge(meter_provider, "queuert.store.up", lambda: self, lambda one: [(float(one.error is None), {})])

    def read(self) -> StoreSnapshot:
        """Read the database now, in this thread.

        Raises:
            StateUnavailableError: it cannot be reached.
            SchemaMissingError: its schema is missing or too old.
            StateError: it refused the reading.
        """
        try:
            if self._store is None:
                store = self._state.sync_store(max_connections=1)
                store.open()
                self._store = store
            snapshot = read_store(self._state, self._store)
        except Exception as error:
            self.error = error
            self._close_store()
            raise
        self.error = None
        self._last = time.monotonic(), snapshot
        return snapshot

    def not_ready(self) -> tuple[str, ...]:
        """Why the gauges are missing or out of date; nothing if they are not."""
        if self.error is not None:
            return (f"the database could not be read: {escape(str(self.error))}",)
        return () if self._current() is not None else ("the database has not been read yet",)

    def open(self) -> None:
        """Read the database in a thread of its own, until ``close``. A failed reading is logged and tried again.

        Raises:
            RuntimeError: the process can start no thread more. Call it again when it can.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._read_until_stopped, name="queuert-gauges", daemon=True)
            thread.start()
            # Only now: if the process can start no thread more, ``close`` has none to wait for.
            self._thread = thread

    def close(self) -> None:
        """End the thread and the connection."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._close_store()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_until_stopped(self) -> None:
        while not self._stopped.is_set():
            failed_before = self.error is not None
            try:
                self.read()
            except Exception as error:
                if not failed_before:
                    _log.warning("the database could not be read for its gauges, trying again: %s", error)
            self._stopped.wait(self._interval)

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _current(self) -> StoreSnapshot | None:
        if self._last is None or time.monotonic() - self._last[0] > _MISSED_READINGS * self._interval:
            return None
        return self._last[1]


def _types(snapshot: StoreSnapshot) -> set[str]:
    """The job types that have jobs, workers or a pause, and those that clients complete."""
    types = {count.type for count in snapshot.counts} | set(snapshot.paused_types)
    types |= {one.type for one in snapshot.client_types}
    return types.union(*(worker.job_types for worker in snapshot.workers))


def _jobs(snapshot: StoreSnapshot) -> Values:
    """Jobs of each type and status; 0 for a type that has none, so that no series ends when a queue is empty."""
    found = {(one.type, one.status): one.count for one in snapshot.counts}
    for type in sorted(_types(snapshot)):
        for status in JobStatus:
            attributes = {"queuert.job.type": type, "queuert.job.status": status.value}
            yield found.get((type, status), 0), attributes


def _oldest_ready(snapshot: StoreSnapshot) -> Values:
    found = {one.type: one.oldest_seconds for one in snapshot.counts if one.status is JobStatus.READY}
    for type in sorted(_types(snapshot)):
        age = found.get(type, 0.0)
        if age is not None:
            yield max(0.0, age), {"queuert.job.type": type}


def _paused(snapshot: StoreSnapshot) -> Values:
    for type in sorted(_types(snapshot)):
        yield float(type in snapshot.paused_types), {"queuert.job.type": type}


def _by_clients(snapshot: StoreSnapshot) -> Values:
    by_clients = {one.type for one in snapshot.client_types}
    for type in sorted(_types(snapshot)):
        yield float(type in by_clients), {"queuert.job.type": type}


def _overdue_after(snapshot: StoreSnapshot) -> Values:
    for one in snapshot.client_types:
        if one.overdue_after is not None:
            yield one.overdue_after, {"queuert.job.type": one.type}


def _workers(snapshot: StoreSnapshot) -> Values:
    found = Counter(worker.state for worker in snapshot.workers)
    for state in WorkerState:
        yield found[state], {"queuert.worker.state": state.value}


def _slots(snapshot: StoreSnapshot) -> Values:
    yield sum(one.concurrency for one in snapshot.workers if one.state is WorkerState.RUNNING), {}


def _workers_of_type(snapshot: StoreSnapshot) -> Values:
    found = Counter(type for worker in snapshot.workers for type in worker.claimed_types)
    for type in sorted(_types(snapshot)):
        yield found[type], {"queuert.job.type": type}


def _event_log_lag(snapshot: StoreSnapshot) -> Values:
    if snapshot.event_log_lag is not None:
        yield max(0.0, snapshot.event_log_lag), {}


_STORE_GAUGES: Mapping[str, Callable[[StoreSnapshot], Values]] = {
    "queuert.jobs": _jobs,
    "queuert.jobs.oldest_ready.age": _oldest_ready,
    "queuert.jobs.paused": _paused,
    "queuert.jobs.completed_by_clients": _by_clients,
    "queuert.jobs.overdue_after": _overdue_after,
    "queuert.workers": _workers,
    "queuert.workers.of_type": _workers_of_type,
    "queuert.workers.slots": _slots,
    "queuert.workers.jobs": lambda one: [(sum(worker.running for worker in one.workers), {})],
    "queuert.schedules.late": lambda one: [(sum(late.seconds > LATE_SECONDS for late in one.delays), {})],
    "queuert.schedules.delay": lambda one: [(max((late.seconds for late in one.delays), default=0.0), {})],
    "queuert.event_log.lag": _event_log_lag,
}


def _gauge(
    provider: MeterProvider | None, name: str, read: Callable[[], _T | None], values: Callable[[_T], Values]
) -> None:
    def observe(_: CallbackOptions) -> list[Observation]:
        found = read()
        return [] if found is None else [Observation(value, attributes) for value, attributes in values(found)]

    metric = BY_NAME[name]
    meter = (provider or get_meter_provider()).get_meter("queuert")
    meter.create_observable_gauge(metric.name, [observe], unit=metric.unit, description=metric.description)
