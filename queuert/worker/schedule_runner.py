"""Starts the chains of recurring schedules. Every worker has a schedule runner; there is no leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from queuert.client.async_cascades import cancel_closing
from queuert.client.management import TooManyChainsError, chain_closed
from queuert.client.schedules import superseded, tick_job
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    ScheduleOverlapError,
    StateError,
    StateUnavailableError,
)
from queuert.notify.adapter import Notification, NotifyAdapter, Subscription, Topic
from queuert.notify.results import update_notifications
from queuert.observability.adapter import Observers
from queuert.observability.events import ChainStarted, TickIdTaken, TickSkipped
from queuert.observability.tracing import Send, Tracing
from queuert.schedules import earlier_tick, notification_key, ticks_to_run
from queuert.state.async_store import AsyncStore
from queuert.state.types import ChainUpdate, NewJob, ScheduleRecord, StartedJob
from queuert.worker.supervisor import SupervisedLoop

_log = logging.getLogger("queuert.worker")

POLL_WITH_NOTIFY = 30.0
POLL_WITHOUT_NOTIFY = 5.0
"""Seconds between two polls for schedules that were stored meanwhile."""

CLOCK_CHECK_INTERVAL = 60.0
"""Seconds between two checks for schedules whose next tick is too late, since the store's clock was ahead before."""


