"""Chains that run inside the call of a test, in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from queuert import Attempt, JobType, JobTypes, Limits, NewChain, Outcome, Processors, Rate, RetryPolicy
from queuert.errors import ChainCancelledError, ConfigurationError, JobFailedError, PayloadError
from queuert.testing import UnexpectedFailureError, run_inline, run_inline_sync

double = JobType("double", input=int, output=int)
add = JobType("add", input=list[int], output=int)
poll = JobType("poll", input=str, continues_with=double)
orphan = JobType("orphan", input=int, output=int)


class Measured(BaseModel):
    length: int


class Weighed(Measured):
    weight: int


remeasure = JobType("remeasure", input=Measured, output=Measured)
survey = JobType("survey", input=str, output=Measured, continues_with=remeasure)
forgetful = JobType("forgetful", input=str, output=int)
plain = JobType("plain", input=str, output=int)
JOB_TYPES = JobTypes(double, add, poll, orphan, survey, remeasure, forgetful, plain)
processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=3))


@processors.handles(double, limits=Limits(rate=Rate(1, per=60)))
def double_number(attempt: Attempt[int, int]) -> Outcome[int]:
    return 2 * attempt.input


@processors.handles(add)
async def add_doubles(attempt: Attempt[list[int], int]) -> Outcome[int]:
    if not attempt.blockers:
        return attempt.wait_for(*(NewChain(double, number) for number in attempt.input))
    with_transaction = attempt.complete()
    async with with_transaction as tx:
        return tx.finish(sum(attempt.outputs_of(double)))


@processors.handles(poll)
async def poll_until_ready(attempt: Attempt[str, int]) -> Outcome[int]:
    if attempt.input == "cancel":
        return attempt.cancel("nobody wants it")
    if attempt.input == "raise":
        raise ZeroDivisionError("a bug")
    if attempt.input == "twice" and attempt.number < 3:
        raise OSError("not yet")
    return attempt.retry(after=86_400) if attempt.number == 1 else attempt.continue_with(double, attempt.number)


@processors.handles(forgetful)
async def forget_to_await(attempt: Attempt[str, int]) -> Outcome[int]:
    attempt.step("z", int)  # type: ignore[unused-coroutine]
    return 9


@processors.handles(plain)
def wait_as_a_coroutine(attempt: Attempt[str, int]) -> Outcome[int]:
    attempt.step("z", int)  # type: ignore[unused-coroutine]
    return 9


@processors.handles(survey)
def survey_all(attempt: Attempt[str, Measured]) -> Outcome[Measured]:
    more = Weighed(length=1, weight=2)
    if attempt.input == "continuation":
        return attempt.continue_with(remeasure, more)
    return attempt.step_sync("weigh", lambda: more, returns=Measured) if attempt.input == "step" else more


def test_a_chain_runs_to_its_end() -> None:
    """With a pause of a day, the window of a rate, and chains that it waits for; nothing of that takes time."""
    assert run_inline_sync(processors, poll, "once") == 4
    assert run_inline_sync(processors, add, [1, 2, 3]) == 12


async def test_in_a_coroutine() -> None:
    assert await run_inline([processors], poll, "once") == 4
    with pytest.raises(ConfigurationError, match="use await run_inline"):
        run_inline_sync(processors, poll, "once")


def test_a_handler_that_raises() -> None:
    with pytest.raises(UnexpectedFailureError, match="a bug"):
        run_inline_sync(processors, poll, "raise")
    with pytest.raises(JobFailedError, match="a bug"):
        run_inline_sync(processors, poll, "raise", allow_failures=True)
    assert run_inline_sync(processors, poll, "twice", allow_failures=True) == 6


def test_a_chain_that_is_cancelled() -> None:
    with pytest.raises(ChainCancelledError, match="nobody wants it"):
        run_inline_sync(processors, poll, "cancel")


def test_a_chain_that_cannot_close() -> None:
    with pytest.raises(AssertionError, match=r"(?s)cannot close; these jobs have not ended:.*orphan .*: ready"):
        run_inline_sync(processors, orphan, 1)


def test_a_chain_that_waits_for_a_client() -> None:
    ask = JobType("ask", input=int, output=int, completed_by="client")
    request = JobType("request", input=int, continues_with=ask)
    asking = Processors(JobTypes(request, ask))

    @asking.handles(request)
    def go_on(attempt: Attempt[int, Any]) -> Outcome[Any]:
        return attempt.continue_with(ask, attempt.input)

    with pytest.raises(AssertionError, match=r"(?s)ask .*: ready, until a client completes it\nrun it on a JobQueue"):
        run_inline_sync(asking, request, 1)


def test_a_wrong_input() -> None:
    wrong: Any = "text"
    with pytest.raises(ValueError, match="input of job type 'double'"):
        asyncio.run(run_inline(processors, double, wrong))


@pytest.mark.parametrize(("what", "path"), [("output", "output"), ("continuation", "input"), ("step", "step")])
def test_what_a_handler_returns_must_not_change_on_its_way(what: str, path: str) -> None:
    with pytest.raises(UnexpectedFailureError, match=f": {path}: would change on the way: a Weighed is read back as a"):
        run_inline_sync(processors, survey, what)
    with pytest.raises(PayloadError, match="output: would change"):
        survey.encode_output(Weighed(length=1, weight=2))


def test_a_handler_that_forgets_an_await() -> None:
    with pytest.raises(
        UnexpectedFailureError, match=r"attempt\.step\('z'\) was never awaited: write await attempt\.step"
    ):
        run_inline_sync(processors, forgetful, "go")
    with pytest.raises(UnexpectedFailureError, match=r"a plain function calls attempt\.step_sync"):
        run_inline_sync(processors, plain, "go")
