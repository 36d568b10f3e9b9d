"""The leases of a worker: their clock, the registry of those that it holds, and their renewal.

Renewal has a thread and a connection of its own, so that neither a handler that blocks the event loop nor a busy pool
lets a lease expire. Another thread aborts attempts whose lease is about to expire.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

from queuert.errors import StateError
from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.observability.events import LeasesRenewed, LoopRecovered, StoreCallFailed
from queuert.policies import Backoff
from queuert.state.adapter import Capability, StateAdapter
from queuert.state.sync_store import Store
from queuert.state.types import ClaimedJob, Lease, Renewal
from queuert.worker.heartbeat import Heartbeat
from queuert.worker.supervisor import FAILING_AFTER

_log = logging.getLogger("queuert.worker")

_AFTER_ERROR = 0.1
"""Seconds to the next turn of a thread that could not even report what it met."""

_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""None on macOS and Windows, where the system decides whether the monotonic clock counts a suspend."""

lease_time: Callable[[], float] = (
    partial(time.monotonic) if _BOOT_TIME is None else partial(time.clock_gettime, _BOOT_TIME)
)
"""Return seconds since some moment in the past, by a clock that never goes back, and counts a suspend too.

No function of ours, since each job asks for it twice.
"""


_FINISH_LEASES = 3
FINISH_SECONDS = 60.0
"""A finish that is not written after so many durations of its lease, and after so many seconds, is stuck. The seconds
are twice the time that the store may take for an answer."""


class LeaseOwner(Protocol):
    """The attempt that a lease belongs to."""

    def abort(self, reason: AbortReason) -> None:
        """Abort the attempt, since the lease is lost. From any thread."""
        ...


PROGRESS_INTERVAL = 1.0
"""Seconds between two statements that write progress; each writes that of all attempts."""


class HeldLease:
    """One lease of the worker, and the attempt that it belongs to.

    Attributes:
        job: the job, with the token of the lease.
        claimed_at: when the claim was sent (by the lease clock).
        interval: seconds from one renewal to the next.
        renew_at: when to send the next renewal (by the lease clock).
        deadline: when the lease expires unless it is renewed (by the lease clock). It counts from before the claim or
            renewal was sent, so it is never later than the expiry by the store's clock.
        owner: the attempt; None once it is over.
        abort_transaction: closes the connection of the attempt's transaction; set while that transaction has the row of
            the job locked. Meanwhile nobody can claim the job, unless the server has ended the transaction without our
            notice. A store with row locks notes the renewal beside the row, for the time after the transaction.
        progress: the progress that the attempt recorded last, until it is written.
        unlogged_progress: the progress that the attempt recorded last, until it is in the event log.
        log_progress_at: when progress may become an event again (by the lease clock).
        finish_since: when its finish was passed on to be written (by the lease clock); None before.
        writes_progress: whether a renewal that has been sent, and not answered, writes progress.
    """

    __slots__ = (
        "abort_transaction", "claimed_at", "deadline", "finish_since", "interval", "job", "log_progress_at", "owner",
        "progress", "renew_at", "unlogged_progress", "writes_progress",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, interval: float, sent_at: float, owner: LeaseOwner) -> None:
        self.job = job
        self.claimed_at = sent_at
        self.interval = interval
        self.renew_at = sent_at + interval
        self.deadline = sent_at + job.lease_seconds
        self.owner: LeaseOwner | None = owner
        self.abort_transaction: Callable[[], None] | None = None
        self.progress: str | None = None
        self.unlogged_progress: str | None = None
        self.log_progress_at = sent_at
        self.finish_since: float | None = None
        self.writes_progress = False

    @property
    def lease(self) -> Lease:
        """Job id and token, which identify it in the store."""
        return self.job.lease

    @property
    def has_progress(self) -> bool:
        """Whether there is progress that can be written: not while a transaction has the row locked."""
        return self.progress is not None and self.abort_transaction is None

    def is_stuck(self, now: float) -> bool:
        """Whether the handler has ended, and the finish should have been written long ago.

        Then the event loop is blocked, or has no memory left. If the lease were renewed for ever, no other worker could
        claim the job.
        """
        if self.finish_since is None:
            return False
        return now - self.finish_since > max(_FINISH_LEASES * self.job.lease_seconds, FINISH_SECONDS)

    def renewal(self, sent_at: float) -> Renewal:
        """Return the renewal to send."""
        if self.abort_transaction is not None:
            return Renewal(self.lease, self.job.lease_seconds)
        if self.unlogged_progress is not None and sent_at >= self.log_progress_at:
            return Renewal(self.lease, self.job.lease_seconds, self.unlogged_progress, logs_progress=True)
        return Renewal(self.lease, self.job.lease_seconds, self.progress)

    def renewed(self, sent_at: float) -> None:
        """Count the lease from ``sent_at``, since the store has renewed it."""
        self.renew_at = sent_at + self.interval
        self.deadline = sent_at + self.job.lease_seconds


