"""The parts of a started worker: its loops, started and stopped in the right order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any

from queuert.client import AsyncClient, Client
from queuert.errors import StateError, StateUnavailableError
from queuert.ids import new_id
from queuert.jobs import AbortReason
from queuert.notify.adapter import Notification, Subscription, Topic
from queuert.observability.events import StoreCallFailed, WorkerStarted, WorkerStopped, WorkerStopping
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob
from queuert.worker.batches import Batches
from queuert.worker.claimer import Claimer
from queuert.worker.completer import Completer, Written
from queuert.worker.context import WorkerContext
from queuert.worker.health import Health
from queuert.worker.heartbeat import Heartbeat, WorkerInfo
from queuert.worker.leases import LeaseRegistry, LeaseRenewer
from queuert.worker.maintenance import Maintenance
from queuert.worker.prefetch import InputBytes, Prefetch
from queuert.worker.processes.executor import HandlerProcesses
from queuert.worker.processors import Processor
from queuert.worker.reaper import Reaper
from queuert.worker.releases import ReleaseQueue
from queuert.worker.runner import AttemptRunner
from queuert.worker.schedule_runner import ScheduleRunner
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.telemetry import AttemptReporter, Ended
from queuert.worker.threads import HandlerThreads
from queuert.worker.timeouts import called_within, ended_within, left_behind, run_within

_AFTER_CANCEL = 2.0
"""Seconds that a cancelled handler has to end before its job is released from a client."""

_CLOSING = 4.0
"""Seconds for the threads of a worker to end: each has limits of its own, of some seconds in all."""

_MOST_CONCLUDING = 1_000
"""Attempts whose handler has ended and whose finish is not written yet; with more, none begins."""

_MOST_CHARACTERS = 32 * 1024 * 1024
"""Of the outputs and errors that are not written yet; with more, none begins."""


class WorkerRuntime:
    """The loops of a started worker."""

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
        self.holder = f"{name}-{new_id()[-12:]}"
        self.abandoned = 0
        self._concurrency = concurrency
        self._client = client
        self._store = store
        self._notify = client.notify
        self._observers = client.observers
        self._processors = processors
        self._limits = {name: limits for name, one in processors.items() if (limits := one.limits) is not None}
        self._hurry = hurry
        self._stopping = False
        self._runners: set[AttemptRunner] = set()
        self._concluding: dict[AttemptRunner, datetime] = {}
        """When the attempts were claimed whose handlers have ended and whose finishes are not written yet."""
        self._idle = asyncio.Event()
        self._asides: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self.book = LeaseRegistry()
        # What is claimed ahead takes the places that limits leave, and lets nobody else have them.
        self.inputs = InputBytes(claim_bytes)
        self.prefetch: Prefetch[AttemptRunner] = Prefetch(
            concurrency,
            self._begin,
            enabled=not self._limits,
            inputs=self.inputs,
            may_start=self._may_begin,
            drop=self._drop,
        )
        self.returns = ReleaseQueue(store, worker=self.holder, observers=self._observers)
        self.completer: Completer[AttemptRunner] = Completer(
            store, self._written, types=self._client.job_types.names, worker=self.holder, observers=self._observers
        )
        self.registration = self._new_registration(name)
        self.renewer = self._new_renewer()
        self.reaper = self._new_reaper()
        self.claimer = self._new_claimer(poll_interval)
        self.schedule_runner = ScheduleRunner(
            store, self._notify, tuple(processors), worker=self.holder, observers=self._observers
        )
        self.maintenance = self._new_maintenance()
        self.reports = AttemptReporter(
            self.holder, self._observers, self._notify, self.claimer.on_jobs_due, frozenset(self._limits)
        )
        self._services = self._new_services()

    @property
    def _shortest_lease(self) -> float:
        return min(processor.lease.seconds for processor in self._processors.values())

    def _new_registration(self, name: str) -> Heartbeat:
        subject = WorkerInfo(
            holder=self.holder,
            name=name,
            job_types=tuple(self._processors),
            concurrency=self._concurrency,
            held=lambda: len(self.book),
            stopping=lambda: self._stopping,
        )
        return Heartbeat(subject, observers=self._observers)

    def _new_renewer(self) -> LeaseRenewer:
        return LeaseRenewer(
            self.book,
            self._client.state,
            worker=self.holder,
            shortest_lease=self._shortest_lease,
            shortest_interval=min(one.lease.renewal_interval for one in self._processors.values()),
            observers=self._observers,
            registration=self.registration,
        )

    def _new_reaper(self) -> Reaper:
        return Reaper(
            self._store,
            self._notify,
            {name: processor.retry for name, processor in self._processors.items()},
            shortest_lease=self._shortest_lease,
            limited=self._limits.keys(),
            worker=self.holder,
            observers=self._observers,
        )

    def _new_claimer(self, poll_interval: float | None) -> Claimer:
        return Claimer(
            self._store,
            self._notify,
            self.prefetch,
            self._made,
            leases={name: processor.lease.seconds for name, processor in self._processors.items()},
            limits=self._limits,
            holder=self.holder,
            poll_interval=poll_interval,
            returns=self.returns,
            observers=self._observers,
        )

    def _new_maintenance(self) -> Maintenance:
        kept = {name: policy for name, one in self._processors.items() if (policy := one.retention) is not None}
        return Maintenance(
            self._store,
            self._notify,
            kept,
            has_events=Capability.EVENTS in self._client.state.capabilities,
            worker=self.holder,
            observers=self._observers,
        )

    def _new_services(self) -> WorkerContext:
        threads = HandlerThreads(f"queuert-{self.holder}")
        return WorkerContext(
            worker=self.holder,
            event_loop=asyncio.get_running_loop(),
            state=self._client.state,
            store=self._store,
            job_types=self._client.job_types,
            notify=self._notify,
            observers=self._observers,
            reports=self.reports,
            book=self.book,
            submit=self.completer.submit,
            threads=threads,
            batches=Batches(threads, lambda: self.prefetch.more_to_start),
            processes=HandlerProcesses(self.holder, self._client.state, self._client.job_types.names),
            thread_connections=min(self._concurrency, 20),
            stopping=lambda: self._stopping,
            renew_now=self.renewer.look_at,
            handled=self._handled,
            give_back=self._give_back,
            spawn=self._spawn,
            over=self._over,
        )

    @property
    def _loops(self) -> tuple[SupervisedLoop, ...]:
        return self.claimer.loop, self.reaper.loop, self.schedule_runner.loop, self.maintenance.loop

    def start(self) -> None:
        """Start the loops, the claimer last."""
        self._subscription = self._notify.subscribe(Topic.LEASES, self._on_lease_notification)
        self.renewer.start()
        self.completer.start()
        self.reaper.loop.start()
        self.maintenance.loop.start()
        self.schedule_runner.start()
        self.claimer.start()
        self._observers.emit(
            WorkerStarted(worker=self.holder, types=tuple(self._processors), concurrency=self._concurrency)
        )

    def _on_lease_notification(self, notification: Notification) -> None:
        if len(self.book):
            self.renewer.look_at(None if notification.keys is None else list(notification.keys))

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _made(self, jobs: Sequence[ClaimedJob], sent_at: float) -> list[AttemptRunner]:
        """Attempts of claimed jobs; from here on their leases are looked after."""
        self.reports.claimed()
        processors, services = self._processors, self._services
        runners = [AttemptRunner(services, processors[job.type], job, sent_at) for job in jobs]
        size = sum(runner.input_bytes for runner in runners)
        self.book.add([runner.held for runner in runners])
        self.inputs.held += size
        return runners

    def _drop(self, runner: AttemptRunner) -> None:
        """There is no memory to begin with it."""
        # First, since the rest may fail as well: a lease that nobody looks after must run out.
        runner.over()
        self._give_back(runner)

    def _give_back(self, runner: AttemptRunner) -> None:
        self.returns.put([(runner.held.lease, runner.held.deadline)])

    def _may_begin(self, runner: AttemptRunner) -> bool:
        """With one place, what an attempt may have started, or seen start, begins when its own finish is written.

        So a job that starts its successor is over when that one looks for it. Finishes are in the order of their
        claims: the first is the oldest.
        """
        finishing = self._concluding
        if len(finishing) >= _MOST_CONCLUDING or self.completer.characters >= _MOST_CHARACTERS:
            return False
        if self._concurrency > 1 or not finishing:
            return True
        return runner.job.created_at < next(iter(finishing.values()))

    def _begin(self, runner: AttemptRunner, task: asyncio.Task[None]) -> Coroutine[Any, Any, bool]:
        self._runners.add(runner)
        return runner.run(task)

    def _handled(self, runner: AttemptRunner) -> None:
        self.prefetch.pace.note(runner.duration)
        self._concluding[runner] = runner.job.started_at

    def _written(self, written: Sequence[Written[AttemptRunner]]) -> None:
        """The store has decided about these finishes."""
        try:
            self.reports.ended([Ended(finish, result, runner.duration) for runner, finish, result in written])
        finally:
            for runner, _, _ in written:
                runner.over()
            self.prefetch.slots.fill()

    def _over(self, runner: AttemptRunner) -> None:
        self._runners.discard(runner)
        if runner.input_bytes:
            self.inputs.give_back(runner)
        self._concluding.pop(runner, None)
        if not self._runners:
            self._idle.set()

    def _spawn(self, aside: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(aside)
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def stop(self, shutdown_timeout: float) -> None:
        """Stop the loops: first what begins work, last what guards it."""
        self._stopping = True
        self.renewer.tell()
        self._services.processes.tell_stopping()
        self._observers.emit(
            WorkerStopping(worker=self.holder, running=self.running, shutdown_timeout=shutdown_timeout)
        )
        began = time.monotonic()
        try:
            await self._stop_claiming(shutdown_timeout)
            # The running have had that time too.
            await self._drain(max(0.0, shutdown_timeout - (time.monotonic() - began)))
        finally:
            await self._close()
        self._observers.emit(WorkerStopped(worker=self.holder, abandoned=self.abandoned))

    async def _stop_claiming(self, shutdown_timeout: float) -> None:
        stopping = asyncio.gather(self.schedule_runner.stop(), self.claimer.stop(self._hurry))
        try:
            await self._wait_for(stopping, max(shutdown_timeout, _AFTER_CANCEL))
            if stopping.done():
                await stopping
            else:
                # The store is out of reach; what was claimed and not started is reaped by somebody else.
                self._tell_failure("stop claiming", TimeoutError())
        except StateError as error:
            self._tell_failure("stop claiming", error)
        finally:
            left_behind(stopping)

    async def _wait_for(self, finish: asyncio.Future[Any], seconds: float) -> None:
        """Wait for so long at most, and once somebody hurries for no longer than a cancelled handler gets."""
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({finish, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if self._hurry.is_set():
            await ended_within(_AFTER_CANCEL, [finish])

    def _tell_failure(self, operation: str, error: Exception) -> None:
        reported = str(error) or "no answer in time"
        self._observers.emit(StoreCallFailed(worker=self.holder, operation=operation, error=reported))

    async def _drain(self, shutdown_timeout: float) -> None:
        """Let the running finish; then tell them to stop; then give their jobs back from a client."""
        await self._wait_until_idle(shutdown_timeout, self._hurry)
        for runner in list(self._runners):
            runner.abort(AbortReason.WORKER_STOPPING)
        if await self._wait_until_idle(_AFTER_CANCEL):
            return
        left = list(self._runners)
        self.abandoned = len(left)
        try:
            async with asyncio.timeout(_AFTER_CANCEL):
                await asyncio.gather(*map(self._give_up, left))
        except (TimeoutError, StateError) as error:
            self._tell_failure("give up", error)

    async def _give_up(self, runner: AttemptRunner) -> None:
        finish = runner.give_up()
        try:
            result = await self.completer.finish(finish)
        except BaseException:
            # The store is out of reach, and nobody waits any longer: the lease will expire.
            late = StateUnavailableError("the worker stopped before the job could be released")
            self.reports.broken(runner.job, late)
            raise
        self.reports.ended([Ended(finish, result, runner.duration)])

    async def _wait_until_idle(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Wait until no attempt is left, or ``hurry`` is set; whether none is."""
        self._idle.clear()
        if self._runners:
            events = [self._idle] if hurry is None else [self._idle, hurry]
            waiters = [asyncio.ensure_future(event.wait()) for event in events]
            await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for waiter in waiters:
                waiter.cancel()
        return not self._runners

    async def _close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        try:
            await self._stop_loops()
        finally:
            self.prefetch.slots.cancel()
            for aside in self._asides:
                aside.cancel()
            if not await run_within(_AFTER_CANCEL, self._services.processes.close()):
                self._tell_failure("end processes", TimeoutError())
            self._services.threads.close()
            closing = (self.renewer.stop, self._services.close_thread_store, self._notify.close)
            if not await called_within(_CLOSING, f"queuert-{self.holder}-close", closing):
                self._tell_failure("close", TimeoutError())

    async def _stop_loops(self) -> None:
        loops = (*self._loops, *self.completer.loops)
        stops = [asyncio.ensure_future(loop.stop()) for loop in self._loops]
        stops.append(asyncio.ensure_future(self.completer.stop()))
        await ended_within(_AFTER_CANCEL / 2, stops)
        try:
            # Whoever still waits for an answer from the store will not get one.
            if not await run_within(_AFTER_CANCEL, self._store.aclose()):
                self._tell_failure("close the store", TimeoutError())
        finally:
            if not await ended_within(_AFTER_CANCEL / 2, stops):
                # A driver that is cancelled asks the server to stop, and waits for that. Cancelled again, it does not.
                for loop in loops:
                    loop.cancel()
                if not await ended_within(_AFTER_CANCEL / 2, stops):
                    self._tell_failure("stop", TimeoutError())
            for stop in stops:
                left_behind(stop)

    @property
    def running(self) -> int:
        """Attempts that run, or whose finish is yet to be written."""
        return len(self._runners)

    def health(self) -> Health:
        """Whether the loops make progress."""
        failing = [loop.name for loop in (*self._loops, *self.completer.loops) if loop.failing]
        if self.renewer.failing:
            failing.append("leases")
        return Health(self.holder, self.running, self._stopping, tuple(failing))
