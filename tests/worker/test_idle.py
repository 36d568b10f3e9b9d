"""When a worker is idle: it runs nothing, nothing is due, and nothing was claimed while it looked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from queuert import Attempt
from queuert.ids import new_token
from queuert.state.types import Lease
from queuert.worker.runtime import WorkerRuntime
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT


async def idle_worker(harness: PostgresHarness) -> WorkerRuntime:
    """A worker that has found nothing to run."""

    async def handle(attempt: Attempt[int, int]) -> int:
        return attempt.input

    harness.handles(number, handle)
    worker = harness.worker(concurrency=2, poll_interval=3600.0)
    await worker.start()
    runtime = worker._runtime
    assert runtime is not None
    await until_idle(runtime)
    return runtime


async def until_idle(runtime: WorkerRuntime) -> None:
    """Wait until it is."""
    async with asyncio.timeout(WAIT):
        while not await runtime.is_idle():  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0)


class Begun:
    """An attempt in a slot."""

    input_bytes = 0

    async def run(self, task: asyncio.Task[None]) -> bool:
        """Do nothing."""
        return True


async def test_not_while_an_attempt_is_about_to_begin(harness: PostgresHarness) -> None:
    """It has left the prefetch, and begins in the next turn of the event loop."""
    runtime = await idle_worker(harness)
    runtime.prefetch.put(cast(Any, [Begun()]))
    assert not len(runtime.prefetch)
    assert not runtime.attempts
    assert not await runtime.is_idle()
    await until_idle(runtime)


async def test_not_while_jobs_are_to_be_released(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are due when the store has answered."""
    runtime, answer = await idle_worker(harness), asyncio.Event()
    release = runtime.store.release

    async def release_late(leases: Sequence[Lease]) -> int:
        await answer.wait()
        return await release(leases)

    monkeypatch.setattr(runtime.store, "release", release_late)
    runtime.releases.put("number", Lease("a", new_token()), time.monotonic() + 3_600.0)
    assert not await runtime.is_idle()
    answer.set()
    await runtime.releases.release_due()
    await until_idle(runtime)  # What is released wakes the claimer, which claims once more.


async def test_not_if_a_job_was_run_meanwhile(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have started another one, which was not there when the store was read."""
    runtime = await idle_worker(harness)
    get_demand = runtime.store.get_demand

    async def then_run_one(types: Sequence[str], counted_up_to: int) -> Any:
        found = await get_demand(types, counted_up_to=counted_up_to)
        monkeypatch.setattr(runtime.store, "get_demand", get_demand)
        chain = await harness.client.start_chain(number, 1)
        await chain.result(WAIT)
        async with asyncio.timeout(WAIT):
            while runtime._busy:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0)
        return found

    monkeypatch.setattr(runtime.store, "get_demand", then_run_one)
    assert not await runtime.is_idle()
    await until_idle(runtime)