class LeaseRegistry:
    """All leases that a worker holds. To add or remove one costs very little, and wakes no thread."""

    def __init__(self) -> None:
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, granted: Sequence[HeldLease]) -> None:
        """Add leases that were granted; if memory is exhausted, none of them."""
        with self._lock:
            try:
                self._held.update(granted)
            except BaseException:
                for held in granted:
                    self._held.discard(held)
                raise

    def remove(self, held: HeldLease) -> None:
        """Remove a lease, since its attempt has ended. Idempotent."""
        with self._lock:
            self._held.discard(held)

    def lose(self, held: HeldLease, reason: AbortReason) -> bool:
        """Remove a lease that is lost, and abort its attempt. Return False if the attempt had ended meanwhile."""
        with self._lock:
            known = held in self._held
            self._held.discard(held)
        if known:
            owner = held.owner
            if owner is not None:
                owner.abort(reason)
            abort_transaction = held.abort_transaction
            if abort_transaction is not None:
                abort_transaction()
        return known

    def due(self, horizon: float, *, with_progress: bool = False) -> list[HeldLease]:
        """Return the leases to renew or check by ``horizon``; ``with_progress`` adds those with unwritten progress."""
        with self._lock:
            return [held for held in self._held if held.renew_at <= horizon or (with_progress and held.has_progress)]

    def set_progress(self, held: HeldLease, progress: str) -> bool:
        """Replace the progress that is to be written. Return whether there was none."""
        with self._lock:
            had_none = held.progress is None
            held.progress = held.unlogged_progress = progress
        return had_none

    def take_progress(self, held: HeldLease) -> tuple[bool, str | None]:
        """Take the progress that is not written yet, or not in the event log.

        Return whether a renewal is just writing some, and what was taken: nothing while one is, so call it again.
        """
        with self._lock:
            if held.writes_progress:
                return True, None
            progress = held.unlogged_progress
            held.progress = held.unlogged_progress = None
            return False, progress

    def withdraw_progress(self, held: HeldLease) -> bool:
        """Drop progress that is not written yet. Return whether a renewal is just writing some: then call it again."""
        with self._lock:
            held.progress = held.unlogged_progress = None
            return held.writes_progress

    def begin_renewals(self, due: Sequence[HeldLease], sent_at: float) -> list[Renewal]:
        """Return the renewals to send; call ``end_renewals`` when they are answered."""
        with self._lock:
            renewals = [held.renewal(sent_at) for held in due]
            for held, renewal in zip(due, renewals, strict=True):
                held.writes_progress = renewal.progress is not None
        return renewals

    def end_renewals(self, due: Sequence[HeldLease]) -> None:
        """The renewals of these leases are answered, or their answer is lost."""
        with self._lock:
            for held in due:
                held.writes_progress = False

    def clear_progress(self, held: HeldLease, renewal: Renewal, sent_at: float) -> None:
        """Remove progress that was written, unless it has been replaced."""
        with self._lock:
            if held.progress is renewal.progress:
                held.progress = None
            if renewal.logs_progress:
                # The longer an attempt runs, the fewer events: some 60 in the first minute, and 300 in an hour.
                held.log_progress_at = sent_at + max(PROGRESS_INTERVAL, (sent_at - held.claimed_at) / 60)
                if held.unlogged_progress is renewal.progress:
                    held.unlogged_progress = None

    def has_progress(self) -> bool:
        """Whether there is progress to write."""
        with self._lock:
            return any(held.has_progress for held in self._held)

    def expiring(self, horizon: float) -> list[HeldLease]:
        """Return the leases that expire by ``horizon`` (by the lease clock)."""
        with self._lock:
            return [held for held in self._held if held.deadline <= horizon]

    def renew_now(self, job_ids: Iterable[str] | None) -> bool:
        """Make the leases of these jobs (None: all) due for renewal. Return whether there are any."""
        wanted = None if job_ids is None else set(job_ids)
        now = lease_time()
        with self._lock:
            due = [held for held in self._held if wanted is None or held.job.id in wanted]
            for held in due:
                held.renew_at = now
        return bool(due)


