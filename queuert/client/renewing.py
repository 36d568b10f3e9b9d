"""Renews the lease of a job beside what its holder does, where no transaction locks the job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic

from queuert.errors import LeaseLostError, QueuertError
from queuert.jobs import AbortReason
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.state.types import ClaimedJob, Renewal

THREAD = "queuert-bulk-lease"

INTERVAL = 3.0
"""Seconds between two renewals: several fail, or take long, before a lease of fifteen seconds expires."""


class RenewedLease:
    """A lease that is renewed. ``check`` says whether it still holds.

    Args:
        claimed_at: when the claim was sent: the store counts the lease from some time after it.
    """

    def __init__(self, job: ClaimedJob, claimed_at: float) -> None:
        self.renewal = Renewal(job.lease, job.lease_seconds)
        self._job = job
        self._lost = False
        self._renewed_at = claimed_at

    def check(self) -> None:
        """Raise if the lease is lost, or was not renewed for so long that it has expired.

        Raises:
            LeaseLostError: it is.
        """
        if self._lost:
            raise LeaseLostError(self._job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER)
        if monotonic() - self._renewed_at >= self._job.lease_seconds:
            raise LeaseLostError(self._job.id, AbortReason.LEASE_NOT_RENEWED)

    def answered(self, renewed: bool, sent_at: float) -> bool:
        """Note the answer of the store. Return whether to go on."""
        self._lost = not renewed
        if renewed:
            self._renewed_at = sent_at
        return renewed


@asynccontextmanager
async def async_renewed(store: AsyncStore, job: ClaimedJob, claimed_at: float) -> AsyncIterator[RenewedLease]:
    """Renew the lease of a job until the block ends, in a task."""
    lease = RenewedLease(job, claimed_at)

    async def renew() -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            now = monotonic()
            # The next one may reach the store.
            with suppress(QueuertError):
                if not lease.answered((await store.renew([lease.renewal]))[0], now):
                    return

    task = asyncio.create_task(renew())
    try:
        yield lease
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextmanager
def sync_renewed(store: Store, job: ClaimedJob, claimed_at: float) -> Iterator[RenewedLease]:
    """Renew the lease of a job until the block ends, in a thread."""
    lease, ended = RenewedLease(job, claimed_at), threading.Event()

    def renew() -> None:
        while not ended.wait(INTERVAL):
            now = monotonic()
            with suppress(QueuertError):
                if not lease.answered(store.renew([lease.renewal])[0], now):
                    return

    thread = threading.Thread(target=renew, name=THREAD, daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        ended.set()
        thread.join()
