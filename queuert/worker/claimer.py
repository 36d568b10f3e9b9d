"""Fills free slots, and what waits for them: one claim for all, as soon as there may be something to claim."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from queuert.errors import StateUnavailableError
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.notify.adapter import Hint, NotifyAdapter, Subscription, Topic
from queuert.observability.adapter import Observers
from queuert.policies import Backoff
from queuert.state.adapter import ClaimedJob, ClaimRequest
from queuert.state.async_store import AsyncStore
from queuert.worker.lease_clock import lease_time
from queuert.worker.prefetch import Prefetch
from queuert.worker.returns import Returns
from queuert.worker.runner import AttemptRunner
from queuert.worker.supervisor import SupervisedLoop

POLL_WITH_NOTIFY = 60.0
POLL_WITHOUT_NOTIFY = 1.0
"""Seconds between two looks when nothing else wakes the claimer, give or take a tenth."""

_SHORTEST_SPACING = 0.05


class Claimer:
    """Claims as many jobs as slots are free, and some ahead of them, until there are no more; then waits.

    What ends the wait: a hint that jobs of its types became due, the time of the next scheduled one, the poll. A hint
    that comes while a claim is under way is not lost: the claimer looks again.
    """

    def __init__(
        self,
        store: AsyncStore,
        notify: NotifyAdapter,
        prefetch: Prefetch[AttemptRunner],
        make: Callable[[Sequence[ClaimedJob], float], list[AttemptRunner]],
        *,
        leases: Mapping[str, float],
        limits: Mapping[str, Limits] | None = None,
        holder: str,
        poll_interval: float | None,
        observers: Observers,
    ) -> None:
        self._store = store
        self._notify = notify
        self._prefetch = prefetch
        self._make = make
        self._leases = dict(leases)
        self._limits = dict(limits or {})
        self._holder = holder
        self._poll_interval = poll_interval
        self._observers = observers
        self._woken = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()
        self._returns = Returns(store, worker=holder, observers=observers)
        self._in_vain = 0
        self._contention = Backoff(initial=0.01, maximum=_longest_contention(self._limits.values()))
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("claimer", self._step, worker=holder, observers=observers)

    def start(self) -> None:
        """Begin to claim, and to listen for jobs that become due."""
        self._subscription = self._notify.subscribe(Topic.JOBS, self._on_hint)
        self.loop.start()

    def on_readied(self, types: Iterable[str]) -> None:
        """Jobs of these types became due, by this worker's own doing. From any thread."""
        if not self._leases.keys().isdisjoint(types):
            self._wake()

    def _on_hint(self, hint: Hint) -> None:
        if hint.keys is None or not self._leases.keys().isdisjoint(hint.keys):
            self._wake()

    def _wake(self) -> None:
        # The event loop may have closed: the worker has stopped then.
        with suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(self._woken.set)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Claim no more, and give back what nobody started; a claim under way is waited for, as it may take more.

        While the store is out of reach that is tried again, until the leases are over, or ``hurry`` is set.
        """
        if self._subscription is not None:
            self._subscription.close()
        self.loop.tell_to_stop()
        self._prefetch.slots.stop_waiting()
        self._woken.set()
        self._put_back_waiting()
        # The answer to a claim may take its time: what waits here already does not wait for it.
        await asyncio.gather(self.loop.stop(cancel=False), self._returns.settle_all(hurry))
        self._put_back_waiting()
        await self._returns.settle_all(hurry)

    async def _step(self) -> None:
        wanted = await self._prefetch.room()
        if self.loop.stopping:
            return
        if not wanted:
            self._put_back_waiting()
            await self._returns.settle()
            return
        self._woken.clear()
        claimed = await self._claim(wanted)
        if claimed < wanted:
            # What was claimed begins first: this look is for later.
            await asyncio.sleep(0)
            if not self.loop.stopping:
                await self._wait(claimed, await self._store.next_due(list(self._leases)))

    async def _claim(self, limit: int) -> int:
        """Claim and start up to ``limit`` jobs; how many there were."""
        await self._returns.settle()
        request = ClaimRequest(self._leases, limit, self._holder, new_token(), self._limits)
        # Before the query is sent: so that this worker never believes in a lease for longer than the store does.
        sent_at = lease_time()
        try:
            jobs = await self._store.claim(request)
        except (StateUnavailableError, asyncio.CancelledError):
            self._returns.put_claim(request, answered=False)
            raise
        if self.loop.stopping:
            self._returns.put_claim(request, answered=True)
            return len(jobs)
        if jobs:
            self._prefetch.put(self._make(jobs, sent_at))
        if any(job.lease_expirations for job in jobs):
            # It has cost a lease, perhaps its worker's life: if it does again, none that only waits goes with it. Nor
            # do the next claims take more than begins at once, only to give it back, when many expired in an outage.
            self._prefetch.beware()
            while self._prefetch.more_to_start:  # noqa: ASYNC110  (each place begins in a turn of the event loop)
                await asyncio.sleep(0)
            self._put_back_waiting()
            await self._returns.settle()
        return len(jobs)

    def _put_back_waiting(self) -> None:
        """What was claimed ahead and waits for a place is not to be run."""
        waiting = self._prefetch.take_back()
        for runner in waiting:
            runner.forget()
        self._returns.put((runner.held.lease, runner.held.deadline) for runner in waiting)

    async def _wait(self, claimed: int, next_due: float | None) -> None:
        pause = min(self._poll_pause(), self._returns.pause)
        if next_due is not None:
            # What is due and was not to be had is locked by others, who are about to claim or cancel it, or held back
            # by limits: a hint tells when an attempt has ended, but none when the window of a rate moves on.
            self._in_vain = 0 if claimed or next_due > 0 else self._in_vain + 1
            pause = min(pause, max(next_due, self._contention.delay(self._in_vain + 1)))
        try:
            async with asyncio.timeout(pause):
                await self._woken.wait()
        except TimeoutError:
            return

    def _poll_pause(self) -> float:
        interval = self._poll_interval
        if interval is None:
            interval = POLL_WITH_NOTIFY if self._notify.healthy else POLL_WITHOUT_NOTIFY
        return interval * random.uniform(0.9, 1.1)


def _longest_contention(limits: Iterable[Limits]) -> float:
    """Seconds between two claims in vain, at most: the time in which the fastest rate lets one attempt begin."""
    spacings = [one.rate.seconds / one.rate.count for one in limits if one.rate is not None]
    return min(1.0, max(_SHORTEST_SPACING, min(spacings, default=1.0)))
