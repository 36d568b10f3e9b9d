"""Claims jobs: one statement for all free slots and the prefetch, as soon as there may be jobs to claim."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import attrgetter
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
"""Of so many claims that return jobs, one begins with worse ranks, so that jobs of low priority are run, too."""

MAX_ROUND = 64
"""The longest round, reached while there are no jobs of worse ranks: a claim for them costs a second search."""

_rank = attrgetter("rank")


class ClaimOrder:
    """Makes the claim requests of one worker, so that each type and each rank gets its turn."""

    def __init__(self, leases: Mapping[str, float], limits: Mapping[str, Limits], *, holder: str) -> None:
        self._leases = dict(leases)
        self._limits = dict(limits)
        self._holder = holder
        self._claims = 0
        """Claims that returned jobs, since the last one that began with worse ranks."""
        self._round = ROUND
        self._worst_served = 0
        """The worst rank of the jobs of the last ordinary claim."""
        self._reached: int | None = None
        """The best rank of the jobs of the last claim that began with worse ranks; None: there were none."""

    def request(self, limit: int, max_bytes: int) -> ClaimRequest:
        """Return the next request: for up to ``limit`` jobs, with inputs of up to ``max_bytes`` together."""
        after_rank = None
        if self._claims >= self._round - 1:
            after_rank = self._worst_served if self._reached is None else self._reached
        return ClaimRequest(self._leases, limit, self._holder, new_token(), self._limits, max_bytes, after_rank)

    def request_of(self, types: Container[str | None], limit: int, max_bytes: int) -> ClaimRequest:
        """Return a request for jobs of these types alone, while there are no others to claim: nobody's turn is taken,
        so ``on_claimed`` is not called for it."""
        leases = {type: seconds for type, seconds in self._leases.items() if type in types}
        return ClaimRequest(leases, limit, self._holder, new_token(), self._limits, max_bytes, ready_only=True)

    def on_claimed(self, request: ClaimRequest, jobs: Sequence[ClaimedJob]) -> None:
        """Record the answer to a request, which decides the next one."""
        if not jobs:
            if request.after_rank is not None:
                self._claims = 0
            return
        # Stores return the best first, but for jobs of worse ranks that were to be claimed before all others.
        ranked = jobs if request.after_rank is None else sorted(jobs, key=_rank)
        worst = ranked[-1].rank
        if len(self._leases) > 1:
            self._rotate(Counter([job.type for job in ranked[bisect_left(ranked, worst, key=_rank) :]]))
        if request.after_rank is None:
            self._claims += 1
            self._worst_served = worst
            return
        self._claims = 0
        worse = [job.rank for job in jobs if job.rank > request.after_rank]
        if worse:
            self._round = ROUND
        elif self._reached is None:
            self._round = min(2 * self._round, MAX_ROUND)
        # The store claims the best of the worse ranks first.
        self._reached = min(worse, default=None)

    def _rotate(self, taken: Counter[str]) -> None:
        """Move the types up to the one of which most jobs were taken to the end, for the next claim."""
        types = list(self._leases)
        most = max(taken.values())
        last = max(index for index, type in enumerate(types) if taken[type] == most)
        self._leases = {type: self._leases[type] for type in (*types[last + 1 :], *types[: last + 1])}


POLL_WITH_NOTIFY = 60.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two polls when nothing else wakes the claimer, plus or minus a tenth."""

_MIN_BACKOFF = 0.05

_FORGET_AFTER = 0.05
"""Seconds after which a claimer that had to wait for a free slot does not rely on what was left before."""


