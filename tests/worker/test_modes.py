"""Methods of an attempt in the wrong mode, and coroutines that nobody awaits: each fails the job, and says how."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock, create_autospec

import pytest

from queuert import Attempt, JobStatus, Outcome
from queuert.errors import StepMisuseError
from queuert.jobs import AbortReason
from queuert.worker import CallNext
from queuert.worker.attempt import AbortSignal
from queuert.worker.modes import Unawaited
from queuert.worker.start_options import StartOptions
from queuert.worker.steps import _returned_type
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, anything
from tests.support.waiting import WAIT

CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "step": ("attempt.step('z')", ("z", int)),
    "step_transaction": ("attempt.step_transaction('z')", ("z", lambda tx: 1)),
    "phase": ("attempt.phase('a')", ("a", int)),
    "sleep": ("attempt.sleep('z')", ("z", 100)),
    "wait_for_event": ("attempt.wait_for_event('z')", ("z", int, timedelta(seconds=100))),
    "read_start": ("attempt.read_start()", ()),
    "read_earlier_jobs": ("attempt.read_earlier_jobs()", ()),
}
"""Each method that has two modes: how an error shows its call, and arguments."""

methods = pytest.mark.parametrize("method", CALLS)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Fail for coroutines that Python itself has to complain of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in caught if "was never awaited" in str(one.message)] == []


async def run(harness: PostgresHarness, handler: Any, job_type: Any = anything, **settings: Any) -> Any:
    """Run a job to its end, and return it."""
    harness.handles(job_type, handler, **{"retry": AT_ONCE, **settings})
    async with harness.worker(concurrency=2):
        await (await harness.client.start_chain(job_type, None, id="one")).wait(WAIT)
    return await harness.job("one")


async def misused(harness: PostgresHarness, handler: Any, **settings: Any) -> str:
    """Run a job that fails in its first attempt with a programming error, and return the message."""
    job = await run(harness, handler, **settings)
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert job.last_error.kind == "programming"
    assert "StepMisuseError" in job.last_error.type
    message: str = job.last_error.message
    return message


def test_the_methods_with_two_modes_are_all_here() -> None:
    found = {name.removesuffix("_sync") for name in dir(Attempt) if name.endswith("_sync")} - {"client"}
    assert found == set(CALLS)


# --- they pass for coroutine functions --------------------------------------------------------------------------------


@methods
def test_mocks_of_an_attempt_return_coroutines(method: str) -> None:
    for mock in (MagicMock(spec=Attempt), create_autospec(Attempt, instance=True)):
        assert isinstance(getattr(mock, method), AsyncMock)
        assert not isinstance(getattr(mock, f"{method}_sync"), AsyncMock)


def test_a_mock_of_the_abort_signal_returns_coroutines() -> None:
    mock = MagicMock(spec=AbortSignal)
    assert isinstance(mock.wait, AsyncMock)
    assert not isinstance(mock.wait_sync, AsyncMock)


async def test_a_mock_can_be_awaited() -> None:
    attempt = MagicMock(spec=Attempt)
    attempt.step.return_value = 7
    assert await attempt.step("z", int) == 7
    attempt.step.assert_awaited_once_with("z", int)


async def test_a_step_that_calls_one_has_the_type_of_its_result(harness: PostgresHarness) -> None:
    seen: list[Any] = []

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        seen.append(await attempt.step("s", attempt.read_start))
        return attempt.retry() if attempt.number == 1 else 9

    assert (await run(harness, handler)).status is JobStatus.COMPLETED
    first, replayed = seen
    assert isinstance(first, StartOptions)
    assert replayed == first


def returns_coroutine() -> Coroutine[Any, Any, int]:
    raise NotImplementedError


def returns_awaitable() -> Awaitable[int]:
    raise NotImplementedError


def returns_list() -> list[int]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "returned"), [(returns_coroutine, int), (returns_awaitable, int), (returns_list, list[int])]
)
def test_what_a_step_records_is_what_is_awaited(function: Any, returned: Any) -> None:
    assert _returned_type(function) == returned


# --- forgotten awaits -------------------------------------------------------------------------------------------------


@methods
async def test_a_plain_handler_must_call_the_method_for_it(harness: PostgresHarness, method: str) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        getattr(attempt, method)(*CALLS[method][1])
        return 9

    message = await misused(harness, handler)
    assert f"attempt.{method}() works in coroutines" in message
    assert f"a plain function calls attempt.{method}_sync(...)" in message


@methods
async def test_a_coroutine_that_is_never_awaited_fails_the_attempt(harness: PostgresHarness, method: str) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        getattr(attempt, method)(*CALLS[method][1])
        return 9

    assert f"{CALLS[method][0]} was never awaited: write await attempt.{method}(...)" in await misused(harness, handler)


async def test_a_plain_handler_that_waits_for_an_abort(harness: PostgresHarness) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.abort.wait(0)  # type: ignore[unused-coroutine]
        return 9

    assert "a plain function calls attempt.abort.wait_sync(...)" in await misused(harness, handler)


async def test_a_plain_handler_waits_for_an_abort_in_an_event_loop_of_its_own(harness: PostgresHarness) -> None:
    waits, woken = threading.Event(), threading.Event()

    def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        async def wait() -> None:
            with pytest.raises(StepMisuseError, match=r"blocks the event loop .* await attempt.abort.wait\(...\)"):
                attempt.abort.wait_sync(0)
            waiting = asyncio.ensure_future(attempt.abort.wait(WAIT))
            await asyncio.sleep(0)
            waits.set()
            if await waiting is AbortReason.CANCELLED:
                woken.set()

        asyncio.run(wait())
        return 9

    harness.handles(anything, handler)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, None)
        assert await asyncio.to_thread(waits.wait, WAIT)
        await chain.cancel()
        assert await asyncio.to_thread(woken.wait, WAIT)


async def test_several_are_counted_beside_those_that_were_awaited(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step("first", int)  # type: ignore[unused-coroutine]
        await attempt.step("awaited", int)
        attempt.sleep("second", 10)  # type: ignore[unused-coroutine]
        return 9

    assert "attempt.step('first') and 1 more were never awaited" in await misused(harness, handler)


async def test_one_that_is_returned_was_not_awaited(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return attempt.step("z", int)

    assert "attempt.step('z') was never awaited" in await misused(harness, handler)


async def test_one_that_is_used_as_its_result_was_not_awaited(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        receipt: Any = attempt.step("z", int)
        return receipt.number

    assert "attempt.step('z') was never awaited" in await misused(harness, handler)


async def test_the_error_of_a_handler_stays_and_has_a_note(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step("z", int)  # type: ignore[unused-coroutine]
        raise ValueError("no")

    job = await run(harness, handler)
    assert job.status is JobStatus.FAILED
    assert job.last_error.message == "no"
    assert "attempt.step('z') was never awaited" in job.last_error.traceback


async def test_a_sleep_does_not_hide_one(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step("z", int)  # type: ignore[unused-coroutine]
        await attempt.sleep("y", 3600)
        return 9

    assert "attempt.step('z') was never awaited" in await misused(harness, handler)


async def test_a_middleware_sees_the_error(harness: PostgresHarness) -> None:
    seen: list[str] = []

    async def middleware(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        attempt.step("z", int)  # type: ignore[unused-coroutine]
        return 9

    await misused(harness, handler, middlewares=[middleware])
    assert seen == ["StepMisuseError"]


async def test_a_middleware_that_forgets_an_await(harness: PostgresHarness) -> None:
    async def middleware(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        outcome = await call_next()
        attempt.step("z", int)  # type: ignore[unused-coroutine]
        return outcome

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return 9

    assert "attempt.step('z') was never awaited" in await misused(harness, handler, middlewares=[middleware])


async def test_a_batched_handler_that_forgets_an_await(harness: PostgresHarness) -> None:
    async def handler(attempts: Sequence[Attempt[Any, Any]]) -> list[Outcome[Any]]:
        for attempt in attempts:
            attempt.step("z", int)  # type: ignore[unused-coroutine]
        return [9 for _ in attempts]

    harness.processors.handles_batch(anything, size=5, retry=AT_ONCE)(handler)
    async with harness.worker(concurrency=2):
        await (await harness.client.start_chain(anything, None, id="one")).wait(WAIT)
    error = (await harness.job("one")).last_error
    assert error is not None
    assert "attempt.step('z') was never awaited" in error.message


async def test_coroutines_that_tasks_have_started_are_fine(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        made = attempt.step("a", int)
        (first,) = await asyncio.gather(made)
        later = attempt.step("c", int)
        second = await asyncio.create_task(attempt.step("b", int))
        async with asyncio.TaskGroup() as group:
            third = group.create_task(later)
        return [first, second, third.result()]

    job = await run(harness, handler)
    assert (job.status, job.output) == (JobStatus.COMPLETED, [0, 0, 0])


def test_coroutines_that_are_over_are_not_kept() -> None:
    async def nothing() -> None: ...

    unawaited = Unawaited()
    for _ in range(100):
        coroutine = nothing()
        unawaited.add("step", "z", coroutine)
        with suppress(StopIteration):
            coroutine.send(None)
    assert len(unawaited._made) == 1
    unawaited.check(None)


# --- calls that block the event loop ----------------------------------------------------------------------------------


@methods
async def test_a_blocking_method_in_a_coroutine(harness: PostgresHarness, method: str) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        getattr(attempt, f"{method}_sync")(*CALLS[method][1])
        return 9

    message = await misused(harness, handler)
    assert f"attempt.{method}_sync() works in plain functions" in message
    assert f"write await attempt.{method}(...)" in message


async def test_a_blocking_method_in_a_thread_of_a_coroutine(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return await asyncio.to_thread(lambda: attempt.step_sync("z", int))

    assert (await run(harness, handler)).status is JobStatus.COMPLETED


async def test_a_coroutine_that_waits_for_an_abort_as_a_plain_function_does(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        return attempt.abort.wait_sync(0)

    assert "write await attempt.abort.wait(...)" in await misused(harness, handler)
