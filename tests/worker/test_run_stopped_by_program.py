"""A worker process ends whoever stops its worker: a signal, the program itself, or nothing left to do."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from queuert import (
    AsyncClient,
    Attempt,
    AttemptMiddleware,
    Client,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    Processors,
    RetryPolicy,
)
from queuert.errors import DefinitionError, RunningEventLoopError, StateError
from queuert.state.sqlite import SQLiteState
from queuert.worker import run as run_module
from queuert.worker.leases import LeaseRegistry
from queuert.worker.run import ExitCode, run
from queuert.worker.runner import AttemptRunner
from tests.support.waiting import WAIT, in_time, none_left, until

pytestmark = pytest.mark.timeout(60)

work = JobType("work", input=int, output=int)
TYPES = JobTypes(work)


class Program:
    """A worker, and the only job of its store."""

    def __init__(self, path: Path) -> None:
        state = SQLiteState(path / "queue.db")
        with Client(state, TYPES) as client:
            self.chain = client.start_chain(work, 1).id
        self.state = state
        self.worker = self._worker()
        self.then: Callable[[], Awaitable[None]] | None = None

    def _worker(self) -> InProcessWorker:
        processors = Processors(TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0))
        processors.handles(work)(self.handle)
        return InProcessWorker(AsyncClient(self.state, TYPES), processors, concurrency=1)

    async def handle(self, attempt: Attempt[int, int]) -> int:
        if self.then is not None:
            await self.then()
        return 7

    def retry(self) -> None:
        """Let a worker that works run the job to its end."""
        self.then = None
        assert run(self._worker(), once=True) is ExitCode.STOPPED

    def output(self) -> int | None:
        with Client(self.state, TYPES) as client:
            return client.get_chain(self.chain, work).output


@pytest.fixture(autouse=True)
def what_is_left_ends_here() -> Iterator[None]:
    """The garbage collector would end what a test has left in an event loop in the midst of another."""
    yield
    gc.collect()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("how", ["task", "awaited", "callback"])
def test_a_handler_that_stops_its_worker(program: Program, how: str) -> None:
    """Its job is completed, or released if it waits for the stop that waits for it."""
    tasks: list[asyncio.Task[None]] = []

    async def stop() -> None:
        loop = asyncio.get_running_loop()
        if how == "task":
            tasks.append(loop.create_task(program.worker.stop()))
        elif how == "awaited":
            await program.worker.stop(shutdown_timeout=0)
        else:
            loop.call_soon(lambda: tasks.append(loop.create_task(program.worker.stop())))

    program.then = stop
    assert run(program.worker) is ExitCode.STOPPED
    assert program.output() == (None if how == "awaited" else 7)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["cancels all tasks", "stops the event loop"])
def test_a_handler_that_breaks_the_event_loop(
    program: Program, how: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, tmp_path: Path
) -> None:
    """The worker stops, its exit code says that nobody has asked it to, and the job is there for the next one."""

    async def breaks() -> None:
        if how == "stops the event loop":
            asyncio.get_running_loop().stop()
        else:
            for task in asyncio.all_tasks():
                task.cancel()
        await asyncio.sleep(0)

    program.then = breaks
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run(program.worker, loop_factory=loop_factory, health_file=tmp_path / "health") is ExitCode.UNASKED
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not (tmp_path / "health").exists()
    if how == "cancels all tasks":
        program.retry()
    assert program.output() == 7


def test_once_that_cannot_know_whether_jobs_are_due(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A right that was not granted, say: it ends, and says why, within its budget and without one."""

    async def refused() -> bool:
        raise StateError("permission denied for table job")

    monkeypatch.setattr(program.worker, "is_idle", refused)
    assert run(program.worker, once=True) is ExitCode.UNAVAILABLE
    assert "cannot read whether jobs are due, so the worker stops: permission denied for table job" in caplog.text


# --- started, and never stopped ---------------------------------------------------------------------------------------


