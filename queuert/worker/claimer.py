"""Claims jobs: one statement fills all free slots, and the prefetch, as soon as there may be something to claim."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.notify.adapter import Notification, Subscription, Topic
from queuert.observability.events import JobsClaimed
from queuert.policies import Backoff
from queuert.state.types import ClaimedJob, ClaimRequest
from queuert.worker.leases import lease_time
from queuert.worker.supervisor import SupervisedLoop

if TYPE_CHECKING:
    from queuert.worker.runtime import WorkerRuntime

ROUND = 8
"""Of so many claims that take something, one begins with worse ranks."""

LONGEST_ROUND = 64
"""Of so many, where there were none of a worse rank: such a claim looks twice."""


class ClaimOrder:
    """The requests of one worker."""

    def __init__(self, leases: Mapping[str, float], limits: Mapping[str, Limits], *, holder: str) -> None:
        self._leases = dict(leases)
        self._limits = dict(limits)
        self._holder = holder
        self._claims = 0
        """That took something since the last one that began with worse ranks."""
        self._round = ROUND
        self._served = 0
        """The worst rank of what the last ordinary claim took."""
        self._reached: int | None = None
        """The rank that the last claim came to that began with worse ones; None: it found none."""

    def request(self, limit: int, max_bytes: int) -> ClaimRequest:
        """What to ask the store for: up to ``limit`` jobs, with inputs of up to ``max_bytes`` together."""
        after_rank = None
        if self._claims >= self._round - 1:
            after_rank = self._served if self._reached is None else self._reached
        return ClaimRequest(self._leases, limit, self._holder, new_token(), self._limits, max_bytes, after_rank)

    def note(self, request: ClaimRequest, jobs: Sequence[ClaimedJob]) -> None:
        """A request was answered with these."""
        if not jobs:
            if request.after_rank is not None:
                self._claims = 0
            return
        worst = max([job.rank for job in jobs])
        if len(self._leases) > 1:
            self._rotate(Counter(job.type for job in jobs if job.rank == worst))
        if request.after_rank is None:
            self._claims += 1
            self._served = worst
            return
        self._claims = 0
        worse = [job.rank for job in jobs if job.rank > request.after_rank]
        if worse:
            self._round = ROUND
        elif self._reached is None:
            self._round = min(2 * self._round, LONGEST_ROUND)
        # The store has taken the best of the worse ranks, so this is where it began.
        self._reached = min(worse, default=None)

    def _rotate(self, taken: Counter[str]) -> None:
        """Let the next claim begin with the type behind the one that was served last."""
        types = list(self._leases)
        turns = max(taken.values())
        last = max(at for at, type in enumerate(types) if taken[type] == turns)
        self._leases = {type: self._leases[type] for type in (*types[last + 1 :], *types[: last + 1])}


POLL_WITH_NOTIFY = 60.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two looks when nothing else wakes the claimer, give or take a tenth."""

_SHORTEST_SPACING = 0.05


