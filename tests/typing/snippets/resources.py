"""What a lifespan yields is what its handlers get, by the third parameter of an attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, assert_type

from queuert import Attempt, JobType, JobTypes, Outcome, Processors


class Named(Protocol):
    name: str


class App:
    name: str = "app"


class Other:
    size: int = 1


count = JobType("count", input=str, output=int)
job_types = JobTypes(count)


@asynccontextmanager
async def lifespan() -> AsyncIterator[App]:
    yield App()


@contextmanager
def plain_lifespan() -> Iterator[App]:
    yield App()


async def undecorated() -> AsyncIterator[App]:
    yield App()


processors = Processors(job_types, lifespan=lifespan)
assert_type(processors, Processors[App])
assert_type(Processors(job_types, lifespan=plain_lifespan), Processors[App])
without: Processors = Processors(job_types)
assert_type(processors.with_lifespan(plain_lifespan), Processors[App])
processors.with_lifespan(undecorated)  # expect: error
groups: Sequence[Processors] = [processors, without]


@processors.handles(count)
async def typed(attempt: Attempt[str, int, App]) -> Outcome[int]:
    assert_type(attempt.resources, App)
    return len(attempt.resources.name)


@processors.handles(count)
def untyped(attempt: Attempt[str, int]) -> Outcome[int]:
    assert_type(attempt.resources, Any)
    return 1


@processors.handles(count)
def wider(attempt: Attempt[str, int, Named]) -> Outcome[int]:
    return len(attempt.resources.name)


@processors.handles_batch(count, size=2)
def batched(attempts: Sequence[Attempt[str, int, App]]) -> list[Outcome[int]]:
    return [len(attempt.resources.name) for attempt in attempts]


@processors.handles(count)  # expect: error
def other(attempt: Attempt[str, int, Other]) -> Outcome[int]:
    return attempt.resources.size


@processors.handles(count)
def wrong_attribute(attempt: Attempt[str, int, App]) -> Outcome[int]:
    return attempt.resources.size  # expect: error


Processors(job_types, lifespan=undecorated)  # expect: error
