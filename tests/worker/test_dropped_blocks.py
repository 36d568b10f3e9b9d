"""Blocks of coroutines that are not run to their end: whoever closes them, wherever that happens."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuert import AsyncClient, Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.state.sqlite import SQLiteState
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT

work = JobType("work", input=int, output=int)
TYPES = JobTypes(work)


async def test_a_generator_that_is_closed_has_left_its_block(harness: PostgresHarness) -> None:
    @harness.processors.handles(number, retry=RetryPolicy(max_attempts=1))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async def rows() -> AsyncIterator[int]:
            async with attempt.prepare():
                for row in range(3):
                    yield row

        generator = rows()
        async for _ in generator:
            break
        await generator.aclose()  # type: ignore[attr-defined]
        async with attempt.complete() as tx:
            return tx.finish(7)

    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 7


@pytest.mark.parametrize("where", ["the event loop", "a thread"])
def test_a_task_that_is_dropped_in_a_block_keeps_no_lock(tmp_path: Path, where: str) -> None:
    """The garbage collector closes its coroutine, in whatever thread it runs: the file stayed locked."""
    state = SQLiteState(tmp_path / "queue.db", answer_timeout=WAIT)
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1))

    @processors.handles(work)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        entered = asyncio.Event()

        async def dropped() -> None:
            async with attempt.prepare():
                entered.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.ensure_future(dropped())
        await entered.wait()
        await asyncio.sleep(0)  # It waits for what nobody else refers to.
        del task
        await (asyncio.to_thread(gc.collect) if where == "a thread" else asyncio.sleep(0, gc.collect()))
        await asyncio.to_thread(start_another)
        return 7

    def start_another() -> None:
        with Client(state, TYPES) as client:
            client.start_chain(work, 2, priority=-1)

    async def main() -> int:
        async with AsyncClient(state, TYPES) as client, InProcessWorker(client, processors):
            return await (await client.start_chain(work, 1)).result(WAIT)

    assert asyncio.run(main()) == 7
