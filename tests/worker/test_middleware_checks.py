"""What cannot be a middleware is rejected where it is passed, or fails the attempt with an error that names it."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuert import Attempt, AttemptMiddleware, JobStatus, Processors
from queuert.errors import DefinitionError
from queuert.worker import CallNext
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, number
from tests.support.waiting import WAIT


def plain(attempt: Any, call_next: Any) -> Any:
    call_next()
    return 5


async def one_argument(attempt: Any) -> Any: ...
async def generator(attempt: Any, call_next: Any) -> AsyncIterator[int]:
    yield 1


async def right(attempt: Any, call_next: CallNext, *, more: int = 1) -> Any:
    return await call_next()


class Plain(AttemptMiddleware):
    def around_handler(self, attempt: Any, call_next: Any) -> Any:
        return 5


class Called:
    def __call__(self, attempt: Any, call_next: Any) -> Any:
        return 5


class CalledRight:
    async def __call__(self, attempt: Any, call_next: CallNext) -> Any:
        return await call_next()


def passes_on(attempt: Any, call_next: CallNext) -> Any:
    """What a decorator without functools.wraps returns."""
    return right(attempt, call_next)


class PassesOn(AttemptMiddleware):
    def around_handler(self, attempt: Any, call_next: CallNext) -> Any:
        return super().around_handler(attempt, call_next)


@functools.wraps(right)
def decorated(*arguments: Any) -> Any:
    return right(*arguments)


@pytest.mark.parametrize(
    ("middleware", "said"),
    [
        (one_argument, "must take two arguments, but its parameters are (attempt: 'Any')"),
        (lambda attempt: attempt, "must take two arguments"),
        (
            generator,
            "test_middleware_checks.generator of {} must be a coroutine function, but it is a generator: write",
        ),
        (functools.partial(generator), "must be a coroutine function"),
        (Plain, "must be functions or instances of AttemptMiddleware"),
        (AttemptMiddleware, "must be functions or instances of AttemptMiddleware"),
        (5, "must be functions or instances of AttemptMiddleware, got 5"),
    ],
)
@pytest.mark.parametrize("where", ["processors", "handler"])
def test_what_cannot_be_a_middleware_is_rejected(middleware: Any, said: str, where: str) -> None:
    of = "the processors" if where == "processors" else "job type 'number'"
    both: dict[str, Callable[[], object]] = {
        "processors": lambda: Processors(JOB_TYPES, middlewares=[middleware]),
        "handler": lambda: Processors(JOB_TYPES).handles(number, middlewares=[middleware]),
    }
    with pytest.raises(DefinitionError) as raised:
        both[where]()
    assert said.replace("{}", of) in str(raised.value)
    assert of in str(raised.value)


def test_a_middleware_without_its_list_is_rejected() -> None:
    alone: Any = right
    with pytest.raises(DefinitionError, match=r"middlewares of the processors must be a sequence.*middlewares=\[...\]"):
        Processors(JOB_TYPES, middlewares=alone)


@pytest.mark.parametrize(
    "middleware",
    [
        right,
        functools.partial(right, more=2),
        CalledRight(),
        decorated,
        lambda a, n: right(a, n),
        AttemptMiddleware(),
        passes_on,
        functools.partial(passes_on),
        PassesOn(),
    ],
)
async def test_what_may_be_a_middleware_is_called(harness: PostgresHarness, middleware: Any) -> None:
    assert (await run(harness, middleware)).status is JobStatus.COMPLETED


async def run(harness: PostgresHarness, middleware: Any) -> Any:
    """Run a job to its end in a middleware, and return it."""
    processors = Processors(JOB_TYPES, middlewares=[middleware], retry=AT_ONCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        @processors.handles(number)
        async def handler(attempt: Attempt[int, int]) -> int:
            return 1

        async with harness.worker(processors):
            chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []
    return await harness.job(chain.id)


async def fails(harness: PostgresHarness, middleware: Any) -> str:
    job = await run(harness, middleware)
    assert (job.status, job.attempt, job.last_error.kind) == (JobStatus.FAILED, 1, "programming")
    message: str = job.last_error.message
    return message


@pytest.mark.parametrize(
    ("middleware", "name"),
    [
        (plain, "test_middleware_checks.plain"),
        (functools.partial(plain), "test_middleware_checks.plain"),
        (Called(), "Called"),
        (Plain(), "Plain.around_handler"),
    ],
)
async def test_a_plain_one_that_returns_no_coroutine_is_named(
    harness: PostgresHarness, middleware: Any, name: str
) -> None:
    message = await fails(harness, middleware)
    assert name in message
    assert "must be a coroutine function, but its call returned int" in message


async def test_one_that_returns_no_coroutine_is_named(harness: PostgresHarness) -> None:
    @functools.wraps(right)
    def looks_right(attempt: Any, call_next: CallNext) -> Any:
        call_next()
        return 5

    message = await fails(harness, looks_right)
    assert "test_middleware_checks.right must be a coroutine function, but its call returned int" in message


async def test_one_that_does_not_await_the_handler_is_named(harness: PostgresHarness) -> None:
    async def forgetful(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        call_next()  # type: ignore[unused-awaitable, unused-ignore]
        return 5

    message = await fails(harness, forgetful)
    assert "forgetful has called call_next() and never awaited it: write return await call_next()" in message
