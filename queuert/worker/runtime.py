"""The parts of a started worker: its loops, started and stopped in the right order."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from queuert.client import AsyncClient, Client
from queuert.errors import StateError, StateUnavailableError
from queuert.ids import new_id
from queuert.job_types import BULK_OPERATION_TYPE, JobType
from queuert.jobs import AbortReason
from queuert.notify.adapter import Notification, Subscription, Topic
from queuert.observability.events import LifespanFailed, StoreCallFailed, WorkerStarted, WorkerStopped, WorkerStopping
from queuert.observability.snapshots import WorkerSnapshot
from queuert.policies import Retention, RetryPolicy
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob
from queuert.worker import forks
from queuert.worker.batches import Batches
from queuert.worker.bulk_runner import BulkOperationRunner
from queuert.worker.claimer import Claimer
from queuert.worker.completer import Completer
from queuert.worker.finishes import error_of
from queuert.worker.health import Health
from queuert.worker.heartbeat import Heartbeat, WorkerInfo
from queuert.worker.leases import HeldLease, LeaseRegistry, LeaseRenewer
from queuert.worker.lifespan import Lifespans
from queuert.worker.loop_watch import LoopWatch
from queuert.worker.maintenance import Maintenance
from queuert.worker.prefetch import Prefetch
from queuert.worker.processes.executor import HandlerProcesses
from queuert.worker.processors import Processor
from queuert.worker.pruning import Pruner
from queuert.worker.reaper import Reaper
from queuert.worker.releases import ReleaseQueue
from queuert.worker.runner import AttemptRunner
from queuert.worker.schedule_runner import ScheduleRunner
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.telemetry import ActivityCounter, AttemptReporter
from queuert.worker.threads import HandlerThreads, ThreadStore
from queuert.worker.timeouts import called_within, cancel_and_ignore, ended_within, run_within

_log = logging.getLogger("queuert.worker")

_AFTER_CANCEL = 2.0
"""Seconds that a cancelled handler has to end before its job is released without it."""

_CLOSE_TIMEOUT = 4.0
"""Seconds for the threads of a worker to end. Each has timeouts of its own, of some seconds together."""

_PROCESSES_TIMEOUT = 1.0
"""Seconds that an idle child process has to end, if nothing has a lifespan."""

_LIFESPANS_TIMEOUT = 2.0
"""Seconds that lifespans have to end at least, if handlers have used up the shutdown timeout."""

_MAX_FINISHING = 1_000
"""Attempts whose handler has ended and whose finish is not written yet; with more, no attempt begins."""

_MAX_FINISH_CHARACTERS = 32 * 1024 * 1024
"""The characters of finishes that are not written yet; with more, no attempt begins."""


class WorkerRuntime:
    """The parts of a started worker, which refer to each other through it."""

    def __init__(
        self,
        client: AsyncClient | Client,
        store: AsyncStore,
        processors: Mapping[str, Processor],
        *,
        name: str,
        concurrency: int,
        poll_interval: float | None,
        claim_bytes: int,
        hurry: asyncio.Event,
    ) -> None:
        self.name = f"{name}-{new_id()[-12:]}"
        """The name with a random part, which makes it unique."""
        self.event_loop = asyncio.get_running_loop()
        self.store = store
        self.job_types = client.job_types
        self.notify = client.notify
        self._notify_closed = False
        self.observers = client.observers
        self.tracing = client.tracing
        self.generation = forks.generation
        """The process to which it belongs."""
        self.stopping = False
        self.sentinel: asyncio.Task[None] | None = None
        """A task that nobody cancels who does not cancel all tasks of the event loop."""
        self._tasks_cancelled = self._stop_requested = self._cancelled_unasked = False
        self._abandoned = set[AttemptRunner]()
        self._warned_waits: dict[tuple[str, str], object] = {}
        """The pairs of types of which a handler of the first waited for a job of the second."""
        self.attempts: set[AttemptRunner] = set()
        """The attempts that have begun, until their finish is written."""
        self._finishing: dict[AttemptRunner, datetime] = {}
        """Attempts whose handler has ended and whose finish is not written yet, with the times of their claims."""
        self.client = client
        self._concurrency = concurrency
        self._processors = processors
        self._limits = {
            type: limits for type, processor in processors.items() if (limits := processor.limits) is not None
        }
        self._bounded = frozenset(type for type, limits in self._limits.items() if limits.bounded)
        """The types of which jobs can be held back: the end of an attempt lets others begin."""
        self._hurry = hurry
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self.lifespans = Lifespans(processor.lifespan for processor in processors.values())
        self._make_parts(poll_interval, claim_bytes)
        self._make_loops(name)

    def _make_parts(self, poll_interval: float | None, claim_bytes: int) -> None:
        """Make the parts that a job passes through. Each needs some of those before it."""
        self.leases = LeaseRegistry()
        self.releases = ReleaseQueue(
            self.store, worker=self.name, observers=self.observers, on_released=self._on_released
        )
        # Prefetched jobs count in the limits of their types, and would keep other workers from claiming.
        self.prefetch = Prefetch(self, self._concurrency, enabled=not self._bounded, max_input_bytes=claim_bytes)
        self.claimer = Claimer(
            self,
            leases={name: processor.lease.seconds for name, processor in self._processors.items()},
            limits=self._limits,
            poll_interval=poll_interval,
        )
        self.activity = ActivityCounter()
        self.reporter = AttemptReporter(
            self.name, self.observers, self.notify, self.claimer, self.activity, self._bounded
        )
        self.completer = Completer(
            self.store,
            self.reporter,
            self.prefetch.slots,
            types=self.job_types.names,
            worker=self.name,
            observers=self.observers,
            tracing=self.tracing,
        )
        self.threads = HandlerThreads(f"queuert-{self.name}")
        self.thread_store = ThreadStore(self.client.state, min(self._concurrency, 20))
        self.batches = Batches(self.threads, self.prefetch)
        self.processes = HandlerProcesses(self.name, self.client.state, self.job_types.names)

    def _make_loops(self, name: str) -> None:
        """Make the parts that run beside the jobs."""
        self.heartbeat = self._new_heartbeat(name)
        self.renewer = self._new_renewer()
        self.reaper = self._new_reaper()
        self.schedule_runner = ScheduleRunner(
            self.store,
            self.notify,
            self._scheduled_types,
            worker=self.name,
            observers=self.observers,
            tracing=self.tracing,
        )
        self.maintenance = self._new_maintenance()
        self.bulk_runner = BulkOperationRunner(
            self.store,
            self.notify,
            transactional=Capability.USER_TRANSACTIONS in self.client.state.capabilities,
            worker=self.name,
            observers=self.observers,
        )
        self.loop_watch = LoopWatch(
            self._runs_in_loop, self._on_loop_closed, worker=self.name, observers=self.observers
        )

    @property
    def _scheduled_types(self) -> tuple[str, ...]:
        """The job types whose schedules this worker fires: those that it handles, and those that clients complete."""
        return (*self._processors, *self._client_types)

    def warn_of_waits(self, job: ClaimedJob, job_types: Collection[str]) -> None:
        """Warn of a handler that waits in its slot for jobs of these types, if this worker is to run them.

        Once for each pair of types. Called from any thread.
        """
        for waits_for in job_types:
            if waits_for in self._processors:
                first = object()
                if self._warned_waits.setdefault((job.type, waits_for), first) is first:
                    self.reporter.waits(job, waits_for, self._concurrency)

    @property
    def _client_types(self) -> dict[str, JobType[Any, Any]]:
        """The job types that clients complete. Nobody else has a handler of them that would do the rest."""
        return {one.name: one for one in self.job_types if one.completed_by == "client"}

    @property
    def _shortest_lease(self) -> float:
        return min(processor.lease.seconds for processor in self._processors.values())

    def _new_heartbeat(self, name: str) -> Heartbeat:
        info = WorkerInfo(
            holder=self.name,
            name=name,
            job_types=tuple(self._processors),
            concurrency=self._concurrency,
            running=lambda: len(self.leases),
            stopping=lambda: self.stopping,
            limits=self._limits,
            traits=tuple(one.traits for one in self.job_types if one.traits is not None),
            known_types=self.job_types.names,
            needed_types=self._needed_types(),
        )
        return Heartbeat(info, observers=self.observers, activity=self.activity)

    def _needed_types(self) -> dict[str, str]:
        """Return the types that other workers must handle, each with one that continues with it or waits for it: one
        of this worker's, or one that clients complete."""
        needed: dict[str, str] = {}
        for one in self.job_types:
            if one.name in self._processors or one.completed_by == "client":
                others = one.needed_types - self._processors.keys() - self._client_types.keys()
                needed |= dict.fromkeys(sorted(others), one.name)
        return needed

    def _new_renewer(self) -> LeaseRenewer:
        return LeaseRenewer(
            self.leases,
            self.client.state,
            worker=self.name,
            shortest_lease=self._shortest_lease,
            shortest_interval=min(processor.lease.renewal_interval for processor in self._processors.values()),
            observers=self.observers,
            heartbeat=self.heartbeat,
        )

    def _new_reaper(self) -> Reaper:
        return Reaper(
            self.store,
            self.notify,
            # A job may have run when its type became one that clients complete.
            dict.fromkeys(self._client_types, RetryPolicy())
            | {name: processor.retry for name, processor in self._processors.items()},
            shortest_lease=self._shortest_lease,
            limited=self._bounded,
            worker=self.name,
            observers=self.observers,
            activity=self.activity,
        )

    @property
    def retention(self) -> dict[str, Retention]:
        """The retention of each job type that this worker prunes."""
        of_clients = {name: one.retention for name, one in self._client_types.items()}
        return of_clients | {name: processor.retention for name, processor in self._processors.items()}

    def _new_maintenance(self) -> Maintenance:
        return Maintenance(
            self.store,
            self.notify,
            # Every worker carries out bulk operations.
            Pruner(
                self.store,
                self.client,
                self.threads,
                {BULK_OPERATION_TYPE: Retention()} | self.retention,
                worker=self.name,
            ),
            has_events=Capability.EVENTS in self.client.state.capabilities,
            worker=self.name,
            observers=self.observers,
        )

    @property
    def _loops(self) -> tuple[SupervisedLoop, ...]:
        return (
            self.claimer.loop,
            self.reaper.loop,
            self.schedule_runner.loop,
            self.maintenance.loop,
            self.bulk_runner.loop,
        )

    def start(self) -> None:
        """Start the loops, the claimer last."""
        self._subscription = self.notify.subscribe(Topic.LEASES, self._on_lease_notification)
        self.renewer.start()
        self.loop_watch.start()
        self.completer.start()
        self.reaper.loop.start()
        self.maintenance.loop.start()
        self.bulk_runner.start()
        self.schedule_runner.start()
        self.claimer.start()
        self.observers.emit(
            WorkerStarted(worker=self.name, types=tuple(self._processors), concurrency=self._concurrency)
        )

    async def undo_start(self, seconds: float) -> None:
        """End what ``start`` has begun, since it has raised; lifespans have so many seconds to end."""
        self.stopping = True
        self.renewer.request_stop()
        try:
            await self.heartbeat.withdraw(self.store)  # Perhaps there is no thread yet which would do it.
            await self._stop_claiming(0.0)
        finally:
            try:
                await self._close(time.monotonic() + seconds)
            except RuntimeError:
                # Usually the start has failed for want of a thread, and there is none to wait in, either.
                self._close_notify()

    def _on_lease_notification(self, notification: Notification) -> None:
        if len(self.leases):
            self.renewer.renew_now(notification.keys)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def make_runners(self, jobs: Sequence[ClaimedJob], sent_at: float) -> list[AttemptRunner]:
        """Make runners of claimed jobs. From here on their leases are renewed."""
        self.reporter.claimed()
        processors = self._processors
        runners: list[AttemptRunner] = []
        leases: list[HeldLease] = []
        size = 0
        for job in jobs:
            runner = AttemptRunner(self, processors[job.type], job, sent_at)
            runners.append(runner)
            leases.append(runner.held)
            size += runner.input_bytes
        self.leases.add(leases)
        self.prefetch.input_bytes += size
        return runners

    def may_begin(self, runner: AttemptRunner) -> bool:
        """Return whether the next attempt in order may begin.

        With one slot, a job that was created after the claim of an attempt begins only when the finish of that attempt
        is written: so a job that starts its successor is finished before the successor runs. ``_finishing`` is in the
        order of claims, so its first entry is the oldest.
        """
        finishing = self._finishing
        if len(finishing) >= _MAX_FINISHING or self.completer.characters >= _MAX_FINISH_CHARACTERS:
            return False
        if self._concurrency > 1 or not finishing:
            return True
        return runner.job.created_at < next(iter(finishing.values()))

    def on_handler_ended(self, runner: AttemptRunner) -> None:
        """The handler of this attempt has ended: its slot is free, and its finish is still to be written."""
        self.prefetch.durations.add(runner.duration)
        self._finishing[runner] = runner.job.started_at

    def on_attempt_over(self, runner: AttemptRunner) -> None:
        """This attempt is over: its finish is written, or will not be."""
        self.attempts.discard(runner)
        if runner.input_bytes:
            self.prefetch.free_input(runner)
        self._finishing.pop(runner, None)
        if not self.attempts:
            self._idle.set()

    def _on_released(self, types: Iterable[str]) -> None:
        """Jobs of these types are due, which this worker had claimed and not started."""
        self.claimer.on_jobs_due(types)
        self.notify.publish(Topic.JOBS, types)

    def _runs_in_loop(self, task: asyncio.Task[Any]) -> AttemptRunner | None:
        """Return the attempt whose handler runs in this task. From a thread, while the event loop is blocked."""
        return next((runner for runner in tuple(self.attempts) if runner.task is task), None)

    def _on_loop_closed(self) -> None:
        """Called in the thread that watches the event loop."""
        _log.critical(
            "the event loop of worker %s was closed before the worker was stopped: its attempts are aborted, and other "
            "workers take its jobs; stop it before, best by async with InProcessWorker(...)",
            self.name,
        )
        self.leave()

    def leave(self) -> None:
        """Abort all attempts and renew no lease any more, since the event loop will not run again. From any thread.

        Nobody could write how these attempts end, and as long as their leases were renewed nobody could take the jobs.
        """
        self.stopping = True
        self.renewer.request_stop()
        self.loop_watch.request_stop()
        for held in self.leases.expiring(math.inf):
            try:
                self.leases.lose(held, AbortReason.WORKER_STOPPING)
            except Exception as error:  # The others are given up all the same.
                self._report_failure("abandon_lease", error)
        self.processes.kill()
        self.threads.close()
        for close in (self._close_notify, self.thread_store.close):
            # A server that does not answer must not keep the caller.
            threading.Thread(target=close, name=f"queuert-{self.name}-close", daemon=True).start()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task, which is cancelled when the worker has stopped."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the stop -----------------------------------------------------------------------------------------------------

    @property
    def tasks_cancelled(self) -> bool:
        """Whether somebody has cancelled all tasks of the event loop, as ``asyncio.run`` does when its coroutine ends.

        It is so at once, whichever of the tasks is the first to notice.
        """
        return self._tasks_cancelled or (self.sentinel is not None and self.sentinel.cancelling() > 0)

    def note_tasks_cancelled(self) -> None:
        """Another task that nobody else cancels was cancelled."""
        self._tasks_cancelled = True

    @property
    def cancelled_unasked(self) -> bool:
        """Whether that was before a stop was requested, so that it is why the worker stops."""
        if self.tasks_cancelled and not self._stop_requested and not self._cancelled_unasked:
            self._cancelled_unasked = True
            _log.critical(
                "somebody cancelled all tasks of the event loop, so the worker stops (asyncio.run() does that when its "
                "coroutine ends: stop the worker before, best by async with InProcessWorker(...))"
            )
        return self._cancelled_unasked

    def note_stop_request(self) -> None:
        """Somebody requests a stop, perhaps since all tasks were cancelled, the caller too. From any thread."""
        self._stop_requested = not self.cancelled_unasked

    @property
    def abandoned(self) -> int:
        """The number of handlers that had not ended when the worker stopped."""
        return len(self._abandoned)

    async def stop(self, shutdown_timeout: float) -> None:
        """Stop the parts: first those that begin work, last those that renew leases."""
        self.stopping = True
        self.renewer.send_heartbeat()
        self.processes.send_stopping()
        self.observers.emit(WorkerStopping(worker=self.name, running=self.running, shutdown_timeout=shutdown_timeout))
        began_at = time.monotonic()
        try:
            await self._end_work(shutdown_timeout)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            # Usually all tasks of the event loop were cancelled, and handlers with them: their finishes are written.
            self._hurry.set()
            await self._end_work(0.0)
            if not isinstance(error, asyncio.CancelledError):
                raise
        finally:
            await self._close(began_at + shutdown_timeout)
        self.observers.emit(WorkerStopped(worker=self.name, abandoned=self.abandoned))

    async def _end_work(self, shutdown_timeout: float) -> None:
        """Claim no more, and end the running attempts."""
        began_at = time.monotonic()
        await self._stop_claiming(shutdown_timeout)
        # The running attempts have used that time, too.
        await self._drain(max(0.0, shutdown_timeout - (time.monotonic() - began_at)))

    async def _stop_claiming(self, shutdown_timeout: float) -> None:
        stopping = asyncio.gather(self.schedule_runner.stop(), self.bulk_runner.stop(), self.claimer.stop(self._hurry))
        try:
            await self._wait_for(stopping, max(shutdown_timeout, _AFTER_CANCEL))
            if stopping.done():
                await stopping
            else:
                # The store cannot be reached; what was claimed and not started is reaped by another worker.
                self._report_failure("stop_claiming", TimeoutError())
        except StateError as error:
            self._report_failure("stop_claiming", error)
        finally:
            cancel_and_ignore(stopping)

    async def _wait_for(self, future: asyncio.Future[Any], seconds: float) -> None:
        """Wait with a timeout; once ``stop`` is called again, only as long as a cancelled handler has to end."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({future, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if self._hurry.is_set():
            await ended_within(_AFTER_CANCEL, [future])

    def _report_failure(self, operation: str, error: Exception) -> None:
        text = str(error) or "no answer in time"
        self.observers.emit(StoreCallFailed(worker=self.name, operation=operation, error=text))

    async def _drain(self, shutdown_timeout: float) -> None:
        """Let running attempts finish; then abort them; then release the jobs of those that do not end."""
        await self._wait_until_idle(shutdown_timeout, self._hurry)
        for runner in list(self.attempts):
            runner.abort(AbortReason.WORKER_STOPPING)
        if await self._wait_until_idle(_AFTER_CANCEL):
            return
        remaining = [runner for runner in self.attempts if not (runner.has_ended or runner.is_abandoned)]
        self._abandoned.update(remaining)
        until = time.monotonic() + _AFTER_CANCEL
        abandoning = [asyncio.create_task(self._abandon(one), context=one.copied_context()) for one in remaining]
        try:
            async with asyncio.timeout(_AFTER_CANCEL):
                results = await asyncio.gather(*abandoning, return_exceptions=True)
        except TimeoutError as error:
            self._report_failure("abandon_attempts", error)
        else:
            failed = [one for one in results if isinstance(one, Exception)]
            if failed:
                self._report_failure("abandon_attempts", failed[0])
        if any(runner.has_ended for runner in self.attempts):
            # Finishes that wait for rows, or for the store, or are in doubt: they are sent until the completer stops.
            await self._wait_until_idle(until - time.monotonic())

    async def _abandon(self, runner: AttemptRunner) -> None:
        try:
            if await runner.has_finish():
                return
            finish = runner.abandon()
            result = await self.completer.finish(finish)
        except BaseException:
            # The store cannot be reached in time, so the lease will expire.
            error = StateUnavailableError("the worker stopped before the job could be released")
            self.reporter.finish_failed(runner.job, error)
            raise
        self.reporter.finished([(finish, result, runner.duration, runner.held.claimed_at, None)])

    async def _wait_until_idle(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Wait until no attempt is left, or ``hurry`` is set. Return whether none is left."""
        self._idle.clear()
        if self.attempts:
            events = [self._idle] if hurry is None else [self._idle, hurry]
            waiters = [asyncio.ensure_future(event.wait()) for event in events]
            await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for waiter in waiters:
                waiter.cancel()
        return not self.attempts

    async def leave_lifespans(self, seconds: float) -> None:
        """Leave the lifespans within so many seconds, since no handler runs any more. What they raise is reported."""
        for lifespan, error in await self.lifespans.leave(seconds, self._hurry):
            reported = error_of(error, "lifespan")
            self.observers.emit(LifespanFailed(worker=self.name, lifespan=lifespan.name, early=False, error=reported))

    async def _close(self, deadline: float) -> None:
        if self._subscription is not None:
            self._subscription.close()
        try:
            await self._stop_loops()
        finally:
            self.prefetch.slots.cancel()
            for task in self._tasks:
                task.cancel()
            try:
                # Processes leave their lifespans, too.
                seconds = max(_PROCESSES_TIMEOUT, deadline - time.monotonic() if len(self.lifespans) else 0.0)
                if not await run_within(max(_AFTER_CANCEL, seconds + 1.0), self.processes.close(seconds)):
                    self._report_failure("end_processes", TimeoutError())
                await self.leave_lifespans(max(_LIFESPANS_TIMEOUT, deadline - time.monotonic()))
            finally:
                self.threads.close()
                # No attempt is left. If this is interrupted from now on, they end all the same.
                self.renewer.request_stop()
                self.loop_watch.stop()
                closing = (self.renewer.stop, self.thread_store.close, self._close_notify)
                if not await called_within(_CLOSE_TIMEOUT, f"queuert-{self.name}-close", closing):
                    self._report_failure("close_connections", TimeoutError())

    def _close_notify(self) -> None:
        """Close the notifications, once: others may share them, who would lose theirs by a second call."""
        if not self._notify_closed:
            self._notify_closed = True
            self.notify.close()

    async def _stop_loops(self) -> None:
        loops = (*self._loops, *self.completer.loops)
        stops = [asyncio.ensure_future(loop.stop()) for loop in self._loops]
        stops.append(asyncio.ensure_future(self.completer.stop()))
        await ended_within(_AFTER_CANCEL / 2, stops)
        try:
            # Calls that still wait for an answer of the store fail now.
            if not await run_within(_AFTER_CANCEL, self.store.aclose()):
                self._report_failure("close_store", TimeoutError())
        finally:
            if not await ended_within(_AFTER_CANCEL / 2, stops):
                # A driver that is cancelled asks the server to cancel its statement, and waits for that. Cancelled
                # again, it does not wait.
                for loop in loops:
                    loop.cancel()
                if not await ended_within(_AFTER_CANCEL / 2, stops):
                    self._report_failure("stop_loops", TimeoutError())
            for stop in stops:
                cancel_and_ignore(stop)

    @property
    def _busy(self) -> bool:
        # A slot is taken a moment before its attempt begins. What is to be released is due soon.
        held = self.attempts or self.prefetch.slots.running or len(self.prefetch) or self.releases
        return bool(held) or self.claimer.claiming_since is not None

    async def is_idle(self) -> bool:
        """Return whether nothing runs here, and nothing that this worker could run is due, during the call."""
        if self._busy:
            return False
        put_count, types = self.prefetch.put_count, list(self._processors)
        if any(one.ready or one.due for one in await self.store.get_demand(types, counted_up_to=1)):
            return False
        if (await self.store.due_schedules(self._scheduled_types, limit=1)).due:
            return False
        # What was claimed and has ended meanwhile may have started others.
        return self.prefetch.put_count == put_count and not self._busy

    @property
    def running(self) -> int:
        """The number of attempts that run, or whose finish is not written yet."""
        return len(self.attempts)

    def snapshot(self) -> WorkerSnapshot:
        """Return the state of the worker now. From any thread."""
        slots = self.prefetch.slots
        return WorkerSnapshot(
            slots=slots.size,
            busy=slots.running,
            prefetched=len(self.prefetch),
            leases=len(self.leases),
            event_loop_lag=self.loop_watch.longest_delay(),
            pool=self.store.pool_use,
        )

    def health(self) -> Health:
        """Return whether the loops make progress."""
        failing = tuple(name for name, part in self.supervised.items() if part.failing)
        return Health(self.name, self.running, self.stopping, failing)

    @property
    def supervised(self) -> dict[str, SupervisedLoop | LeaseRenewer]:
        """The parts whose failures count for its health, by name."""
        return {**{loop.name: loop for loop in (*self._loops, *self.completer.loops)}, "leases": self.renewer}