_STOP_TIMEOUT = 1.0


class _Turns:
    """The turns of a thread that goes on whatever its own reports raise, usually for lack of memory, which handlers may
    free. Health sees how long no turn has succeeded."""

    def __init__(self) -> None:
        self.failing_since: float | None = None
        self.error: Exception | None = None
        """What ended the last turn; None if it succeeded."""

    def succeeded(self) -> None:
        """The turn has done its work; what is left of it is to wait."""
        self.failing_since = self.error = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wraps a turn: no error of it ends the thread."""
        try:
            yield
        except Exception as error:
            self.error = error
            if self.failing_since is None:
                self.failing_since = time.monotonic()
            with suppress(Exception):
                _log.exception("a turn of the threads that keep leases has failed; they go on")
            time.sleep(_AFTER_ERROR)


class LeaseRenewer:
    """Renews all leases that are due in one statement, at most every quarter of the shortest renewal interval.

    It wakes by the clock and never for a single job, so short jobs cost it nothing.
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
        self._row_locks = Capability.ROW_LOCKS in state.capabilities
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
        self._error: Exception | None = None
        """Why the last renewal failed; None if it succeeded."""
        self._renewing, self._watching = _Turns(), _Turns()
        self._write_progress_at = lease_time()

    @property
    def error(self) -> Exception | None:
        """Why the last renewal failed, or the last turn of one of the threads; None if they succeeded."""
        return self._error or self._renewing.error or self._watching.error

    @property
    def failing(self) -> bool:
        """Whether no renewal, or no turn of a thread, has succeeded for longer than an outage should last."""
        since = self._fails_since()
        return since is not None and time.monotonic() - since > FAILING_AFTER

    @property
    def failing_seconds(self) -> float:
        """Seconds since which no renewal, or no turn of a thread, has succeeded; 0 if the last ones did."""
        since = self._fails_since()
        return 0.0 if since is None else time.monotonic() - since

    def _fails_since(self) -> float | None:
        every = (self._failing_since, self._renewing.failing_since, self._watching.failing_since)
        return min((since for since in every if since is not None), default=None)

    def start(self) -> None:
        """Start both threads."""
        for name, work in (("leases", self._renew_until_stopped), ("lease-watch", self._watch_until_stopped)):
            thread = threading.Thread(target=work, name=f"queuert-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def request_stop(self) -> None:
        """Let both threads end, without waiting for them."""
        self._stopped.set()
        self._wake.set()

    def stop(self) -> None:
        """Stop both threads. Call it after the last attempt has ended. Idempotent."""
        self.request_stop()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_STOP_TIMEOUT)
        if any(thread.is_alive() for thread in threads):
            # The store does not answer.
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
            with self._renewing.turn():
                pause = self._renew_once()
                self._renewing.succeeded()
                self._wake.wait(pause)
                self._wake.clear()
        if not self._failures:
            # While the store cannot be reached, this would delay the stop.
            self._heartbeat.remove(self._open_store)
        self._close_store()

    def _renew_once(self) -> float:
        """Renew what is due, and send a heartbeat. Return the seconds until the next time."""
        try:
            self._renew_due()
        except Exception as error:
            return self._on_failure(error)
        if self._failures:
            failures, self._failures = self._failures, 0
            self._observers.emit(LoopRecovered(worker=self._worker, loop="renew_leases", failures=failures))
        self._failing_since = self._error = None
        pause = min(self._tick, self._heartbeat.record_if_due(self._open_store))
        if self._leases.has_progress():
            pause = min(pause, max(0.0, self._write_progress_at - lease_time()))
        return pause

    def _renew_due(self) -> None:
        # Connect before the first lease is due, since it can take as long as a short lease lasts.
        store = self._open_store()
        now = lease_time()
        due = self._leases.due(now + self._tick, with_progress=now >= self._write_progress_at)
        due = [held for held in due if not self._is_stuck(held, now)]
        if not due:
            return
        # Without row locks a renewal would wait for the transaction of the attempt, whose lease is only checked then.
        checked = [] if self._row_locks else [held for held in due if held.abort_transaction is not None]
        sent = [held for held in due if held not in checked]
        sent_at = lease_time()
        deadline = min((held.deadline for held in sent), default=None)
        rejected = self._renew(store, sent, sent_at) if sent else []
        slack = None if deadline is None else deadline - lease_time()
        lost = self._check_unrenewed(store, rejected, sent_at)
        lost += self._check_unrenewed(store, checked, lease_time())
        renewed = len(sent) - len(rejected)
        self._observers.emit(LeasesRenewed(worker=self._worker, count=renewed, lost=lost, slack=slack))

    def _is_stuck(self, held: HeldLease, now: float) -> bool:
        """Whether its finish is stuck. Then it is not renewed, and the watching thread aborts it when it expires."""
        if not held.is_stuck(now):
            return False
        held.renew_at = math.inf
        error = f"the finish of job {held.job.id} does not get written: its lease is not renewed any more"
        self._observers.emit(StoreCallFailed(worker=self._worker, operation="finish", error=error))
        return True

    def _renew(self, store: Store, due: Sequence[HeldLease], sent_at: float) -> list[HeldLease]:
        """Renew leases, and return those that the store did not renew."""
        renewals = self._leases.begin_renewals(due, sent_at)
        try:
            if any(renewal.progress is not None for renewal in renewals):
                self._write_progress_at = sent_at + PROGRESS_INTERVAL
            results = store.renew(renewals)
            for held, renewal, renewed in zip(due, renewals, results, strict=True):
                if renewed:
                    held.renewed(sent_at)
                    self._leases.clear_progress(held, renewal, sent_at)
        finally:
            self._leases.end_renewals(due)
        return [held for held, renewed in zip(due, results, strict=True) if not renewed]

    def _check_unrenewed(self, store: Store, leases: Sequence[HeldLease], sent_at: float) -> int:
        """Find out which of these leases are lost, abort their attempts, and return their number.

        The others hold although their rows are locked: the store recorded the renewal when it skipped the row. Without
        row locks, nobody else can write while the attempt's own transaction is open.
        """
        if not leases:
            return 0
        lost = 0
        reasons = store.lost_reasons([held.lease for held in leases])
        for held, reason in zip(leases, reasons, strict=True):
            if reason is None:
                held.renewed(sent_at)
            else:
                lost += self._leases.lose(held, reason)
        return lost

    def _on_failure(self, error: Exception) -> float:
        self._failures += 1
        self._error = error
        self._failing_since = self._failing_since or time.monotonic()
        self._observers.emit(
            StoreCallFailed(
                worker=self._worker,
                operation="renew_leases",
                error=f"{type(error).__name__}: {error}",
                failures=self._failures,
            )
        )
        if isinstance(error, StateError):
            self._close_store()
        return self._backoff.delay(self._failures)

    def _open_store(self) -> Store:
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
            with self._watching.turn():
                # Two ticks early: this thread may be one tick late, and the handler needs time to stop.
                for held in self._leases.expiring(lease_time() + 2 * self._watch_tick):
                    self._lose(held)
                self._watching.succeeded()

    def _lose(self, held: HeldLease) -> None:
        try:
            self._leases.lose(held, AbortReason.LEASE_NOT_RENEWED)
        except Exception as error:
            # An error of one lease must not end the thread, which watches all of them.
            self._observers.emit(StoreCallFailed(worker=self._worker, operation="abandon_lease", error=repr(error)))
