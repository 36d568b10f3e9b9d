"""The hook after an attempt: what it sees, what it may change, and that nothing of it can harm the job."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from queuert import Attempt, JobStatus, Outcome, Processors, RetryPolicy
from queuert.errors import ClosedError, DefinitionError, StateError
from queuert.jobs import JobError
from queuert.observability.context import current
from queuert.observability.events import AfterAttemptFailed, AttemptCompleted, AttemptFailed, FinishFailed
from queuert.policies import LeasePolicy
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.types import Finish, FinishKind, FinishResult
from queuert.worker.after_attempt import AfterAttempt, EndedAttempt
from queuert.worker.completer import Completer
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, Order, anything, number, order, relay
from tests.support.waiting import START, WAIT, in_time, until
from tests.worker import staged

ONCE = RetryPolicy(max_attempts=1)


def hook_of(mode: str, body: Callable[[EndedAttempt], None]) -> AfterAttempt:
    async def in_loop(ended: EndedAttempt) -> None:
        body(ended)

    return in_loop if mode == "coroutine" else body


def handler_of(kind: str, body: Callable[[], Any]) -> Callable[[Attempt[Any, Any]], Any]:
    """A handler of one of the kinds that run in this process, whose outcome is that of the body."""

    async def coroutine(attempt: Attempt[Any, Any]) -> Any:
        return body()

    def thread(attempt: Attempt[Any, Any]) -> Any:
        return body()

    async def coroutine_block(attempt: Attempt[Any, Any]) -> Any:
        async with attempt.complete() as tx:
            return tx.finish(body())

    def thread_block(attempt: Attempt[Any, Any]) -> Any:
        with attempt.complete() as tx:
            return tx.finish(body())

    return {
        "coroutine": coroutine,
        "thread": thread,
        "coroutine block": coroutine_block,
        "thread block": thread_block,
    }[kind]


def handle(harness: PostgresHarness, kind: str, body: Callable[[], Any], **settings: Any) -> None:
    if kind == "batch":

        async def batch(attempts: Any) -> list[Any]:
            return [body() for _ in attempts]

        harness.processors.handles_batch(anything, size=3, **settings)(batch)
    else:
        harness.handles(anything, handler_of(kind, body), **settings)


async def run(
    harness: PostgresHarness, *, limit: float = WAIT, **options: Any
) -> tuple[JobStatus, Any, JobError | None, float | None]:
    """The result of a chain of one job, and how many seconds it is kept."""
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, 1, **options)).wait(limit)
    job = await harness.job(chain.id)
    kept = None
    if chain.expires_at is not None and chain.closed_at is not None:
        kept = round((chain.expires_at - chain.closed_at).total_seconds())
    return job.status, job.output, chain.error, kept


kinds = pytest.mark.parametrize("kind", ["coroutine", "thread", "coroutine block", "thread block", "batch"])
modes = pytest.mark.parametrize("mode", ["coroutine", "thread"])


def boom() -> Any:
    raise ValueError("boom")


# --- what it sees and changes -----------------------------------------------------------------------------------------


@kinds
@modes
async def test_it_changes_output_and_ttl(harness: PostgresHarness, kind: str, mode: str) -> None:
    """Whatever the handler is, and whatever the hook is."""
    seen: list[EndedAttempt] = []

    def hook(ended: EndedAttempt) -> None:
        seen.append(replace(ended))
        ended.output = {"was": ended.output}
        ended.result_ttl = 3_600

    handle(harness, kind, lambda: [1, 2], after_attempt=hook_of(mode, hook))
    assert await run(harness, result_ttl=60) == (JobStatus.COMPLETED, {"was": [1, 2]}, None, 3_600)
    [ended] = seen
    assert (ended.status, ended.output, ended.error, ended.result_ttl) == (JobStatus.COMPLETED, [1, 2], None, 60.0)


@kinds
@modes
async def test_it_changes_the_error(harness: PostgresHarness, kind: str, mode: str) -> None:
    """Of the final failure; the attempts before it are none of its business."""
    seen: list[tuple[int, int, Any]] = []

    def hook(ended: EndedAttempt) -> None:
        assert isinstance(ended.error, JobError)
        seen.append((ended.attempt, ended.max_attempts, ended.error.message))
        ended.error = replace(ended.error, message="hidden", traceback=None)
        ended.result_ttl = 100

    handle(harness, kind, boom, after_attempt=hook_of(mode, hook), retry=replace(AT_ONCE, max_attempts=3))
    status, output, error, kept = await run(harness)
    assert (status, output, kept) == (JobStatus.FAILED, None, 100)
    assert error == JobError("handler", "hidden", "ValueError")
    assert seen == [(3, 3, "boom")]
    assert [event.error.message for event in harness.log.of(AttemptFailed)] == ["hidden"]


async def test_all_that_it_sees(harness: PostgresHarness) -> None:
    seen: list[EndedAttempt] = []
    fields: list[dict[str, Any]] = []

    def hook(ended: EndedAttempt) -> None:
        seen.append(ended)
        fields.append(dict(current()))

    async def go_on(attempt: Attempt[Any, Any]) -> Any:
        return attempt.continue_with(number, 5)

    harness.handles(relay, go_on, after_attempt=hook)
    harness.handles(number, handler_of("coroutine", lambda: 7), after_attempt=hook, retry=RetryPolicy(max_attempts=9))
    async with harness.worker() as worker:
        chain = await (await harness.client.start_chain(relay, 1, result_ttl=60)).wait(WAIT)
    [ended] = seen  # The first job continued: no finish of the chain.
    job = await harness.job(ended.job_id)
    assert (ended.chain_id, ended.type, ended.chain_type) == (chain.id, "number", "relay")
    assert (ended.attempt, ended.max_attempts, ended.worker) == (1, 9, worker.name)
    assert (ended.created_at, ended.started_at) == (job.created_at, job.started_at)
    assert (ended.finished_at.utcoffset(), ended.duration >= 0) == (job.created_at.utcoffset(), True)
    assert (ended.output, ended.result_ttl) == (7, 60.0)
    assert fields[0]["queuert_job_id"] == job.id


async def test_the_output_is_the_model(harness: PostgresHarness) -> None:
    """It is decoded, may be changed in place, and is encoded again."""

    def hook(ended: EndedAttempt) -> None:
        assert isinstance(ended.output, Order)
        ended.output.lines.append(3)

    harness.handles(order, handler_of("thread", lambda: Order(name="a", lines=[1])), after_attempt=hook)
    async with harness.worker():
        found = await (await harness.client.start_chain(order, Order(name="a"))).result(WAIT)
    assert found == Order(name="a", lines=[1, 3])


async def test_a_text_takes_the_place_of_the_message(harness: PostgresHarness) -> None:
    def hook(ended: EndedAttempt) -> None:
        ended.error = "short"

    handle(harness, "thread", boom, after_attempt=hook, retry=ONCE)
    _, _, error, _ = await run(harness)
    assert error is not None
    assert (error.kind, error.message, error.type) == ("handler", "short", "ValueError")
    assert "boom" in (error.traceback or "")


async def test_finishes_that_are_none_of_its_business(harness: PostgresHarness) -> None:
    """Retries, cancelled chains and waiting: it is not called."""
    called: list[EndedAttempt] = []

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        if attempt.number == 1:
            return attempt.retry(after=0)
        return attempt.cancel("enough")

    harness.handles(anything, handler, after_attempt=called.append)
    assert (await run(harness))[0] is JobStatus.CANCELLED
    assert (called, harness.log.of(AfterAttemptFailed)) == ([], [])


async def test_the_handlers_own_goes_before_that_of_the_group(harness: PostgresHarness) -> None:
    notes: list[str] = []
    processors = Processors(JOB_TYPES, after_attempt=lambda ended: notes.append(f"group {ended.type}"))
    processors.handles(number)(handler_of("coroutine", lambda: 1))
    processors.handles(anything, after_attempt=lambda ended: notes.append(f"own {ended.type}"))(
        handler_of("coroutine", lambda: 1)
    )
    async with harness.worker(processors):
        await (await harness.client.start_chain(number, 1)).wait(WAIT)
        await (await harness.client.start_chain(anything, 1)).wait(WAIT)
    assert notes == ["group number", "own anything"]


# --- in a child process -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(2 * START)
@pytest.mark.parametrize("handler", [staged.returns_its_input, staged.completes_its_input])
@modes
async def test_of_a_child_process(harness: PostgresHarness, mode: str, handler: Any) -> None:
    """The hook runs in the worker's process, also inside the child's own complete() block."""
    threads: list[bool] = []

    def hook(ended: EndedAttempt) -> None:
        threads.append(threading.current_thread() in threading.enumerate())
        ended.output = [ended.output]
        ended.result_ttl = 100

    harness.handles(anything, handler, executor="process", after_attempt=hook_of(mode, hook))
    assert await run(harness, limit=START) == (JobStatus.COMPLETED, [1], None, 100)
    assert len(threads) == 1
    assert len(harness.log.of(AttemptCompleted)) == 1


# --- what goes wrong in it --------------------------------------------------------------------------------------------


def _raises(error: BaseException) -> Callable[[EndedAttempt], None]:
    def hook(ended: EndedAttempt) -> None:
        ended.output = "changed"
        ended.result_ttl = 100
        raise error

    return hook


def _sets(**values: Any) -> Callable[[EndedAttempt], None]:
    def hook(ended: EndedAttempt) -> None:
        for name, value in values.items():
            setattr(ended, name, value)

    return hook


@kinds
@modes
@pytest.mark.parametrize(
    "hook",
    [
        _raises(ValueError("of the hook")),
        _raises(SystemExit(1)),
        _raises(asyncio.CancelledError()),
        _sets(output=object(), result_ttl=100),
        _sets(output="changed", result_ttl=-1),
    ],
)
async def test_what_fails_in_it_changes_nothing(
    harness: PostgresHarness, kind: str, mode: str, hook: Callable[[EndedAttempt], None]
) -> None:
    """It is told of, and all of the original is written."""
    handle(harness, kind, lambda: "original", after_attempt=hook_of(mode, hook))
    assert await run(harness, result_ttl=60) == (JobStatus.COMPLETED, "original", None, 60)
    [reported] = harness.log.of(AfterAttemptFailed)
    assert reported.type == "anything"


@pytest.mark.parametrize(
    "values",
    [
        {"result_ttl": -1},
        {"result_ttl": float("nan")},
        {"result_ttl": None},
        {"result_ttl": "60"},
        {"error": None},
        {"error": ValueError("no JobError")},
        {"error": JobError("handler", 5)},  # type: ignore[arg-type]
    ],
)
async def test_values_that_cannot_be_written(harness: PostgresHarness, values: dict[str, Any]) -> None:
    handle(harness, "coroutine", boom, after_attempt=_sets(**values), retry=ONCE)
    status, _, error, kept = await run(harness, result_ttl=60)
    assert (status, kept) == (JobStatus.FAILED, 60)
    assert error is not None
    assert error.message == "boom"
    assert len(harness.log.of(AfterAttemptFailed)) == 1


async def test_what_identifies_the_job_cannot_be_changed(harness: PostgresHarness) -> None:
    values = {"job_id": "other", "chain_id": "other", "type": "other", "status": JobStatus.FAILED, "attempt": 9}
    handle(harness, "coroutine", lambda: 5, after_attempt=_sets(**values))
    assert await run(harness) == (JobStatus.COMPLETED, 5, None, None)
    assert harness.log.of(AfterAttemptFailed) == []


async def test_a_worker_that_stops_while_it_is_called(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that does not end does not keep the worker; the job goes back, and what it would change is dropped."""
    arrived, leave, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    finishes: list[FinishKind] = []
    write = Completer.finish

    async def finish(self: Completer, finish: Finish) -> FinishResult:
        finishes.append(finish.kind)
        # Just when the job is released from a client, the hook ends.
        leave.set()
        await left.wait()
        await asyncio.sleep(0)
        return await write(self, finish)

    async def hook(ended: EndedAttempt) -> None:
        arrived.set()
        await leave.wait()
        left.set()

    monkeypatch.setattr(Completer, "finish", finish)
    # All of it passes, since the hook does not end; and so much is left to write that the job is released.
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT / 4)
    handle(harness, "coroutine", lambda: 5, after_attempt=hook)
    worker = harness.worker(shutdown_timeout=0)
    await worker.start()
    chain = await harness.client.start_chain(anything, 1)
    await in_time(arrived.wait())
    await in_time(worker.stop(shutdown_timeout=0))
    assert finishes == [FinishKind.RETRY]
    assert (await harness.statuses())[chain.id] is JobStatus.READY
    assert harness.log.of(AttemptCompleted) == []