class Claimer:
    """Claims jobs for the free slots and the prefetch until there are no more, and then waits.

    The wait ends with a notification that jobs of its types became due, at the time of the next scheduled job, or with
    the next poll. A notification during a claim is not lost: the claimer claims again.

    Once there was nothing left to claim, it claims jobs of those types alone of which it was notified. Whatever is left
    then, because nobody notified it, or because it was scheduled, is claimed at once after that.
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
        self._became_due: set[str | None] = set()
        """The types of which jobs became due since the last claim; None stands for all. Added to from any thread."""
        self._nothing_left = False
        """Whether the last claim, and a look after it, left no due job."""
        self._claimed_all_types = True
        """Whether the last claim was for jobs of all types."""
        self._event_loop = asyncio.get_running_loop()
        self._max_jobs: int | None = None
        """The most jobs of one claim, after a claim that raised; None: no bound."""
        self._empty_claims = 0
        self._empty_claim_backoff = Backoff(
            initial_delay=0.01, max_delay=_max_empty_claim_delay((limits or {}).values())
        )
        self.claiming_since: float | None = None
        """When the current query was sent (by the lease clock); None while the claimer waits for no answer."""
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("claimer", self._step, worker=worker.name, observers=worker.observers)

    def start(self) -> None:
        """Start the loop, and listen for jobs that become due."""
        self._subscription = self._worker.notify.subscribe(Topic.JOBS, self._on_notification)
        self.loop.start()

    def on_jobs_due(self, types: Iterable[str]) -> None:
        """Jobs of these types became due by a finish or a release of this worker. From any thread."""
        self._wake(types)

    def _on_notification(self, notification: Notification) -> None:
        self._wake(notification.keys)

    def _wake(self, types: Iterable[str] | None) -> None:
        """Wake the claimer if it claims jobs of such types; None: of any."""
        became_due = self._became_due
        if types is None:
            became_due.add(None)
        elif mine := self._leases.keys() & types:
            became_due |= mine
        else:
            return
        if self._waking:
            return  # A call is pending already. Each one writes to the pipe that wakes the loop, which could fill up.
        self._waking = True
        try:
            self._event_loop.call_soon_threadsafe(self._on_wake)
        except RuntimeError:
            return  # The event loop has closed, since the worker has stopped.
        except BaseException:
            self._waking = False
            raise

    def _on_wake(self) -> None:
        self._waking = False
        self._woken.set()

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop claiming, and release what was not started, also what the current claim still returns.

        While the store cannot be reached, it tries again, until the leases have expired or ``hurry`` is set. Rows that
        other transactions have locked are tried again for a second even then.
        """
        if self._subscription is not None:
            self._subscription.close()
        self.loop.request_stop()
        self._prefetch.slots.close()
        self._woken.set()
        self._prefetch.release_waiting()
        try:
            # At the same time, since the answer to the current claim may take long.
            await asyncio.gather(self.loop.stop(cancel=False), self._releases.release_all(hurry))
            self._prefetch.release_waiting()
            await self._releases.release_all(hurry)
        finally:
            await self._releases.aclose()

    async def _step(self) -> None:
        self.claiming_since = None
        began = lease_time()
        demand = await self._prefetch.wait_for_demand()
        if self.loop.stopping:
            return
        if lease_time() > began + _FORGET_AFTER:
            self._nothing_left = False
        self._woken.clear()
        claimed, more = await self._claim(demand)
        # From here on handlers begin. One that blocks the event loop must not look like a claim that is not answered.
        self.claiming_since = None
        # Let the claimed jobs begin first: the next query is not urgent.
        await asyncio.sleep(0)
        if not more and not self.loop.stopping:
            self.claiming_since = lease_time()
            next_due = await self._store.next_due(list(self._leases))
            self.claiming_since = None
            self._nothing_left = next_due is None or next_due > 0
            # If nothing was claimed, most likely another worker has the job that is left.
            if self._nothing_left or self._claimed_all_types or not claimed:
                await self._wait(claimed, next_due)

    async def _claim(self, demand: int) -> tuple[int, bool]:
        """Claim and start up to ``demand`` jobs. Return their number, and whether there may be more to claim now."""
        await self._releases.release_due()
        limit = demand if self._max_jobs is None else min(demand, self._max_jobs)
        max_bytes = self._prefetch.claimable_bytes
        # A type that another thread adds now may be lost: it is found by the look at what is left.
        types, self._became_due = self._became_due, set()
        self._claimed_all_types = not (self._nothing_left and types) or None in types
        self._nothing_left = False
        if self._claimed_all_types:
            request = self._order.request(limit, max_bytes)
        else:
            request = self._order.request_of(types, limit, max_bytes)
        # Before the query is sent, so that this worker never counts a lease for longer than the store does.
        sent_at = self.claiming_since = lease_time()
        try:
            jobs = await self._store.claim(request)
        except BaseException as error:
            # It may have been committed all the same, and nobody else would release its jobs.
            self._releases.put_claim(request, answered=False)
            if not isinstance(error, StateUnavailableError | asyncio.CancelledError):
                self._max_jobs = max(1, limit // 2)
            raise
        duration = lease_time() - sent_at
        if self._claimed_all_types:
            self._order.on_claimed(request, jobs)
        if self.loop.stopping:
            self._releases.put_claim(request, answered=True)
            return len(jobs), False
        if jobs and self._worker.tracing is not None:
            self._worker.tracing.received(jobs, self._worker.name, duration)
        input_bytes = self._start_jobs(jobs, request, sent_at) if jobs else 0
        if self._observers.want(JobsClaimed):
            self._observers.emit(JobsClaimed(worker=self._worker.name, count=len(jobs), duration=duration))
        if self._max_jobs is not None:
            self._max_jobs = None if self._max_jobs >= demand else 2 * self._max_jobs
        # More may be due after a claim that returned all jobs it asked for, or that reached its bound of bytes.
        more = len(jobs) >= limit or 2 * input_bytes >= max_bytes
        if any(job.lease_expirations for job in jobs):
            await self._suspend_prefetch()
        return len(jobs), more

    def _start_jobs(self, jobs: Sequence[ClaimedJob], request: ClaimRequest, sent_at: float) -> int:
        """Start claimed jobs, or let them wait for a slot. Return the size of their inputs in bytes."""
        before = self._prefetch.input_bytes
        try:
            runners = self._worker.make_runners(jobs, sent_at)
        except BaseException:
            # No runner knows of the jobs; usually memory is exhausted.
            self._releases.put_claim(request, answered=True)
            raise
        input_bytes = self._prefetch.input_bytes - before
        self._prefetch.put(runners)
        return input_bytes

    async def _suspend_prefetch(self) -> None:
        """Release prefetched jobs, and prefetch none for a while: the lease of a claimed job has expired before.

        Perhaps that job has killed its worker. If it does so again, no job that only waits for a slot is affected. Nor
        do the next claims, when many leases have expired in an outage, take more jobs than begin at once.
        """
        self._prefetch.suspend()
        while self._prefetch.more_to_start:  # noqa: ASYNC110  (each slot begins in a turn of the event loop)
            await asyncio.sleep(0)
        self._prefetch.release_waiting()
        await self._releases.release_due()

    async def _wait(self, claimed: int, next_due: float | None) -> None:
        interval = self._poll_interval
        if interval is None:
            interval = POLL_WITH_NOTIFY if self._worker.notify.healthy else POLL_WITHOUT_NOTIFY
        pause = interval * random.uniform(0.9, 1.1)
        if next_due is not None:
            # Jobs that are due and were not claimed are locked by others, which claim or cancel them, or held back by
            # limits. When an attempt ends there is a notification, but not when the window of a rate moves on.
            self._empty_claims = 0 if claimed or next_due > 0 else self._empty_claims + 1
            pause = min(pause, max(next_due, self._empty_claim_backoff.delay(self._empty_claims + 1)))
        until = lease_time() + pause
        while (left := until - lease_time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._woken.wait()
            except TimeoutError:
                continue
            return


def _max_empty_claim_delay(limits: Iterable[Limits]) -> float:
    """Return the longest pause between empty claims: the seconds in which the fastest rate lets one attempt begin."""
    rates = [limit.rate for limit in limits if limit.rate is not None]
    return min(1.0, max(_MIN_BACKOFF, min((rate.seconds / rate.count for rate in rates), default=1.0)))
