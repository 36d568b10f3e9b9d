"""A machine that was suspended: its leases are over, though its monotonic clock stood still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from queuert.jobs import AbortReason
from queuert.observability.adapter import observers
from queuert.state.adapter import Capability
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest
from queuert.testing.events import EventLog
from queuert.worker.leases import HeldLease, LeaseRegistry, LeaseRenewer, lease_time
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.lease_clock import lease_clock
from tests.support.waiting import WAIT

LEASE = 60.0

pytestmark = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that goes on in a suspend")


class Suspend:
    """The clocks of a machine: a suspend lets the one pass that counts from the boot, and no other."""

    def __init__(self) -> None:
        self._passed = 0.0

    def clock_gettime(self, clock: int) -> float:
        """The time by one of them."""
        return time.clock_gettime(clock) + (self._passed if clock == time.CLOCK_BOOTTIME else 0.0)

    def lasts(self, seconds: float) -> None:
        """The machine was suspended for so long."""
        self._passed += seconds


@pytest.fixture
def suspend() -> Iterator[Suspend]:
    suspend = Suspend()
    with lease_clock(suspend.clock_gettime):
        yield suspend


class Owner:
    """An attempt that can be told."""

    def __init__(self) -> None:
        self.reported = threading.Event()
        self.reason: AbortReason | None = None

    def abort(self, reason: AbortReason) -> None:
        self.reason = reason
        self.reported.set()


class Unreachable:
    """A store that does not answer, as no network does at first after a suspend."""

    def __init__(self) -> None:
        self.requested, self.over = threading.Event(), threading.Event()

    capabilities = frozenset[Capability]()

    def sync_store(self, **_: Any) -> Unreachable:
        return self

    def open(self) -> None:
        self.requested.set()
        self.over.wait(WAIT)
        raise OSError("no route to host")

    def close(self) -> None:
        return


@pytest.fixture
def store() -> Iterator[Unreachable]:
    store = Unreachable()
    yield store
    store.over.set()


def test_leases_are_given_up_after_a_suspend_that_was_longer(suspend: Suspend, store: Unreachable) -> None:
    """By the clock that stood still they would have most of their time left."""
    book, owner, state, registration = LeaseRegistry(), Owner(), store, SimpleNamespace(remove=lambda _: None)
    job: Any = SimpleNamespace(id="job", lease_seconds=LEASE, lease=None)
    renewer = LeaseRenewer(
        book,
        state,  # type: ignore[arg-type]
        worker="worker",
        shortest_lease=1.0,
        shortest_interval=LEASE,
        observers=observers([EventLog()]),
        heartbeat=registration,  # type: ignore[arg-type]
    )
    book.add([HeldLease(job, LEASE / 3, lease_time(), owner)])
    renewer.start()
    try:
        assert store.requested.wait(WAIT)
        assert not owner.reported.is_set()
        suspend.lasts(LEASE)
        assert owner.reported.wait(WAIT)
        assert owner.reason is AbortReason.LEASE_NOT_RENEWED
    finally:
        store.over.set()
        renewer.stop()


async def test_a_job_that_was_claimed_before_a_suspend_is_not_begun_after_it(
    harness: PostgresHarness, suspend: Suspend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have it by now. If nobody has, it is claimed anew, and that costs it no attempt."""
    claim = AsyncPostgresStore.claim
    suspended: list[list[ClaimedJob]] = []

    async def suspended_after(store: AsyncPostgresStore, request: ClaimRequest) -> list[ClaimedJob]:
        found = await claim(store, request)
        if found and not suspended:
            suspended.append(found)
            suspend.lasts(2 * LEASE)
        return found

    monkeypatch.setattr(AsyncPostgresStore, "claim", suspended_after)
    harness.handles(number, echo)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 7)
        assert await chain.result(WAIT) == 7
    job = await harness.job(chain.id)
    assert (job.attempt, job.uncounted) == (2, 1)
