"""What a handler may return besides an output: retry, fail, cancel; and how attempts are counted and backed off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queuert import Attempt, ChainStatus, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import ChainCancelledError, JobFailedError
from queuert.notify import Topic
from queuert.observability.events import (
    AttemptCancelled,
    AttemptCompleted,
    AttemptFailed,
    AttemptRetried,
    AttemptStarted,
    ChainClosed,
)
from queuert.outcomes import Fail, Retry
from tests.worker.support import WAIT, Stage, number, relay, text

NOTIFICATION = Topic.JOBS


async def fails(attempt: Attempt[Any, Any]) -> Any:
    raise ValueError(f"attempt {attempt.number}")


async def test_the_pauses_grow_as_the_policy_says(stage: Stage) -> None:
    stage.handles(number, fails, retry=RetryPolicy(initial_delay=100.0, multiplier=3.0, max_delay=500.0, jitter=0.0))
    pauses: list[float] = []
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        for attempt in range(1, 5):
            reported = await stage.log.wait_for(AttemptRetried, job_id=chain.id, attempt=attempt)
            job = await stage.job(chain.id)
            assert (job.status, job.attempt) == (JobStatus.SCHEDULED, attempt)
            assert job.last_error is not None
            assert job.last_error.message == f"attempt {attempt}"
            pauses.append(reported.retry_in)
            assert job.started_at is not None
            waits = (job.scheduled_at - job.started_at).total_seconds()
            assert reported.retry_in <= waits < reported.retry_in + WAIT
            stage.rows("update queuert.job set scheduled_at = clock_timestamp()")
            stage.client.notify.publish(NOTIFICATION, ["number"])
    assert pauses == [100.0, 300.0, 500.0, 500.0]


async def test_jitter_stretches_and_never_shortens(stage: Stage) -> None:
    stage.handles(number, fails, retry=RetryPolicy(initial_delay=100.0, jitter=0.5))
    async with stage.worker(concurrency=10):
        await stage.client.start_chains([NewChain(number, one) for one in range(10)])
        await stage.log.wait_for(AttemptRetried, times=10)
    pauses = [event.retry_in for event in stage.log.of(AttemptRetried)]
    assert all(100 <= pause <= 150 for pause in pauses)
    assert len(set(pauses)) > 1


async def test_the_last_attempt_fails_the_chain(stage: Stage) -> None:
    stage.handles(number, fails, retry=RetryPolicy(max_attempts=3, initial_delay=0.0))
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="ValueError: attempt 3"):
            await chain.result(WAIT)
    job = await stage.job(chain.id)
    assert (job.status, job.attempt, job.finished_at is not None) == (JobStatus.FAILED, 3, True)
    ended = [event for event in stage.log.events if isinstance(event, AttemptRetried | AttemptFailed | ChainClosed)]
    assert [type(event) for event in ended] == [AttemptRetried, AttemptRetried, AttemptFailed, ChainClosed]
    assert stage.log.of(ChainClosed, status=ChainStatus.FAILED)


async def test_each_failed_attempt_costs_one_of_priority(stage: Stage) -> None:
    """A job that fails goes behind the others, and does not keep them waiting."""
    order: list[int] = []

    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        order.append(attempt.input)
        return attempt.retry(after=0) if attempt.input == 0 and attempt.number < 3 else attempt.input

    chains = await stage.client.start_chains([NewChain(number, one) for one in range(4)])
    async with stage.worker():
        await stage.client.wait(chains, timeout=WAIT)
    assert order == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_retry_after_a_time_of_its_own(stage: Stage, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry(after=timedelta(hours=1), reason="busy")

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry(after=3600.0, reason="busy")

    stage.handles(number, in_loop if mode == "coroutine" else in_thread)
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        reported = await stage.log.wait_for(AttemptRetried, job_id=chain.id)
    job = await stage.job(chain.id)
    assert reported.retry_in == 3600.0
    assert (reported.error.kind, reported.error.message) == ("retry", "busy")
    assert job.status is JobStatus.SCHEDULED
    assert job.started_at is not None
    assert timedelta(hours=1) <= job.scheduled_at - job.started_at < timedelta(hours=1, minutes=1)


async def test_retry_without_a_time_takes_the_policys(stage: Stage) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return attempt.retry()

    stage.handles(number, handler, retry=RetryPolicy(initial_delay=77.0, jitter=0.0))
    async with stage.worker():
        await stage.client.start_chain(number, 1)
        assert (await stage.log.wait_for(AttemptRetried)).retry_in == 77.0


async def test_retry_on_the_last_attempt_fails(stage: Stage) -> None:
    stage.handles(number, lambda attempt: Retry(after=0, reason="once more"), retry=RetryPolicy(max_attempts=2))
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="once more"):
            await chain.result(WAIT)
    assert (await stage.job(chain.id)).attempt == 2


async def test_fail_gives_up_with_attempts_left(stage: Stage) -> None:
    stage.handles(number, lambda attempt: attempt.fail("hopeless\x00\ud800"))
    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        with pytest.raises(JobFailedError, match="hopeless"):
            await chain.result(WAIT)
    job = await stage.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "fail"


async def test_cancel_closes_the_chain(stage: Stage) -> None:
    stage.handles(number, lambda attempt: attempt.cancel("not wanted"))
    stage.handles(relay, lambda attempt: attempt.continue_with(number, 1))
    async with stage.worker():
        chain = await stage.client.start_chain(relay, 1)
        with pytest.raises(ChainCancelledError, match="not wanted"):
            await chain.result(WAIT)
        await stage.log.wait_for(ChainClosed, status=ChainStatus.CANCELLED)
    assert stage.log.of(AttemptCancelled)[0].error.message == "not wanted"
    assert (await chain.refresh()).status is ChainStatus.CANCELLED
    assert stage.rows("select status from queuert.job order by chain_index") == [("continued",), ("cancelled",)]


async def test_a_reason_that_is_no_text_is_a_failed_attempt(stage: Stage) -> None:
    wrong: Any = ValueError("not text")
    stage.handles(number, lambda attempt: Fail(wrong), retry=RetryPolicy(max_attempts=1))
    stage.handles(text, lambda attempt: Retry(after=wrong), retry=RetryPolicy(max_attempts=1))
    async with stage.worker():
        chains = await stage.client.start_chains([NewChain(number, 1), NewChain(text, "x")])
        for chain in await stage.client.wait(chains, timeout=WAIT):
            assert chain.status is ChainStatus.FAILED
    assert stage.one("select max(attempt) from queuert.job") == 1


async def test_attempts_are_numbered_without_gaps(stage: Stage) -> None:
    @stage.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.number if attempt.number == 6 else attempt.retry(after=0)

    async with stage.worker():
        chain = await stage.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 6
    assert [event.attempt for event in stage.log.of(AttemptStarted)] == [1, 2, 3, 4, 5, 6]
    assert stage.log.of(AttemptCompleted)[0].attempt == 6
