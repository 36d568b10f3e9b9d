"""Attempt middlewares: an onion around handlers sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from queuert import Attempt, JobStatus, Processors, RetryPolicy
from queuert.observability.context import current
from queuert.observability.events import AttemptCompleted, ErrorAfterCompletion
from queuert.worker import CallNext, MiddlewareFunction
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, number
from tests.support.waiting import WAIT

ONCE = RetryPolicy(max_attempts=1)
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def noting(name: str, notes: list[str]) -> MiddlewareFunction:
    async def middleware(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        notes.append(f"before {name}")
        try:
            return await call_next()
        finally:
            notes.append(f"after {name}")

    return middleware


def handler_of(mode: str, body: Callable[[Attempt[Any, Any]], Any]) -> Callable[[Attempt[Any, Any]], Any]:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        return body(attempt)

    return in_loop if mode == "coroutine" else body


async def run(harness: PostgresHarness, processors: Processors) -> tuple[JobStatus, Any, str]:
    async with harness.worker(processors):
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    job = await harness.job(chain.id)
    return job.status, job.output, str(chain.error)


modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])


@pytest.mark.quick
@modes
async def test_they_are_an_onion(harness: PostgresHarness, mode: str) -> None:
    notes: list[str] = []
    processors = Processors(JOB_TYPES, middlewares=[noting("1", notes), noting("2", notes)])

    def body(attempt: Attempt[Any, Any]) -> Any:
        notes.append("handler")
        return 5

    processors.handles(number, middlewares=[noting("3", notes)])(handler_of(mode, body))
    assert (await run(harness, processors))[:2] == (JobStatus.COMPLETED, 5)
    assert notes == [
        *("before 1", "before 2", "before 3", "handler", "after 3", "after 2", "after 1"),
    ]


@modes
async def test_context_variables_and_the_attempts_fields_are_seen_inside(harness: PostgresHarness, mode: str) -> None:
    seen: list[Any] = []

    async def middleware(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        assert current()["queuert_job_id"] == attempt.job_id
        tenant.set("acme")
        return await call_next()

    def body(attempt: Attempt[Any, Any]) -> Any:
        seen.append((tenant.get(), current()["queuert_job_id"]))
        return 5

    processors = Processors(JOB_TYPES, middlewares=[middleware])
    processors.handles(number)(handler_of(mode, body))
    await run(harness, processors)
    job_id = harness.one("select id from queuert.job")
    assert seen == [("acme", job_id)]
    assert tenant.get() == "nobody"


async def test_one_may_change_the_outcome(harness: PostgresHarness) -> None:
    async def doubles(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        return await call_next() * 2

    async def cancels(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        return attempt.cancel("by the middleware") if attempt.input == 1 else await call_next()

    processors = Processors(JOB_TYPES, middlewares=[doubles])
    processors.handles(number)(handler_of("coroutine", lambda attempt: 21))
    assert (await run(harness, processors))[:2] == (JobStatus.COMPLETED, 42)
    other = Processors(JOB_TYPES, middlewares=[cancels])
    other.handles(number)(handler_of("coroutine", lambda attempt: 21))
    assert (await run(harness, other))[0] is JobStatus.CANCELLED


async def test_one_may_turn_an_error_into_an_outcome(harness: PostgresHarness) -> None:
    async def forgives(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        try:
            return await call_next()
        except ValueError:
            return 7

    def body(attempt: Attempt[Any, Any]) -> Any:
        raise ValueError("forgiven")

    processors = Processors(JOB_TYPES, middlewares=[forgives])
    processors.handles(number)(handler_of("thread", body))
    assert (await run(harness, processors))[:2] == (JobStatus.COMPLETED, 7)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
async def test_what_one_raises_is_a_failed_attempt(
    harness: PostgresHarness, when: str, error: type[BaseException]
) -> None:
    async def raises(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        if when == "after":
            await call_next()
        raise error("from the middleware")

    processors = Processors(JOB_TYPES, middlewares=[raises], retry=ONCE)
    processors.handles(number)(handler_of("coroutine", lambda attempt: 5))
    assert (await run(harness, processors))[0] is JobStatus.FAILED


async def test_one_that_never_calls_the_next_answers_itself(harness: PostgresHarness) -> None:
    async def answers(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        return 3

    def body(attempt: Attempt[Any, Any]) -> Any:
        raise AssertionError("not reached")

    processors = Processors(JOB_TYPES, middlewares=[answers])
    processors.handles(number)(handler_of("coroutine", body))
    assert (await run(harness, processors))[:2] == (JobStatus.COMPLETED, 3)


async def test_one_that_forgets_to_return_is_a_failed_attempt_with_a_clear_error(harness: PostgresHarness) -> None:
    async def forgets(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        await call_next()

    processors = Processors(JOB_TYPES, middlewares=[forgets], retry=ONCE)
    processors.handles(number)(handler_of("coroutine", lambda attempt: 5))
    status, _, error = await run(harness, processors)
    assert status is JobStatus.FAILED
    assert "output" in error


@pytest.mark.quick
async def test_one_that_raises_after_the_commit_changes_nothing(harness: PostgresHarness) -> None:
    async def raises(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        await call_next()
        raise ValueError("too late")

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            return tx.finish(5)

    processors = Processors(JOB_TYPES, middlewares=[raises], retry=ONCE)
    processors.handles(number)(handler)
    assert (await run(harness, processors))[:2] == (JobStatus.COMPLETED, 5)
    assert len(harness.log.of(ErrorAfterCompletion)) == len(harness.log.of(AttemptCompleted)) == 1


async def test_they_do_not_see_an_input_that_cannot_be_read(harness: PostgresHarness) -> None:
    notes: list[str] = []
    harness.insert("number", '"not a number"', id="bad")
    processors = Processors(JOB_TYPES, middlewares=[noting("1", notes)], retry=ONCE)
    processors.handles(number)(handler_of("coroutine", lambda attempt: 5))
    async with harness.worker(processors):
        chain = await (await harness.client.get_chain("bad")).wait(WAIT)
    assert chain.error is not None
    assert chain.error.kind == "decode"
    assert notes == []
