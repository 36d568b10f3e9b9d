"""Programming errors fail a job at once, on each store: each attempt would repeat them, and what was done before."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, RetryPolicy
from queuert.errors import DefinitionError
from queuert.observability.events import AttemptFailed, AttemptRetried
from tests.support.harness import Harness
from tests.support.job_types import number, relay, text
from tests.support.waiting import WAIT
from tests.worker import killable

RETRIED = RetryPolicy(max_attempts=3, initial_delay=0, jitter=0, retry_programming_errors=True)


async def wrong_output(attempt: Attempt[int, Any]) -> Any:
    return "no number"


async def wrong_output_of_a_block(attempt: Attempt[int, Any]) -> Any:
    async with attempt.complete() as tx:
        return tx.finish("no number")


async def undeclared(attempt: Attempt[int, Any]) -> Any:
    return attempt.continue_with(text, "no continuation")


async def in_a_group(attempt: Attempt[int, Any]) -> Any:
    try:
        await undeclared(attempt)
    except Exception as error:
        raise ExceptionGroup("several", [OSError(), error]) from None


async def block_without_finish(attempt: Attempt[int, Any]) -> Any:
    async with attempt.complete():
        return 1


async def a_name(attempt: Attempt[int, Any]) -> Any:
    name: Any = "number"
    return attempt.continue_with(name, 1)


async def too_few(attempts: Any) -> Any:
    return []


class Uncallable:
    """Its signature says that it takes an attempt; it does not."""

    __signature__ = None

    async def __call__(self) -> Any:
        return 1


HANDLERS = [
    wrong_output, wrong_output_of_a_block, undeclared, in_a_group, block_without_finish, a_name, Uncallable(),
]  # fmt: skip


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda one: getattr(one, "__name__", "uncallable"))
async def test_a_programming_error_fails_the_job_at_once(harness: Harness, handler: Any) -> None:
    harness.handles(number, handler)
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "programming"
    assert not harness.log.of(AttemptRetried)
    assert [event.error.kind for event in harness.log.of(AttemptFailed)] == ["programming"]


async def test_an_output_of_a_type_that_only_continues_fails_the_job_at_once(harness: Harness) -> None:
    harness.handles(relay, wrong_output)
    async with harness.worker():
        chain = await (await harness.client.start_chain(relay, 1)).wait(WAIT)
    assert chain.error is not None
    assert (chain.error.kind, "declares no output" in chain.error.message) == ("programming", True)
    assert (await harness.job(chain.id)).attempt == 1


async def test_a_policy_may_retry_programming_errors(harness: Harness) -> None:
    harness.handles(number, wrong_output, retry=RETRIED)
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 3)
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["programming", "programming"]


async def test_a_type_error_inside_the_handler_is_retried(harness: Harness) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            return len(attempt.input)  # type: ignore[arg-type]
        return attempt.number

    harness.handles(number, handler)
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 2
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["handler"]


async def test_a_start_by_name_is_rejected(harness: Harness) -> None:
    name: Any = "number"
    with pytest.raises(DefinitionError, match="job_type must be a JobType, got 'number'"):
        await harness.client.start_chain(name, 1)
    with pytest.raises(DefinitionError, match="job_type must be a JobType, got 'number'"):
        NewChain(name, 1)


@pytest.mark.parametrize("executor", [None, "process"])
async def test_a_plain_function_that_cannot_be_called_fails_the_job_at_once(harness: Harness, executor: Any) -> None:
    harness.handles(number, killable.uncallable, executor=executor)
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    assert chain.error is not None
    assert (chain.error.kind, chain.error.type) == ("programming", "queuert.errors.HandlerCallError")
    assert "tests.worker.killable.Uncallable.__call__ of job type 'number' could not be called" in chain.error.message
    assert (await harness.job(chain.id)).attempt == 1


async def test_a_batch_that_returns_too_few_outcomes_fails_its_jobs_at_once(harness: Harness) -> None:
    harness.processors.handles_batch(number, size=3)(too_few)
    async with harness.worker(concurrency=3):
        chains = await harness.client.start_chains([NewChain(number, one) for one in range(3)])
        closed = await harness.client.wait(chains, timeout=WAIT)
    assert {chain.error.kind for chain in closed if chain.error} == {"programming"}
    assert {(await harness.job(chain.id)).attempt for chain in closed} == {1}
