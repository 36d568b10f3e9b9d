"""Handlers that make children, in a coroutine, a thread and a process, and handlers that stop their worker."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
)
from queuert.errors import CompletionMisuseError
from queuert.policies import LeasePolicy
from queuert.worker import CallNext
from queuert.worker.after_attempt import EndedAttempt
from queuert.worker.run import ExitCode

in_coroutine = JobType("in_coroutine", input=str, output=str)
in_thread = JobType("in_thread", input=str, output=str)
in_process = JobType("in_process", input=str, output=str)
stop_in_coroutine = JobType("stop_in_coroutine", input=str, output=str)
stop_in_thread = JobType("stop_in_thread", input=str, output=str)
stop_in_process = JobType("stop_in_process", input=str, output=str)
back_in_coroutine = JobType("back_in_coroutine", input=str, output=str)
back_in_thread = JobType("back_in_thread", input=str, output=str)
back_in_process = JobType("back_in_process", input=str, output=str)
back_in_middleware = JobType("back_in_middleware", input=str, output=str)
back_in_batch = JobType("back_in_batch", input=str, output=str)
back_in_threaded_batch = JobType("back_in_threaded_batch", input=str, output=str)
back_in_hook = JobType("back_in_hook", input=str, output=str)
back_in_threaded_hook = JobType("back_in_threaded_hook", input=str, output=str)
in_lifespan = JobType("in_lifespan", input=str, output=str)
in_threaded_lifespan = JobType("in_threaded_lifespan", input=str, output=str)
in_process_lifespan = JobType("in_process_lifespan", input=str, output=str)
JOB_TYPES = JobTypes(
    in_coroutine,
    in_thread,
    in_process,
    stop_in_coroutine,
    stop_in_thread,
    stop_in_process,
    back_in_coroutine,
    back_in_thread,
    back_in_process,
    back_in_middleware,
    back_in_batch,
    back_in_threaded_batch,
    back_in_hook,
    back_in_threaded_hook,
    in_lifespan,
    in_threaded_lifespan,
    in_process_lifespan,
)

_log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")
_LONG = 3600.0
_LEFT: list[asyncio.Task[None]] = []
_EXECUTORS: list[ThreadPoolExecutor] = []


def _pool() -> str:
    with _FORK.Pool(2) as pool:  # Its end is terminate().
        return str(pool.map(abs, [-1, -2]))


def _log_much(number: int) -> int:
    for _ in range(10):
        _log.error("in a child", extra={"large": "x" * 500_000})
    return number


def _logging() -> str:
    with _FORK.Pool(2) as pool:
        return str(pool.map(_log_much, [1, 2], chunksize=1))


def _pool_in_time() -> str:
    try:
        with _FORK.Pool(2) as pool:
            pool.apply_async(time.sleep, [_LONG]).get(timeout=0.1)
    except multiprocessing.TimeoutError:
        return "timeout"
    return "no timeout"


def _executor() -> str:
    with ProcessPoolExecutor(2, mp_context=_FORK) as executor:
        return str(list(executor.map(abs, [-1, -2])))


def _ended_by(number: signal.Signals) -> str:
    child = _FORK.Process(target=time.sleep, args=[_LONG])
    child.start()
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join()
    return str(child.exitcode)


def _terminated() -> str:
    return _ended_by(signal.SIGTERM)


def _interrupted() -> str:
    return _ended_by(signal.SIGINT)


def _forked() -> str:
    child = os.fork()
    if child == 0:
        time.sleep(_LONG)
    os.kill(child, signal.SIGTERM)
    return _status(child)


def _status(child: int) -> str:
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _returns() -> str:
    child = os.fork()
    return "in the child" if child == 0 else _status(child)


def _raises() -> str:
    child = os.fork()
    if child == 0:
        raise RuntimeError("in the child")
    return _status(child)


def _exits() -> str:
    child = os.fork()
    if child == 0:
        sys.exit(7)
    return _status(child)


def _raises_unheard() -> str:
    child = os.fork()
    if child == 0:
        sys.stderr.close()
        raise RuntimeError("in the child")
    return _status(child)


def _exits_with_a_text() -> str:
    child = os.fork()
    if child == 0:
        sys.exit("in the child")
    return _status(child)


def _exits_with_too_much() -> str:
    child = os.fork()
    if child == 0:
        sys.exit(2**40 + 3)
    return _status(child)


def _program(before: Callable[[], object]) -> str:
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({_LONG})"], preexec_fn=before) as child:
        child.terminate()
    return str(child.returncode)


def _prepared() -> str:
    return _program(os.getpid)


def _killed_while_prepared() -> str:
    return _program(lambda: os.kill(os.getpid(), signal.SIGTERM))


CHILDREN: dict[str, tuple[Callable[[], str], str]] = {
    "pool": (_pool, "[1, 2]"),
    "pool in time": (_pool_in_time, "timeout"),
    "logging": (_logging, "[1, 2]"),
    "executor": (_executor, "[1, 2]"),
    "terminated": (_terminated, str(-signal.SIGTERM)),
    "interrupted": (_interrupted, str(-signal.SIGINT)),
    "forked": (_forked, str(-signal.SIGTERM)),
    "returns": (_returns, "1"),
    "raises": (_raises, "1"),
    "exits": (_exits, "7"),
    "raises unheard": (_raises_unheard, "1"),
    "exits with a text": (_exits_with_a_text, "1"),
    "exits with too much": (_exits_with_too_much, "3"),
    "prepared": (_prepared, str(-signal.SIGTERM)),
    "killed while prepared": (_killed_while_prepared, str(-signal.SIGTERM)),
}
"""What handlers do with children, and what they return for it."""


def _leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=[_LONG]).start()


def _leave_a_busy_executor() -> None:
    ThreadPoolExecutor(1).submit(time.sleep, _LONG)


def _leave_an_idle_executor() -> None:
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()
    _EXECUTORS.append(executor)


def _outlive(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.02)


def _leave_a_process() -> None:
    _FORK.Process(target=_outlive, args=[os.getpid()]).start()


LEAVERS: dict[str, tuple[Callable[[], None], ExitCode]] = {
    "a thread": (_leave_a_thread, ExitCode.ABANDONED),
    "a busy executor": (_leave_a_busy_executor, ExitCode.ABANDONED),
    "an idle executor": (_leave_an_idle_executor, ExitCode.STOPPED),
    "a process": (_leave_a_process, ExitCode.ABANDONED),
}
"""What coroutines leave behind, and with which exit code their worker ends all the same."""


async def _exits_in_a_callback() -> str:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    loop.call_soon(lambda: ended.set_result(_exits()))
    return await ended


async def _exit_beside() -> None:
    sys.exit(0)


async def _exit_with_the_worker(attempt: Attempt[str, str]) -> None:
    while not attempt.worker_stopping:  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(0.005)
    sys.exit(0)


async def _exit_when_cancelled() -> None:
    try:
        await asyncio.sleep(_LONG)
    finally:
        sys.exit(0)


async def _outlives_what_exits(attempt: Attempt[str, str]) -> str:
    """Ask the worker to stop, and end when two tasks have raised SystemExit; two more do when they are cancelled."""
    exiting = [asyncio.ensure_future(_exit_with_the_worker(attempt)) for _ in range(2)]
    _LEFT.extend([*exiting, *(asyncio.ensure_future(_exit_when_cancelled()) for _ in range(2))])
    os.kill(os.getpid(), signal.SIGTERM)
    while not all(task.done() for task in exiting):  # noqa: ASYNC110  (awaiting them would raise what they raise)
        await asyncio.sleep(0.005)
    for _ in range(100):  # What follows upon a second signal takes a few turns of the event loop.
        await asyncio.sleep(0)
    return "ended"


async def _cancel_the_stop(attempt: Attempt[str, str]) -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    while not attempt.worker_stopping:  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(0.005)
    for task in asyncio.all_tasks():
        task.cancel()
    return "cancelled"


made = Processors(
    JOB_TYPES,
    retry=RetryPolicy(max_attempts=100, initial_delay=0.0, jitter=0.0, max_crashes=2),
    lease=LeasePolicy(seconds=60.0, renew_every=0.3),
)


@made.handles(in_coroutine)
async def coroutine(attempt: Attempt[str, str]) -> Outcome[str]:
    """Make children in the event loop; or leave a task that ends the program."""
    if attempt.input == "a task exits":
        _LEFT.append(asyncio.ensure_future(_exit_beside()))
        return "left"
    if attempt.input == "cancels all tasks" and attempt.number == 1:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)
    if attempt.input == "cancels the stop":
        return await _cancel_the_stop(attempt)
    if attempt.input in LEAVERS:
        LEAVERS[attempt.input][0]()
        return "left"
    if attempt.input == "a callback forks":
        return await _exits_in_a_callback()
    if attempt.input == "tasks exit while it stops":
        return await _outlives_what_exits(attempt)
    return CHILDREN[attempt.input][0]() if attempt.input in CHILDREN else "ended"


@made.handles(in_thread)
def thread(attempt: Attempt[str, str]) -> Outcome[str]:
    """Make children in a thread."""
    return CHILDREN[attempt.input][0]()


@made.handles(in_process, executor="process")
def process(attempt: Attempt[str, str]) -> Outcome[str]:
    """Make children in a process."""
    return CHILDREN[attempt.input][0]()


@made.handles(stop_in_coroutine)
async def stop_from_coroutine(attempt: Attempt[str, str]) -> Outcome[str]:
    """Ask the worker to stop, and never end."""
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(_LONG)


@made.handles(stop_in_thread)
def stop_from_thread(attempt: Attempt[str, str]) -> Outcome[str]:
    """Ask the worker to stop, and never end."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LONG)
    return ""


