"""The in-process worker."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from queuert.client import AsyncClient, Client
from queuert.client.schedules import schedule_records
from queuert.errors import ClosedError, ConfigurationError, DefinitionError
from queuert.job_types import JobType, not_registered
from queuert.notify.adapter import Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import LifespanFailed, RetentionInUse
from queuert.observability.snapshots import WorkerSnapshot
from queuert.policies import Retention
from queuert.schedules import RecurringSchedule, notification_key
from queuert.state.adapter import emit_store_warnings
from queuert.state.async_store import AsyncStore
from queuert.worker.executors import check_not_importing_main
from queuert.worker.finishes import error_of
from queuert.worker.health import STALE_AFTER, Health, HealthReport, report_health
from queuert.worker.lifespan import EnteredLifespan
from queuert.worker.middleware import Middleware
from queuert.worker.prefetch import INPUT_BYTES
from queuert.worker.processors import Processors, merged
from queuert.worker.runtime import WorkerRuntime

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OTHER_CONNECTIONS = 4
"""Connections for claims, finishes and the reaper, besides those of handlers."""


class InProcessWorker:
    """Claims jobs and runs their handlers in this process, as many at once as ``concurrency``.

    Each job is protected by a lease, which a thread of its own renews. If a worker dies, others take over its jobs when
    their leases expire. Start as many workers as you like, on as many machines, usually one per process.

    Args:
        client: whose state, notify and observability adapters and job types it shares; sync or async.
        processors: the handlers, in one group or several.
        name: shown with its jobs and events, 1 to 64 letters, digits and ``. _ -``; by default the host's name. A
            random part is added at each start, so that two workers of one name are two.
        concurrency: handlers that run at once.
        shutdown_timeout: seconds that running handlers have to finish when the worker stops.
        poll_interval: seconds between two polls; by default 60, and 1 while notifications do not arrive.
        claim_bytes: memory for the inputs of all jobs that it has claimed, as text, until their finishes are written.
            When they take more, it claims no jobs. By default 64 MB. One input may exceed it.
        max_connections: the most connections of the pool for claims, finishes and ``complete()`` blocks; by default
            enough for all handlers up to 20.
        schedules: recurring schedules that it stores when it starts, as ``client.put_schedules`` does. Every worker
            starts the chains of all schedules of its job types, no matter who stored them.
        required_middlewares: middlewares that each group of processors must have, the same objects in the same order,
            perhaps with others between them. The worker does not add them.

    Raises:
        ConfigurationError: a setting is out of range, or two schedules have the same name.
        DefinitionError: there is no handler, or two for one job type, or a handler or schedule of a type that the
            client does not know; a group of processors lacks a required middleware; or the client or the processors
            are of another class.

    Example::

        async with InProcessWorker(client, processors, concurrency=10):
            await shutdown.wait()
    """

    def __init__(
        self,
        client: AsyncClient | Client,
        processors: Processors | Sequence[Processors],
        *,
        name: str | None = None,
        concurrency: int = 1,
        shutdown_timeout: float = 30.0,
        poll_interval: float | None = None,
        claim_bytes: int = INPUT_BYTES,
        max_connections: int | None = None,
        schedules: Sequence[RecurringSchedule] = (),
        required_middlewares: Sequence[Middleware] = (),
    ) -> None:
        if not isinstance(client, AsyncClient | Client):
            raise DefinitionError(f"client must be an AsyncClient or a Client, got {type(client).__name__}")
        self._processors = merged(processors, required_middlewares)
        self._name = _checked_name(name)
        _check(concurrency >= 1, f"concurrency must be at least 1, got {concurrency}")
        _check(shutdown_timeout >= 0, f"shutdown_timeout must be at least 0 seconds, got {shutdown_timeout}")
        _check(
            poll_interval is None or poll_interval > 0, f"poll_interval must be above 0 seconds, got {poll_interval}"
        )
        _check(claim_bytes >= 1, f"claim_bytes must be at least 1, got {claim_bytes}")
        _check(
            max_connections is None or max_connections >= 2,
            f"max_connections must be at least 2, got {max_connections}",
        )
        _check_known(client, [processor.job_type for processor in self._processors.values()])
        _check_known(client, [schedule.job_type for schedule in schedules])
        self._schedules = schedule_records(client.job_types, schedules)
        self._client = client
        self._concurrency = concurrency
        self._shutdown_timeout = shutdown_timeout
        self._poll_interval = poll_interval
        self._claim_bytes = claim_bytes
        self._max_connections = max_connections or min(concurrency, 20) + _OTHER_CONNECTIONS
        self._runtime: WorkerRuntime | None = None
        self._started = False
        self._stop_requested = False
        self._stopping: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None
        self.stops: list[asyncio.Future[None]] = []
        """Its own stop, after the early end of a lifespan."""
        self.lifespan_ended = asyncio.Event()
        """Set when a lifespan has ended early, so that the worker stops."""

    # --- start and stop -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and begin to claim.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: the schema does not exist: run ``queuert migrate up``.
            LifespanError: the lifespan of processors could not be entered.
            ClosedError: the worker was started before.
            DefinitionError: it is started by a script that a handler's process imports: put the start under
                ``if __name__ == "__main__"``.
        """
        check_not_importing_main()
        if self._started:
            raise ClosedError("a worker can be started once: make a new InProcessWorker")
        self._started = True
        self._hurry = asyncio.Event()
        store = self._client.state.async_store(max_connections=self._max_connections)
        try:
            await store.open()
            await store.put_schedules(self._schedules)
            runtime = self._new_runtime(store, self._hurry)
            try:
                await runtime.lifespans.enter(self._on_lifespan_ended)
                await runtime.heartbeat.record_first(store)
            except BaseException:
                await runtime.leave_lifespans(self._shutdown_timeout)
                raise
        except BaseException:
            self._started = False  # Nothing was started: it may be called again.
            await store.aclose()
            raise
        if self._stop_requested:
            # Stopped while it connected: only the lifespans, the heartbeat and the connection are to be undone.
            try:
                await runtime.leave_lifespans(self._shutdown_timeout)
                await runtime.heartbeat.withdraw(store)
            finally:
                await store.aclose()
            return
        emit_store_warnings(self._client.state, store.risks, self.observers)
        self._report_retention()
        self._client.notify.open(self._client.observers)
        self._client.notify.publish(Topic.JOBS, {notification_key(schedule.type) for schedule in self._schedules})
        self._runtime = runtime
        runtime.start()

    def _report_retention(self) -> None:
        """Say which closed chains are kept for how long: whoever has set nothing learns it from the log."""
        types: dict[Retention, list[str]] = {}
        for name, processor in self._processors.items():
            types.setdefault(processor.retention, []).append(name)
        for retention, names in types.items():
            self.observers.emit(RetentionInUse(worker=self.name, types=tuple(names), kept=str(retention)))

    def _new_runtime(self, store: AsyncStore, hurry: asyncio.Event) -> WorkerRuntime:
        return WorkerRuntime(
            self._client,
            store,
            self._processors,
            name=self._name,
            concurrency=self._concurrency,
            poll_interval=self._poll_interval,
            claim_bytes=self._claim_bytes,
            hurry=hurry,
        )

    def _on_lifespan_ended(self, entered: EnteredLifespan, error: BaseException | None) -> None:
        """A lifespan has ended early: its handlers have no resources any more, so the worker stops."""
        self.lifespan_ended.set()
        reported = error_of(error or RuntimeError("it ended before the worker was stopped"), "lifespan")
        self.observers.emit(
            LifespanFailed(worker=self.name, lifespan=entered.lifespan.name, early=True, error=reported)
        )
        if not self._stop_requested:
            self.stops.append(asyncio.ensure_future(self.stop()))

    async def stop(self, *, shutdown_timeout: float | None = None) -> None:
        """Stop: claim no more, let running handlers finish, then cancel them and release their jobs.

        Safe at any moment and any number of times; a second call cancels the running handlers at once.

        Args:
            shutdown_timeout: seconds that running handlers have to finish, instead of the worker's own.
        """
        self._stop_requested = True
        if self._runtime is None:
            return
        if self._stopping is None:
            # In a task of its own, since the stop may cancel the caller, for example a handler that stops its worker.
            self._stopping = asyncio.create_task(
                self._runtime.stop(self._shutdown_timeout if shutdown_timeout is None else shutdown_timeout)
            )
        elif self._hurry is not None:
            self._hurry.set()
        await asyncio.shield(self._stopping)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, then stop, and return the exit code. See :func:`queuert.worker.run.run`.

        Raises:
            RunningEventLoopError: an event loop runs in this thread already: use ``async with worker``.
        """
        from queuert.worker.run import run

        return run(self)

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the worker; once it is started, with the random part."""
        return self._name if self._runtime is None else self._runtime.name

    @property
    def running(self) -> int:
        """The number of attempts that run now."""
        return 0 if self._runtime is None else self._runtime.running

    @property
    def abandoned(self) -> int:
        """The number of handlers that had not ended when it stopped, such as threads, which cannot be cancelled."""
        return 0 if self._runtime is None else self._runtime.abandoned

    @property
    def observers(self) -> Observers:
        """The observers of its client, which receive its events."""
        return self._client.observers

    def health(self) -> Health:
        """Return whether its loops make progress, for a liveness probe."""
        return Health(self._name, 0, self._stop_requested, ()) if self._runtime is None else self._runtime.health()

    def health_report(self, *, stale_after: float = STALE_AFTER) -> HealthReport:
        """Return why it is not live, or not ready, for HTTP probes. From any thread.

        Args:
            stale_after: seconds of a blocked event loop, or of a loop that only fails, after which it is not live.
        """
        if self._runtime is None:
            return HealthReport((), ("the worker has not started yet",))
        return report_health(self._runtime, stale_after)

    def snapshot(self) -> WorkerSnapshot | None:
        """Return its state now, for gauges; None while it does not run. From any thread."""
        runtime = self._runtime
        stopped = self._stopping is not None and self._stopping.done()
        return None if runtime is None or stopped else runtime.snapshot()


def _check_known(client: AsyncClient | Client, job_types: Iterable[JobType[Any, Any]]) -> None:
    missing = [job_type for job_type in job_types if job_type not in client.job_types]
    for job_type in missing:
        if client.job_types.get(job_type.name) is not None:
            raise not_registered(job_type, client.job_types)  # It was made twice.
    unknown = sorted({job_type.name for job_type in missing})
    if unknown:
        raise DefinitionError(f"the client does not know the job types {', '.join(map(repr, unknown))}: add them")


def _checked_name(name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "worker"
    _check(
        _NAME.fullmatch(name) is not None,
        f"the worker name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}",
    )
    return name


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)