def own_threads() -> list[str]:
    """The names of the threads that renew leases, watch event loops and listen; the store keeps its own."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("queuert-") and "-store-" not in name]


@pytest.mark.parametrize("of", ["coroutine", "coroutine that converts", "thread"])
def test_a_program_that_fails_while_its_worker_runs_ends(
    program: Program, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``asyncio.run`` waits for the tasks that it cancels: for the loops of the worker it waited for ever."""
    entered, over = threading.Event(), threading.Event()

    async def waits() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if of == "coroutine":
                raise
            raise ConnectionError("closed by the driver") from error

    def handle(attempt: Attempt[int, int]) -> int:
        entered.set()
        assert over.wait(WAIT)
        return 7

    program.then = waits
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1))
    processors.handles(work)(handle if of == "thread" else program.handle)
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors, shutdown_timeout=0.0)

    async def main() -> None:
        await worker.start()
        await until(entered.is_set, "the handler has begun")
        raise LookupError("the program has failed")

    before = set(own_threads())
    try:
        with pytest.raises(LookupError, match="the program has failed"):
            asyncio.run(main())
    finally:
        over.set()
    assert "somebody cancelled all tasks of the event loop, so the worker stops (asyncio.run() does that" in caplog.text
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))
    program.retry()
    assert program.output() == 7


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_second_ctrl_c_that_hits_the_event_loop_interrupts_the_jobs(program: Program) -> None:
    """``asyncio.run`` then cancels all tasks. They failed as if their handlers had cancelled themselves."""
    entered = asyncio.Event()

    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    program.then = waits
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1))
    processors.handles(work)(program.handle)

    async def main() -> None:
        async with InProcessWorker(AsyncClient(program.state, TYPES), processors, shutdown_timeout=3600.0) as worker:
            await in_time(entered.wait())
            asyncio.get_running_loop().call_later(0, lambda: asyncio.get_running_loop().call_soon(interrupt))
            await worker.stop()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    with Client(program.state, TYPES) as client:
        [job] = client.list_jobs()
        assert job.last_error is not None
        assert (job.status, job.last_error.kind) == (JobStatus.READY, "worker_stopping")
        assert "crash" not in job.last_error.message
    program.retry()
    assert program.output() == 7


@pytest.mark.parametrize("how", ["run", "async with", "start"])
@pytest.mark.parametrize("last", ["the program", "the handler"])
def test_a_job_that_cancels_all_tasks_does_not_stop_workers_for_ever(program: Program, how: str, last: str) -> None:
    """It counts as a crash, though the attempt does not count, whichever task is the first to notice."""
    tasks = dict[str, asyncio.Task[Any] | None]()

    async def breaks() -> None:
        tasks["the handler"] = asyncio.current_task()
        for task in sorted(asyncio.all_tasks(), key=lambda task: task is tasks.get(last)):
            task.cancel()
        await asyncio.sleep(0)

    async def main(worker: InProcessWorker) -> None:
        tasks["the program"] = asyncio.current_task()
        if how == "start":
            await worker.start()
            await asyncio.Event().wait()
        async with worker:
            await asyncio.Event().wait()

    program.then = breaks
    retry = RetryPolicy(max_attempts=1, max_crashes=3, initial_delay=0.0, jitter=0.0)
    processors = Processors(TYPES, retry=retry)
    processors.handles(work)(program.handle)
    for crash in (1, 2, 3):
        worker = InProcessWorker(AsyncClient(program.state, TYPES), processors)
        if how == "run":
            assert run(worker) is ExitCode.UNASKED
        else:
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(main(worker))
        with Client(program.state, TYPES) as client:
            [job] = client.list_jobs()
        assert job.last_error is not None
        expected = f"somebody cancelled all tasks of the event loop, so the worker stopped: crash {crash} of"
        assert expected in job.last_error.message
        assert job.status is (JobStatus.FAILED if crash == 3 else JobStatus.READY)


def test_a_handler_that_cancels_itself_and_does_not_wait_fails(program: Program) -> None:
    """Python 3.11 keeps its cancellation for the next await, which was the worker's: nothing was written."""

    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise asyncio.CancelledError

    program.then = cancels
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1))
    processors.handles(work)(program.handle)
    assert run(InProcessWorker(AsyncClient(program.state, TYPES), processors), once=True) is ExitCode.STOPPED
    with Client(program.state, TYPES) as client:
        [job] = client.list_jobs()
    assert job.last_error is not None
    assert (job.status, job.last_error.message) == (JobStatus.FAILED, "the handler was cancelled from within")


def test_an_attempt_whose_handler_has_not_begun_when_the_program_ends_counts_for_nothing(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = asyncio.Event()

    async def waits(runner: AttemptRunner) -> Any:
        reads.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(AttemptRunner, "_blockers", waits)
    with Client(program.state, TYPES) as client:
        blocked = client.start_chain(work, 2, blockers=[program.chain])
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1, max_crashes=1))
    processors.handles(work)(program.handle)

    async def main() -> None:
        await InProcessWorker(AsyncClient(program.state, TYPES), processors).start()
        await in_time(reads.wait())

    asyncio.run(main())
    with Client(program.state, TYPES) as client:
        [job] = client.list_chain_jobs(blocked)
    assert job.last_error is not None
    assert (job.status, job.last_error.message) == (JobStatus.READY, "the worker stopped before it was done")


