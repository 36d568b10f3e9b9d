"""The leases of a worker: the clock they are counted by, which ones it holds, and their renewal.

Renewal has a thread and a connection of its own, so that neither a handler that blocks the event loop nor a busy pool
lets a lease expire."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from queuert.errors import StateError
from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.observability.events import LeasesRenewed, StoreCallFailed
from queuert.policies import Backoff
from queuert.state.adapter import StateAdapter
from queuert.state.sync_store import Store
from queuert.state.types import ClaimedJob, Lease, Renewal
from queuert.worker.heartbeat import Heartbeat
from queuert.worker.supervisor import FAILING_AFTER

_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Where there is none, as on macOS and Windows, it is up to the system what Python's monotonic clock does."""


def lease_time() -> float:
    """Seconds since some moment in the past: never back, and through a suspend too."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


_FINISH_LEASES = 3
FINISH_SECONDS = 60.0
"""So many times the duration of its lease a finish may take to be written, and so many seconds in any case: twice as
long as an answer of the store may take before it is asked again."""


class Holder(Protocol):
    """Whoever holds a lease."""

    def abort(self, reason: AbortReason) -> None:
        """The lease is lost. From any thread."""
        ...


class HeldLease:
    """One lease, and whom to tell when it is lost.

    Attributes:
        job: the job, with the lease's token.
        claimed_at: when the claim was sent (by the lease clock).
        interval: seconds from one renewal to the next.
        renew_at: when to ask for the next renewal (by the lease clock).
        deadline: by then it must have been renewed. Counted from before the claim or renewal was sent, so that it is
            never later than the store's own.
        holder: None once its attempt is over.
        cut: set while a transaction has the row locked: ends its connection. Such a lease is not renewed, only looked
            after: nobody can take the job, unless the server has ended the transaction and we were not told.
        progress: what the attempt told last and is not written yet.
        finish_since: when its finish was handed on to be written (by the lease clock); None before.
    """

    __slots__ = ("claimed_at", "cut", "deadline", "finish_since", "holder", "interval", "job", "progress", "renew_at")

    def __init__(self, job: ClaimedJob, interval: float, sent_at: float, holder: Holder) -> None:
        self.job = job
        self.claimed_at = sent_at
        self.interval = interval
        self.renew_at = sent_at + interval
        self.deadline = sent_at + job.lease_seconds
        self.holder: Holder | None = holder
        self.cut: Callable[[], None] | None = None
        self.progress: str | None = None
        self.finish_since: float | None = None

    @property
    def lease(self) -> Lease:
        """What the store knows it by."""
        return self.job.lease

    @property
    def has_progress(self) -> bool:
        """Whether there is progress that can be written: not while a transaction has the row locked."""
        return self.progress is not None and self.cut is None

    def is_stuck(self, now: float) -> bool:
        """Whether its handler has ended, and the finish should have been written long ago.

        What writes it stands still: the event loop is blocked, or has no memory left. A lease that is renewed
        for as long would keep the job from everybody else.
        """
        if self.finish_since is None:
            return False
        return now - self.finish_since > max(_FINISH_LEASES * self.job.lease_seconds, FINISH_SECONDS)

    def renewal(self) -> Renewal:
        """What to ask the store."""
        return Renewal(self.lease, self.job.lease_seconds, self.progress)

    def renewed(self, sent_at: float) -> None:
        """The store has extended it."""
        self.renew_at = sent_at + self.interval
        self.deadline = sent_at + self.job.lease_seconds


class LeaseRegistry:
    """All leases that a worker holds. Adding and removing one costs next to nothing and wakes nobody."""

    def __init__(self) -> None:
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, granted: Sequence[HeldLease]) -> None:
        """Note leases that were granted: all or, where there is no memory, none."""
        with self._lock:
            try:
                self._held.update(granted)
            except BaseException:
                for held in granted:
                    self._held.discard(held)
                raise

    def remove(self, held: HeldLease) -> None:
        """Forget a lease: its attempt has ended, one way or the other. Idempotent."""
        with self._lock:
            self._held.discard(held)

    def lose(self, held: HeldLease, reason: AbortReason) -> bool:
        """Give up a lease and tell its attempt; False if it had ended meanwhile."""
        with self._lock:
            known = held in self._held
            self._held.discard(held)
        if known:
            holder = held.holder
            if holder is not None:
                holder.abort(reason)
            cut = held.cut
            if cut is not None:
                cut()
        return known

    def due(self, horizon: float, *, with_progress: bool = False) -> list[HeldLease]:
        """The leases to be renewed, or looked after, by ``horizon``; and those whose attempts told news."""
        with self._lock:
            return [one for one in self._held if one.renew_at <= horizon or (with_progress and one.has_progress)]

    def set_progress(self, held: HeldLease, progress: str) -> bool:
        """Note how far an attempt is; whether nothing was there to be written. What it told before is forgotten."""
        with self._lock:
            fresh = held.progress is None
            held.progress = progress
        return fresh

    def clear_progress(self, held: HeldLease, progress: str | None) -> None:
        """This progress is written, unless there is news again."""
        with self._lock:
            if held.progress is progress:
                held.progress = None

    def has_progress(self) -> bool:
        """Whether any progress can be written."""
        with self._lock:
            return any(held.has_progress for held in self._held)

    def expiring(self, horizon: float) -> list[HeldLease]:
        """The leases that end by ``horizon`` (by the lease clock)."""
        with self._lock:
            return [held for held in self._held if held.deadline <= horizon]

    def renew_now(self, job_ids: Iterable[str] | None) -> bool:
        """Let the leases of these jobs (None: all) be renewed at once; whether there were any."""
        wanted = None if job_ids is None else set(job_ids)
        now = lease_time()
        with self._lock:
            chosen = [held for held in self._held if wanted is None or held.job.id in wanted]
            for held in chosen:
                held.renew_at = now
        return bool(chosen)


_STOP_TIMEOUT = 1.0

PROGRESS_INTERVAL = 1.0
"""Seconds from one statement that writes the progress of attempts to the next, of all attempts together."""


class LeaseRenewer:
    """One statement for all leases that are due, every quarter of the shortest renewal interval at most.

    It wakes by the clock and never for a single job, so that short jobs cost it nothing.
    """

    def __init__(
        self,
        leases: LeaseRegistry,
        state: StateAdapter,
        *,
        worker: str,
        shortest_lease: float,
        shortest_interval: float,
        observers: Observers,
        heartbeat: Heartbeat,
    ) -> None:
        self._leases = leases
        self._heartbeat = heartbeat
        self._state = state
        self._worker = worker
        self._observers = observers
        self._tick = shortest_interval / 4
        self._timeout = max(0.5, shortest_lease / 6)
        self._watch_tick = shortest_lease / 20
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._failures = 0
        self._backoff = Backoff(initial_delay=0.05, max_delay=max(0.05, min(1.0, self._tick)))
        self._threads: list[threading.Thread] = []
        self._failing_since: float | None = None
        self.error: Exception | None = None
        """Why the last renewal failed; None if it went well."""
        self._progress_at = lease_time()

    @property
    def failing(self) -> bool:
        """Whether no renewal has gone well for longer than an outage should last."""
        return self._failing_since is not None and time.monotonic() - self._failing_since > FAILING_AFTER

    @property
    def failing_seconds(self) -> float:
        """For how long no renewal has gone well, in seconds; 0 if the last one did."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Begin to renew and to watch."""
        for name, work in (("leases", self._renew_until_stopped), ("lease-watch", self._watch_until_stopped)):
            thread = threading.Thread(target=work, name=f"queuert-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End both threads; call it last, after the last attempt. Idempotent."""
        self._stopped.set()
        self._wake.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_STOP_TIMEOUT)
        if any(thread.is_alive() for thread in threads):
            # It waits for an answer that does not come.
            self._close_store()
            for thread in threads:
                thread.join(_STOP_TIMEOUT)

    def renew_now(self, job_ids: Iterable[str] | None) -> None:
        """Renew these leases now (None: all): a notification says that some of them are lost. From any thread."""
        if self._leases.renew_now(job_ids):
            self._wake.set()

    def write_progress(self) -> None:
        """Write the progress that attempts have reported, soon. From any thread."""
        self._wake.set()

    def send_heartbeat(self) -> None:
        """Send a heartbeat now, since the state of the worker has changed. From any thread."""
        self._heartbeat.renew_now()
        self._wake.set()

    # --- the renewing thread ------------------------------------------------------------------------------------------

    def _renew_until_stopped(self) -> None:
        while not self._stopped.is_set():
            pause = self._tick
            try:
                self._renew_due()
            except Exception as error:
                pause = self._failed(error)
            else:
                self._failures = 0
                self._failing_since = self.error = None
                pause = min(pause, self._heartbeat.beat_if_due(self._opened_store))
                if self._leases.has_progress():
                    pause = min(pause, max(0.0, self._progress_at - lease_time()))
            self._wake.wait(pause)
            self._wake.clear()
        if not self._failures:
            # With a store out of reach it would keep the stop waiting.
            self._heartbeat.forget(self._opened_store)
        self._close_store()

    def _renew_due(self) -> None:
        # Connected before the first lease is due, since that can take as long as a short lease lasts.
        store = self._opened_store()
        now = lease_time()
        due = self._leases.due(now + self._tick, with_progress=now >= self._progress_at)
        due = [held for held in due if not self._is_stuck(held, now)]
        if not due:
            return
        free = [held for held in due if held.cut is None]
        sent_at = lease_time()
        deadline = min((held.deadline for held in free), default=None)
        refused = self._renew(store, free, sent_at) if free else []
        slack = None if deadline is None else deadline - lease_time()
        lost = self._check_locked(store, refused, sent_at)
        lost += self._check_locked(store, [held for held in due if held.cut is not None], lease_time())
        renewed = len(free) - len(refused)
        self._observers.emit(LeasesRenewed(worker=self._worker, count=renewed, lost=lost, slack=slack))

    def _is_stuck(self, held: HeldLease, now: float) -> bool:
        """Whether its finish does not get written: it runs out then, and the other thread gives it up."""
        if not held.is_stuck(now):
            return False
        held.renew_at = math.inf
        error = f"the finish of job {held.job.id} does not get written: its lease is not renewed any more"
        self._observers.emit(StoreCallFailed(worker=self._worker, operation="finish", error=error))
        return True

    def _renew(self, store: Store, due: Sequence[HeldLease], sent_at: float) -> list[HeldLease]:
        """Renew leases; those that were not are returned."""
        requested = [held.renewal() for held in due]
        if any(one.progress is not None for one in requested):
            self._progress_at = sent_at + PROGRESS_INTERVAL
        renewed = store.renew(requested)
        for held, one, done in zip(due, requested, renewed, strict=True):
            if done:
                held.renewed(sent_at)
                self._leases.clear_progress(held, one.progress)
        return [held for held, done in zip(due, renewed, strict=True) if not done]

    def _check_locked(self, store: Store, locked: Sequence[HeldLease], sent_at: float) -> int:
        """Those that still stand are safe for another while, though their rows are locked; how many do not.

        Nobody can take what the attempt's own transaction has locked. Where somebody else has locked a row, the store
        has noted, when it passed the row over, that the lease goes on.
        """
        if not locked:
            return 0
        lost = 0
        reasons = store.lost_reasons([held.lease for held in locked])
        for held, reason in zip(locked, reasons, strict=True):
            if reason is None:
                held.renewed(sent_at)
            else:
                lost += self._leases.lose(held, reason)
        return lost

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        self.error = error
        self._failing_since = self._failing_since or time.monotonic()
        self._observers.emit(
            StoreCallFailed(worker=self._worker, operation="renew_leases", error=f"{type(error).__name__}: {error}")
        )
        if isinstance(error, StateError):
            self._close_store()
        return self._backoff.delay(self._failures)

    def _opened_store(self) -> Store:
        if self._store is None:
            store = self._state.sync_store(max_connections=1, answer_timeout=self._timeout)
            store.open()
            self._store = store
        return self._store

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # --- the watching thread ------------------------------------------------------------------------------------------

    def _watch_until_stopped(self) -> None:
        while not self._stopped.wait(self._watch_tick):
            # Two ticks early: this thread may be late by one, and the handler needs a moment to stop.
            for held in self._leases.expiring(lease_time() + 2 * self._watch_tick):
                self._give_up(held)

    def _give_up(self, held: HeldLease) -> None:
        try:
            self._leases.lose(held, AbortReason.LEASE_NOT_RENEWED)
        except Exception as error:
            # This thread guards all the other leases too.
            self._observers.emit(StoreCallFailed(worker=self._worker, operation="abandon_lease", error=repr(error)))
