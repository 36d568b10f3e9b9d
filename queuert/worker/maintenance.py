"""Looks for blocked jobs that wait for nothing (a bug, a statement by hand), and for chains that need not be kept.

And looks after the days of the event log, the activity, and what bulk writes have left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from queuert.errors import StateError, StateUnavailableError
from queuert.event_log import EventLogMaintenance
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import (
    ChainsPruned,
    EventLogMaintained,
    EventLogMaintenanceFailed,
    EventLogMaintenancePostponed,
    StagingCleaned,
    StagingCleanupFailed,
    StoreCallFailed,
    StrandedJobsReleased,
)
from queuert.policies import Retention
from queuert.state.async_store import AsyncStore
from queuert.state.types import PruneRequest
from queuert.worker.supervisor import SupervisedLoop

SWEEP_EVERY = 60.0
"""Seconds from the end of one sweep to the next, give or take a half: workers should not come all at once."""

STAGING_EVERY = 3600.0
"""Seconds from one look at what bulk writes have left to the next, at least."""

_BETWEEN_PAGES = 0.1
_FIRST = 2.0
_NAMED = 10


class Maintenance:
    """Walks through the blocked jobs and then the closed chains, a page at a time, with pauses between.

    Then it looks after the event log of a store that has one, and after the activity.
    """

    def __init__(
        self,
        store: AsyncStore,
        notify: NotifyAdapter,
        policies: Mapping[str, Retention],
        *,
        has_events: bool,
        worker: str,
        observers: Observers,
    ) -> None:
        self._store = store
        self._notify = notify
        self._policies = policies
        self._has_events = has_events
        self._log_trouble: str | None = None
        """What was told of the event log last: it is told once, until it goes well again."""
        self._activity_trouble: str | None = None
        self._staging_at = time.monotonic()
        self._staging_trouble: str | None = None
        self._worker = worker
        self._observers = observers
        self._cursor: str | None = None
        self._pruning = False
        self._tending = False
        self._begun = False
        self.loop = SupervisedLoop("maintenance", self._step, worker=worker, observers=observers)

    async def _step(self) -> float:
        if not self._begun:
            self._begun = True
            return random.uniform(0.0, _FIRST)
        if not self._pruning and not self._tending:
            self._cursor = await self._sweep()
            self._pruning = self._cursor is None
            return _BETWEEN_PAGES
        if self._pruning:
            self._cursor = await self._retire()
            if self._cursor is not None:
                return _BETWEEN_PAGES
            self._pruning = False
        if self._has_events and await self._tend_events():
            # What is left of the log is as much as a day's, or more than comes meanwhile: it is gone on with at once.
            self._tending = True
            return _BETWEEN_PAGES
        self._tending = False
        if await self._maintain_activity():
            return _BETWEEN_PAGES
        if time.monotonic() >= self._staging_at:
            await self._tend_staging()
            self._staging_at = time.monotonic() + STAGING_EVERY * random.uniform(0.5, 1.5)
        return SWEEP_EVERY * random.uniform(0.5, 1.5)

    async def _sweep(self) -> str | None:
        result = await self._store.release_stranded(cursor=self._cursor)
        if result.released:
            self._notify.publish(Topic.JOBS, {job.type for job in result.released})
            named = tuple(job.id for job in result.released[:_NAMED])
            self._observers.emit(StrandedJobsReleased(worker=self._worker, count=len(result.released), job_ids=named))
        return result.cursor

    async def _retire(self) -> str | None:
        result = await self._store.prune(PruneRequest(self._policies, cursor=self._cursor))
        if result.chain_ids:
            named = tuple(result.chain_ids[:_NAMED])
            self._observers.emit(ChainsPruned(worker=self._worker, count=len(result.chain_ids), chain_ids=named))
        return result.cursor

    async def _tend_staging(self) -> None:
        try:
            done = await self._store.clean_staging()
        except StateUnavailableError:
            raise
        except StateError as error:
            if str(error) != self._staging_trouble:
                self._staging_trouble = str(error)
                self._observers.emit(StagingCleanupFailed(worker=self._worker, error=str(error)))
            return
        self._staging_trouble = None
        if done.dropped or done.forgotten:
            self._observers.emit(StagingCleaned(worker=self._worker, dropped=done.dropped, forgotten=done.forgotten))

    async def _maintain_activity(self) -> bool:
        """Whether something is left that is to be done at once."""
        try:
            done = await self._store.maintain_activity()
        except StateUnavailableError:
            raise
        except StateError as error:
            if str(error) != self._activity_trouble:
                self._activity_trouble = str(error)
                self._observers.emit(
                    StoreCallFailed(worker=self._worker, operation="maintain_activity", error=str(error))
                )
            return False
        self._activity_trouble = None
        return done.more

    async def _tend_events(self) -> bool:
        """Whether something is left that is to be done at once."""
        try:
            done = await self._store.maintain_event_log()
        except StateUnavailableError:
            raise
        except StateError as error:
            # A role that may not do it can do all else: chains are swept and pruned as ever.
            if str(error) != self._log_trouble:
                self._log_trouble = str(error)
                self._observers.emit(EventLogMaintenanceFailed(worker=self._worker, error=str(error)))
            return False
        self._log_trouble = None
        self._tell_maintained(done)
        return done.more

    def _tell_maintained(self, done: EventLogMaintenance) -> None:
        made, dropped, postponed = (tuple(map(str, days)) for days in (done.made, done.dropped, done.postponed))
        if made or dropped or done.deleted:
            self._observers.emit(
                EventLogMaintained(worker=self._worker, made=made, dropped=dropped, deleted=done.deleted)
            )
        if postponed:
            self._observers.emit(EventLogMaintenancePostponed(worker=self._worker, days=postponed))
