"""Job types, policies and handlers that tests share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from queuert import Attempt, JobType, JobTypes, Outcome, RetryPolicy
from queuert.policies import LeasePolicy

T = TypeVar("T")

AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
"""Retries failed attempts without a pause."""

LATER = RetryPolicy(initial_delay=3600.0, max_delay=3600.0, jitter=0.0)
"""Retries a failed attempt only after the end of the test, unless the job is triggered."""

BRIEF = LeasePolicy(seconds=0.5, renew_every=0.1)
"""For a reaper that checks often. No running job may have this lease: it expires if the machine stops for a moment."""

SHORT = LeasePolicy(seconds=1.0, renew_every=0.3)
"""For leases that are to expire: they do even if the machine only stops for a second."""

WATCHED = LeasePolicy(seconds=60.0, renew_every=0.1)
"""For leases whose loss must be noticed soon, and that expire for no other reason, however slow the machine is."""


class Order(BaseModel):
    """A model with fields of many types."""

    name: str
    lines: list[int] = []


number = JobType("number", input=int, output=int)
text = JobType("text", input=str, output=str)
order = JobType("order", input=Order, output=Order)
anything = JobType("anything", input=Any, output=Any)
loop = JobType("loop", input=int, output=int, continues_with="loop")
relay = JobType("relay", input=int, continues_with=number)
last = JobType("last", input=int, output=str)
middle: JobType[int, int | str] = JobType("middle", input=int, output=int, continues_with=last)
first: JobType[int, int | str] = JobType("first", input=int, continues_with=(middle, last))
total = JobType("total", input=str, output=int, blockers=(number, ...))
pair = JobType("pair", input=None, output=str, blockers=(number, text))
JOB_TYPES = JobTypes(number, text, order, anything, loop, relay, last, middle, first, total, pair)


async def echo(attempt: Attempt[T, T]) -> Outcome[T]:
    """Return the input."""
    return attempt.input


def failing_once(then: Callable[[Attempt[Any, Any]], Any]) -> Callable[[Attempt[Any, Any]], Awaitable[Any]]:
    """Raise in the first attempt of each job."""

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            raise RuntimeError("the first attempt goes wrong")
        return then(attempt)

    return handler
