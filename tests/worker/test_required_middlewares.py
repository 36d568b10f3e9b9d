"""Middlewares that a worker requires of each group of its processors, and groups that are merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queuert import Attempt, AttemptMiddleware, InProcessWorker, Processors
from queuert.errors import DefinitionError, DuplicateJobTypeError
from queuert.worker import CallNext
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number, text
from tests.support.waiting import WAIT


class Named(AttemptMiddleware):
    """Equal to all others of its kind, so that only identity tells them apart."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named)

    __hash__ = None  # type: ignore[assignment]

    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        self.ran.append(attempt.type)
        return await call_next()


async def plain(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    return await call_next()


A, B, C = Named(), Named(), plain


def groups(*middlewares: Sequence[Any]) -> list[Processors]:
    found = []
    for job_type, given in zip((number, text), middlewares, strict=False):
        group = Processors(JOB_TYPES, middlewares=given)
        group.handles(job_type)(echo)  # type: ignore[arg-type]
        found.append(group)
    return found


@pytest.mark.parametrize(
    ("given", "required"),
    [([], []), ([A], []), ([A, B], [A, B]), ([C, A, C, B], [A, B]), ([A, C], [C]), ([A, A], [A, A]), ([A], [A])],
)
async def test_these_very_objects_in_this_order(
    harness: PostgresHarness, given: list[Any], required: list[Any]
) -> None:
    InProcessWorker(harness.client, groups(given, [*given, C]), required_middlewares=required)


@pytest.mark.parametrize(
    ("given", "required", "message"),
    [
        ([], [A], "lacks the required middlewares Named"),
        ([C], [A, C], "lacks the required middlewares Named: add"),
        ([B], [A], "lacks"),
        ([A], [A, C], "lacks the required middlewares plain"),
        ([B, A], [A, B], "another order"),
        ([A], [A, A], "another order"),
    ],
)
async def test_else_the_worker_is_not_made(
    harness: PostgresHarness, given: list[Any], required: list[Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"Processors\(text\).* {message}"):
        InProcessWorker(harness.client, groups(required, given), required_middlewares=required)


async def test_those_of_a_single_handler_do_not_count(harness: PostgresHarness) -> None:
    group = Processors(JOB_TYPES)
    group.handles(number, middlewares=[A])(echo)
    with pytest.raises(DefinitionError, match="lacks"):
        InProcessWorker(harness.client, group, required_middlewares=[A])


async def test_the_worker_does_not_run_them_by_itself(harness: PostgresHarness) -> None:
    required = Named()
    worker = InProcessWorker(harness.client, groups([required], [required]), required_middlewares=[required])
    harness.workers.append(worker)
    async with worker:
        await (await harness.client.start_chain(number, 1)).result(WAIT)
    assert required.ran == ["number"]


async def test_groups_are_merged_and_two_handlers_of_one_type_are_refused(harness: PostgresHarness) -> None:
    first, second = groups([], [])
    async with harness.worker([first, second]):
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
        assert await (await harness.client.start_chain(text, "x")).result(WAIT) == "x"
    second.handles(number)(echo)
    with pytest.raises(DuplicateJobTypeError, match="number"):
        InProcessWorker(harness.client, [first, second])
