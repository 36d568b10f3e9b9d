"""The lifespan of processors: entered before the first claim, left after the last finish, whatever happens between."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobStatus,
    JobTypes,
    NewChain,
    Outcome,
    Processors,
    RetryPolicy,
)
from queuert.errors import DefinitionError, LifespanError
from queuert.observability.events import AttemptStarted, JobsClaimed, LifespanFailed, WorkerStarted, WorkerStopped
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog
from queuert.worker.run import ExitCode, run
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, anything, echo, number, text
from tests.support.waiting import START, WAIT, Gate, in_time
from tests.worker import killable


class Engine:
    """What a lifespan yields."""

    def __init__(self, name: str = "engine") -> None:
        self.name = name
        self.closed = False


class Recorder:
    """Lifespans of both kinds that record what they do."""

    def __init__(self, *, error_on_entry: Exception | None = None, error_on_exit: Exception | None = None) -> None:
        self.engine = Engine()
        self.steps: list[str] = []
        self.threads: list[str] = []
        self._on_entry = error_on_entry
        self._on_exit = error_on_exit

    @asynccontextmanager
    async def in_loop(self) -> AsyncIterator[Engine]:
        with self.in_thread() as engine:
            async with asyncio.timeout(None):
                yield engine

    @contextmanager
    def in_thread(self) -> Iterator[Engine]:
        self.threads.append(threading.current_thread().name)
        if self._on_entry is not None:
            raise self._on_entry
        self.steps.append("entered")
        yield self.engine
        self.threads.append(threading.current_thread().name)
        self.engine.closed = True
        self.steps.append("left")
        if self._on_exit is not None:
            raise self._on_exit


def group(harness: PostgresHarness, lifespan: Any, **settings: Any) -> Processors[Any]:
    return harness.new_processors(lifespan=lifespan, **settings)


@pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
async def test_handlers_of_all_kinds_get_what_it_yields(harness: PostgresHarness, kind: str) -> None:
    recorder = Recorder()
    processors = group(harness, getattr(recorder, kind))
    seen: list[Any] = []

    async def coroutine(attempt: Attempt[int, int, Engine]) -> Outcome[int]:
        seen.append(attempt.resources)
        return attempt.input

    def plain(attempt: Attempt[str, str, Engine]) -> Outcome[str]:
        seen.append(attempt.resources)
        recorder.steps.append("ran")
        return attempt.input

    async def batch(attempts: Sequence[Attempt[Any, Any, Engine]]) -> list[Any]:
        seen.extend(attempt.resources for attempt in attempts)
        return [1 for _ in attempts]

    processors.handles(number)(coroutine)
    processors.handles(text)(plain)
    processors.handles_batch(anything, size=2)(batch)
    chains = await harness.client.start_chains([NewChain(number, 1), NewChain(text, "a"), NewChain(anything, 1)])
    async with harness.worker(processors):
        assert recorder.steps[0] == "entered"
        await harness.client.wait(chains, timeout=WAIT)
        assert not recorder.engine.closed
    assert seen == [recorder.engine] * 3
    assert recorder.steps == ["entered", "ran", "left"]
    # One thread or task enters and leaves it, as time-outs and connections of SQLite need.
    assert len(set(recorder.threads)) == 1
    assert (recorder.threads[0] == threading.current_thread().name) is (kind == "in_loop")
    assert harness.log.of(LifespanFailed) == []


async def test_it_is_entered_before_the_first_claim_and_left_after_the_last_finish(harness: PostgresHarness) -> None:
    gate = Gate()
    at_exit: list[tuple[JobStatus, int]] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        assert harness.log.of(WorkerStarted) == []
        assert (await harness.job("one")).status is JobStatus.READY
        yield None
        at_exit.append(((await harness.job("one")).status, len(harness.log.of(WorkerStopped))))

    async def handler(attempt: Attempt[int, int, None]) -> Outcome[int]:
        assert attempt.resources is None
        await gate.pass_through(attempt)
        return 1

    processors = group(harness, lifespan)
    processors.handles(number)(handler)
    await harness.client.start_chain(number, 1, id="one")
    worker = harness.worker(processors)
    await worker.start()
    await gate.next()
    stopping = asyncio.ensure_future(worker.stop())
    gate.open()
    await in_time(stopping)
    assert at_exit == [(JobStatus.COMPLETED, 0)]


async def test_each_group_has_its_own_also_with_the_same_function(harness: PostgresHarness) -> None:
    made: list[Engine] = []
    left: list[Engine] = []

    @contextmanager
    def lifespan() -> Iterator[Engine]:
        made.append(Engine(str(len(made))))
        engine = made[-1]
        yield engine
        left.append(engine)

    async def handler(attempt: Attempt[Any, Any, Engine]) -> Any:
        return attempt.resources.name

    first, second, without = group(harness, lifespan), group(harness, lifespan), harness.new_processors()
    first.handles(anything)(handler)
    second.handles(text)(handler)
    without.handles(number)(echo)
    async with harness.worker([first, second, without]):
        chains = await harness.client.start_chains([NewChain(anything, 1), NewChain(text, "a"), NewChain(number, 1)])
        assert [await chain.result(WAIT) for chain in chains] == ["0", "1", 1]
    assert left == [made[1], made[0]]


async def test_processors_may_be_run_by_one_worker_after_the_other(harness: PostgresHarness) -> None:
    recorder = Recorder()
    processors = group(harness, recorder.in_loop)
    processors.handles(number)(echo)
    for _ in range(2):
        async with harness.worker(processors):
            assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
    assert recorder.steps == ["entered", "left"] * 2


async def test_processors_with_another_lifespan(harness: PostgresHarness) -> None:
    """As tests have it: the handlers are the same, and the processors of the first lifespan stay as they are."""
    real, fake = Recorder(), Engine("fake")
    processors = group(harness, real.in_loop)

    @processors.handles(text)
    async def handler(attempt: Attempt[str, str, Engine]) -> Outcome[str]:
        return attempt.resources.name

    replaced = processors.with_lifespan(lambda: nullcontext(fake))
    for one, name in ((replaced, "fake"), (processors, "engine")):
        async with harness.worker(one):
            assert await (await harness.client.start_chain(text, "x")).result(WAIT) == name
    assert real.steps == ["entered", "left"]
    processors.handles(anything, executor="process")(killable.resources)
    with pytest.raises(DefinitionError, match="its lifespan by name"):
        harness.worker(processors.with_lifespan(lambda: nullcontext(fake)))


async def test_resources_without_a_lifespan_are_a_programming_error(harness: PostgresHarness) -> None:
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return int(attempt.resources)

    harness.handles(number, handler)
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1)).wait(WAIT)
    assert chain.error is not None
    assert (chain.error.kind, (await harness.job(chain.id)).attempt) == ("programming", 1)
    assert "attempt.resources needs a lifespan" in chain.error.message


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
async def test_an_error_on_entry_claims_nothing_and_leaves_what_was_entered(
    harness: PostgresHarness, kind: str
) -> None:
    whole, broken = Recorder(), Recorder(error_on_entry=OSError("no engine"))
    first, second = group(harness, whole.in_loop), group(harness, getattr(broken, kind))
    first.handles(number)(echo)
    second.handles(text)(echo)
    chain = await harness.client.start_chain(number, 1)
    worker = harness.worker([first, second])
    with pytest.raises(LifespanError, match=r"Recorder\.in_\w+ could not be entered: OSError: no engine") as raised:
        await in_time(worker.start())
    assert isinstance(raised.value.__cause__, OSError)
    assert whole.steps == ["entered", "left"]
    assert (harness.log.of(JobsClaimed), harness.log.of(AttemptStarted)) == ([], [])
    assert (await harness.job(chain.id)).attempt == 0
    assert await harness.client.list_workers() == []
    broken._on_entry = None
    async with worker:
        assert await chain.result(WAIT) == 1


async def test_an_error_on_exit_is_reported_and_hides_no_other(harness: PostgresHarness) -> None:
    broken, whole = Recorder(error_on_exit=OSError("stuck")), Recorder()
    first, second = group(harness, whole.in_loop), group(harness, broken.in_loop)
    first.handles(number)(echo)
    second.handles(text)(echo)
    with pytest.raises(ValueError, match="of the program"):
        async with harness.worker([first, second]):
            raise ValueError("of the program")
    [failed] = harness.log.of(LifespanFailed)
    assert ("in_loop" in failed.lifespan, failed.early) == (True, False)
    assert (failed.error.type, failed.error.message) == ("OSError", "stuck")
    assert whole.steps == ["entered", "left"]
    assert len(harness.log.of(WorkerStopped)) == 1


@pytest.mark.parametrize("hurried", [False, True])
async def test_an_exit_that_hangs_is_cancelled(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    monkeypatch.setattr("queuert.worker.runtime._LIFESPANS_TIMEOUT", 0.0)
    monkeypatch.setattr("queuert.worker.lifespan._AFTER_CANCEL", 0.05 if hurried else WAIT)
    hangs, cancelled = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield None
        hangs.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    processors = group(harness, lifespan)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    await worker.start()
    stopping = asyncio.ensure_future(worker.stop(shutdown_timeout=1000.0 if hurried else 0.0))
    await in_time(hangs.wait())
    if hurried:
        await in_time(worker.stop())
    await in_time(stopping)
    assert cancelled.is_set()
    [failed] = harness.log.of(LifespanFailed)
    assert failed.error.type == "TimeoutError"


async def test_a_plain_exit_that_hangs_does_not_keep_the_worker(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuert.worker.runtime._LIFESPANS_TIMEOUT", 0.0)
    monkeypatch.setattr("queuert.worker.lifespan._AFTER_CANCEL", 0.0)
    free = threading.Event()

    @contextmanager
    def lifespan() -> Iterator[None]:
        yield None
        free.wait()

    processors = group(harness, lifespan)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    await worker.start()
    await in_time(worker.stop(shutdown_timeout=0))
    free.set()
    assert [event.error.type for event in harness.log.of(LifespanFailed)] == ["TimeoutError"]


async def test_a_worker_whose_lifespan_ends_early_stops(harness: PostgresHarness) -> None:
    ends = asyncio.Event()

    async def background() -> None:
        await ends.wait()
        raise OSError("the background task broke")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(background())
            yield None

    processors = group(harness, lifespan)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    await worker.start()
    assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
    ends.set()
    await harness.log.wait_for(WorkerStopped)
    [failed] = harness.log.of(LifespanFailed)
    assert (failed.early, failed.error.type) == (True, "ExceptionGroup")
    assert "the background task broke" in str(failed.error.traceback)
    await in_time(worker.stop())


async def test_an_early_end_in_a_start_that_fails_does_not_stop_the_next_start(harness: PostgresHarness) -> None:
    fails, ends = True, asyncio.Event()

    @asynccontextmanager
    async def first() -> AsyncIterator[None]:
        async with asyncio.timeout(3600.0) as timeout:
            if fails:
                asyncio.create_task(ends_it(timeout))  # noqa: RUF006
            yield None

    async def ends_it(timeout: asyncio.Timeout) -> None:
        await ends.wait()
        timeout.reschedule(0.0)

    @asynccontextmanager
    async def second() -> AsyncIterator[None]:
        if fails:
            ends.set()
            await harness.log.wait_for(LifespanFailed)
            raise OSError("no connection")
        yield None

    groups = [group(harness, first), group(harness, second)]
    groups[0].handles(number)(echo)
    groups[1].handles(text)(echo)
    worker = harness.worker(groups)
    with pytest.raises(LifespanError, match="no connection"):
        await in_time(worker.start())
    assert [event.early for event in harness.log.of(LifespanFailed)] == [True]
    fails = False
    async with worker:
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1


async def test_a_stop_that_is_requested_after_a_start_that_failed_stops_the_next_one(harness: PostgresHarness) -> None:
    fails = True

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if fails:
            worker.lifespan_ended.set()  # As that of another group, which has ended early.
            raise OSError("no connection")
        yield None

    processors = group(harness, lifespan)
    processors.handles(number)(echo)
    worker = harness.worker(processors)
    with pytest.raises(LifespanError, match="no connection"):
        await in_time(worker.start())
    worker.request_stop()
    fails = False
    await in_time(worker.start())
    assert worker.running == 0
    await in_time(worker.wait_stopped())


async def test_a_stop_while_it_is_entered_ends_it(harness: PostgresHarness) -> None:
    entering, steps = asyncio.Event(), []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entering.set()
        try:
            await asyncio.Event().wait()
            yield None
        finally:
            steps.append("ended")

    whole = Recorder()
    first, processors = group(harness, whole.in_loop), group(harness, lifespan)
    first.handles(text)(echo)
    processors.handles(number)(echo)
    starting = asyncio.ensure_future(harness.worker([first, processors]).start())
    await in_time(entering.wait())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(starting)
    assert (steps, whole.steps) == (["ended"], ["entered", "left"])


# --- as a process -----------------------------------------------------------------------------------------------------


def worker_on(path: Path, log: EventLog, lifespan: Callable[[], Any]) -> InProcessWorker:
    client = AsyncClient(SQLiteState(path / "jobs.db"), JobTypes(number), observability=log)
    processors = Processors(JobTypes(number), lifespan=lifespan)
    processors.handles(number)(echo)
    return InProcessWorker(client, processors)


def test_an_error_on_entry_has_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog()
    broken = Recorder(error_on_entry=OSError("no engine"))
    assert run(worker_on(tmp_path, log, broken.in_loop)) == ExitCode.LIFESPAN
    assert "could not be entered: OSError: no engine" in capsys.readouterr().err
    assert log.of(WorkerStarted) == []


def test_an_early_end_has_an_exit_code(tmp_path: Path) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
            yield None

    async def fails() -> None:
        raise OSError("broken")

    log = EventLog()
    assert run(worker_on(tmp_path, log, lifespan)) == ExitCode.LIFESPAN
    assert [event.early for event in log.of(LifespanFailed)] == [True]


# --- in child processes -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(12 * WAIT)
@pytest.mark.parametrize("lifespan", [killable.plain_lifespan, killable.loop_lifespan])
async def test_each_child_process_enters_it_once_and_leaves_it(
    harness: PostgresHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifespan: Any
) -> None:
    monkeypatch.setenv("TEST_LIFESPAN_FILE", str(tmp_path / "steps"))
    processors = group(harness, lifespan)
    processors.handles(anything, executor="process")(killable.resources)
    async with harness.worker(processors, shutdown_timeout=WAIT):
        results = [await (await harness.client.start_chain(anything, 1)).result(START) for _ in range(3)]
    [child] = {result["pid"] for result in results}
    assert child != os.getpid()
    assert {result["resources"] for result in results} == {f"resources of {child}"}
    steps = (tmp_path / "steps").read_text().split()
    # The worker enters its own, too: other handlers of the group may run there.
    assert sorted(steps) == sorted(f"{what}-{pid}" for what in ("entered", "left") for pid in (child, os.getpid()))


@pytest.mark.timeout(12 * WAIT)
async def test_an_error_on_entry_in_a_child_process_fails_the_attempt(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_LIFESPAN_FAILS_OUTSIDE", str(os.getpid()))
    processors = group(harness, killable.failing_lifespan, retry=RetryPolicy(max_attempts=2, initial_delay=0))
    processors.handles(anything, executor="process")(killable.resources)
    async with harness.worker(processors):
        chain = await (await harness.client.start_chain(anything, 1)).wait(START)
    assert chain.error is not None
    assert (chain.error.kind, chain.error.type) == ("handler", "queuert.errors.LifespanError")
    assert (await harness.job(chain.id)).attempt == 2


def test_a_lifespan_that_another_process_cannot_import_is_rejected(harness: PostgresHarness) -> None:
    processors = group(harness, lambda: killable.plain_lifespan())
    processors.handles(anything, executor="process")(killable.resources)
    with pytest.raises(DefinitionError, match="its lifespan by name"):
        harness.worker(processors)


# --- definitions ------------------------------------------------------------------------------------------------------


async def undecorated() -> AsyncIterator[None]:
    yield None


def undecorated_plain() -> Iterator[None]:
    yield None


async def coroutine() -> None: ...


@contextmanager
def with_argument(app: Any) -> Iterator[None]:
    yield None


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [
        (3, "must be a function that returns a context manager, got 3"),
        (undecorated, "write @asynccontextmanager above it"),
        (undecorated_plain, "write @contextmanager above it"),
        (coroutine, "decorate it with @asynccontextmanager"),
        (with_argument, "test_lifespan.with_argument must take no arguments: missing a required argument: 'app'"),
    ],
)
def test_what_is_no_lifespan_is_rejected(lifespan: Any, said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        Processors(JOB_TYPES, lifespan=lifespan)
    assert said in str(raised.value)


def test_a_function_with_its_argument_bound_is_a_lifespan() -> None:
    Processors(JOB_TYPES, retry=AT_ONCE, lifespan=functools.partial(with_argument, 1))


async def test_a_function_that_returns_no_context_manager_is_an_error_on_entry(harness: PostgresHarness) -> None:
    nothing: Callable[[], AbstractContextManager[None]] = lambda: None  # type: ignore[assignment, return-value]  # noqa: E731
    processors = group(harness, nothing)
    processors.handles(number)(echo)
    with pytest.raises(LifespanError, match="must return a context manager, got NoneType"):
        await harness.worker(processors).start()
