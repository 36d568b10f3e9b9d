"""Somebody begins to wait for a chain while its job runs: the completion releases them, and is no lost lease."""

from __future__ import annotations

import pytest

from queuert import Attempt, NewChain, Outcome
from queuert.observability.events import FinishRejected
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT, Gate


@pytest.mark.quick
async def test_between_the_claim_and_the_block(harness: PostgresHarness) -> None:
    gate = Gate()

    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input:
            await gate.pass_through(attempt)
        async with attempt.complete() as tx:
            return tx.finish(attempt.number)

    harness.handles(number, handle)
    first = await harness.client.start_chain(number, 1)
    await harness.worker(concurrency=2).start()
    await gate.next()
    [waiting] = await harness.client.start_chains([NewChain(number, 0, blockers=[first])])
    gate.open()
    assert await waiting.result(WAIT) == 1
    assert await first.result(WAIT) == 1
    assert harness.log.of(FinishRejected) == []
