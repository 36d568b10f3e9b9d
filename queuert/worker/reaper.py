"""Takes over after the dead: turns expired leases into failed attempts, on time whatever the load."""

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
_LONGEST_PAUSE = 30.0


class Reaper:
    """Sleeps until the next lease of its types can expire, reaps, and tells whom it concerns.

    A lease granted after it looked lasts at least ``shortest_lease`` from then, so it need not look earlier than that,
    or than the earliest end that it saw. Every worker has one; they pass over each other's rows.
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
        self._longest = min(shortest_lease, _LONGEST_PAUSE)
        # Workers that saw the same lease should not all come at once; a take-over may be late by this much.
        self._spread = min(0.25, shortest_lease / 10)
        self._limited = frozenset(limited)
        self._worker = worker
        self._observers = observers
        self.loop = SupervisedLoop("reaper", self._step, worker=worker, observers=observers)

    async def _step(self) -> float | None:
        try:
            result = await self._store.reap(self._request)
        except StateUnavailableError:
            # It may have reaped, and only its answer was lost: what is ready again nobody would tell.
            self._notify.publish(Topic.JOBS, self._request.policies)
            raise
        for job in result.reaped:
            self._tell(job)
        pause = self._longest if result.next_expiry is None else min(result.next_expiry, self._longest)
        if not result.reaped or pause > 0:
            # Not at once for a lease that has expired and is locked by somebody just now.
            return max(pause, self._spread) + random.uniform(0.0, self._spread)
        return None

    def _tell(self, job: ReapedJob) -> None:
        failed = job.status is JobStatus.FAILED
        self._activity.count_one(job.type, REAPED)
        self._notify.publish(Topic.LEASES, [job.id])
        # Under a limit its slot is free for others now, whenever the job itself is due again.
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
