"""Whatever a handler raises is one failed attempt, recorded, and harms nobody else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Never

import pytest

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.observability.events import AttemptFailed, AttemptRetried, FinishFailed, LoopFailed
from queuert.state.postgres.async_store import AsyncPostgresStore
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number, text
from tests.support.waiting import WAIT, in_time, until

ONCE = RetryPolicy(max_attempts=1)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")

    __repr__ = __str__


class Interrupts(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__


class Wordless(Exception):
    def __str__(self) -> Any:
        return None  # noqa: PLE0307


class Rooted(BaseException):
    pass


class Looped(Exception):
    def __init__(self) -> None:
        self.__cause__ = self


def recurse() -> Never:
    recurse()


def deeply_caused() -> Exception:
    error = ValueError("first")
    for _ in range(2_000):
        following = ValueError("next")
        following.__cause__ = error
        error = following
    return error


def nested_group() -> BaseException:
    return BaseExceptionGroup("all", [KeyboardInterrupt(), ExceptionGroup("inner", [ValueError("a"), TypeError("b")])])


RAISED: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("boo"),
    "empty": lambda: ValueError(),
    "key": lambda: KeyError("k"),
    "system exit": lambda: SystemExit(3),
    "keyboard interrupt": lambda: KeyboardInterrupt(),
    "generator exit": lambda: GeneratorExit(),
    "stop iteration": lambda: StopIteration(1),
    "stop async iteration": lambda: StopAsyncIteration(),
    "cancelled": lambda: asyncio.CancelledError("mine"),
    "timeout": lambda: TimeoutError(),
    "base": lambda: Rooted("rooted"),
    "unspeakable": lambda: Unspeakable(),
    "str raises SystemExit": lambda: Exits(),
    "str raises CancelledError": lambda: Interrupts(),
    "str returns None": lambda: Wordless(),
    "cause is itself": lambda: Looped(),
    "deep causes": deeply_caused,
    "nul": lambda: ValueError("a\x00b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "huge": lambda: ValueError("x" * 10_000_000),
    "group": nested_group,
    "many in a group": lambda: ExceptionGroup("many", [ValueError(str(one)) for one in range(5_000)]),
    "bytes": lambda: ValueError(b"\xff\x00"),
    "memory": lambda: MemoryError(),
    "odd class name": lambda: type("Na\x00me\ud800", (Exception,), {"__module__": None})("x"),
}


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
@pytest.mark.parametrize("what", RAISED)
async def test_whatever_is_raised_is_one_failed_attempt(harness: PostgresHarness, what: str, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        raise RAISED[what]()

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        raise RAISED[what]()

    await expect_failure(harness, in_loop if mode == "coroutine" else in_thread)


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_bottomless_recursion_is_one_failed_attempt(harness: PostgresHarness, mode: str) -> None:
    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        recurse()

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        recurse()

    error = await expect_failure(harness, in_loop if mode == "coroutine" else in_thread)
    assert "RecursionError" in error


async def expect_failure(harness: PostgresHarness, handler: Any) -> str:
    """A job of this handler fails by its one attempt, and another job still runs; the failure in words."""
    harness.handles(number, handler, retry=ONCE)
    harness.handles(text, echo)
    async with harness.worker() as worker:
        bad = await harness.client.start_chain(number, 1)
        # There may be thousands of causes to be put into words.
        chain = await bad.wait(2 * WAIT)
        good = await harness.client.start_chain(text, "still here")
        assert await good.result(WAIT) == "still here"
        # The client may have read of the finish before the worker has the answer to it.
        await until(lambda: worker.running == 0, "all attempts are over")
        assert worker.health().live
    job = await harness.job(bad.id)
    assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.FAILED, 1, 0)
    assert chain.error == job.last_error is not None
    assert job.last_error is not None
    assert len(job.last_error.message) <= 2_100
    assert len(job.last_error.traceback or "") <= 10_100
    assert not harness.log.of(FinishFailed) + harness.log.of(LoopFailed)
    assert harness.log.of(AttemptFailed, job_id=bad.id)[0].error.kind == job.last_error.kind
    return str(job.last_error)


async def test_the_error_says_what_and_where(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        raise ValueError("boo")

    assert await expect_failure(harness, handler) == "ValueError: boo"
    job_id = harness.one("select id from queuert.job where status = 'failed'")
    error = (await harness.job(job_id)).last_error
    assert error is not None
    assert (error.kind, error.type) == ("handler", "ValueError")
    assert "test_exceptions.py" in (error.traceback or "")


# --- what is returned -------------------------------------------------------------------------------------------------


async def unawaited(attempt: Attempt[Any, Any]) -> Any:
    async def other() -> int:
        return 1

    coroutine = other()
    coroutine.close()
    return coroutine


async def generates(attempt: Attempt[Any, Any]) -> AsyncIterator[int]:
    yield 1


def generates_in_thread(attempt: Attempt[Any, Any]) -> Iterator[int]:
    yield 1


def constant(value: Any) -> Callable[[Any], Any]:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        return value

    return handler


WRONG = {
    "str": constant("1"),
    "none": constant(None),
    "float": constant(1.5),
    "nan": constant(float("nan")),
    "object": constant(object()),
    "class": constant(int),
    "exception": constant(ValueError("returned, not raised")),
    "huge": constant(10**400),
    "a coroutine": unawaited,
    "an asynchronous generator": lambda attempt: generates(attempt),
    "a generator": lambda attempt: generates_in_thread(attempt),
}


@pytest.mark.parametrize("what", [name for name in WRONG if name != "str"])
async def test_an_output_of_the_wrong_type_is_a_failed_attempt(harness: PostgresHarness, what: str) -> None:
    error = await expect_failure(harness, WRONG[what])
    assert "output" in error or what == "a generator"
    gc.collect()


async def test_an_error_is_gone_when_the_next_attempt_completes(harness: PostgresHarness) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            raise ValueError("only once")
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 3)
        assert await chain.result(WAIT) == 3
    assert (await harness.job(chain.id)).last_error is None
    assert harness.log.of(AttemptRetried, job_id=chain.id)[0].error.message == "only once"


async def test_a_group_of_tasks_that_fails_is_a_failed_attempt(harness: PostgresHarness) -> None:
    async def fails() -> None:
        raise ValueError("in a task")

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(asyncio.Event().wait())

    await expect_failure(harness, handler)


async def test_a_timeout_of_the_handlers_own_is_a_failed_attempt(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    assert "TimeoutError" in await expect_failure(harness, handler)


async def test_a_handler_that_cancels_its_own_task_is_a_failed_attempt(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert "cancelled from within" in await expect_failure(harness, handler)


@pytest.mark.quick
async def test_what_a_handler_leaves_behind_disturbs_nobody(
    harness: PostgresHarness, complaints: list[dict[str, Any]]
) -> None:
    """A task that fails after its handler has returned is the handler's own affair."""
    left: list[asyncio.Task[None]] = []

    async def fails() -> None:
        raise ValueError("nobody listens")

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        left.append(asyncio.create_task(fails()))
        return attempt.input

    async with harness.worker():
        for one in range(3):
            assert await (await harness.client.start_chain(number, one)).result(WAIT) == one
    assert [type(task.exception()) for task in left] == [ValueError] * 3


async def test_a_lease_is_given_up_though_there_is_no_memory_to_report_why(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is renewed for nobody would never expire."""

    async def refused(*_: object, **__: object) -> Any:
        raise ValueError("cannot be written")

    def no_memory() -> Any:
        raise MemoryError

    began = asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        began.set()
        return attempt.input

    harness.handles(number, handler)
    worker = harness.worker()
    async with worker:
        runtime = worker._runtime
        assert runtime is not None
        with monkeypatch.context() as patch:
            patch.setattr(AsyncPostgresStore, "finish", refused)
            patch.setattr("queuert.worker.runner.copy_context", no_memory)
            await harness.client.start_chain(number, 7)
            await in_time(began.wait())
            await until(lambda: len(runtime.leases) == 0, "the lease is given up")
