"""Attempts leave nothing to the garbage collector: it would look through the whole process for every few hundred."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from queuert import NewChain
from tests.worker.support import WAIT, Stage, echo, number


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
async def test_attempts_are_in_no_cycle(stage: Stage) -> None:
    stage.handles(number, echo)
    chains = await stage.client.start_chains([NewChain(number, one) for one in range(300)])
    async with stage.worker(concurrency=5):
        await stage.client.wait(chains, timeout=WAIT)
        stage.log.forget()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = Counter(type(one).__name__ for one in gc.garbage)
    ours = {name: count for name, count in kinds.items() if name.startswith(("Attempt", "Abort", "Held", "Claimed"))}
    assert ours == {}
