"""`attempt.complete()` in ways in which it should not be used: a failed attempt that wrote nothing, or nothing new."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from queuert import Attempt, JobStatus
from queuert.errors import CompletionMissingError, CompletionMisuseError
from queuert.observability.events import ErrorAfterCompletion
from tests.support.harness import PostgresHarness
from tests.worker.completing import WRITE, Effects, Handler, closed, effects_of


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


async def misuses(harness: PostgresHarness, handler: Handler, error: type[Exception]) -> None:
    status, reported = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert error.__name__ in reported


async def test_a_block_without_finish(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        return 6

    await misuses(harness, handler, CompletionMissingError)
    assert effects() == []


async def test_a_block_without_finish_in_a_thread(harness: PostgresHarness, effects: Effects) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            tx.connection.execute(WRITE, (attempt.job_id, attempt.number))

    await misuses(harness, handler, CompletionMissingError)
    assert effects() == []


async def test_a_synchronous_block_in_a_coroutine(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            return tx.finish(6)

    await misuses(harness, handler, CompletionMisuseError)


async def test_an_asynchronous_block_in_an_event_loop_of_the_threads_own(harness: PostgresHarness) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Any:
        async def inner() -> Any:
            async with attempt.complete() as tx:
                return tx.finish(6)

        return asyncio.run(inner())

    await misuses(harness, handler, CompletionMisuseError)


async def test_finish_twice(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            tx.finish(6)
            return tx.finish(7)

    await misuses(harness, handler, CompletionMisuseError)


async def test_a_second_block(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        with pytest.raises(ValueError, match="first"):
            async with attempt.complete():
                raise ValueError("first")
        async with attempt.complete() as tx:
            return tx.finish(6)

    await misuses(harness, handler, CompletionMisuseError)


async def test_a_second_block_after_the_first_committed_changes_nothing(
    harness: PostgresHarness, effects: Effects
) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            tx.finish(6)
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(7)

    assert (await closed(harness, handler))[0] is JobStatus.COMPLETED
    assert (await harness.job("one")).output == 6
    assert effects() == []
    assert len(harness.log.of(ErrorAfterCompletion)) == 1


async def test_the_same_completion_entered_twice(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        completion = attempt.complete()
        async with completion as tx:
            tx.finish(6)
        async with completion as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return tx.finish(7)

    assert (await closed(harness, handler))[0] is JobStatus.COMPLETED
    assert (await harness.job("one")).output == 6
    assert effects() == []


async def test_a_block_inside_itself(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        completion = attempt.complete()
        async with completion as outer, completion as inner:
            await outer.connection.execute(WRITE, (attempt.job_id, attempt.number))
            return inner.finish(7)

    assert (await closed(harness, handler))[0] is JobStatus.FAILED
    assert effects() == []


async def test_finished_is_returned_without_a_commit(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        kept: list[Any] = []
        with suppress(ValueError):
            async with attempt.complete() as tx:
                kept.append(tx.finish(6))
                raise ValueError("roll back")
        return kept[0]

    await misuses(harness, handler, CompletionMisuseError)


async def test_an_output_that_cannot_be_stored_rolls_back(harness: PostgresHarness, effects: Effects) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            await tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
            wrong: Any = "six"
            return tx.finish(wrong)

    status, error = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert "output" in error
    assert effects() == []
