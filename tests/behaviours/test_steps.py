"""Steps, sleeps and snoozes on each store."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.state import Capability
from queuert.worker import GuardedTransaction
from tests.support.harness import Harness
from tests.support.job_types import anything
from tests.support.waiting import WAIT

QUICKLY = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_steps_are_replayed_and_sleeps_are_passed(harness: Harness, mode: str) -> None:
    called: list[str] = []

    def double(number: int) -> int:
        called.append(f"double {number}")
        return 2 * number

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        total = 0
        for number in range(3):
            total += await attempt.step("double", double, number, key=number)
        await attempt.sleep("pause", 0.001)
        if len(called) == 3:
            called.append("failed")
            raise ValueError("once")
        return total if len(called) > 4 else await _snoozed(attempt)

    async def _snoozed(attempt: Attempt[Any, Any]) -> Any:
        called.append("snoozed")
        return attempt.snooze(0.001)

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        total = sum(attempt.step_sync("double", double, number, key=number) for number in range(3))
        attempt.sleep_sync("pause", 0.001)
        if len(called) == 3:
            called.append("failed")
            raise ValueError("once")
        if len(called) > 4:
            return total
        called.append("snoozed")
        return attempt.snooze(0.001)

    harness.handles(anything, in_loop if mode == "coroutine" else in_thread, retry=QUICKLY)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, None)
        assert await chain.result(WAIT) == 6
    assert called == ["double 0", "double 1", "double 2", "failed", "snoozed"]
    job = await harness.job(chain.id)
    assert (job.attempt - job.uncounted, len(job.failures)) == (2, 1)
    steps = await harness.client.get_steps(chain.id)
    assert [one.name for one in steps] == ["double[0]", "double[1]", "double[2]", "pause"]
    await harness.client.delete_chain(chain.id)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_step_transactions_where_the_store_has_transactions(harness: Harness, mode: str) -> None:
    called: list[int] = []

    def write(tx: GuardedTransaction, value: int) -> int:
        called.append(value)
        return value if tx.connection is not None else -1

    async def in_loop(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        result = await attempt.step_transaction("write", write, 5)
        return result if attempt.number > 1 else attempt.snooze(0)

    def in_thread(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        result = attempt.step_transaction_sync("write", write, 5)
        return result if attempt.number > 1 else attempt.snooze(0)

    harness.handles(anything, in_loop if mode == "coroutine" else in_thread, retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, None)).wait(WAIT)
    job = await harness.job(chain.id)
    if Capability.USER_TRANSACTIONS in harness.state.capabilities:
        assert (job.status, job.output, called) == (JobStatus.COMPLETED, 5, [5])
    else:
        assert (job.status, called) == (JobStatus.FAILED, [])
        assert "this store does not support user_transactions: attempt.step() works on each store" in str(chain.error)
