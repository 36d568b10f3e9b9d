"""The leases that a worker holds, by the clock of :mod:`lease_clock`. Read and written from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from queuert.jobs import AbortReason
from queuert.state.adapter import ClaimedJob, Lease, Renewal
from queuert.worker.lease_clock import lease_time

_ENDING_LEASES = 3
ENDING_SECONDS = 60.0
"""So many times the duration of its lease an ending may take to be written, and so many seconds in any case: twice as
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
        interval: seconds from one renewal to the next.
        renew_at: when to ask for the next renewal (by the lease clock).
        deadline: by then it must have been renewed. Counted from before the claim or renewal was sent, so that it is
            never later than the store's own.
        holder: None once its attempt is over.
        cut: set while a transaction has the row locked: ends its connection. Such a lease is not renewed, only looked
            after: nobody can take the job, unless the server has ended the transaction and we were not told.
        progress: what the attempt told last and is not written yet.
        ending_since: when its ending was handed on to be written (by the lease clock); None before.
    """

    __slots__ = ("cut", "deadline", "ending_since", "holder", "interval", "job", "progress", "renew_at")

    def __init__(self, job: ClaimedJob, interval: float, sent_at: float, holder: Holder) -> None:
        self.job = job
        self.interval = interval
        self.renew_at = sent_at + interval
        self.deadline = sent_at + job.lease_seconds
        self.holder: Holder | None = holder
        self.cut: Callable[[], None] | None = None
        self.progress: str | None = None
        self.ending_since: float | None = None

    @property
    def lease(self) -> Lease:
        """What the store knows it by."""
        return self.job.lease

    @property
    def has_news(self) -> bool:
        """Whether there is progress that can be written: not while a transaction has the row locked."""
        return self.progress is not None and self.cut is None

    def is_stuck(self, now: float) -> bool:
        """Whether its handler has ended, and the ending should have been written long ago.

        What writes it stands still: the event loop is blocked, or has no memory left. A lease that is renewed
        for as long would keep the job from everybody else.
        """
        if self.ending_since is None:
            return False
        return now - self.ending_since > max(_ENDING_LEASES * self.job.lease_seconds, ENDING_SECONDS)

    def renewal(self) -> Renewal:
        """What to ask the store."""
        return Renewal(self.lease, self.job.lease_seconds, self.progress)

    def renewed(self, sent_at: float) -> None:
        """The store has extended it."""
        self.renew_at = sent_at + self.interval
        self.deadline = sent_at + self.job.lease_seconds


class LeaseBook:
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

    def due(self, horizon: float, *, with_news: bool = False) -> list[HeldLease]:
        """The leases to be renewed, or looked after, by ``horizon``; and those whose attempts told news."""
        with self._lock:
            return [one for one in self._held if one.renew_at <= horizon or (with_news and one.has_news)]

    def tell(self, held: HeldLease, progress: str) -> bool:
        """Note how far an attempt is; whether nothing was there to be written. What it told before is forgotten."""
        with self._lock:
            fresh = held.progress is None
            held.progress = progress
        return fresh

    def told(self, held: HeldLease, progress: str | None) -> None:
        """This progress is written, unless there is news again."""
        with self._lock:
            if held.progress is progress:
                held.progress = None

    def has_news(self) -> bool:
        """Whether any progress can be written."""
        with self._lock:
            return any(held.has_news for held in self._held)

    def expiring(self, horizon: float) -> list[HeldLease]:
        """The leases that end by ``horizon`` (by the lease clock)."""
        with self._lock:
            return [held for held in self._held if held.deadline <= horizon]

    def hasten(self, job_ids: Iterable[str] | None) -> bool:
        """Let the leases of these jobs (None: all) be renewed at once; whether there were any."""
        wanted = None if job_ids is None else set(job_ids)
        now = lease_time()
        with self._lock:
            chosen = [held for held in self._held if wanted is None or held.job.id in wanted]
            for held in chosen:
                held.renew_at = now
        return bool(chosen)
