"""Exceptions that say what is to become of the job, for those who prefer to raise."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from queuert import Attempt, JobStatus, Processors, RetryPolicy
from queuert.errors import ConfigurationError, RetryLater, Unrecoverable
from queuert.observability.events import AttemptFailed, AttemptRetried
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, anything
from tests.support.waiting import START
from tests.worker import staged

pytestmark = pytest.mark.timeout(2 * START)

KINDS = ["coroutine", "thread", "batch", "process", "block"]


class Gone(Unrecoverable):
    """A kind of it."""


class Throttled(RetryLater):
    """A kind of it."""


def raising(error: BaseException) -> Any:
    raise error


async def run(
    harness: PostgresHarness, kind: str, make: Callable[[], BaseException], input: Any = None, **policy: Any
) -> tuple[JobStatus, int, str]:
    """The result of a job whose handler raises: its status, how many attempts, the kind of its error."""
    retry = RetryPolicy(**{"initial_delay": 0, "jitter": 0, "max_attempts": 3, **policy})
    processors = Processors(JOB_TYPES, retry=retry)

    async def coroutine(attempt: Attempt[Any, Any]) -> Any:
        raise make()

    async def block(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete():
            raise make()

    async def batch(attempts: Any) -> Any:
        raise make()

    if kind == "batch":
        processors.handles_batch(anything, size=2)(batch)
    elif kind == "process":
        processors.handles(anything, executor="process")(staged.raises)
    else:
        handlers: dict[str, Any] = {"coroutine": coroutine, "thread": lambda attempt: raising(make()), "block": block}
        processors.handles(anything)(handlers[kind])
    async with harness.worker(processors):
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
    job = await harness.job(chain.id)
    assert job.last_error is not None
    return job.status, job.attempt, job.last_error.kind


@pytest.mark.parametrize("kind", KINDS)
async def test_unrecoverable(harness: PostgresHarness, kind: str) -> None:
    """The job fails at once, whatever attempts are left."""
    assert await run(harness, kind, lambda: Unrecoverable("no use"), "unrecoverable") == (JobStatus.FAILED, 1, "fail")
    [failed] = harness.log.of(AttemptFailed)
    assert (failed.error.message, failed.error.type) == ("no use", "queuert.errors.Unrecoverable")


@pytest.mark.parametrize("kind", KINDS)
async def test_retry_later(harness: PostgresHarness, kind: str) -> None:
    """The job is tried again after the pause that was asked for, and the attempts count."""
    found = await run(harness, kind, lambda: RetryLater(after=0.001, reason="busy"), "later", initial_delay=200)
    assert found == (JobStatus.FAILED, 3, "retry")
    retried = harness.log.of(AttemptRetried)
    assert [(event.error.message, event.retry_in) for event in retried] == [("busy", 0.001)] * 2


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (Gone("a subclass"), 1),
        (ExceptionGroup("group", [ValueError(), ExceptionGroup("inner", [Unrecoverable("deep")])]), 1),
        (Throttled(after=0), 3),
        (RetryLater(), 3),
    ],
)
async def test_subclasses_and_groups(harness: PostgresHarness, error: Exception, attempts: int) -> None:
    assert (await run(harness, "coroutine", lambda: error))[:2] == (JobStatus.FAILED, attempts)


async def test_classes_of_the_policy(harness: PostgresHarness) -> None:
    """What the handler says goes before what the policy says of classes."""
    rules: dict[str, Any] = {"fail_on": (Exception,), "retry_on": ()}
    assert (await run(harness, "coroutine", lambda: RetryLater(after=0), **rules))[:2] == (JobStatus.FAILED, 3)
    rules = {"retry_on": (Exception,)}
    assert (await run(harness, "thread", lambda: Unrecoverable("no use"), **rules))[:2] == (JobStatus.FAILED, 1)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(days=-1), 1e12])
def test_impossible_pauses(after: Any) -> None:
    with pytest.raises(ConfigurationError, match="after must be"):
        RetryLater(after=after)


def test_they_can_be_sent() -> None:
    error = pickle.loads(pickle.dumps(RetryLater(after=timedelta(minutes=1), reason="busy")))
    assert (error.after, error.reason, str(error)) == (60.0, "busy", "busy")
