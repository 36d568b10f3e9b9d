"""What a worker holds and will not run goes back to the store, and is offered again until the store has answered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import JobsReleased, StateFailed
from queuert.policies import Backoff
from queuert.state.adapter import ClaimRequest, Lease
from queuert.state.async_store import AsyncStore
from queuert.worker.lease_clock import lease_time

LATE_SECONDS = 0.5
"""A claim whose connection broke may still be under way in the server: so long after the first look it is looked for
once more."""


class _Unwanted(NamedTuple):
    lease: Lease
    until: float
    """When it is over anyway (by the lease clock)."""


@dataclass
class _Doubt:
    """A claim whose answer never came, or came when nobody would run what it took."""

    request: ClaimRequest
    answered: bool
    until: float
    """When what it may have taken is over anyway (by the lease clock)."""
    looked_at: float | None = None

    def pause(self, now: float) -> float:
        """Seconds until it is to be looked for."""
        return 0.0 if self.looked_at is None else self.looked_at + LATE_SECONDS - now


class Returns:
    """Keeps what is to be given back. A release whose answer was lost is asked for again, which does no harm."""

    def __init__(self, store: AsyncStore, *, worker: str, observers: Observers) -> None:
        self._store = store
        self._worker = worker
        self._observers = observers
        self._unwanted: list[_Unwanted] = []
        self._doubts: list[_Doubt] = []
        self._backoff = Backoff(initial=0.05, maximum=1.0)
        self._settling = asyncio.Lock()

    def __bool__(self) -> bool:
        return bool(self._unwanted or self._doubts)

    def put(self, leases: Iterable[tuple[Lease, float]]) -> None:
        """Leases of jobs that will not be run, each with its end (by the lease clock): their renewal has ended."""
        self._unwanted += (_Unwanted(*one) for one in leases)

    def put_claim(self, request: ClaimRequest, *, answered: bool) -> None:
        """All that this claim took."""
        self._doubts.append(_Doubt(request, answered, lease_time() + max(request.leases.values())))

    @property
    def pause(self) -> float:
        """Seconds until there is something to be looked for; infinite when there is nothing."""
        if self._unwanted:
            return 0.0
        now = lease_time()
        return max(0.0, min((one.pause(now) for one in self._doubts), default=math.inf))

    async def settle(self) -> None:
        """Give back what is to be looked for by now.

        Raises:
            StateUnavailableError: the store is out of reach; what it has not answered is kept, as long as leases last.
        """
        # The claimer may be at it when the worker is stopped.
        async with self._settling:
            try:
                await self._settle()
            except StateUnavailableError:
                self._forget_what_is_over()
                raise

    async def _settle(self) -> None:
        while self._unwanted:
            offered = list(self._unwanted)
            self._told(await self._store.release([one.lease for one in offered]))
            del self._unwanted[: len(offered)]
        for doubt in list(self._doubts):
            await self._resolve(doubt)

    async def settle_all(self, hurry: asyncio.Event) -> None:
        """Give everything back, trying again while the store is out of reach and the leases last, unless in a hurry."""
        failures = 0
        while True:
            try:
                await self.settle()
                failures = 0
            except StateUnavailableError as error:
                failures += 1
                self._observers.emit(StateFailed(worker=self._worker, operation="give back", error=str(error)))
            if not self or hurry.is_set():
                return
            await _sleep(self._backoff.delay(failures) if failures else self.pause, hurry)

    async def _resolve(self, doubt: _Doubt) -> None:
        if doubt.pause(lease_time()) > 0:
            return
        count = await self._store.release_claim(doubt.request)
        self._told(count)
        if count or doubt.answered or doubt.looked_at is not None:
            self._doubts.remove(doubt)
        else:
            doubt.looked_at = lease_time()

    def _told(self, count: int) -> None:
        if count:
            self._observers.emit(JobsReleased(worker=self._worker, count=count))

    def _forget_what_is_over(self) -> None:
        now = lease_time()
        self._unwanted = [one for one in self._unwanted if one.until > now]
        self._doubts = [one for one in self._doubts if one.until > now]


async def _sleep(seconds: float, unless: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await unless.wait()
    except TimeoutError:
        return
