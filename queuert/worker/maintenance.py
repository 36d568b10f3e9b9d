"""Maintenance: releases stranded jobs, prunes chains, maintains the event log, and cleans the staging of bulk writes.

A job is stranded by a defect, or by a statement that somebody ran by hand. It also folds and drops the activity of
workers.
"""

from __future__ import annotations

import random
import time

from queuert.errors import StateError, StateUnavailableError
from queuert.event_log import EventLogMaintenance
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import (
    EventLogMaintained,
    EventLogMaintenanceFailed,
    EventLogMaintenancePostponed,
    StagingCleaned,
    StagingCleanupFailed,
    StoreCallFailed,
    StrandedJobsReleased,
)
from queuert.state.async_store import AsyncStore
from queuert.worker.pruning import Pruner
from queuert.worker.supervisor import SupervisedLoop

INTERVAL = 60.0
"""Seconds from the end of one round to the next, plus or minus a half, so that workers do not run it all at once."""

STAGING_INTERVAL = 3600.0
"""Seconds between two cleanings of the staging, plus or minus a half."""

_PAGE_PAUSE = 0.1
_MAX_FIRST_PAUSE = 2.0
_MAX_NAMED = 10
"""The most ids in an event."""


class Maintenance:
    """Reads the blocked jobs and then the closed chains, page by page, with pauses, and then maintains the event log.

    Each step of the loop does one page. The activity of workers is maintained after the event log.
    """

    def __init__(
        self,
        store: AsyncStore,
        notify: NotifyAdapter,
        pruner: Pruner,
        *,
        has_events: bool,
        worker: str,
        observers: Observers,
    ) -> None:
        self._store = store
        self._notify = notify
        self._pruner = pruner
        self._has_events = has_events
        self._event_log_error: str | None = None
        """The last error of the event log; the same one is emitted once, until a success."""
        self._activity_error: str | None = None
        self._clean_staging_at = time.monotonic()
        self._staging_error: str | None = None
        self._worker = worker
        self._observers = observers
        self._cursor: str | None = None
        self._pruning = False
        self._maintaining_event_log = False
        self._started = False
        self.loop = SupervisedLoop("maintenance", self._step, worker=worker, observers=observers)

    async def _step(self) -> float:
        if not self._started:
            self._started = True
            return random.uniform(0.0, _MAX_FIRST_PAUSE)
        if not self._pruning and not self._maintaining_event_log:
            self._cursor = await self._release_stranded()
            self._pruning = self._cursor is None
            return _PAGE_PAUSE
        if self._pruning:
            if await self._pruner.page():
                return _PAGE_PAUSE
            self._pruning = False
        if self._has_events and await self._maintain_event_log():
            # Much of the log is left to do, perhaps more than is added meanwhile: continue at once.
            self._maintaining_event_log = True
            return _PAGE_PAUSE
        self._maintaining_event_log = False
        if await self._maintain_activity():
            return _PAGE_PAUSE
        if time.monotonic() >= self._clean_staging_at:
            await self._clean_staging()
            self._clean_staging_at = time.monotonic() + STAGING_INTERVAL * random.uniform(0.5, 1.5)
        return INTERVAL * random.uniform(0.5, 1.5)

    async def _release_stranded(self) -> str | None:
        result = await self._store.release_stranded(cursor=self._cursor)
        if result.released:
            self._notify.publish(Topic.JOBS, {job.type for job in result.released})
            ids = tuple(job.id for job in result.released[:_MAX_NAMED])
            self._observers.emit(StrandedJobsReleased(worker=self._worker, count=len(result.released), job_ids=ids))
        return result.cursor

    async def _clean_staging(self) -> None:
        try:
            cleaned = await self._store.clean_staging()
        except StateUnavailableError:
            raise
        except StateError as error:
            if str(error) != self._staging_error:
                self._staging_error = str(error)
                self._observers.emit(StagingCleanupFailed(worker=self._worker, error=str(error)))
            return
        self._staging_error = None
        if cleaned.dropped or cleaned.forgotten:
            event = StagingCleaned(worker=self._worker, dropped=cleaned.dropped, forgotten=cleaned.forgotten)
            self._observers.emit(event)

    async def _maintain_activity(self) -> bool:
        """Fold and drop some of the activity; return whether more is to be done at once."""
        try:
            maintenance = await self._store.maintain_activity()
        except StateUnavailableError:
            raise
        except StateError as error:
            if str(error) != self._activity_error:
                self._activity_error = str(error)
                self._observers.emit(
                    StoreCallFailed(worker=self._worker, operation="maintain_activity", error=str(error))
                )
            return False
        self._activity_error = None
        return maintenance.more

    async def _maintain_event_log(self) -> bool:
        """Maintain the event log a bit; return whether more is to be done at once."""
        try:
            maintenance = await self._store.maintain_event_log()
        except StateUnavailableError:
            raise
        except StateError as error:
            # A role without the right to maintain it may still do the rest.
            if str(error) != self._event_log_error:
                self._event_log_error = str(error)
                self._observers.emit(EventLogMaintenanceFailed(worker=self._worker, error=str(error)))
            return False
        self._event_log_error = None
        self._report_maintained(maintenance)
        return maintenance.more

    def _report_maintained(self, maintenance: EventLogMaintenance) -> None:
        days = (maintenance.made, maintenance.dropped, maintenance.postponed)
        made, dropped, postponed = (tuple(map(str, each)) for each in days)
        if made or dropped or maintenance.deleted:
            self._observers.emit(
                EventLogMaintained(worker=self._worker, made=made, dropped=dropped, deleted=maintenance.deleted)
            )
        if postponed:
            self._observers.emit(EventLogMaintenancePostponed(worker=self._worker, days=postponed))
