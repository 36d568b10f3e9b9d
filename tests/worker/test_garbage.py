"""Attempts leave nothing to the garbage collector: it would look through the whole process for every few hundred."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from queuert import InProcessWorker, NewChain
from queuert.observability.adapter import Observers
from queuert.worker.health import Health
from queuert.worker.run import ExitCode, run, tuned_gc
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.waiting import WAIT


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
async def test_attempts_are_in_no_cycle(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    chains = await harness.client.start_chains([NewChain(number, one) for one in range(300)])
    async with harness.worker(concurrency=5):
        await harness.client.wait(chains, timeout=WAIT)
        harness.log.forget()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = Counter(type(one).__name__ for one in gc.garbage)
    ours = {name: count for name, count in kinds.items() if name.startswith(("Attempt", "Abort", "Held", "Claimed"))}
    assert ours == {}


@pytest.fixture
def thresholds_afterwards() -> Iterator[None]:
    before = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds_afterwards")
@pytest.mark.parametrize(("before", "inside"), [(700, 10_000), (9_999, 10_000), (20_000, 20_000), (0, 0)])
def test_a_worker_process_has_the_collector_look_seldom(before: int, inside: int) -> None:
    gc.set_threshold(before, 7, 8)
    with tuned_gc():
        assert gc.get_threshold() == (inside, 7, 8)
    assert gc.get_threshold() == (before, 7, 8)


@pytest.mark.usefixtures("thresholds_afterwards")
def test_a_worker_in_another_thread_leaves_the_collector_alone() -> None:
    """Of two that run at once each would restore, at its end, what the other has set."""
    seen: list[object] = []

    def body() -> None:
        frozen = gc.get_freeze_count()
        with tuned_gc():
            seen.append((gc.get_threshold(), gc.get_freeze_count() > frozen))

    gc.set_threshold(700, 7, 8)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join(WAIT)
    assert seen == [((700, 7, 8), False)]


class _Stub:
    """A worker that says what the collector is set to once it is asked for its health, and wants to stop then."""

    name = "stub"
    abandoned = 0
    cancelled_unasked = False
    observers = Observers()

    def __init__(self) -> None:
        self.threshold = 0
        self.lifespan_ended = asyncio.Event()
        self.stop_requested = asyncio.Event()
        self.stops: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stop_requested.set()

    async def wait_stopped(self) -> None:
        await self.stop_requested.wait()

    def health(self) -> Health:
        self.threshold = gc.get_threshold()[0]
        signal.raise_signal(signal.SIGTERM)
        return Health(self.name, 0, False, ())


@pytest.mark.usefixtures("thresholds_afterwards")
def test_run_has_the_collector_look_seldom(tmp_path: Path) -> None:
    gc.set_threshold(700, 7, 8)
    stub = _Stub()
    assert run(cast("InProcessWorker", stub), health_file=tmp_path / "health") == ExitCode.STOPPED
    assert stub.threshold == 10_000
    assert gc.get_threshold() == (700, 7, 8)
