"""Handlers that make children, in a coroutine, a thread and a process, and handlers that stop their worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

from queuert import Attempt, JobType, JobTypes, LeasePolicy, Outcome, Processors, RetryPolicy

in_coroutine = JobType("in_coroutine", input=str, output=str)
in_thread = JobType("in_thread", input=str, output=str)
in_process = JobType("in_process", input=str, output=str)
stop_in_coroutine = JobType("stop_in_coroutine", input=str, output=str)
stop_in_thread = JobType("stop_in_thread", input=str, output=str)
stop_in_process = JobType("stop_in_process", input=str, output=str)
JOB_TYPES = JobTypes(in_coroutine, in_thread, in_process, stop_in_coroutine, stop_in_thread, stop_in_process)

_FORK = multiprocessing.get_context("fork")
_LONG = 3600.0
_LEFT: list[asyncio.Task[None]] = []


def _pool() -> str:
    with _FORK.Pool(2) as pool:  # Its end is terminate().
        return str(pool.map(abs, [-1, -2]))


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


async def _exit_beside() -> None:
    sys.exit(0)


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
    return CHILDREN[attempt.input][0]()


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


        with suppress(asyncio.CancelledError):
            await asyncio.sleep(_LONG)


@made.handles(stop_in_thread)
def stop_from_thread(attempt: Attempt[str, str]) -> Outcome[str]:
    """Ask the worker to stop, and never end."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LONG)
    return ""


@made.handles(stop_in_process, executor="process")
    if attempt.input == "tasks exit while it stops":
        return await _outlives_what_exits(attempt)
def stop_from_process(attempt: Attempt[str, str]) -> Outcome[str]:
    """Ask the worker to stop, and never end."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(_LONG)
    return ""


def processors() -> Processors:
    """Return the handlers for ``queuert worker``."""
    return made
