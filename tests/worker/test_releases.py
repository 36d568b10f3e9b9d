"""Jobs that are released, when the store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from queuert.errors import StateUnavailableError
from queuert.jobs import AbortReason
from queuert.observability.adapter import Observers
from queuert.state.types import Lease
from queuert.worker.leases import lease_time
from queuert.worker.releases import ReleaseQueue


class AnswersOnlyLater:
    """Releases what it is given at once; its first answers are lost."""

    def __init__(self, lost: int) -> None:
        self._lost = lost
        self._held = {"a", "b"}

    async def release(self, leases: Sequence[Lease]) -> int:
        released = {lease.job_id for lease in leases} & self._held
        self._held -= released
        if self._lost:
            self._lost -= 1
            raise StateUnavailableError("server closed the connection unexpectedly")
        return len(released)

    async def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        return [None if lease.job_id in self._held else AbortReason.TAKEN_BY_ANOTHER_WORKER for lease in leases]


async def _released(lost: int) -> list[set[str]]:
    """Release two jobs; return the types that were announced, by call."""
    announced: list[set[str]] = []

    def announce(types: Iterable[str]) -> None:
        announced.append(set(types))

    store: Any = AnswersOnlyLater(lost)
    releases = ReleaseQueue(store, worker="worker", observers=Observers(), on_released=announce)
    for id, type in (("a", "resize"), ("b", "publish")):
        releases.put(type, Lease(id, "token"), lease_time() + 60.0)
    await releases.release_all(asyncio.Event())
    return announced


async def test_jobs_whose_release_was_not_answered_are_announced() -> None:
    """The next call finds them released, and counts none."""
    assert set().union(*await _released(lost=2)) == {"resize", "publish"}


async def test_released_jobs_are_announced_once() -> None:
    assert await _released(lost=0) == [{"resize", "publish"}]
