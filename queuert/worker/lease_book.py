"""The leases that a worker holds, by the monotonic clock. Read and written from several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from queuert.jobs import AbortReason
from queuert.policies import LeasePolicy
from queuert.state.adapter import ClaimedJob, Lease, Renewal


@dataclass(slots=True, eq=False)
class HeldLease:
    """One lease, and what to do when it is lost."""

    lease: Lease
    type: str
    seconds: float
    interval: float
    renew_at: float
    deadline: float
    """By then it must have been renewed. Counted from before the claim or renewal was sent, so that it is never later
    than the store's own."""
    on_lost: Callable[[AbortReason], None]
    cut: Callable[[], None] | None = None
    """Set while a transaction has the row locked: ends its connection. Such a lease is not renewed, only looked after:
    nobody can take the job, unless the server has ended the transaction and we were not told."""

    def renewal(self) -> Renewal:
        """What to ask the store."""
        return Renewal(self.lease, self.seconds)

    def renewed(self, sent_at: float) -> None:
        """The store has extended it."""
        self.renew_at = sent_at + self.interval
        self.deadline = sent_at + self.seconds


class LeaseBook:
    """All leases that a worker holds. Adding and removing one costs next to nothing and wakes nobody."""

    def __init__(self) -> None:
        self._held: set[HeldLease] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self, job: ClaimedJob, policy: LeasePolicy, sent_at: float, on_lost: Callable[[AbortReason], None]
    ) -> HeldLease:
        """Note a lease that was granted to a claim sent at ``sent_at`` (monotonic)."""
        held = HeldLease(
            lease=job.lease,
            type=job.type,
            seconds=job.lease_seconds,
            interval=policy.renewal_interval,
            renew_at=sent_at + policy.renewal_interval,
            deadline=sent_at + job.lease_seconds,
            on_lost=on_lost,
        )
        with self._lock:
            self._held.add(held)
        return held

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
            held.on_lost(reason)
            cut = held.cut
            if cut is not None:
                cut()
        return known

    def due(self, horizon: float) -> list[HeldLease]:
        """The leases to be renewed, or looked after, by ``horizon`` (monotonic)."""
        with self._lock:
            return [held for held in self._held if held.renew_at <= horizon]

    def expiring(self, horizon: float) -> list[HeldLease]:
        """The leases that end by ``horizon`` (monotonic)."""
        with self._lock:
            return [held for held in self._held if held.deadline <= horizon]

    def hasten(self, job_ids: Iterable[str] | None) -> bool:
        """Let the leases of these jobs (None: all) be renewed at once; whether there were any."""
        wanted = None if job_ids is None else set(job_ids)
        now = time.monotonic()
        with self._lock:
            chosen = [held for held in self._held if wanted is None or held.lease.job_id in wanted]
            for held in chosen:
                held.renew_at = now
        return bool(chosen)