def test_a_stop_that_was_requested_just_before_the_program_ends_was_requested(program: Program) -> None:
    """Its event loop had no turn any more: the running jobs counted as crashes."""
    entered = asyncio.Event()

    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    program.then = waits
    processors = Processors(TYPES, retry=RetryPolicy(max_attempts=1, max_crashes=1))
    processors.handles(work)(program.handle)
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors)

    async def main() -> None:
        await worker.start()
        await in_time(entered.wait())
        worker.request_stop()

    asyncio.run(main())
    with Client(program.state, TYPES) as client:
        [job] = client.list_jobs()
    assert job.last_error is not None
    assert (job.status, job.last_error.message) == (JobStatus.READY, "the worker stopped before it was done")


@pytest.mark.parametrize("requests", ["request_stop", "stop"])
def test_a_stop_that_the_end_of_the_program_cancels_before_it_begins(program: Program, requests: str) -> None:
    """Its task was over, so nobody stopped the loops: ``asyncio.run`` waited for them for ever."""

    async def main() -> None:
        await program.worker.start()
        if requests == "stop":
            program.worker.stops.append(asyncio.ensure_future(program.worker.stop()))
        else:
            program.worker.request_stop()
        await asyncio.sleep(0)

    before = set(own_threads())
    asyncio.run(main())
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))


async def test_a_stop_that_is_cancelled_before_it_begins_is_made_all_the_same(program: Program) -> None:
    before = set(own_threads())
    await program.worker.start()
    stopping = asyncio.ensure_future(program.worker.stop())
    await asyncio.sleep(0)
    assert program.worker._stopping is not None
    program.worker._stopping.cancel()
    await in_time(stopping)
    await in_time(program.worker.stop())
    await none_left(lambda: set(own_threads()) - before, "threads")


@pytest.mark.parametrize("which", ["-stopped", "_main"])
def test_one_task_of_the_worker_that_is_cancelled_stops_it_as_all_do(program: Program, which: str) -> None:
    """Which task is the first to notice must not decide whether the process ends at once."""

    async def breaks() -> None:
        [task] = [task for task in asyncio.all_tasks() if which in f"{task.get_name()} {task.get_coro()!r}"]
        task.cancel()

    program.then = breaks
    _, code = in_thread(program.worker)
    assert code.result(WAIT) is ExitCode.UNASKED
    assert program.output() == 7


def test_an_interrupt_while_lifespans_are_left_ends_the_threads(program: Program) -> None:
    """They kept a worker listed that had ended."""

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.Event().wait()

    processors = Processors(TYPES, lifespan=lifespan)
    processors.handles(work)(program.handle)

    async def main() -> None:
        async with InProcessWorker(AsyncClient(program.state, TYPES), processors):
            pass

    before = set(own_threads())
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))
    with Client(program.state, TYPES) as client:
        assert client.list_workers() == []


@pytest.mark.parametrize("part", ["Lifespans.leave", "HandlerProcesses.close"])
async def test_a_stop_that_is_interrupted_in_an_event_loop_that_goes_on_ends_the_threads(
    program: Program, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException): ...

    async def interrupted(*_: object) -> Any:
        raise Interrupted

    monkeypatch.setattr(f"queuert.worker.runtime.{part}", interrupted)
    before = set(own_threads())
    await program.worker.start()
    with pytest.raises(Interrupted):
        await program.worker.stop()
    await none_left(lambda: set(own_threads()) - before, "threads")


async def test_nothing_is_left_in_the_event_loop_after_a_stop(program: Program) -> None:
    """Whoever closes it could get a warning of a task that was destroyed."""
    before = asyncio.all_tasks()
    await program.worker.start()
    await program.worker.stop()
    assert asyncio.all_tasks() == before


def test_a_worker_that_was_stopped_before_its_start_can_be_stopped_anywhere(program: Program) -> None:
    program.worker.request_stop()
    asyncio.run(in_time(program.worker.start()))
    asyncio.run(in_time(program.worker.stop()))


class Converts(AttemptMiddleware):
    """Makes another exception of what ends a block."""

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any, Any], tx: Any) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            raise RuntimeError("converted") from error


