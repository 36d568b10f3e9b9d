"""Releases claimed jobs that the worker does not start, and tries again until the store has answered.

What is released is due at once, and nobody else would say so: this worker may have found nothing due a moment before,
and so may others, and all of them wait for a notification or the next poll, which is a minute away.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from queuert.errors import StateUnavailableError
from queuert.observability.adapter import Observers
from queuert.observability.events import JobsReleased, LoopRecovered, StoreCallFailed
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimRequest, Lease
from queuert.worker.leases import lease_time

RELEASE_WAIT = 1.0
"""Seconds that a claim waits for the releases before it: a release that hangs must not keep a worker idle."""

AFTER_EXPIRY = 60.0
"""Seconds after its expiry in which a lease is still released, if the store did not answer before. If nobody has reaped
the job by then, it loses no attempt."""

HURRY_SECONDS = 1.0
"""Seconds for which a worker that must stop at once still tries to release what other transactions have locked. A claim
of another worker locks rows that it then does not take, until it commits."""

_BACKOFF = Backoff(initial_delay=0.05, max_delay=1.0)

RECHECK_AFTER = 0.5
"""Seconds after which a claim whose connection broke is released once more, since the server may execute it late."""

_LOCKED_PAUSE = 0.5
"""Seconds after which a job that another transaction had locked is released again."""


class _UnstartedLease(NamedTuple):
    type: str
    lease: Lease
    expires_at: float
    """By the lease clock."""


@dataclass
class _UnansweredClaim:
    """A claim whose jobs are to be released: its answer was lost, or arrived too late to start them."""

    request: ClaimRequest
    answered: bool
    expires_at: float
    """When the last lease that it may have taken expires, by the lease clock."""
    released_at: float | None = None
    """When it was released last (monotonic)."""

    def pause(self, now: float) -> float:
        """Return the seconds until it is to be released, once more."""
        return 0.0 if self.released_at is None else self.released_at + RECHECK_AFTER - now


class ReleaseQueue:
    """The leases that are to be released.

    A task releases them, and tries again after any error, until the store has answered or the leases have expired. To
    release a lease twice does no harm. Claims go on meanwhile. ``on_released`` is called with the types of what was
    released.
    """

    def __init__(
        self, store: AsyncStore, *, worker: str, observers: Observers, on_released: Callable[[Iterable[str]], None]
    ) -> None:
        self._store = store
        self._worker = worker
        self._observers = observers
        self._on_released = on_released
        self._unstarted: list[_UnstartedLease] = []
        self._locked_at: float | None = None
        """When some of the unstarted leases were found locked (monotonic)."""
        self._unanswered: list[_UnansweredClaim] = []
        self._batch_size: int | None = None
        """How many leases are released at once, after an error with more; None: all."""
        self._failures = 0
        self._retry_at = 0.0
        """When to try again after an error (monotonic)."""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._tried = asyncio.Event()
        self._slow = False
        self._stopping = False

    def __bool__(self) -> bool:
        return bool(self._unstarted or self._unanswered)

    def put(self, type: str, lease: Lease, expires_at: float) -> None:
        """Release the lease of a job of this type; its expiry is by the lease clock. It is no longer renewed."""
        self._unstarted.append(_UnstartedLease(type, lease, expires_at))
        self._locked_at = None
        self._start_task()

    def put_claim(self, request: ClaimRequest, *, answered: bool) -> None:
        """Release all jobs that this claim has taken."""
        self._unanswered.append(_UnansweredClaim(request, answered, lease_time() + max(request.leases.values())))
        self._start_task()

    def _start_task(self) -> None:
        self._woken.set()
        if self and self._task is None and not self._stopping:
            with suppress(MemoryError):  # The next call tries again.
                self._task = asyncio.create_task(self._run(), name="queuert-releases")
                self._task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, _: asyncio.Task[None]) -> None:
        self._task = None
        # Something may have been put here since it ended, or a handler has cancelled it with all tasks of the loop.
        self._start_task()

    async def _run(self) -> None:
        while self and not self._stopping:
            self._woken.clear()
            if (pause := self._pause) > 0:
                await _sleep(pause, self._woken)
            else:
                await self._try_release()
                await asyncio.sleep(0)  # A store may answer, or fail, without letting others run.

    @property
    def _pause(self) -> float:
        """Seconds until there is something to release; infinite if there is nothing."""
        if not self:
            return math.inf
        now = time.monotonic()
        pauses = [claim.pause(now) for claim in self._unanswered]
        if self._unstarted:
            pauses.append(self._locked_pause())
        return max(0.0, min(pauses), self._retry_at - now)

    async def release_due(self) -> None:
        """Release what is due, and wait for it, but only for a second, and not again while that attempt hangs.

        It does not raise: after an error the task tries again later.
        """
        if not self._unstarted and not self._unanswered:
            return
        self._start_task()
        if self._slow or self._pause > 0:
            return
        self._tried.clear()
        try:
            async with asyncio.timeout(RELEASE_WAIT):
                await self._tried.wait()
        except TimeoutError:
            self._slow = True

    async def _still_held(self, unstarted: Sequence[_UnstartedLease]) -> list[_UnstartedLease]:
        """Return the leases that still hold: another transaction has locked their rows, so the store skipped them."""
        reasons = await self._store.lost_reasons([held.lease for held in unstarted])
        now = lease_time()
        return [
            held for held, reason in zip(unstarted, reasons, strict=True) if reason is None and held.expires_at > now
        ]

    def _locked_pause(self) -> float:
        return 0.0 if self._locked_at is None else self._locked_at + _LOCKED_PAUSE - time.monotonic()

    async def release_all(self, hurry: asyncio.Event) -> None:
        """Release everything. It tries again after errors while the leases last, until ``hurry`` is set.

        What is locked by other transactions is tried again for ``HURRY_SECONDS`` even then. What is left is reported:
        those jobs wait until their leases expire. Nothing is released afterwards, unless this is called again.
        """
        self._stopping = True
        self._woken.set()
        deadline: float | None = None
        while True:
            await self._try_release()
            if self._failures:
                self._drop_expired(after=0.0)
            if not self:
                return
            if not hurry.is_set():
                await _sleep(self._pause, hurry)
                continue
            now = time.monotonic()
            deadline = now + HURRY_SECONDS if deadline is None else deadline
            if self._failures or now >= deadline:
                error = "claimed jobs were not released before the stop, and wait until their leases expire"
                self._observers.emit(StoreCallFailed(worker=self._worker, operation="stop_claiming", error=error))
                return
            await asyncio.sleep(min(self._pause, deadline - now))

    async def aclose(self) -> None:
        """Cancel the task."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _try_release(self) -> None:
        # The task may be releasing when the worker is stopped.
        async with self._lock:
            try:
                await self._release_once()
            except Exception as error:
                self._failures += 1
                self._retry_at = time.monotonic() + _BACKOFF.delay(self._failures)
                self._drop_expired(after=AFTER_EXPIRY)
                failed = StoreCallFailed(
                    worker=self._worker, operation="release", error=str(error), failures=self._failures
                )
                self._observers.emit(failed)
            else:
                if self._failures:
                    recovered = LoopRecovered(worker=self._worker, loop="release", failures=self._failures)
                    self._observers.emit(recovered)
                self._failures = 0
                self._retry_at = 0.0
            finally:
                self._slow = False
                self._tried.set()

    async def _release_once(self) -> None:
        """Release each claim and lease once; then raise the first error."""
        first_error: Exception | None = None
        for claim in list(self._unanswered):
            try:
                await self._release_claim(claim)
            except StateUnavailableError:
                raise
            except Exception as error:
                first_error = first_error or error
        while self._unstarted and self._locked_pause() <= 0:
            batch = self._unstarted[: self._batch_size]
            try:
                count = await self._store.release([unstarted.lease for unstarted in batch])
                self._report(count, {unstarted.type for unstarted in batch})
                locked = await self._still_held(batch) if count < len(batch) else []
            except Exception:
                # The store may be unable to release one of them: the others are released first, in smaller batches.
                self._unstarted = [*self._unstarted[len(batch) :], *batch]
                self._batch_size = max(1, len(batch) // 2)
                raise
            self._unstarted = [*locked, *self._unstarted[len(batch) :]]
            self._locked_at = time.monotonic() if locked else None
            self._batch_size = None
        if first_error is not None:
            raise first_error

    async def _release_claim(self, claim: _UnansweredClaim) -> None:
        if claim.pause(time.monotonic()) > 0:
            return
        released, locked = await self._store.release_claim(claim.request)
        self._report(released, claim.request.leases)
        released_all = not locked and (released or claim.answered or claim.released_at is not None)
        if released_all or claim.expires_at <= lease_time():
            self._unanswered.remove(claim)
        else:
            claim.released_at = time.monotonic()

    def _report(self, count: int, types: Iterable[str]) -> None:
        # A call that failed may have released them, and only its answer was lost.
        if count or self._failures:
            self._on_released(types)
        if count:
            self._observers.emit(JobsReleased(worker=self._worker, count=count))

    def _drop_expired(self, *, after: float) -> None:
        now = lease_time() - after
        self._unstarted = [unstarted for unstarted in self._unstarted if unstarted.expires_at > now]
        self._unanswered = [claim for claim in self._unanswered if claim.expires_at > now]


async def _sleep(seconds: float, end: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await end.wait()
    except TimeoutError:
        return
