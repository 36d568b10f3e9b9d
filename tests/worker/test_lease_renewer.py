"""When a lease has to be given up: counted from what was sent, as the store counts from what it received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.state.types import Lease, Renewal
from queuert.worker.leases import HeldLease, LeaseRegistry, LeaseRenewer

LEASE = 60.0
SLOW = 9.0
"""Seconds that the store takes to answer: less than a sixth of the lease, so the answer is waited for."""


class Clock:
    """The worker's clock, which goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class SlowStore:
    """Renews what it is asked for at once, and answers late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requested = 0

    def open(self) -> None:
        return

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        self.requested += len(renewals)
        self._clock.now += SLOW
        return [True] * len(renewals)

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        self.requested += len(leases)
        self._clock.now += SLOW
        return [None] * len(leases)


class Owner:
    """An attempt that notes why it was aborted."""

    def __init__(self) -> None:
        self.aborted: list[AbortReason] = []

    def abort(self, reason: AbortReason) -> None:
        self.aborted.append(reason)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the lease renewer and its book."""
    clock = Clock()
    monkeypatch.setattr("queuert.worker.leases.lease_time", clock.monotonic)
    return clock


@pytest.mark.parametrize("abort_transaction", [None, lambda: None], ids=["renewed", "locked by its transaction"])
def test_a_deadline_is_counted_from_the_asking_and_not_from_the_answer(
    clock: Clock, abort_transaction: Callable[[], None] | None
) -> None:
    """Counted from the answer, two handlers would run side by side for as long as the answer took."""
    job: Any = SimpleNamespace(id="a", lease=Lease("a", "token"), lease_seconds=LEASE)
    book, owner, store = LeaseRegistry(), Owner(), SlowStore(clock)
    held = HeldLease(job, LEASE / 3, clock.now, owner)
    held.abort_transaction = abort_transaction
    book.add([held])
    state: Any = SimpleNamespace(sync_store=lambda **_: store)
    registration: Any = None
    renewer = LeaseRenewer(
        book,
        state,
        worker="worker",
        shortest_lease=LEASE,
        shortest_interval=LEASE / 3,
        observers=Observers(),
        heartbeat=registration,
    )
    clock.now += LEASE / 3
    requested_at = clock.now
    renewer._renew_due()
    assert (store.requested, clock.now) == (1, requested_at + SLOW)
    assert held.deadline == requested_at + LEASE
    assert held.renew_at == requested_at + LEASE / 3
    assert book.expiring(requested_at + LEASE) == [held]
    assert owner.aborted == []
