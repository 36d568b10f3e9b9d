"""The loops of a worker let others run, also with a store that answers or fails without waiting for anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import pytest

from queuert.errors import StateError
from queuert.ids import new_token
from queuert.observability.adapter import Observers
from queuert.policies import Backoff
from queuert.state.async_store import AsyncStore
from queuert.state.types import Lease
from queuert.testing.events import EventLog
from queuert.worker.releases import ReleaseQueue
from queuert.worker.supervisor import SupervisedLoop
from tests.support.waiting import until

TURNS = 1_000
"""Steps after which a loop that has kept others from running ends, so that the test fails and does not hang."""


async def test_a_loop_whose_steps_wait_for_nothing_lets_others_run() -> None:
    steps = 0
    others_ran = False

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == TURNS:
            loop.request_stop()

    def other() -> None:
        nonlocal others_ran
        others_ran = True
        loop.request_stop()

    loop = SupervisedLoop("busy", step, worker="w", observers=Observers([]))
    loop.start()
    asyncio.get_running_loop().call_soon(other)
    while not loop.stopping:  # noqa: ASYNC110  (it is about turns of the event loop)
        await asyncio.sleep(0)
    await loop.stop()
    assert others_ran
    assert steps < TURNS


class Refusing:
    """A store that refuses to release a lease, at once."""

    def __init__(self) -> None:
        self.requested = 0
        self.gives_in = asyncio.Event()

    async def release(self, leases: Sequence[Lease]) -> int:
        """Refuse, until others have run."""
        self.requested += 1
        if self.gives_in.is_set() or self.requested == TURNS:
            return len(leases)
        raise StateError("no")


async def test_releases_that_fail_at_once_let_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.releases._BACKOFF", Backoff(initial_delay=0.0, max_delay=0.0))
    store = Refusing()
    releases = ReleaseQueue(
        cast(AsyncStore, store), worker="w", observers=Observers([EventLog()]), on_released=lambda types: None
    )
    releases.put("type", Lease("job", new_token()), time.monotonic() + 3_600.0)
    asyncio.get_running_loop().call_soon(store.gives_in.set)
    while releases:  # noqa: ASYNC110  (it is about turns of the event loop)
        await asyncio.sleep(0)
    assert store.gives_in.is_set()
    assert store.requested < TURNS
    await releases.aclose()


class Granting:
    """A store that releases at once."""

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release them all."""
        return len(leases)


@pytest.mark.parametrize("cancelled", [False, True], ids=["it ended", "it was cancelled"])
async def test_releases_begin_again_after_their_task(cancelled: bool) -> None:
    """What is put there in the turn in which it ends, or when a handler has cancelled all tasks, waits for nobody."""
    releases = ReleaseQueue(
        cast(AsyncStore, Granting()), worker="w", observers=Observers([EventLog()]), on_released=lambda types: None
    )
    releases.put("type", Lease("first", new_token()), time.monotonic() + 3_600.0)
    task = releases._task
    assert task is not None
    if cancelled:
        task.cancel()
    while not task.done():  # noqa: ASYNC110  (it is about turns of the event loop)
        await asyncio.sleep(0)
    if not cancelled:
        assert releases._task is task, "nobody has been told yet"
        releases.put("type", Lease("second", new_token()), time.monotonic() + 3_600.0)
    await until(lambda: not releases, "all are released")
    await releases.aclose()
