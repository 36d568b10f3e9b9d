"""Looks for blocked jobs that wait for nothing: what a bug or a statement by hand left behind."""

from __future__ import annotations

import random

from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import JobsSwept
from queuert.state.async_store import AsyncStore
from queuert.worker.supervisor import SupervisedLoop

SWEEP_EVERY = 60.0
"""Seconds from the end of one sweep to the next, give or take a half: workers should not come all at once."""

_BETWEEN_PAGES = 0.1
_FIRST = 2.0
_NAMED = 10


class Sweeper:
    """Walks through the blocked jobs, a page at a time, with pauses between."""

    def __init__(self, store: AsyncStore, notify: NotifyAdapter, *, worker: str, observers: Observers) -> None:
        self._store = store
        self._notify = notify
        self._worker = worker
        self._observers = observers
        self._cursor: str | None = None
        self._begun = False
        self.loop = SupervisedLoop("sweeper", self._step, worker=worker, observers=observers)

    async def _step(self) -> float:
        if not self._begun:
            self._begun = True
            return random.uniform(0.0, _FIRST)
        result = await self._store.sweep(cursor=self._cursor)
        self._cursor = result.cursor
        if result.released:
            self._notify.publish(Topic.JOBS, {job.type for job in result.released})
            named = tuple(job.id for job in result.released[:_NAMED])
            self._observers.emit(JobsSwept(worker=self._worker, count=len(result.released), job_ids=named))
        return _BETWEEN_PAGES if self._cursor is not None else SWEEP_EVERY * random.uniform(0.5, 1.5)