@made.handles(stop_in_process, executor="process")
def stop_from_process(attempt: Attempt[str, str]) -> Outcome[str]:
    """Ask the worker to stop, and never end."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(_LONG)
    return ""


# --- children that would go back to the worker ------------------------------------------------------------------------

_WENT_BACK = 9
"""The exit code of a child that was let back into code of the application behind the handler."""

_main_process = os.getpid()


async def _awaits(attempt: Attempt[str, str]) -> str:
    child = os.fork()
    if child == 0:
        await asyncio.sleep(0)
        os._exit(_WENT_BACK)
    await asyncio.sleep(0)
    return _status(child)


async def _awaits_later(attempt: Attempt[str, str]) -> str:
    await asyncio.sleep(0)
    return await _awaits(attempt)


async def _leaves_a_transaction(attempt: Attempt[str, str]) -> str:
    async with attempt.transaction():
        child = os.fork()
    if child == 0:
        os._exit(_WENT_BACK)
    return _status(child)


async def _exits_from_a_transaction(attempt: Attempt[str, str]) -> str:
    async with attempt.transaction():
        child = os.fork()
        if child == 0:
            sys.exit(7)
    return _status(child)


async def _finishes(attempt: Attempt[str, str]) -> Outcome[str]:
    async with attempt.complete() as tx:
        child = os.fork()
        return tx.finish("in the child" if child == 0 else _status(child))


async def _forks_in_a_step(attempt: Attempt[str, str]) -> str:
    return await attempt.step("fork", _returns)


async def _awaits_in_a_step(attempt: Attempt[str, str]) -> str:
    return await attempt.step("fork", _awaits, attempt)


async def _forks_in_a_step_transaction(attempt: Attempt[str, str]) -> str:
    return await attempt.step_transaction("fork", lambda tx: _returns(), returns=str)


async def _begins_a_transaction(attempt: Attempt[str, str]) -> str:
    child = os.fork()
    if child == 0:
        try:
            async with attempt.transaction():
                os._exit(_WENT_BACK)
        except CompletionMisuseError:
            os._exit(3)
    return _status(child)


async def _begins_a_step(attempt: Attempt[str, str]) -> str:
    child = os.fork()
    if child == 0:
        try:
            await attempt.step("fork", os._exit, _WENT_BACK, returns=None)
        except CompletionMisuseError:
            os._exit(3)
    return _status(child)


async def _forks_in_a_thread(attempt: Attempt[str, str]) -> str:
    return await asyncio.to_thread(_returns)


def _in_a_task(function: Callable[[], str]) -> Callable[[Attempt[str, str]], Awaitable[Outcome[str]]]:
    async def work() -> str:
        return function()

    async def handler(attempt: Attempt[str, str]) -> Outcome[str]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work(), name="a task of a handler")
        return task.result()

    return handler


async def _awaits_in_a_task(attempt: Attempt[str, str]) -> str:
    [ended] = await asyncio.gather(_awaits_later(attempt))
    return ended


async def _raises_when_cancelled(attempt: Attempt[str, str]) -> str:
    async def work() -> str:
        try:
            await asyncio.sleep(_LONG)
        except asyncio.CancelledError:
            return _raises()
        return "not cancelled"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    return await task


BACK: dict[str, tuple[Callable[[Attempt[str, str]], Awaitable[Outcome[str]]], str]] = {
    "awaits": (_awaits, "1"),
    "awaits later": (_awaits_later, "1"),
    "leaves a transaction": (_leaves_a_transaction, "1"),
    "exits from a transaction": (_exits_from_a_transaction, "7"),
    "finishes": (_finishes, "1"),
    "forks in a step": (_forks_in_a_step, "1"),
    "awaits in a step": (_awaits_in_a_step, "1"),
    "forks in a step transaction": (_forks_in_a_step_transaction, "1"),
    "begins a transaction": (_begins_a_transaction, "3"),
    "begins a step": (_begins_a_step, "3"),
    "forks in a thread": (_forks_in_a_thread, "1"),
    "returns to a task": (_in_a_task(_returns), "1"),
    "raises in a task": (_in_a_task(_raises), "1"),
    "exits in a task": (_in_a_task(_exits), "7"),
    "awaits in a task": (_awaits_in_a_task, "1"),
    "fails in a cancelled task": (_raises_when_cancelled, "1"),
}
"""What children of a coroutine do, and how they end."""

UNGUARDED_IF_EMBEDDED = {name for name in BACK if name.endswith((" task", " thread"))} | {"runs a worker"}
"""What they do that only a worker guards whose event loop is its own."""


def _leaves_a_transaction_in_thread(attempt: Attempt[str, str]) -> str:
    with attempt.transaction():
        child = os.fork()
    if child == 0:
        os._exit(_WENT_BACK)
    return _status(child)


def _exits_from_a_transaction_in_thread(attempt: Attempt[str, str]) -> str:
    with attempt.transaction():
        child = os.fork()
        if child == 0:
            sys.exit(7)
    return _status(child)


def _finishes_in_thread(attempt: Attempt[str, str]) -> Outcome[str]:
    with attempt.complete() as tx:
        child = os.fork()
        return tx.finish("in the child" if child == 0 else _status(child))


def _forks_in_a_step_in_thread(attempt: Attempt[str, str]) -> str:
    return attempt.step_sync("fork", _returns)


def _forks_in_a_step_transaction_in_thread(attempt: Attempt[str, str]) -> str:
    return attempt.step_transaction_sync("fork", lambda tx: _returns(), returns=str)


_given: list[Attempt[str, str]] = []


def _uses_it(use: str) -> None:
    attempt = _given[-1]
    if use == "progress":
        attempt.record_progress(1)
    elif use == "start":
        attempt.read_start_sync()
    elif use == "step":
        attempt.step_sync("use", os.getpid)
    else:
        with attempt.transaction():
            pass


def _passes_it_to_a_pool(attempt: Attempt[str, str]) -> str:
    _given.append(attempt)
    refused = 0
    with _FORK.Pool(2) as pool:
        for use in ("progress", "start", "step", "transaction"):
            with suppress(CompletionMisuseError):
                pool.apply(_uses_it, [use])
                continue
            refused += 1
    return str(refused)


def _runs_a_worker(attempt: Attempt[str, str]) -> str:
    child = os.fork()
    if child == 0:
        asyncio.run(_nested_worker(attempt.job_id))
        return "in the child"
    return _status(child)


async def _nested_worker(name: str) -> None:
    nested = JobType("nested", input=str, output=str)
    types = JobTypes(nested)
    handlers = Processors(types)

    @handlers.handles(nested)
    async def handle(attempt: Attempt[str, str]) -> Outcome[str]:
        return "done"

    client = AsyncClient(PostgresState(os.environ["QUEUERT_URL"]), types)
    async with client, InProcessWorker(client, handlers):
        chain = await client.start_chain(nested, name, id=f"nested-{name}")
        assert await chain.result(_LONG) == "done"


BACK_IN_THREAD: dict[str, tuple[Callable[[Attempt[str, str]], Outcome[str]], str]] = {
    "leaves a transaction": (_leaves_a_transaction_in_thread, "1"),
    "exits from a transaction": (_exits_from_a_transaction_in_thread, "7"),
    "finishes": (_finishes_in_thread, "1"),
    "forks in a step": (_forks_in_a_step_in_thread, "1"),
    "forks in a step transaction": (_forks_in_a_step_transaction_in_thread, "1"),
    "passes it to a pool": (_passes_it_to_a_pool, "4"),
    "runs a worker": (_runs_a_worker, "1"),
}
"""What children of a plain function do, and how they end."""


@made.handles(back_in_coroutine)
async def back_to_coroutine(attempt: Attempt[str, str]) -> Outcome[str]:
    """Fork a child that would go back to the worker, in the event loop."""
    return await BACK[attempt.input][0](attempt)


@made.handles(back_in_thread)
def back_to_thread(attempt: Attempt[str, str]) -> Outcome[str]:
    """Fork a child that would go back to the worker, in a thread."""
    return BACK_IN_THREAD[attempt.input][0](attempt)


@made.handles(back_in_process, executor="process")
def back_to_process(attempt: Attempt[str, str]) -> Outcome[str]:
    """Fork a child that would go back to the worker, in a process."""
    return BACK_IN_THREAD[attempt.input][0](attempt)


async def _watching(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    try:
        return await call_next()
    finally:
        if os.getpid() != _main_process:
            os._exit(_WENT_BACK)


async def _forking(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    outcome = await _watching(attempt, call_next)
    return _returns() if attempt.input == "middleware" else outcome


@made.handles(back_in_middleware, middlewares=[_watching, _forking])
async def back_to_middleware(attempt: Attempt[str, str]) -> Outcome[str]:
    """Fork a child that would go back to a middleware."""
    return _returns() if attempt.input == "handler" else ""


@made.handles_batch(back_in_batch, size=4)
async def back_to_batch(attempts: Sequence[Attempt[str, str]]) -> Sequence[Outcome[str]]:
    """Fork children that would go back to the task of a batch."""
    return [_returns() if attempt.input == "returns" else await _awaits(attempt) for attempt in attempts]


@made.handles_batch(back_in_threaded_batch, size=4)
def back_to_threaded_batch(attempts: Sequence[Attempt[str, str]]) -> Sequence[Outcome[str]]:
    """Fork children that would go back to the thread of a batch."""
    return [_returns() for _ in attempts]


def _fork_in(ended: EndedAttempt) -> int:
    """Fork; in the parent, put the end of the child into the output. Return 0 in the child."""
    name, child = ended.output, os.fork()
    if child:
        ended.output = _status(child)
    elif name == "raises":
        raise RuntimeError("in the child")
    return child


async def _hook(ended: EndedAttempt) -> None:
    awaits = ended.output == "awaits"
    if _fork_in(ended) == 0 and awaits:
        await asyncio.sleep(0)
        os._exit(_WENT_BACK)


def _threaded_hook(ended: EndedAttempt) -> None:
    _fork_in(ended)


@made.handles(back_in_hook, after_attempt=_hook)
async def back_to_hook(attempt: Attempt[str, str]) -> Outcome[str]:
    """Let the hook fork a child that would go back to the worker."""
    return attempt.input


@made.handles(back_in_threaded_hook, after_attempt=_threaded_hook)
def back_to_threaded_hook(attempt: Attempt[str, str]) -> Outcome[str]:
    """Let the hook fork a child that would go back to its thread."""
    return attempt.input


def processors() -> Processors:
    """Return the handlers for ``queuert worker``."""
    return made


# --- lifespans --------------------------------------------------------------------------------------------------------


def _resources(worker: Callable[[], int]) -> Iterator[str]:
    child = os.fork()
    yield "in the child" if child == 0 else _status(child)
    child = os.fork()
    if child and _status(child) != "1":
        os.kill(worker(), signal.SIGKILL)  # Nobody looks at what a lifespan raises while its worker stops.


@contextmanager
def _forking_lifespan() -> Iterator[str]:
    yield from _resources(os.getpid)


@contextmanager
def _forking_lifespan_in_process() -> Iterator[str]:
    yield from _resources(os.getppid)


@asynccontextmanager
async def _forking_lifespan_in_loop() -> AsyncIterator[str]:
    with _forking_lifespan() as found:
        yield found


def processors_with_lifespans() -> list[Processors]:
    """Return handlers for ``queuert worker`` whose lifespans fork children where they are entered, and where left."""
    in_loop = Processors(JOB_TYPES, lifespan=_forking_lifespan_in_loop)
    threaded = Processors(JOB_TYPES, lifespan=_forking_lifespan)
    in_processes = Processors(JOB_TYPES, lifespan=_forking_lifespan_in_process)

    @in_loop.handles(in_lifespan)
    async def found_in_loop(attempt: Attempt[str, str]) -> Outcome[str]:
        return str(attempt.resources)

    @threaded.handles(in_threaded_lifespan)
    def found_in_thread(attempt: Attempt[str, str]) -> Outcome[str]:
        return str(attempt.resources)

    in_processes.handles(in_process_lifespan, executor="process")(_found_in_process)
    return [in_loop, threaded, in_processes]


def _found_in_process(attempt: Attempt[str, str]) -> Outcome[str]:
    return str(attempt.resources)
