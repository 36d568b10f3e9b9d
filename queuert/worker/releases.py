"""What a worker holds and will not run goes back to the store, and is offered again until the store has answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import JobsReleased, StoreCallFailed
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimRequest, Lease
from queuert.worker.leases import lease_time

RELEASE_WAIT = 1.0
"""Seconds that a claim waits for what is released before it: a release that hangs must not keep a worker idle."""

AFTER_EXPIRY = 60.0
"""Seconds after its end in which a lease is still released, if the store did not answer before: a job that nobody
has reaped by then has lost no attempt."""

_BACKOFF = Backoff(initial_delay=0.05, max_delay=1.0)

LATE_SECONDS = 0.5
"""A claim whose connection broke may still be under way in the server: so long after the first look it is looked for
once more."""

_LOCKED_PAUSE = 0.5
"""Seconds until a job is offered again that somebody's transaction had locked."""


class _UnstartedLease(NamedTuple):
    lease: Lease
    until: float
    """When it is over anyway, by the lease clock."""


@dataclass
class _UnansweredClaim:
    """A claim whose answer never came, or came when nobody would run what it took."""

    request: ClaimRequest
    answered: bool
    until: float
    """When what it may have taken is over anyway, by the lease clock."""
    looked_at: float | None = None

    def pause(self, now: float) -> float:
        """Seconds until it is to be looked for."""
        return 0.0 if self.looked_at is None else self.looked_at + LATE_SECONDS - now


class ReleaseQueue:
    """Keeps what is to be released. A release whose answer was lost is asked for again, which does no harm.

    Whatever the store says to it, it is asked again, by a task of its own, until it has answered or the leases are
    over. Claims go on meanwhile.
    """

    def __init__(self, store: AsyncStore, *, worker: str, observers: Observers) -> None:
        self._store = store
        self._worker = worker
        self._observers = observers
        self._unwanted: list[_UnstartedLease] = []
        self._looked_at: float | None = None
        """When some of the unwanted were found locked."""
        self._doubts: list[_UnansweredClaim] = []
        self._most: int | None = None
        """How many are offered at once, after the store has refused more."""
        self._failures = 0
        self._again_at = 0.0
        """When to offer again what the store has refused (monotonic)."""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._offered = asyncio.Event()
        self._slow = False
        self._stopping = False

    def __bool__(self) -> bool:
        return bool(self._unwanted or self._doubts)

    def put(self, leases: Iterable[tuple[Lease, float]]) -> None:
        """Leases of jobs that will not be run, each with its end (by the lease clock): their renewal has ended."""
        self._unwanted += (_UnstartedLease(*one) for one in leases)
        self._looked_at = None
        self._begin()

    def put_claim(self, request: ClaimRequest, *, answered: bool) -> None:
        """All that this claim took."""
        self._doubts.append(_UnansweredClaim(request, answered, lease_time() + max(request.leases.values())))
        self._begin()

    def _begin(self) -> None:
        self._woken.set()
        if self and self._task is None and not self._stopping:
            with suppress(MemoryError):  # Whoever comes next tries it again.
                self._task = asyncio.create_task(self._until_settled(), name="queuert-returns")
                self._task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._task = None

    async def _until_settled(self) -> None:
        while self and not self._stopping:
            self._woken.clear()
            if (pause := self._pause) > 0:
                await _sleep(pause, self._woken)
            else:
                await self._settle()

    @property
    def _pause(self) -> float:
        """Seconds until there is something to be looked for; infinite when there is nothing."""
        if not self:
            return math.inf
        now = time.monotonic()
        pauses = [one.pause(now) for one in self._doubts]
        if self._unwanted:
            pauses.append(self._locked_pause())
        return max(0.0, min(pauses), self._again_at - now)

    async def settle(self) -> None:
        """Release what is to be looked for by now; waits for it, but not for long, and not twice.

        It does not raise: what the store does not take is offered again later.
        """
        if not self._unwanted and not self._doubts:
            return
        self._begin()
        if self._slow or self._pause > 0:
            return
        self._offered.clear()
        try:
            async with asyncio.timeout(RELEASE_WAIT):
                await self._offered.wait()
        except TimeoutError:
            self._slow = True

    async def _still_held(self, offered: Sequence[_UnstartedLease], leases: Sequence[Lease]) -> list[_UnstartedLease]:
        """Those that somebody's transaction has locked: they are passed over, and asked for again while they last."""
        reasons = await self._store.lost_reasons(leases)
        now = lease_time()
        return [one for one, reason in zip(offered, reasons, strict=True) if reason is None and one.until > now]

    def _locked_pause(self) -> float:
        return 0.0 if self._looked_at is None else self._looked_at + _LOCKED_PAUSE - time.monotonic()

    async def settle_all(self, hurry: asyncio.Event) -> None:
        """Give everything back, trying again while the store is out of reach and the leases last, unless in a hurry.

        Nothing is released afterwards, unless this is called again.
        """
        self._stopping = True
        self._woken.set()
        while True:
            await self._settle()
            if self._failures:
                self._forget_what_is_over(after=0.0)
            if not self or hurry.is_set():
                return
            await _sleep(self._pause, hurry)

    async def aclose(self) -> None:
        """Let go of what is under way."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _settle(self) -> None:
        # The task may be at it when the worker is stopped.
        async with self._lock:
            try:
                await self._offer()
            except Exception as error:
                self._failures += 1
                self._again_at = time.monotonic() + _BACKOFF.delay(self._failures)
                self._forget_what_is_over(after=AFTER_EXPIRY)
                self._observers.emit(StoreCallFailed(worker=self._worker, operation="release", error=str(error)))
            else:
                self._failures = 0
                self._again_at = 0.0
            finally:
                self._slow = False
                self._offered.set()

    async def _offer(self) -> None:
        """Offer each once; afterwards raise the first error."""
        failed: Exception | None = None
        for doubt in list(self._doubts):
            try:
                await self._resolve(doubt)
            except StateUnavailableError:
                raise
            except Exception as error:
                failed = failed or error
        while self._unwanted and self._locked_pause() <= 0:
            offered = self._unwanted[: self._most]
            leases = [one.lease for one in offered]
            try:
                count = await self._store.release(leases)
                self._reported(count)
                locked = await self._still_held(offered, leases) if count < len(offered) else []
            except Exception:
                # One of them may be what the store refuses: the others go before it, in smaller parts.
                self._unwanted = [*self._unwanted[len(offered) :], *offered]
                self._most = max(1, len(offered) // 2)
                raise
            self._unwanted = [*locked, *self._unwanted[len(offered) :]]
            self._looked_at = time.monotonic() if locked else None
            self._most = None
        if failed is not None:
            raise failed

    async def _resolve(self, doubt: _UnansweredClaim) -> None:
        if doubt.pause(time.monotonic()) > 0:
            return
        released, locked = await self._store.release_claim(doubt.request)
        self._reported(released)
        found_all = not locked and (released or doubt.answered or doubt.looked_at is not None)
        if found_all or doubt.until <= lease_time():
            self._doubts.remove(doubt)
        else:
            doubt.looked_at = time.monotonic()

    def _reported(self, count: int) -> None:
        if count:
            self._observers.emit(JobsReleased(worker=self._worker, count=count))

    def _forget_what_is_over(self, *, after: float) -> None:
        now = lease_time() - after
        self._unwanted = [one for one in self._unwanted if one.until > now]
        self._doubts = [one for one in self._doubts if one.until > now]


async def _sleep(seconds: float, unless: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await unless.wait()
    except TimeoutError:
        return
