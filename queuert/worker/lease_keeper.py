"""Renews the leases of a worker, in a thread and on a connection of its own.

A handler that blocks the event loop, or a pool that is used up, must not cost the leases of jobs that run, nor make the
worker look dead: the same thread tells the worker registry of it, after it has seen to the leases. A second thread
gives up leases whose end comes near without a renewal: a worker stops itself before anybody else may start.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from queuert.errors import StateError
from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.observability.events import LeasesRenewed, StateFailed
from queuert.policies import Backoff
from queuert.state.adapter import StateAdapter
from queuert.state.sync_store import Store
from queuert.worker.heartbeat import Registration
from queuert.worker.lease_book import HeldLease, LeaseBook
from queuert.worker.lease_clock import lease_time
from queuert.worker.supervisor import PATIENCE

_STOP_TIMEOUT = 1.0

BETWEEN_NEWS = 1.0
"""Seconds from one statement that writes the progress of attempts to the next, of all attempts together."""


class LeaseKeeper:
    """One statement for all leases that are due, every quarter of the shortest renewal interval at most.

    It wakes by the clock and never for a single job, so that short jobs cost it nothing.
    """

    def __init__(
        self,
        book: LeaseBook,
        state: StateAdapter,
        *,
        worker: str,
        shortest_lease: float,
        shortest_interval: float,
        observers: Observers,
        registration: Registration,
    ) -> None:
        self._book = book
        self._registration = registration
        self._state = state
        self._worker = worker
        self._observers = observers
        self._tick = shortest_interval / 4
        self._patience = max(0.5, shortest_lease / 6)
        self._watch_tick = shortest_lease / 20
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._failures = 0
        self._backoff = Backoff(initial=0.05, maximum=max(0.05, min(1.0, self._tick)))
        self._threads: list[threading.Thread] = []
        self._failing_since: float | None = None
        self._news_at = lease_time()

    @property
    def failing(self) -> bool:
        """Whether no renewal has gone well for longer than an outage should last."""
        return self._failing_since is not None and time.monotonic() - self._failing_since > PATIENCE

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

    def look_at(self, job_ids: Sequence[str] | None) -> None:
        """Renew these leases now (None: all), because a hint says that some of them are lost. From any thread.

        Without any, there is progress to be written.
        """
        if self._book.hasten(job_ids) or job_ids == []:
            self._wake.set()

    def tell(self) -> None:
        """Tell the registry at once that something is new. From any thread."""
        self._registration.hasten()
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
                self._failing_since = None
                pause = min(pause, self._registration.beat_if_due(self._opened_store))
                if self._book.has_news():
                    pause = min(pause, max(0.0, self._news_at - lease_time()))
            self._wake.wait(pause)
            self._wake.clear()
        if not self._failures:
            # With a store out of reach it would keep the stop waiting.
            self._registration.forget(self._opened_store)
        self._close_store()

    def _renew_due(self) -> None:
        # Connected before the first lease is due, since that can take as long as a short lease lasts.
        store = self._opened_store()
        now = lease_time()
        due = self._book.due(now + self._tick, with_news=now >= self._news_at)
        due = [held for held in due if not self._gives_up(held, now)]
        if not due:
            return
        free = [held for held in due if held.cut is None]
        sent_at = lease_time()
        refused = self._renew(store, free, sent_at) if free else []
        lost = self._look_after(store, refused, sent_at)
        lost += self._look_after(store, [held for held in due if held.cut is not None], lease_time())
        self._observers.emit(LeasesRenewed(worker=self._worker, count=len(free) - len(refused), lost=lost))

    def _gives_up(self, held: HeldLease, now: float) -> bool:
        """Whether its ending does not get written: it runs out then, and the other thread gives it up."""
        if not held.is_stuck(now):
            return False
        held.renew_at = math.inf
        error = f"the ending of job {held.job.id} does not get written: its lease is not renewed any more"
        self._observers.emit(StateFailed(worker=self._worker, operation="finish", error=error))
        return True

    def _renew(self, store: Store, due: Sequence[HeldLease], sent_at: float) -> list[HeldLease]:
        """Renew leases; those that were not are returned."""
        asked = [held.renewal() for held in due]
        if any(one.progress is not None for one in asked):
            self._news_at = sent_at + BETWEEN_NEWS
        renewed = store.renew(asked)
        for held, one, done in zip(due, asked, renewed, strict=True):
            if done:
                held.renewed(sent_at)
                self._book.told(held, one.progress)
        return [held for held, done in zip(due, renewed, strict=True) if not done]

    def _look_after(self, store: Store, locked: Sequence[HeldLease], sent_at: float) -> int:
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
                lost += self._book.lose(held, reason)
        return lost

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        self._failing_since = self._failing_since or time.monotonic()
        self._observers.emit(
            StateFailed(worker=self._worker, operation="renew", error=f"{type(error).__name__}: {error}")
        )
        if isinstance(error, StateError):
            self._close_store()
        return self._backoff.delay(self._failures)

    def _opened_store(self) -> Store:
        if self._store is None:
            store = self._state.sync_store(connections=1, answer_timeout=self._patience)
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
            for held in self._book.expiring(lease_time() + 2 * self._watch_tick):
                self._give_up(held)

    def _give_up(self, held: HeldLease) -> None:
        try:
            self._book.lose(held, AbortReason.ERROR)
        except Exception as error:
            # This thread guards all the other leases too.
            self._observers.emit(StateFailed(worker=self._worker, operation="give up a lease", error=repr(error)))