class Claimer:
    """Claims as many jobs as slots are free, and some ahead of them, until there are no more; then waits.

    What ends the wait: a notification that jobs of its types became due, the time of the next scheduled one, the poll.
    A notification that comes while a claim is under way is not lost: the claimer looks again.
    """

    def __init__(
        self,
        worker: WorkerRuntime,
        *,
        leases: Mapping[str, float],
        limits: Mapping[str, Limits] | None = None,
        poll_interval: float | None,
    ) -> None:
        self._worker = worker
        self._store = worker.store
        self._observers = worker.observers
        self._prefetch = worker.prefetch
        self._releases = worker.releases
        self._leases = dict(leases)
        self._order = ClaimOrder(leases, limits or {}, holder=worker.name)
        self._poll_interval = poll_interval
        self._woken = asyncio.Event()
        self._waking = False
        self._event_loop = asyncio.get_running_loop()
        self._most: int | None = None
        """How many one claim asks for, after one that raised."""
        self._empty_claims = 0
        self._empty_claim_backoff = Backoff(initial_delay=0.01, max_delay=_longest_contention((limits or {}).values()))
        self.working_since: float | None = None
        """When the claim under way was sent (by the lease clock); None while there is nothing to claim, or no slot."""
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("claimer", self._step, worker=worker.name, observers=worker.observers)

    def start(self) -> None:
        """Begin to claim, and to listen for jobs that become due."""
        self._subscription = self._worker.notify.subscribe(Topic.JOBS, self._on_notification)
        self.loop.start()

    def on_jobs_due(self, types: Iterable[str]) -> None:
        """Jobs of these types became due, by this worker's own doing. From any thread."""
        if not self._leases.keys().isdisjoint(types):
            self._wake()

    def _on_notification(self, notification: Notification) -> None:
        if notification.keys is None or not self._leases.keys().isdisjoint(notification.keys):
            self._wake()

    def _wake(self) -> None:
        if self._waking:
            return  # The event loop has not come for it yet: each call takes a place in the pipe that wakes it.
        self._waking = True
        try:
            self._event_loop.call_soon_threadsafe(self._be_woken)
        except RuntimeError:
            return  # The event loop has closed: the worker has stopped.
        except BaseException:
            self._waking = False
            raise

    def _be_woken(self) -> None:
        self._waking = False
        self._woken.set()

    async def stop(self, hurry: asyncio.Event) -> None:
        """Claim no more, and release what nobody started; a claim under way is waited for, as it may take more.

        While the store is out of reach that is tried again, until the leases are over, or ``hurry`` is set.
        """
        if self._subscription is not None:
            self._subscription.close()
        self.loop.tell_to_stop()
        self._prefetch.slots.close()
        self._woken.set()
        self._release_prefetched()
        try:
            # The answer to a claim may take its time: what waits here already does not wait for it.
            await asyncio.gather(self.loop.stop(cancel=False), self._releases.settle_all(hurry))
            self._release_prefetched()
            await self._releases.settle_all(hurry)
        finally:
            await self._releases.aclose()

    async def _step(self) -> None:
        self.working_since = None
        demand = await self._prefetch.wait_for_demand()
        if self.loop.stopping:
            return
        if not demand:
            self._release_prefetched()
            await self._releases.settle()
            return
        self._woken.clear()
        claimed, more = await self._claim(demand)
        if not more:
            # What was claimed begins first: this look is for later.
            await asyncio.sleep(0)
            if not self.loop.stopping:
                await self._wait(claimed, await self._store.next_due(list(self._leases)))

    async def _claim(self, demand: int) -> tuple[int, bool]:
        """Claim and start up to so many jobs; how many there were, and whether there may be more to claim at once."""
        await self._releases.settle()
        limit = demand if self._most is None else min(demand, self._most)
        max_bytes = self._prefetch.claimable_bytes
        request = self._order.request(limit, max_bytes)
        # Before the query is sent: so that this worker never believes in a lease for longer than the store does.
        sent_at = self.working_since = lease_time()
        try:
            jobs = await self._store.claim(request)
        except BaseException as error:
            # It may have been committed, whatever became of its answer: nobody else releases what it took.
            self._releases.put_claim(request, answered=False)
            if not isinstance(error, StateUnavailableError | asyncio.CancelledError):
                self._most = max(1, limit // 2)
            raise
        duration = lease_time() - sent_at
        self._order.note(request, jobs)
        if self.loop.stopping:
            self._releases.put_claim(request, answered=True)
            return len(jobs), False
        taken = self._begin(jobs, request, sent_at) if jobs else 0
        if self._observers.want(JobsClaimed):
            self._observers.emit(JobsClaimed(worker=self._worker.name, count=len(jobs), duration=duration))
        if self._most is not None:
            self._most = None if self._most >= demand else 2 * self._most
        # One that the bytes have cut is followed by another, as is one that asked for fewer than there is room for.
        more = len(jobs) >= limit or 2 * taken >= max_bytes
        if any(job.lease_expirations for job in jobs):
            await self._suspend_prefetch()
        return len(jobs), more

    def _begin(self, jobs: Sequence[ClaimedJob], request: ClaimRequest, sent_at: float) -> int:
        """Start what was claimed, or let it wait; the size of its inputs."""
        before = self._prefetch.input_bytes
        try:
            runners = self._worker.make_runners(jobs, sent_at)
        except BaseException:
            # Nothing in this process knows of the jobs, for want of memory as a rule.
            self._releases.put_claim(request, answered=True)
            raise
        taken = self._prefetch.input_bytes - before
        self._prefetch.put(runners)
        return taken

    async def _suspend_prefetch(self) -> None:
        """Start only as many jobs as slots are free: one of those that were claimed has cost a lease before.

        Perhaps it has cost its worker's life. If it does so again, no job that only waits goes down with it. Nor do the
        next claims take more than begins at once, only to release it, when many leases expired in an outage.
        """
        self._prefetch.suspend()
        while self._prefetch.more_to_start:  # noqa: ASYNC110  (each slot begins in a turn of the event loop)
            await asyncio.sleep(0)
        self._release_prefetched()
        await self._releases.settle()

    def _release_prefetched(self) -> None:
        """Release what was claimed ahead and waits for a slot."""
        for runner in self._prefetch.drain():
            runner.release()

    async def _wait(self, claimed: int, next_due: float | None) -> None:
        pause = self._poll_pause()
        if next_due is not None:
            # What is due and was not to be had is locked by others, who are about to claim or cancel it, or held back
            # by limits: a notification tells when an attempt has ended, but none when the window of a rate moves on.
            self._empty_claims = 0 if claimed or next_due > 0 else self._empty_claims + 1
            pause = min(pause, max(next_due, self._empty_claim_backoff.delay(self._empty_claims + 1)))
        self.working_since = None
        try:
            async with asyncio.timeout(pause):
                await self._woken.wait()
        except TimeoutError:
            return

    def _poll_pause(self) -> float:
        interval = self._poll_interval
        if interval is None:
            interval = POLL_WITH_NOTIFY if self._worker.notify.healthy else POLL_WITHOUT_NOTIFY
        return interval * random.uniform(0.9, 1.1)


def _longest_contention(limits: Iterable[Limits]) -> float:
    """Seconds between two claims without result, at most: the time in which the fastest rate lets one attempt begin."""
    spacings = [one.rate.seconds / one.rate.count for one in limits if one.rate is not None]
    return min(1.0, max(_SHORTEST_SPACING, min(spacings, default=1.0)))
