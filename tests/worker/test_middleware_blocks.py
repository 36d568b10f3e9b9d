"""Middlewares inside the transactions of prepare() and complete(), and the context that they hand inward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from queuert import Attempt, AttemptMiddleware, JobStatus, NewChain, Outcome, Processors, RetryPolicy
from queuert.errors import ContextMissingError, DefinitionError
from queuert.worker import CallNext, ContextKey, GuardedTransaction, Transaction
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, number
from tests.support.waiting import WAIT
from tests.worker import killable
from tests.worker.completing import WRITE, Effects, closed, effects_of

TENANT = ContextKey[str]("tenant")
modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])
blocks = pytest.mark.parametrize("block", ["prepare", "complete"])


@pytest.fixture
def effects(harness: PostgresHarness) -> Effects:
    """A table for the handlers' own writes, and what is in it."""
    return effects_of(harness)


class Noting(AttemptMiddleware):
    """Notes when it is entered and left, around every block."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    @contextmanager
    def _around(self, block: str) -> Iterator[None]:
        self.notes.append(f"{block} {self.name}")
        try:
            yield
        except BaseException as error:
            self.notes.append(f"{type(error).__name__} in {block} {self.name}")
            raise
        else:
            self.notes.append(f"after {block} {self.name}")

    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        with self._around("handler"):
            return await call_next()

    @asynccontextmanager
    async def around_prepare(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> AsyncIterator[None]:
        with self._around("prepare"):
            yield

    @contextmanager
    def around_prepare_sync(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> Iterator[None]:
        with self._around("prepare"):
            yield

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
        with self._around("complete"):
            yield

    @contextmanager
    def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> Iterator[None]:
        with self._around("complete"):
            yield


def staged(mode: str, inside: Callable[[str], None] = lambda block: None) -> Callable[[Attempt[Any, Any]], Any]:
    """A handler that writes in prepare() and complete(), and does something in each."""

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.prepare() as tx:
            await tx.connection.execute(WRITE, ("prepare", attempt.number))
            inside("prepare")
        async with attempt.transaction():
            inside("transaction")
        async with attempt.complete() as done:
            await done.connection.execute(WRITE, ("complete", attempt.number))
            inside("complete")
            return done.finish(6)

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.prepare() as tx:
            tx.connection.execute(WRITE, ("prepare", attempt.number))
            inside("prepare")
        with attempt.transaction():
            inside("transaction")
        with attempt.complete() as done:
            done.connection.execute(WRITE, ("complete", attempt.number))
            inside("complete")
            return done.finish(6)

    return in_loop if mode == "coroutine" else in_thread


@pytest.mark.quick
@modes
async def test_the_onion_is_the_same_in_all_blocks(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    notes: list[str] = []
    handler = staged(mode, lambda block: notes.append(f"in {block}"))
    assert (await closed(harness, handler, middlewares=[Noting("1", notes), Noting("2", notes)]))[0] == "completed"
    assert notes == [
        *("handler 1", "handler 2"),
        *("prepare 1", "prepare 2", "in prepare", "after prepare 2", "after prepare 1"),
        "in transaction",
        *("complete 1", "complete 2", "in complete", "after complete 2", "after complete 1"),
        *("after handler 2", "after handler 1"),
    ]
    assert effects() == [("complete", 1), ("prepare", 1)]


@modes
async def test_a_returned_outcome_has_no_transaction_to_be_around(harness: PostgresHarness, mode: str) -> None:
    notes: list[str] = []

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        return 6

    handler: Any = in_loop if mode == "coroutine" else lambda attempt: 6
    assert (await closed(harness, handler, middlewares=[Noting("1", notes)]))[0] == "completed"
    assert notes == ["handler 1", "after handler 1"]


class Writing(AttemptMiddleware):
    """Writes in the transaction before and after the block, and may raise there."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises

    def _maybe(self, when: str) -> None:
        if when == self.raises:
            raise ValueError(f"the middleware, {when}")

    async def _write(self, tx: GuardedTransaction, when: str) -> None:
        await tx.connection.execute(WRITE, (when, 0))
        self._maybe(when)

    def _write_in_thread(self, tx: GuardedTransaction, when: str) -> None:
        tx.connection.execute(WRITE, (when, 0))
        self._maybe(when)

    @asynccontextmanager
    async def around_prepare(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> AsyncIterator[None]:
        await self._write(tx, "before prepare")
        yield
        await self._write(tx, "after prepare")

    @contextmanager
    def around_prepare_sync(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> Iterator[None]:
        self._write_in_thread(tx, "before prepare")
        yield
        self._write_in_thread(tx, "after prepare")

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
        await self._write(tx, "before complete")
        yield
        await self._write(tx, "after complete")

    @contextmanager
    def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> Iterator[None]:
        self._write_in_thread(tx, "before complete")
        yield
        self._write_in_thread(tx, "after complete")


@modes
async def test_what_one_writes_commits_with_the_block(harness: PostgresHarness, effects: Effects, mode: str) -> None:
    assert (await closed(harness, staged(mode), middlewares=[Writing()]))[0] == "completed"
    assert [one[0] for one in effects()] == [
        *("after complete", "after prepare", "before complete", "before prepare", "complete", "prepare")
    ]


@modes
@blocks
@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_one_raises_rolls_the_block_back(
    harness: PostgresHarness, effects: Effects, mode: str, block: str, when: str
) -> None:
    notes: list[str] = []
    middlewares = [Noting("1", notes), Writing(f"{when} {block}"), Noting("3", notes)]
    status, error = await closed(harness, staged(mode), middlewares=middlewares)
    assert (status, error) == (JobStatus.FAILED, f"ValueError: the middleware, {when} {block}")
    stands = ["after prepare", "before prepare", "prepare"] if block == "complete" else []
    assert [one[0] for one in effects()] == stands
    # Those outside of it learn it; the one inside had left in peace, or was never entered.
    assert f"ValueError in {block} 1" in notes
    assert (f"after {block} 3" in notes) == (when == "after")
    assert (f"{block} 3" in notes) == (when == "after")


@modes
async def test_a_middleware_hears_of_an_error_and_cannot_swallow_it(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    heard: list[str] = []

    class Swallowing(AttemptMiddleware):
        @asynccontextmanager
        async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
            try:
                yield
            except ValueError as error:
                heard.append(str(error))

        @contextmanager
        def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                heard.append(str(error))

    def inside(block: str) -> None:
        if block == "complete":
            raise ValueError("from the block")

    status, error = await closed(harness, staged(mode, inside), middlewares=[Swallowing()])
    assert (status, error) == (JobStatus.FAILED, "ValueError: from the block")
    assert heard == ["from the block"]
    assert effects() == [("prepare", 1)]


@modes
async def test_a_forgotten_finish_is_reported_to_middlewares(harness: PostgresHarness, mode: str) -> None:
    notes: list[str] = []

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete():
            pass

    def in_thread(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete():
            pass

    handler = in_loop if mode == "coroutine" else in_thread
    status, error = await closed(harness, handler, middlewares=[Noting("1", notes)])
    assert status is JobStatus.FAILED
    assert "CompletionMissingError" in error
    assert "CompletionMissingError in complete 1" in notes


@modes
async def test_after_a_failed_entry_the_job_is_tried_again(
    harness: PostgresHarness, effects: Effects, mode: str
) -> None:
    middleware = Writing("before prepare")

    def handler(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 2:
            middleware.raises = ""
        return staged(mode)(attempt)

    async def in_loop(attempt: Attempt[Any, Any]) -> Any:
        return await handler(attempt)

    status, _ = await closed(
        harness,
        in_loop if mode == "coroutine" else handler,
        middlewares=[middleware],
        retry=RetryPolicy(initial_delay=0.0),
    )
    assert status is JobStatus.COMPLETED
    assert len(effects()) == 6


# --- context ----------------------------------------------------------------------------------------------------------


class Tenancy(AttemptMiddleware):
    """Gives the attempt a tenant, and the transaction as well."""

    SQL = "select set_config('app.tenant', %s, true)"

    async def around_handler(self, attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        attempt.context.set(TENANT, f"tenant {attempt.input}")
        return await call_next()

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
        await tx.connection.execute(self.SQL, [attempt.context[TENANT]])
        yield

    @contextmanager
    def around_complete_sync(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> Iterator[None]:
        tx.connection.execute(self.SQL, [attempt.context[TENANT]])
        yield


@modes
async def test_context_goes_inward_to_other_middlewares_to_handlers_and_into_sql(
    harness: PostgresHarness, mode: str
) -> None:
    seen: list[tuple[str, str, str]] = []
    shown = "select current_setting('app.tenant')"

    async def inner(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
        attempt.context.set(TENANT, attempt.context[TENANT].upper())
        return await call_next()

    async def in_loop(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            row = await (await tx.connection.execute(shown)).fetchone()
            seen.append((attempt.context[TENANT], attempt.context.get(TENANT, "none"), row[0]))
            return tx.finish(6)

    def in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            row = tx.connection.execute(shown).fetchone()
            seen.append((attempt.context[TENANT], attempt.context.get(TENANT, "none"), row[0]))
            return tx.finish(6)

    processors = Processors(JOB_TYPES, middlewares=[Tenancy(), inner])
    processors.handles(number)(in_loop if mode == "coroutine" else in_thread)
    chains = await harness.client.start_chains([NewChain(number, one) for one in (1, 2)])
    async with harness.worker(processors, concurrency=2):
        await harness.client.wait(chains, timeout=WAIT)
    assert sorted(seen) == [("TENANT 1",) * 3, ("TENANT 2",) * 3]


async def test_a_missing_key_is_named(harness: PostgresHarness) -> None:
    other = ContextKey[str]("tenant")

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        assert other not in attempt.context
        assert attempt.context.get(other) is None
        assert attempt.context.get(other, 5) == 5
        attempt.context.set(TENANT, "mine")
        assert TENANT in attempt.context
        assert attempt.context[other] == "another key of the same name"
        return 6

    status, error = await closed(harness, handler)
    assert status is JobStatus.FAILED
    assert ContextMissingError.__name__ in error
    assert "ContextKey('tenant')" in error


# --- refused where it is registered -----------------------------------------------------------------------------------


class CoroutineOnly(AttemptMiddleware):
    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Transaction[Any]) -> AsyncIterator[None]:
        yield


class ThreadOnly(AttemptMiddleware):
    @contextmanager
    def around_prepare_sync(self, attempt: Attempt[Any, Any], tx: GuardedTransaction) -> Iterator[None]:
        yield


class Undecorated(AttemptMiddleware):
    async def around_complete(self, attempt: Any, tx: Any) -> AsyncIterator[None]:  # type: ignore[override]
        yield

    def around_complete_sync(self, attempt: Any, tx: Any) -> Any:
        yield


class Swapped(AttemptMiddleware):
    @contextmanager
    def around_complete(self, attempt: Any, tx: Any) -> Iterator[None]:  # type: ignore[override]
        yield


class SwappedInThread(AttemptMiddleware):
    @asynccontextmanager
    async def around_complete_sync(self, attempt: Any, tx: Any) -> AsyncIterator[None]:  # type: ignore[override]
        yield


class Returning(AttemptMiddleware):
    """What is returned is known when it is called."""

    def __init__(self, returned: Callable[[], Any]) -> None:
        self.returned = returned

    def around_complete(self, attempt: Any, tx: Any) -> Any:
        return self.returned()

    def around_complete_sync(self, attempt: Any, tx: Any) -> Any:
        return self.returned()


async def coroutine(attempt: Attempt[Any, Any]) -> Any:
    return 6


def function(attempt: Attempt[Any, Any]) -> Any:
    return 6


@pytest.mark.parametrize(
    ("middleware", "handler", "message"),
    [
        (CoroutineOnly(), function, "CoroutineOnly.*around_complete.*around_complete_sync"),
        (ThreadOnly(), coroutine, "ThreadOnly.*around_prepare_sync.*around_prepare"),
        (Undecorated(), coroutine, "contextmanager"),
        (
            Swapped(),
            coroutine,
            "Swapped, has around_complete by @contextmanager.*write @asynccontextmanager, async def",
        ),
        (SwappedInThread(), function, "has around_complete_sync by @asynccontextmanager.*write @contextmanager, def"),
    ],
)
@pytest.mark.parametrize("place", ["group", "handler"])
def test_one_that_would_be_left_out_is_refused(middleware: Any, handler: Any, message: str, place: str) -> None:
    processors = Processors(JOB_TYPES, middlewares=[middleware] if place == "group" else [])
    with pytest.raises(DefinitionError, match=message):
        processors.handles(number, middlewares=[middleware] if place == "handler" else [])(handler)
    assert len(processors) == 0


def test_one_that_has_the_twin_is_taken() -> None:
    processors = Processors(JOB_TYPES)
    processors.handles(number, middlewares=[CoroutineOnly()])(coroutine)
    assert len(processors) == 1


def test_none_enters_a_child_process() -> None:
    processors = Processors(JOB_TYPES)
    with pytest.raises(DefinitionError, match="child process"):
        processors.handles(number, middlewares=[Writing()], executor="process")(killable.double)
    processors.handles(number, middlewares=[AttemptMiddleware()], executor="process")(killable.double)


@contextmanager
def in_functions() -> Iterator[None]:
    yield


@asynccontextmanager
async def in_coroutines() -> AsyncIterator[None]:
    yield


async def undecorated() -> None: ...


@pytest.mark.parametrize(
    ("mode", "returned", "said"),
    [
        ("coroutine", in_functions, "Returning.around_complete must return an asynchronous context manager, got"),
        ("coroutine", undecorated, "got coroutine: write @asynccontextmanager, async def"),
        ("thread", in_coroutines, "Returning.around_complete_sync must return a context manager, got"),
        ("thread", lambda: None, "got NoneType: write @contextmanager, def"),
    ],
)
async def test_what_is_no_context_manager_of_the_block_fails_the_job_at_once(
    harness: PostgresHarness, effects: Effects, mode: str, returned: Callable[[], Any], said: str
) -> None:
    processors = Processors(JOB_TYPES, middlewares=[Returning(returned)])
    processors.handles(number)(staged(mode))
    async with harness.worker(processors):
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    job = await harness.job(chain.id)
    assert job.last_error is not None
    assert (job.status, job.attempt, job.last_error.kind) == (JobStatus.FAILED, 1, "programming")
    assert said in str(job.last_error)


async def test_a_function_that_returns_a_coroutine_is_found_out_when_it_runs(harness: PostgresHarness) -> None:
    def handler(attempt: Attempt[Any, Any]) -> Any:
        return staged("coroutine")(attempt)

    effects_of(harness)
    status, error = await closed(harness, handler, middlewares=[ThreadOnly()])
    assert status is JobStatus.FAILED
    assert "override around_prepare" in error