class Abandoned:
    """A handler in a thread that is inside its block when its worker has stopped without it."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self._started, self._go_on, self._ended = threading.Event(), threading.Event(), threading.Event()

    def handler(self, attempt: Attempt[Any, Any]) -> Outcome[Any]:
        try:
            with attempt.complete() as tx:
                tx.finish(1)
                self._started.set()
                assert self._go_on.wait(WAIT)
        except BaseException as error:
            self.raised.append(error)
        finally:
            self._ended.set()
        return 1

    async def by(self, harness: PostgresHarness, hook: AfterAttempt) -> None:
        harness.handles(anything, self.handler, after_attempt=hook)
        async with harness.worker(shutdown_timeout=0):
            await harness.client.start_chain(anything, 1)
            assert await asyncio.to_thread(self._started.wait, WAIT)

    def ends(self) -> bool:
        """Let it go on; whether it ends."""
        self._go_on.set()
        return self._ended.wait(WAIT)


@modes
async def test_a_thread_that_outlives_its_worker_still_ends(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", 0.1)  # The thread ends later than that in any case.
    called: list[str] = []
    abandoned = Abandoned()
    await abandoned.by(harness, hook_of(mode, lambda ended: called.append(ended.job_id)))
    assert await asyncio.to_thread(abandoned.ends)
    assert len(abandoned.raised) == 1, "its connection was closed"
    # The function is called after the handler, which has ended by now.
    await until(lambda: called, "the function was called")
    assert len(called) == 1


def test_a_thread_that_outlives_the_event_loop_still_ends(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", 0.1)
    called: list[str] = []
    abandoned = Abandoned()

    async def main() -> None:
        harness = PostgresHarness(dsn)
        try:
            await abandoned.by(harness, hook_of("coroutine", lambda ended: called.append(ended.job_id)))
        finally:
            await harness.close()

    asyncio.run(main())
    assert abandoned.ends()
    assert [type(error) for error in abandoned.raised] == [ClosedError]
    assert called == []
    gc.collect()


async def test_no_function(harness: PostgresHarness) -> None:
    with pytest.raises(DefinitionError, match="after_attempt"):
        Processors(JOB_TYPES, after_attempt="hook")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="after_attempt"):
        harness.processors.handles(number, after_attempt=5)  # type: ignore[arg-type]


async def test_a_replacement_of_a_rejected_finish_that_is_cancelled_leaves_the_job_to_the_reaper(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a handler that cancels all tasks of the loop. The lease would be renewed for as long as the worker runs."""
    finish, rejected = AsyncPostgresStore.finish, list[str]()

    def cancel_replacements() -> None:
        for task in asyncio.all_tasks():
            if "_fail_instead" in repr(task.get_coro()):
                task.cancel()

    async def reject_first(store: AsyncPostgresStore, finishes: Any, **more: Any) -> Any:
        if not rejected:
            rejected.extend(one.job.id for one in finishes)
            asyncio.get_running_loop().call_soon(cancel_replacements)
            raise StateError("numeric value out of range")
        return await finish(store, finishes, **more)

    monkeypatch.setattr(AsyncPostgresStore, "finish", reject_first)
    handle(harness, "coroutine", lambda: 5, lease=LeasePolicy(seconds=1.0), retry=AT_ONCE)
    assert (await run(harness))[:2] == (JobStatus.COMPLETED, 5)
    [failed] = harness.log.of(FinishFailed)
    assert [failed.job_id] == rejected
    assert (await harness.client.get_job(failed.job_id)).lease_expirations == 1