class ScheduleRunner:
    """Sleeps until the next tick of a schedule of its job types, and starts the chains of the tick.

    The write that starts the chains also moves the schedule to its next tick. When several workers try it, the first
    succeeds, and the others find the schedule moved. All times are those of the store's clock.
    """

    def __init__(
        self,
        store: AsyncStore,
        notify: NotifyAdapter,
        types: Collection[str],
        *,
        worker: str,
        observers: Observers,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._tracing = tracing
        self._notify = notify
        self._types = tuple(types)
        self._keys = frozenset(map(notification_key, types))
        self._worker = worker
        self._observers = observers
        self._pause = 0.0
        self._clock_check_at = 0.0
        self._woken = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("schedule_runner", self._step, worker=worker, observers=observers)

    def start(self) -> None:
        """Start the loop, and listen for schedules that are stored."""
        self._subscription = self._notify.subscribe(Topic.JOBS, self._on_notification)
        self.loop.start()

    async def stop(self) -> None:
        """Start no more chains. Idempotent."""
        if self._subscription is not None:
            self._subscription.close()
        await self.loop.stop()

    def _on_notification(self, notification: Notification) -> None:
        if notification.keys is None or not self._keys.isdisjoint(notification.keys):
            # The event loop may have closed, since the worker has stopped.
            with suppress(RuntimeError):
                self._event_loop.call_soon_threadsafe(self._woken.set)

    async def _step(self) -> None:
        # The pause comes first, so that a step that succeeded counts at once, and not when the next one is due.
        pause, self._pause = self._pause, 0.0
        await self._sleep(pause)
        self._woken.clear()
        # Listed before the clock is read: a schedule that somebody stores or moves meanwhile must not look too late.
        checks_clock = self._event_loop.time() >= self._clock_check_at
        schedules = await self._store.list_schedules() if checks_clock else ()
        result = await self._store.due_schedules(self._types)
        moved = await self._bring_forward(schedules, result.now)
        if checks_clock:
            self._clock_check_at = self._event_loop.time() + CLOCK_CHECK_INTERVAL
        errors: list[Exception] = []
        for schedule in result.due:
            try:
                await self._run_ticks(schedule, result.now)
            except StateUnavailableError:
                raise
            except Exception as error:
                # A schedule that is not valid here, for example because its time zone is unknown, must not stop others.
                errors.append(error)
        if errors:
            raise errors[0]
        if result.due or moved:
            # Schedules have moved: only another query says when the next one is due.
            return
        poll = POLL_WITH_NOTIFY if self._notify.healthy else POLL_WITHOUT_NOTIFY
        self._pause = poll if result.next_in is None else min(result.next_in, poll)

    async def _run_ticks(self, schedule: ScheduleRecord, now: datetime) -> None:
        """Start the chains of the ticks that are due, and move the schedule to its next tick."""
        due_at = schedule.next_at
        if due_at is None:
            return
        ticks, next_tick = ticks_to_run(schedule.spec, schedule.missed, due_at, now)
        jobs = [tick_job(schedule, tick) for tick in ticks]
        started = await self._start(schedule, due_at, next_tick, jobs)
        if jobs and started is not None and not started:
            self._observers.emit(
                TickSkipped(
                    worker=self._worker, schedule=schedule.name, tick=ticks[-1], open_chain_id=schedule.last_chain_id
                )
            )
        self._report_started([job for job in started or () if not job.existing])
        for job, started_job in zip(jobs, started or (), strict=False):
            if started_job.id != job.id:
                self._observers.emit(
                    TickIdTaken(worker=self._worker, schedule=schedule.name, taken_id=job.id, chain_id=started_job.id)
                )

    async def _fire(
        self, schedule: ScheduleRecord, due_at: datetime, next_tick: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Fire the ticks, and first cancel the chain of an earlier one if the store says so."""
        try:
            return await self._store.fire_schedule(schedule.name, due_at, next_tick, jobs)
        except ScheduleOverlapError as error:
            await self._cancel(error.chain_id, superseded(schedule))
        return await self._store.fire_schedule(schedule.name, due_at, next_tick, jobs)

    async def _cancel(self, chain_id: str, reason: str) -> None:
        """Cancel the chain of an earlier tick."""
        # It may have been deleted, or closed, meanwhile.
        with suppress(ChainNotFoundError):
            try:
                cancelled = await self._cancel_closing(chain_id, reason)
            except StateUnavailableError as error:
                # A handler has locked it, for as long as its block lasts. The round goes on with the other schedules.
                raise StateError(f"chain {chain_id!r} of an earlier tick cannot be cancelled now: {error}") from error
            results = [one for one in cancelled if one.written]
            for topic, keys in update_notifications(results).items():
                self._notify.publish(topic, keys)
            for one in results:
                self._observers.emit(chain_closed(one))

    async def _cancel_closing(self, chain_id: str, reason: str) -> list[ChainUpdate]:
        """Cancel a chain and what closes with it; the chain alone if that is too much, or its schedule would end."""
        try:
            return await cancel_closing(self._store, [chain_id], reason, None)
        except TooManyChainsError as error:
            _log.warning("chain %r of an earlier tick is cancelled alone, its children go on: %s", chain_id, error)
            return await self._store.cancel_chains([chain_id], reason=reason)

    async def _start(
        self, schedule: ScheduleRecord, due_at: datetime, next_tick: datetime | None, jobs: list[NewJob]
    ) -> Sequence[StartedJob] | None:
        if self._tracing is None or not jobs:
            return await self._fire(schedule, due_at, next_tick, jobs)
        with self._tracing.sending(Send((schedule.type,), len(jobs), schedule=schedule)) as sending:
            if sending is None:
                return await self._fire(schedule, due_at, next_tick, jobs)
            traced = [replace(job, trace_context=sending.context(job.type, job.id)) for job in jobs]
            started = await self._fire(schedule, due_at, next_tick, traced)
            if started is None:
                sending.counted(0)  # Another worker has started them.
            else:
                sending.started(started)
            return started

    async def _bring_forward(self, schedules: Sequence[ScheduleRecord], now: datetime) -> bool:
        """Make the next tick earlier if a clock that was ahead has made it too late. Return whether any was moved."""
        moved = False
        for schedule in schedules:
            if schedule.next_at is None or schedule.next_at <= now or schedule.type not in self._types:
                continue
            # Yield between schedules: there may be many.
            await asyncio.sleep(0)
            # A schedule that is not valid here is reported when it is due.
            with suppress(ConfigurationError):
                tick = earlier_tick(schedule.spec, schedule.next_at, schedule.last_at, now)
                if tick is not None:
                    moved |= await self._store.fire_schedule(schedule.name, schedule.next_at, tick, []) is not None
        return moved

    def _report_started(self, started: list[StartedJob]) -> None:
        self._notify.publish(Topic.JOBS, {job.type for job in started})
        for job in started:
            self._observers.emit(ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=False))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
