"""The in-process worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from queuert.client import AsyncClient, Client
from queuert.client.schedules import checked_owner, checked_schedules, schedule_records
from queuert.errors import (
    CapabilityMissingError,
    ClosedError,
    ConfigurationError,
    DefinitionError,
    RunningEventLoopError,
)
from queuert.job_types import JobType, LibraryJobType, not_registered
from queuert.new_chain import listed
from queuert.notify.adapter import Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import LifespanFailed, RetentionInUse, SchedulesRemoved
from queuert.observability.snapshots import WorkerSnapshot
from queuert.policies import Retention
from queuert.schedules import RecurringSchedule, notification_key
from queuert.state.adapter import Capability, emit_store_warnings
from queuert.state.async_store import AsyncStore
from queuert.state.types import ScheduleRecord
from queuert.worker.executors import check_not_importing_main
from queuert.worker.finishes import error_of
from queuert.worker.health import STALE_AFTER, Health, HealthReport, report_health
from queuert.worker.lifespan import EnteredLifespan
from queuert.worker.middleware import Middleware
from queuert.worker.prefetch import INPUT_BYTES
from queuert.worker.processors import Processor, Processors, groups_of, merged, selected
from queuert.worker.runtime import WorkerRuntime
from queuert.worker.settings import MOST, checked_flag, checked_number, checked_seconds

_log = logging.getLogger("queuert.worker")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHORTEST_POLL = 0.001
"""Seconds. Polls in closer succession would only keep a processor busy."""
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
        schedules: recurring schedules that it stores when it starts, beside those of the processors. Every worker
            starts the chains of all schedules of its job types, no matter who stored them.
        schedule_owner: to whom its ``schedules`` belong; by default to the owner of its first processors.
        keep_schedules: whether schedules of these owners that left the code are kept. By default the worker removes
            them when it starts, except those of job types that its client knows and other workers handle.
        types: job types, or names: it handles only these. By default it handles all that have a handler.
        exclude_types: job types, or names, that it does not handle.
        required_middlewares: middlewares that each group of processors must have, the same objects in the same order,
            perhaps with others between them. The worker does not add them.

    Raises:
        ConfigurationError: a setting is out of range or of another type, or two schedules have the same name.
        DefinitionError: there is no handler, or two for one job type, or a handler or schedule of a type that the
            client does not know; ``types`` or ``exclude_types`` has a type without a handler; a group of processors
            lacks a required middleware; or the client or the processors are of another class.
        InvalidIdentifierError: the owner cannot be stored.
        CapabilityMissingError: a handler has ``Limits(ordered=True)``, and the store cannot keep an order.

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
        schedule_owner: str | None = None,
        keep_schedules: bool = False,
        types: Sequence[str | JobType[Any, Any]] | None = None,
        exclude_types: Sequence[str | JobType[Any, Any]] = (),
        required_middlewares: Sequence[Middleware] = (),
    ) -> None:
        if not isinstance(client, AsyncClient | Client):
            raise DefinitionError(f"client must be an AsyncClient or a Client, got {type(client).__name__}")
        self._groups = groups_of(processors)
        required_middlewares = listed(required_middlewares, "required_middlewares must be a sequence of middlewares")
        all_processors = merged(self._groups, required_middlewares)
        self._processors = selected(all_processors, types, exclude_types)
        self._name = _checked_name(name)
        checked_number("concurrency", concurrency, 1, MOST)
        checked_seconds("shutdown_timeout", shutdown_timeout, 0)
        if poll_interval is not None:
            checked_seconds("poll_interval", poll_interval, _SHORTEST_POLL)
        checked_number("claim_bytes", claim_bytes, 1)
        if max_connections is not None:
            checked_number("max_connections", max_connections, 2, MOST)
        checked_flag("keep_schedules", keep_schedules)
        _check_known(client, [processor.job_type for processor in all_processors.values()])
        _check_orders(client, self._processors.values())
        self._schedules = self._schedules_by_owner(client, schedules, checked_owner(schedule_owner))
        self._keep_schedules = keep_schedules
        self._client = client
        self._concurrency = concurrency
        self._shutdown_timeout = shutdown_timeout
        self._poll_interval = poll_interval
        self._claim_bytes = claim_bytes
        self._max_connections = max_connections or min(concurrency, 20) + _OTHER_CONNECTIONS
        self._runtime: WorkerRuntime | None = None
        self._started = self._start_failed = False
        self._stop_requested = asyncio.Event()
        """Set when somebody has called :meth:`stop`: a signal, the end of a lifespan, or the program."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it was started in."""
        self._loop_lock = threading.RLock()
        """Re-entrant: a signal handler may call :meth:`request_stop` in the main thread while that has the lock."""
        self._stopping: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None
        self.stops: list[asyncio.Future[None]] = []
        """Its own stops: after the early end of a lifespan, and those that other threads have requested."""
        self.lifespan_ended = asyncio.Event()
        """Set when a lifespan has ended early, so that the worker stops."""
        self._settings: dict[str, Any] = {
            "name": name,
            "concurrency": concurrency,
            "shutdown_timeout": shutdown_timeout,
            "poll_interval": poll_interval,
            "claim_bytes": claim_bytes,
            "max_connections": max_connections,
            "schedules": schedules,
            "schedule_owner": schedule_owner,
            "keep_schedules": keep_schedules,
            "types": types,
            "exclude_types": exclude_types,
            "required_middlewares": required_middlewares,
        }

    def with_settings(self, **settings: Any) -> InProcessWorker:
        """Return a new worker of the same client and processors, with some settings changed.

        The settings are the keyword arguments of the class. ``queuert worker`` calls it with its flags.

        Raises:
            ClosedError: this worker was started before.
            ConfigurationError: as of the class.
            DefinitionError: as of the class.

        Example::

            worker = InProcessWorker(client, processors, name="mail").with_settings(concurrency=50)
        """
        if self._started:
            raise ClosedError("a worker that was started keeps its settings: call with_settings() before start()")
        return type(self)(self._client, self._groups, **{**self._settings, **settings})

    def _schedules_by_owner(
        self, client: AsyncClient | Client, schedules: Sequence[RecurringSchedule], owner: str | None
    ) -> dict[str, list[ScheduleRecord]]:
        """Return the schedules that it stores, by owner; an owner may have none."""
        given = [(group.schedule_owner, group.schedules) for group in self._groups]
        given.append((owner or self._groups[0].schedule_owner, checked_schedules(schedules)))
        checked_schedules([schedule for _, some in given for schedule in some])
        _check_known(client, [schedule.job_type for _, some in given for schedule in some])
        found: dict[str, list[ScheduleRecord]] = {}
        for each, some in given:
            found.setdefault(each, []).extend(schedule_records(client.job_types, some, each))
        return found

    # --- start and stop -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and begin to claim.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: the schema does not exist: run ``queuert migrate up``.
            RightMissingError: the login has not the role of workers; or not that of operators, to store schedules.
            LifespanError: the lifespan of processors could not be entered.
            ClosedError: the worker was started before.
            DefinitionError: it is started by a script that a handler's process imports: put the start under
                ``if __name__ == "__main__"``.
        """
        check_not_importing_main()
        if self._started:
            raise ClosedError("a worker can be started once: make a new InProcessWorker")
        if self._start_failed:
            self.lifespan_ended = asyncio.Event()
        self._started, self._start_failed = True, False
        self._hurry = asyncio.Event()
        with self._loop_lock:
            self._loop = asyncio.get_running_loop()
        try:
            store = self._client.state.async_store(max_connections=self._max_connections)
        except BaseException:
            self._forget_start()
            raise
        try:
            await store.open()
            runtime = self._new_runtime(store, self._hurry)
            await self._store_schedules(store, runtime.name)
            try:
                # Before the lifespans: a login that may not work must not open and close what handlers use.
                await runtime.heartbeat.record_first(store)
            except asyncio.CancelledError:
                await runtime.heartbeat.withdraw(store)  # It may have been written.
                raise
            try:
                await runtime.lifespans.enter(self._on_lifespan_ended)
                if len(runtime.lifespans):
                    # Nobody renews the first one meanwhile, and it expires while a lifespan takes long to enter.
                    await runtime.heartbeat.record_first(store)
            except BaseException:
                try:
                    await runtime.leave_lifespans(self._shutdown_timeout)
                finally:
                    await runtime.heartbeat.withdraw(store)
                raise
        except BaseException:
            self._forget_start()  # Nothing was started.
            await store.aclose()
            raise
        if self._stop_requested.is_set():
            # Stopped while it connected.
            await self._undo_start(runtime, store)
            self._loop = None  # Nothing of it is in this event loop.
            return
        try:
            self._client.notify.open(self._client.observers)
        except BaseException:
            self._forget_start()
            await self._undo_start(runtime, store)
            raise
        try:
            emit_store_warnings(self._client.state, store.risks, self.observers)
            self._report_retention(runtime)
            stored = itertools.chain.from_iterable(self._schedules.values())
            self._client.notify.publish(Topic.JOBS, {notification_key(schedule.type) for schedule in stored})
            self._runtime = runtime
            runtime.start()
            waiting = self._wait_until_stopped(runtime)
            self._waiting = asyncio.create_task(waiting, name=f"queuert-{runtime.name}-stopped")
            runtime.sentinel = self._waiting
        except BaseException:
            self._runtime = None
            try:
                await runtime.undo_start(self._shutdown_timeout)
            finally:
                self._forget_start()
            raise

    def _forget_start(self) -> None:
        """A start has failed, so that it may be called again."""
        with self._loop_lock:
            self._started, self._start_failed, self._loop = False, True, None
            if self.lifespan_ended.is_set():
                self._stop_requested = asyncio.Event()  # That has requested the stop of this start, and of no other.

    async def _undo_start(self, runtime: WorkerRuntime, store: AsyncStore) -> None:
        """Leave the lifespans, withdraw the heartbeat, and disconnect: nothing else was begun."""
        try:
            await runtime.leave_lifespans(self._shutdown_timeout)
            await runtime.heartbeat.withdraw(store)
        finally:
            await store.aclose()

    async def _store_schedules(self, store: AsyncStore, worker: str) -> None:
        """Store the schedules of the code, and remove those of the same owners that are not in it."""
        await store.put_schedules(list(itertools.chain.from_iterable(self._schedules.values())))
        if self._keep_schedules:
            return
        stored = await store.list_schedules()
        for owner, schedules in self._schedules.items():
            names = {schedule.name for schedule in schedules}
            left = [
                one.name for one in stored if one.owner == owner and one.name not in names and self._may_remove(one)
            ]
            if left and await store.delete_schedules(left, owner=owner):
                self.observers.emit(SchedulesRemoved(worker=worker, owner=owner, schedules=tuple(left)))

    def _may_remove(self, schedule: ScheduleRecord) -> bool:
        """Whether the code of this worker has to do with a schedule: other workers may have the same owner."""
        job_type = self._client.job_types.get(schedule.type)
        return schedule.type in self._processors or job_type is None or job_type.completed_by == "client"

    def _report_retention(self, runtime: WorkerRuntime) -> None:
        """Say which closed chains are kept for how long: whoever has set nothing learns it from the log."""
        types: dict[Retention, list[str]] = {}
        for name, retention in runtime.retention.items():
            types.setdefault(retention, []).append(name)
        for retention, names in types.items():
            self.observers.emit(RetentionInUse(worker=runtime.name, types=tuple(names), kept=str(retention)))

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
        self.stops.append(asyncio.ensure_future(self._stop_unless_requested()))

    async def _stop_unless_requested(self) -> None:
        # A second call would cancel the running handlers.
        if not self._stop_requested.is_set():
            await self.stop()

    async def stop(self, *, shutdown_timeout: float | None = None) -> None:
        """Stop: claim no more, let running handlers finish, then cancel them and release their jobs.

        Safe at any moment and any number of times; a second call cancels the running handlers at once.

        Args:
            shutdown_timeout: seconds that running handlers have to finish, instead of the worker's own.

        Raises:
            RunningEventLoopError: it runs in another event loop: call :meth:`request_stop`, from any thread.
        """
        self._check_event_loop("stop")
        if self._start_failed:
            return  # There is nothing to stop, and the next start must not take it for a stop of its own.
        if self._runtime is not None:
            self._runtime.note_stop_request()
            if self._stopping is None:
                if shutdown_timeout is not None:
                    self._shutdown_timeout = shutdown_timeout
                self._start_to_stop(self._runtime)
            elif self._hurry is not None:
                self._hurry.set()
        self._stop_requested.set()  # Not before there is a stop to wait for.
        await self.wait_stopped()

    def _start_to_stop(self, runtime: WorkerRuntime) -> asyncio.Task[None]:
        """Stop in a task of its own: the stop may cancel the caller, such as a handler that stops its worker."""
        self._stopping = asyncio.create_task(runtime.stop(self._shutdown_timeout))
        return self._stopping

    def _check_event_loop(self, method: str) -> None:
        """Raise RunningEventLoopError in another event loop than the worker's, whose tasks cannot be awaited there."""
        has_stopped = self._stopping is not None and self._stopping.done()
        if self._loop not in (None, asyncio.get_running_loop()) and not has_stopped:
            over = self._loop.is_closed()
            advice = "its event loop is closed" if over else "call request_stop() from here"
            raise RunningEventLoopError(f"{method}() works in the event loop in which the worker was started: {advice}")

    async def _wait_until_stopped(self, runtime: WorkerRuntime) -> None:
        """Wait until it has stopped, however often this is cancelled.

        ``asyncio.run`` cancels all tasks when its coroutine ends, and waits for them. The worker's loops end by a stop
        alone, and what ends a stop is done when they have ended.
        """
        while True:
            try:
                await self._stop_requested.wait()
                await asyncio.wait([self._stopping or self._start_to_stop(runtime)])
                if runtime.stopping:
                    return
                self._stopping = None  # It was cancelled before its first step.
            except asyncio.CancelledError:
                self.stop_since_cancelled()

    def stop_since_cancelled(self) -> bool:
        """Begin the stop, unless it has begun, since somebody has cancelled all tasks of the event loop.

        Return whether that is why it stops. The loops go on after that, but the tasks of a connection pool do not: only
        a worker that is made anew works as before.
        """
        if self._runtime is None:
            return False
        self._runtime.note_tasks_cancelled()
        unasked = self.cancelled_unasked
        if not self._stop_requested.is_set():
            # Also if a stop was requested that has not begun: its task may be one of those that were cancelled.
            self.stops.append(asyncio.ensure_future(self.stop()))
        return unasked

    @property
    def cancelled_unasked(self) -> bool:
        """Whether it stops because somebody has cancelled all tasks of its event loop."""
        return self._runtime is not None and self._runtime.cancelled_unasked

    def leave(self) -> None:
        """Give up what still runs, since its event loop will not run again; other workers take the jobs."""
        if self._runtime is not None:
            self._runtime.leave()

    def request_stop(self) -> None:
        """Ask it to :meth:`stop`, from any thread, and return at once. A second call cancels the running handlers.

        So ends a worker whose :meth:`run` is in another thread::

            thread = threading.Thread(target=worker.run)
            thread.start()
            ...
            worker.request_stop()
            thread.join()

        One that has not been started yet stops as soon as it is; one that has stopped is left alone.
        """
        with self._loop_lock:
            loop = self._loop
            if loop is None:
                self._stop_requested.set()  # No event loop waits for it yet.
                return
        if self._runtime is not None:
            self._runtime.note_stop_request()  # At once: the program may end before its event loop looks.
        with suppress(RuntimeError):  # The loop is closed, so it has stopped.
            loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self.stops.append(asyncio.ensure_future(self.stop()))

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested: by a signal, the end of a lifespan, or the program."""
        return self._stop_requested.is_set()

    async def wait_stopped(self) -> None:
        """Wait until it has been stopped, by whomever.

        Raises:
            RunningEventLoopError: it runs in another event loop.
        """
        self._check_event_loop("wait_stopped")
        await self._stop_requested.wait()
        if self._stopping is not None and self._waiting is not None:
            await asyncio.shield(self._waiting)  # It ends after the stop: nothing is left in the event loop.
            if not self._stopping.cancelled():
                self._stopping.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    if not TYPE_CHECKING:  # Type checkers report it by themselves.

        def __enter__(self) -> NoReturn:
            raise DefinitionError(
                "a worker runs in an event loop: write async with InProcessWorker(...), got with; or call run(), which "
                "blocks the thread until a signal"
            )

        def __exit__(self, *error: object) -> None: ...

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, then stop, and return the exit code. See :func:`queuert.worker.run.run`.

        In a thread that is not the main one it handles no signals, which Python allows in the main thread only: call
        :meth:`request_stop` from another thread.

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
    def client(self) -> AsyncClient | Client:
        """The client whose store and job types it shares."""
        return self._client

    @property
    def processors(self) -> tuple[Processors, ...]:
        """The groups of processors that it was given."""
        return tuple(self._groups)

    @property
    def schedules(self) -> tuple[RecurringSchedule, ...]:
        """The schedules that it stores when it starts: its own, and those of its processors."""
        return (*self._settings["schedules"], *(one for group in self._groups for one in group.schedules))

    @property
    def running(self) -> int:
        """The number of attempts that run now."""
        return 0 if self._runtime is None else self._runtime.running

    async def is_idle(self) -> bool:
        """Return whether it runs no attempt, and no job or tick that it could take is due, at one moment of the call.

        Jobs that limits or pauses hold back are not due, nor are retries that wait.

        Raises:
            StateUnavailableError: the store cannot be reached.
            ClosedError: the worker is not running.
        """
        if self._runtime is None or self._stop_requested.is_set():
            raise ClosedError("the worker must be running: call start() before is_idle()")
        return await self._runtime.is_idle()

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
        if self._runtime is None:
            return Health(self._name, 0, self._stop_requested.is_set(), ())
        return self._runtime.health()

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
    known = (job_type for job_type in job_types if not isinstance(job_type, LibraryJobType))
    missing = [job_type for job_type in known if job_type not in client.job_types]
    for job_type in missing:
        if client.job_types.get(job_type.name) is not None:
            raise not_registered(job_type, client.job_types)  # It was made twice.
    unknown = sorted({job_type.name for job_type in missing})
    if unknown:
        raise DefinitionError(f"the client does not know the job types {', '.join(map(repr, unknown))}: add them")


def _check_orders(client: AsyncClient | Client, processors: Iterable[Processor]) -> None:
    ordered = sorted(one.job_type.name for one in processors if one.limits is not None and one.limits.ordered)
    if ordered and Capability.ORDERED_KEYS not in client.state.capabilities:
        advice = f"Limits(ordered=True) of {', '.join(ordered)} needs Postgres or SQLite, or leave it out"
        raise CapabilityMissingError(Capability.ORDERED_KEYS, advice)


def _checked_name(name: object) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "worker"
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"the worker name must be 1 to 64 letters, digits, '.', '_' or '-', got {name!r}")
    return name