@pytest.mark.parametrize("middlewares", [[], [Converts()]], ids=["", "with a middleware"])
def test_a_block_in_an_event_loop_that_was_closed_leaves_no_lock(
    program: Program, middlewares: list[AttemptMiddleware]
) -> None:
    """Nobody could write to the file until the process ended.

    Where the garbage collector closes the coroutine, its block is left in whatever event loop runs there.
    """
    entered = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    processors = Processors(TYPES, middlewares=middlewares)

    @processors.handles(work)
    async def handle(attempt: Attempt[int, int]) -> int:
        async with attempt.complete():
            tasks.extend(task for task in [asyncio.current_task()] if task is not None)
            entered.set()
            await asyncio.Event().wait()
        return 7

    async def another() -> set[asyncio.Task[Any]]:
        [coroutine] = [task.get_coro() for task in tasks]
        assert coroutine is not None
        coroutine.close()
        return asyncio.all_tasks()

    loop = asyncio.new_event_loop()
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors)
    loop.run_until_complete(in_time(worker.start()))
    loop.run_until_complete(in_time(entered.wait()))
    loop.close()
    with Client(program.state, TYPES) as client:
        client.start_chain(work, 2)
    assert len(asyncio.run(another())) == 1


def test_an_event_loop_that_is_closed_under_its_worker(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """The threads that renew leases went on, so that nobody could take the job until the process ended."""
    entered, aborted = threading.Event(), threading.Event()
    processors = Processors(TYPES)

    @processors.handles(work)
    def handle(attempt: Attempt[int, int]) -> int:
        entered.set()
        assert attempt.abort.wait_sync(WAIT)
        aborted.set()
        return 7

    before = set(own_threads())
    loop = asyncio.new_event_loop()
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors)
    loop.run_until_complete(in_time(worker.start()))
    loop.run_until_complete(until(entered.is_set, "the handler has begun"))
    loop.close()
    assert aborted.wait(WAIT)
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))
    assert "was closed before the worker was stopped: its attempts are aborted" in caplog.text


def test_a_lease_that_cannot_be_given_up_keeps_no_other(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, aborted, ended = threading.Semaphore(0), threading.Event(), threading.Event()
    lose, fails = LeaseRegistry.lose, iter([True])

    def fails_once(*values: Any) -> bool:
        if next(fails, False):
            raise MemoryError
        return lose(*values)

    processors = Processors(TYPES)

    @processors.handles(work)
    def handle(attempt: Attempt[int, int]) -> int:
        entered.release()
        while not ended.is_set():
            if attempt.abort.wait_sync(0.01):
                aborted.set()
        return 7

    with Client(program.state, TYPES) as client:
        client.start_chain(work, 2)
    before = set(own_threads())
    loop = asyncio.new_event_loop()
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors, concurrency=2)
    loop.run_until_complete(in_time(worker.start()))
    for _ in range(2):
        loop.run_until_complete(until(lambda: entered.acquire(blocking=False), "the handler has begun"))
    monkeypatch.setattr(LeaseRegistry, "lose", fails_once)
    loop.close()
    try:
        assert aborted.wait(WAIT)
    finally:
        ended.set()
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))


# --- in a thread that is not the main one -----------------------------------------------------------------------------


