"""The reaper: turns expired leases of any worker into failed attempts."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from queuert.errors import StateUnavailableError
from queuert.jobs import JobStatus
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability.adapter import Observers
from queuert.observability.events import JobReaped
from queuert.policies import RetryPolicy
from queuert.state.async_store import AsyncStore
from queuert.state.types import ReapedJob, ReapRequest
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.telemetry import REAPED, ActivityCounter

_BATCH = 100
_MAX_PAUSE = 30.0


class Reaper:
    """Sleeps until the next lease of its types can expire, reaps expired leases, and notifies.

    It need not look before the earliest expiry that it saw, nor before ``shortest_lease``, since each lease that is
    granted later lasts at least so long. Every worker has a reaper; each skips the rows that another has locked.
    """

    def __init__(
        self,
        store: AsyncStore,
        notify: NotifyAdapter,
        policies: Mapping[str, RetryPolicy],
        *,
        shortest_lease: float,
        limited: Collection[str] = (),
        worker: str,
        observers: Observers,
        activity: ActivityCounter,
    ) -> None:
        self._store = store
        self._notify = notify
        self._activity = activity
        self._request = ReapRequest(policies, _BATCH)
        self._max_pause = min(shortest_lease, _MAX_PAUSE)
        # Spreads the reapers that saw the same lease; a lease is reaped late by at most this.
        self._spread = min(0.25, shortest_lease / 10)
        self._limited = frozenset(limited)
        self._worker = worker
        self._observers = observers
        self.loop = SupervisedLoop("reaper", self._step, worker=worker, observers=observers)

    async def _step(self) -> float | None:
        try:
            result = await self._store.reap(self._request)
        except StateUnavailableError:
            # It may have reaped, and only the answer was lost: notify of all types, since nobody else would.
            self._notify.publish(Topic.JOBS, self._request.policies)
            raise
        for job in result.reaped:
            self._report(job)
        pause = self._max_pause if result.next_expiry is None else min(result.next_expiry, self._max_pause)
        if not result.reaped or pause > 0:
            # A pause in any case: an expired lease that another transaction has locked is due all the time.
            return max(pause, self._spread) + random.uniform(0.0, self._spread)
        return None

    def _report(self, job: ReapedJob) -> None:
        failed = job.status is JobStatus.FAILED
        self._activity.count_one(job.type, REAPED)
        self._notify.publish(Topic.LEASES, [job.id])
        # Under a limit another job may run now, whenever this one is due again.
        self._notify.publish(Topic.JOBS, self._limited.intersection((job.type,)).union(job.due_types))
        if failed:
            self._notify.publish(Topic.CHAINS, [job.chain_id])
        self._observers.emit(
            JobReaped(
                worker=self._worker,
                job_id=job.id,
                chain_id=job.chain_id,
                type=job.type,
                attempt=job.attempt,
                holder=job.holder,
                failed=failed,
            )
        )
