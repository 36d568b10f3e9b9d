"""Starts the chains of recurring schedules. Every worker has a schedule runner, and none of them is the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.notify.adapter import Notification, NotifyAdapter, Subscription, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import ChainStarted, TickIdTaken
from queuert.observability.tracing import Send, Tracing
from queuert.schedules import earlier_tick, notification_key, tick_id, ticks_to_run
from queuert.state.async_store import AsyncStore
from queuert.state.types import NewJob, ScheduleRecord, StartedJob
from queuert.worker.supervisor import SupervisedLoop

LONGEST_PAUSE = 30.0
PAUSE_WITHOUT_NOTIFY = 5.0
"""Seconds between two looks for schedules that were put meanwhile, with notifications and without."""

CLOCK_CHECK = 60.0
"""Seconds between two looks for schedules that the store's clock has postponed, because it was ahead when they
ticked."""


class ScheduleRunner:
    """Sleeps until the next tick of a schedule of its job types, and writes what the tick starts.

    Whoever moves a schedule on from a tick first has written its chains with that; the others find it moved. Times are
    the store's.
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
        self._check_at = 0.0
        self._woken = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("schedule_runner", self._step, worker=worker, observers=observers)

    def start(self) -> None:
        """Begin to look, and to listen for schedules that are put."""
        self._subscription = self._notify.subscribe(Topic.JOBS, self._on_notification)
        self.loop.start()

    async def stop(self) -> None:
        """Start no more chains. Idempotent."""
        if self._subscription is not None:
            self._subscription.close()
        await self.loop.stop()

    def _on_notification(self, notification: Notification) -> None:
        if notification.keys is None or not self._keys.isdisjoint(notification.keys):
            # The event loop may have closed: the worker has stopped then.
            with suppress(RuntimeError):
                self._event_loop.call_soon_threadsafe(self._woken.set)

    async def _step(self) -> None:
        # The pause comes first, so that a look that went well counts as such at once, and not when the next is due.
        pause, self._pause = self._pause, 0.0
        await self._sleep(pause)
        self._woken.clear()
        # Before the clock is read: what somebody puts or fires meanwhile must not look as if it were postponed.
        checks = self._event_loop.time() >= self._check_at
        listed = await self._store.list_schedules() if checks else ()
        found = await self._store.due_schedules(self._types)
        brought_back = await self._bring_back(listed, found.now)
        if checks:
            self._check_at = self._event_loop.time() + CLOCK_CHECK
        errors: list[Exception] = []
        for schedule in found.due:
            try:
                await self._fire(schedule, found.now)
            except StateUnavailableError:
                raise
            except Exception as error:
                # One that is not valid here, such as a time zone that is not known, must not hold up the others.
                errors.append(error)
        if errors:
            raise errors[0]
        if found.due or brought_back:
            # They have moved on: only another look tells when the first of all is due.
            return
        longest = LONGEST_PAUSE if self._notify.healthy else PAUSE_WITHOUT_NOTIFY
        self._pause = longest if found.next_in is None else min(found.next_in, longest)

    async def _fire(self, schedule: ScheduleRecord, now: datetime) -> None:
        due = schedule.next_at
        if due is None:
            return
        ticks, upcoming = ticks_to_run(schedule.spec, schedule.missed, due, now)
        jobs = [_job(schedule, tick) for tick in ticks]
        started = await self._started(schedule, due, upcoming, jobs)
        self._tell([job for job in started or () if not job.existing])
        for job, its in zip(jobs, started or (), strict=False):
            if its.id != job.id:
                self._observers.emit(
                    TickIdTaken(worker=self._worker, schedule=schedule.name, taken_id=job.id, chain_id=its.id)
                )

    async def _started(
        self, schedule: ScheduleRecord, due: datetime, upcoming: datetime | None, jobs: list[NewJob]
    ) -> Sequence[StartedJob] | None:
        if self._tracing is None or not jobs:
            return await self._store.fire_schedule(schedule.name, due, upcoming, jobs)
        with self._tracing.sending(Send((schedule.type,), len(jobs), schedule=schedule)) as sending:
            traced = [replace(job, trace_context=sending.context(job.type, job.id)) for job in jobs]
            started = await self._store.fire_schedule(schedule.name, due, upcoming, traced)
            if started is None:
                sending.counted(0)  # Another worker has started them.
            else:
                sending.started(started)
            return started

    async def _bring_back(self, schedules: Sequence[ScheduleRecord], now: datetime) -> bool:
        """Let schedules go on that ticked by a clock which was ahead: they would be silent until it is that late."""
        moved = False
        for schedule in schedules:
            if schedule.next_at is None or schedule.next_at <= now or schedule.type not in self._types:
                continue
            # Of many, each takes a moment of the loop.
            await asyncio.sleep(0)
            # What cannot be read here is told when it is due.
            with suppress(ConfigurationError):
                tick = earlier_tick(schedule.spec, schedule.next_at, schedule.last_at, now)
                if tick is not None:
                    moved |= await self._store.fire_schedule(schedule.name, schedule.next_at, tick, []) is not None
        return moved

    def _tell(self, started: list[StartedJob]) -> None:
        self._notify.publish(Topic.JOBS, {job.type for job in started})
        for job in started:
            self._observers.emit(ChainStarted(chain_id=job.id, type=job.type, in_callers_transaction=False))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


def _job(schedule: ScheduleRecord, tick: datetime) -> NewJob:
    return NewJob(
        id=tick_id(schedule.name, tick),
        type=schedule.type,
        input=schedule.input,
        priority=schedule.priority,
        id_chosen=True,
        limit_key=schedule.limit_key,
    )