def in_thread(worker: InProcessWorker) -> tuple[threading.Thread, Future[int]]:
    """Run a worker in another thread."""
    code: Future[int] = Future()

    def body() -> None:
        try:
            code.set_result(worker.run())
        except BaseException as error:
            code.set_exception(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, code


def test_a_worker_in_another_thread_is_stopped_from_this_one(program: Program) -> None:
    before = signal.getsignal(signal.SIGTERM)
    began = threading.Event()

    async def begin() -> None:
        began.set()

    program.then = begin
    _, code = in_thread(program.worker)
    assert began.wait(WAIT)
    program.worker.request_stop()
    assert code.result(WAIT) == ExitCode.STOPPED
    assert program.output() == 7
    program.worker.request_stop()  # Of one that has stopped: nothing.
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("method", ["stop", "wait_stopped"])
def test_what_another_event_loop_awaits_is_refused(program: Program, method: str) -> None:
    """A stop there cancelled the worker's loops, and failed the running jobs."""
    began, ends = threading.Event(), threading.Event()

    async def waits() -> None:
        began.set()
        await asyncio.to_thread(ends.wait, WAIT)

    program.then = waits
    _, code = in_thread(program.worker)
    assert began.wait(WAIT)
    with pytest.raises(RunningEventLoopError, match="in which the worker was started: call request_stop"):
        asyncio.run(getattr(program.worker, method)())
    ends.set()
    program.worker.request_stop()
    assert code.result(WAIT) == ExitCode.STOPPED
    assert program.output() == 7
    asyncio.run(getattr(program.worker, method)())  # Of one that has stopped: nothing.


def test_a_second_request_cancels_the_running_handlers(program: Program) -> None:
    began = threading.Event()

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    program.then = wait
    _, code = in_thread(program.worker)
    assert began.wait(WAIT)
    program.worker.request_stop()
    program.worker.request_stop()
    assert code.result(WAIT) == ExitCode.STOPPED
    assert program.output() is None


def test_a_stop_that_was_requested_before_the_start(program: Program) -> None:
    program.worker.request_stop()
    _, code = in_thread(program.worker)
    assert code.result(WAIT) == ExitCode.STOPPED
    assert program.output() is None


def test_a_stop_that_is_requested_while_a_lifespan_waits(program: Program) -> None:
    waits = threading.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        waits.set()
        await asyncio.Event().wait()
        yield

    processors = Processors(TYPES, lifespan=lifespan)
    processors.handles(work)(program.handle)
    worker = InProcessWorker(AsyncClient(program.state, TYPES), processors)
    _, code = in_thread(worker)
    assert waits.wait(WAIT)
    worker.request_stop()
    assert code.result(WAIT) is ExitCode.STOPPED


def test_an_exit_while_a_requested_stop_goes_on_is_no_second_request(program: Program) -> None:
    began, ended = threading.Event(), threading.Event()

    async def raise_exit() -> None:
        raise SystemExit(3)

    async def then() -> None:
        began.set()
        await until(lambda: program.worker.stop_requested, "a stop was requested")
        left = asyncio.ensure_future(raise_exit())
        await until(left.done, "it has raised")
        assert isinstance(left.exception(), SystemExit)
        ended.set()

    program.then = then
    _, code = in_thread(program.worker)
    assert began.wait(WAIT)
    program.worker.request_stop()
    assert code.result(WAIT) is ExitCode.STOPPED
    assert ended.is_set(), "the handler was cancelled"
    assert program.output() == 7


def test_a_task_that_raises_system_exit_in_another_thread_stops_the_worker(program: Program) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def leave() -> None:
        async def exit_soon() -> None:
            raise SystemExit(3)

        tasks.append(asyncio.create_task(exit_soon()))

    program.then = leave
    _, code = in_thread(program.worker)
    assert code.result(WAIT) == ExitCode.UNASKED
    assert program.output() == 7


def test_a_handler_that_does_not_end_leaves_the_process_of_another_thread_alone(program: Program) -> None:
    began, end = threading.Event(), asyncio.Event()

    async def stay() -> None:
        began.set()
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()

    program.then = stay
    program.worker = program.worker.with_settings(shutdown_timeout=0)
    thread, code = in_thread(program.worker)
    assert began.wait(WAIT)
    program.worker.request_stop()
    assert code.result(WAIT) == ExitCode.ABANDONED
    thread.join(WAIT)
    assert not thread.is_alive()


def test_what_is_left_behind_in_another_thread_is_said_to_be_left(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process goes on, so the log must not say that it ends."""
    monkeypatch.setattr(run_module, "_CANCEL_TIMEOUT", 0.1)
    tasks: list[asyncio.Task[None]] = []

    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def leave() -> None:
        tasks.append(asyncio.create_task(stay()))
        await asyncio.sleep(0)
        program.worker.request_stop()

    program.then = leave
    _, code = in_thread(program.worker)
    assert code.result(WAIT) == ExitCode.ABANDONED
    assert "calls in threads (0): run() returns and leaves them" in caplog.text
    assert "the process ends" not in caplog.text


def test_all_tasks_cancelled_while_a_worker_in_another_thread_stops(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks() -> None:
        program.worker.request_stop()
        await until(lambda: program.worker.health().stopping, "stopping")
        for task in asyncio.all_tasks():
            task.cancel()

    program.then = breaks
    before = set(own_threads())
    _, code = in_thread(program.worker)
    assert code.result(WAIT) == ExitCode.ABANDONED
    assert "starts or stops: run() returns and leaves what still runs" in caplog.text
    assert "the process ends" not in caplog.text
    # Nobody could take its jobs while they renew their leases.
    asyncio.run(none_left(lambda: set(own_threads()) - before, "threads"))


def test_a_signal_handler_may_request_the_stop_at_any_moment(program: Program) -> None:
    """Also while the thread that it interrupts has the lock: that was for ever."""

    def body() -> None:
        with program.worker._loop_lock:
            program.worker.request_stop()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_worker_that_is_entered_by_with_says_how_to_run_it(program: Program) -> None:
    worker: Any = program.worker
    with (
        pytest.raises(DefinitionError, match=r"write async with InProcessWorker\(...\), got with; or call run\(\)"),
        worker,
    ):
        pass
