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

    def close(self) -> None:
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
    """An attempt that notes why it was aborted, and when by the worker's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.aborted: list[tuple[AbortReason, float]] = []

    def abort(self, reason: AbortReason) -> None:
        self.aborted.append((reason, self._clock.now))


class Stopped:
    """Tells a thread when to end; until then each wait lets the clock go on by so much."""

    def __init__(self, clock: Clock, after: float) -> None:
        self._clock = clock
        self._end = clock.now + after

    def wait(self, seconds: float) -> bool:
        self._clock.now += seconds
        return self._clock.now >= self._end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the lease renewer and its book."""
    clock = Clock()
    monkeypatch.setattr("queuert.worker.leases.lease_time", clock.monotonic)
    return clock


def held_lease(clock: Clock, owner: Owner) -> HeldLease:
    """A lease that was claimed now."""
    job: Any = SimpleNamespace(id="a", lease=Lease("a", "token"), lease_seconds=LEASE)
    return HeldLease(job, LEASE / 3, clock.now, owner)


def lease_renewer(book: LeaseRegistry, store: SlowStore) -> LeaseRenewer:
    """The renewer of these leases, without its threads."""
    state: Any = SimpleNamespace(sync_store=lambda **_: store, capabilities=frozenset())
    heartbeat: Any = SimpleNamespace(record_if_due=lambda _: LEASE, remove=lambda _: None)
    return LeaseRenewer(
        book,
        state,
        worker="worker",
        shortest_lease=LEASE,
        shortest_interval=LEASE / 3,
        observers=Observers(),
        heartbeat=heartbeat,
    )


@pytest.mark.parametrize("abort_transaction", [None, lambda: None], ids=["renewed", "locked by its transaction"])
def test_a_deadline_is_counted_from_the_asking_and_not_from_the_answer(
    clock: Clock, abort_transaction: Callable[[], None] | None
) -> None:
    """Counted from the answer, two handlers would run side by side for as long as the answer took."""
    book, owner, store = LeaseRegistry(), Owner(clock), SlowStore(clock)
    held = held_lease(clock, owner)
    held.abort_transaction = abort_transaction
    book.add([held])
    renewer = lease_renewer(book, store)
    clock.now += LEASE / 3
    requested_at = clock.now
    renewer._renew_due()
    assert (store.requested, clock.now) == (1, requested_at + SLOW)
    assert held.deadline == requested_at + LEASE
    assert held.renew_at == requested_at + LEASE / 3
    assert book.expiring(requested_at + LEASE) == [held]
    assert owner.aborted == []


def test_an_attempt_is_aborted_before_its_lease_expires(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted later, it would run beside the attempt of the worker that claims the job then."""
    book, owner = LeaseRegistry(), Owner(clock)
    held = held_lease(clock, owner)
    book.add([held])
    renewer = lease_renewer(book, SlowStore(clock))
    monkeypatch.setattr(renewer, "_stopped", Stopped(clock, 2 * LEASE))
    renewer._watch_until_stopped()
    [(reason, at)] = owner.aborted
    assert reason is AbortReason.LEASE_NOT_RENEWED
    # The thread looks every twentieth of a lease, and may be as late as that.
    assert 0.85 * LEASE <= at - (held.deadline - LEASE) <= 0.95 * LEASE
    assert len(book) == 0


def test_an_error_without_memory_to_report_it_ends_no_thread(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease would be renewed any more, and no attempt aborted, until the worker stops."""
    monkeypatch.setattr("queuert.worker.leases._AFTER_ERROR", 0.0)
    book, owner = LeaseRegistry(), Owner(clock)
    book.add([held_lease(clock, owner)])
    renewer, failures = lease_renewer(book, SlowStore(clock)), [MemoryError(), MemoryError()]

    def turn() -> float:
        if failures:
            raise failures.pop()
        renewer._stopped.set()
        return 0.0

    monkeypatch.setattr(renewer, "_renew_once", turn)
    renewer._renew_until_stopped()
    assert failures == []

    expiring, failing = book.expiring, [MemoryError(), MemoryError()]

    def without_memory(horizon: float) -> list[HeldLease]:
        if failing:
            raise failing.pop()
        return expiring(horizon)

    monkeypatch.setattr(book, "expiring", without_memory)
    monkeypatch.setattr(renewer, "_stopped", Stopped(clock, 2 * LEASE))
    renewer._watch_until_stopped()
    assert [reason for reason, _ in owner.aborted] == [AbortReason.LEASE_NOT_RENEWED]


class Turns:
    """Lets a thread take so many turns."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def wait(self, seconds: float) -> bool:
        self._left -= 1
        return self._left < 0

    def is_set(self) -> bool:
        return self.wait(0.0)


@pytest.mark.parametrize("thread", ["renews", "watches"])
def test_turns_of_which_not_even_the_report_succeeds_are_seen(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """Health says so, until a turn succeeds; one of the other thread does not count."""
    monkeypatch.setattr("queuert.worker.leases._AFTER_ERROR", 0.0)
    monkeypatch.setattr("queuert.worker.leases.FAILING_AFTER", -1.0)
    book = LeaseRegistry()
    renewer = lease_renewer(book, SlowStore(clock))
    # As when there is no memory for what a turn, or its report, needs.
    refused = MemoryError("no memory for a turn")
    broken = True

    def fails(*_: object, **__: object) -> Any:
        if broken:
            raise refused
        return [] if thread == "watches" else LEASE

    def turn(which: str) -> None:
        monkeypatch.setattr(renewer, "_stopped", Turns(1))
        renewer._wake.set()
        renewer._renew_until_stopped() if which == "renews" else renewer._watch_until_stopped()

    if thread == "renews":
        monkeypatch.setattr(renewer._heartbeat, "record_if_due", fails)
    else:
        monkeypatch.setattr(book, "expiring", fails)
    assert (renewer.error, renewer.failing, renewer.failing_seconds) == (None, False, 0.0)
    for which in (thread, "watches" if thread == "renews" else "renews"):
        turn(which)
        assert (renewer.error, renewer.failing) == (refused, True)
    broken = False
    turn(thread)
    assert (renewer.error, renewer.failing, renewer.failing_seconds) == (None, False, 0.0)
