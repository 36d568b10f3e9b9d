"""Handlers that run in a process of their own; they are imported there. Job inputs say what they do."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from opentelemetry import propagate

from queuert import Attempt, Client, Outcome, PostgresState
from queuert.errors import LeaseLostError
from queuert.observability.context import current_attempt
from tests.support.job_types import JOB_TYPES, number

WRITE = "insert into effect values (%s, %s)"


class Odd(ValueError):
    """Raised by ``raises``."""


class Stubborn(Exception):
    """Cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Fatal(BaseException):
    """No Exception."""


def come(attempt: Attempt[Any, Any], place: str) -> None:
    """Tell a test, by a file, that we are here and who we are."""
    partial = Path(place + ".part")
    partial.write_text(str(os.getpid()))
    partial.rename(place)


def here(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Where it runs, and what it was given."""
    logging.getLogger("tests.killable").warning("said by %s", "the handler")
    return {
        "pid": os.getpid(),
        "input": attempt.input,
        "job_id": attempt.job_id,
        "number": attempt.number,
        "worker": attempt.worker,
        "stopping": attempt.worker_stopping,
        "blockers": [blocker.output for blocker in attempt.blockers],
    }


def waits(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Start a chain of the type ``number`` in the database that the input names, and wait for it."""
    with Client(PostgresState(attempt.input), JOB_TYPES) as client:
        return client.start_and_wait(number, 1, timeout=30.0)


def fork_that_waits(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Let a forked child wait for a chain of the type ``number``, as ``waits`` does."""
    child = os.fork()
    if child == 0:
        running = current_attempt.get()
        assert running is not None
        running.waits_for({"number"})
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def double(attempt: Attempt[int, int]) -> Outcome[int]:
    """Twice the input."""
    return attempt.input * 2


def onwards(attempt: Attempt[int, int]) -> Outcome[int]:
    """Continue with ``number``."""
    return attempt.continue_with(number, attempt.input + 1)


def again(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Ask for one retry, then fail or cancel."""
    if attempt.number == 1:
        return attempt.retry(after=0, reason="once more")
    return attempt.fail("enough") if attempt.input == "fail" else attempt.cancel("unwanted")


def raises(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Raise what the input names."""
    match attempt.input:
        case "odd":
            raise Odd("odd")
        case "stubborn":
            raise Stubborn(1, 2)
        case "exit":
            sys.exit(3)
        case "fatal":
            raise Fatal("no exception")
        case "lost":
            raise LeaseLostError(attempt.job_id, "not_found")
        case "group":
            raise ExceptionGroup("two", [Odd("one"), KeyError("two")])
        case _:
            return lambda: None  # Cannot be sent.


def die(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Die the way that the input names."""
    match attempt.input:
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case _:
            return attempt.input
    return None


def stay(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Stay for ever, deaf; a child of our own stays as well."""
    subprocess.Popen([sys.executable, "-c", _GRANDCHILD.format(place=attempt.input + ".grandchild")])
    come(attempt, attempt.input)
    while True:
        time.sleep(60)


_GRANDCHILD = """
import os, time
open({place!r} + ".part", "w").write(str(os.getpid()))
os.rename({place!r} + ".part", {place!r})
time.sleep(600)
"""


def listen(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Stay until told to stop; write down why."""
    come(attempt, attempt.input)
    reason = attempt.abort.wait_sync()
    Path(attempt.input + ".part").write_text(f"{reason} {attempt.worker_stopping}")
    Path(attempt.input + ".part").rename(attempt.input + ".told")
    return attempt.input


def dies_when_aborted(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Stay until the attempt is aborted, and die then."""
    come(attempt, attempt.input)
    attempt.abort.wait_sync()
    os._exit(7)


class NeverLoaded:
    """A handler that its process never has, since reading it does not end; ``place`` is written when that begins."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __call__(self, attempt: Attempt[Any, Any]) -> Outcome[Any]:
        raise AssertionError

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_for_ever, (self._place,)


def _load_for_ever(place: str) -> NoReturn:
    Path(place + ".part").write_text(str(os.getpid()))
    Path(place + ".part").rename(place)
    while True:
        time.sleep(60)


def commits_slowly(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Complete with an effect; a trigger of the test holds the commit."""
    with attempt.complete() as tx:
        tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        come(attempt, attempt.input)
        return tx.finish(attempt.number)


def holds(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Stay inside complete() until the test lets us go."""
    with attempt.complete() as tx:
        tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        come(attempt, attempt.input)
        while not Path(attempt.input + ".go").exists():
            time.sleep(0.01)
        return tx.finish(attempt.number)


def wait_for_leave(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Stay until the test lets us go, and until we know of the worker's stop if the test says that there is one."""
    come(attempt, attempt.input)
    while not Path(attempt.input + ".go").exists():
        time.sleep(0.01)
    while Path(attempt.input + ".stop").exists() and not attempt.worker_stopping:
        time.sleep(0.01)
    return {"stopping": attempt.worker_stopping}


def spin(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Keep a processor, and never let go of the GIL."""
    come(attempt, attempt.input)
    return _endless()


def _endless() -> NoReturn:
    ctypes.PyDLL(None).sleep(600)
    raise AssertionError


def completes(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Write an effect and the finish in one transaction; the input says where to die."""
    how = attempt.input if attempt.number == 1 else ""
    with attempt.complete() as tx:
        tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        if how == "forgets":
            return None
        finished = tx.finish(attempt.number)
        if how == "inside":
            os._exit(1)
    if how == "after":
        os._exit(1)
    if how == "raises":
        raise Odd("after the commit")
    return finished


def dies_before_it_says_so(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Commit, and die before the worker hears of it; or say so, and die before it."""
    completion: Any = attempt.complete()
    runtime: Any = attempt._host
    with completion as tx:
        tx.connection.execute(WRITE, (attempt.job_id, attempt.number))
        if attempt.number == 1 and attempt.input == "committed":
            runtime.committed = lambda finish, result: os._exit(1)
        if attempt.number == 1 and attempt.input == "uncommitted":
            completion._sync.__exit__ = lambda *_: os._exit(1)
        return tx.finish(attempt.number)


def counts(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Tell of progress, and stay until the test lets us go."""
    attempt.record_progress(3, 4, message="from a process")
    return wait_for_leave(attempt)


def counts_to_the_end(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Tell of progress before and after the test lets us go."""
    outcome = counts(attempt)
    attempt.record_progress(4, 4)
    return outcome


def counts_in_a_block(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """As ``counts_to_the_end``, and complete the job itself."""
    outcome = counts_to_the_end(attempt)
    with attempt.complete() as tx:
        return tx.finish(outcome)


def counts_and_completes(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """As ``counts``, and complete the job itself."""
    outcome = counts(attempt)
    with attempt.complete() as tx:
        return tx.finish(outcome)


def current_trace(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """The trace that is the current one of OpenTelemetry."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier["traceparent"]


class Uncallable:
    """Says that it can be called with an attempt, and cannot."""

    __signature__ = None

    def __call__(self) -> Any:
        """Take no attempt."""


uncallable: Any = Uncallable()


# --- lifespans --------------------------------------------------------------------------------------------------------


def _record(step: str) -> None:
    with Path(os.environ["TEST_LIFESPAN_FILE"]).open("a") as file:
        file.write(f"{step}-{os.getpid()}\n")


@contextmanager
def plain_lifespan() -> Iterator[str]:
    """Record when it is entered and left."""
    _record("entered")
    yield f"resources of {os.getpid()}"
    _record("left")


@asynccontextmanager
async def loop_lifespan() -> AsyncIterator[str]:
    """Record when it is entered and left, in an event loop."""
    async with asyncio.TaskGroup():
        with plain_lifespan() as value:
            yield value


@contextmanager
def failing_lifespan() -> Iterator[None]:
    """Fail in every other process than the worker's."""
    if os.environ["TEST_LIFESPAN_FAILS_OUTSIDE"] != str(os.getpid()):
        raise OSError("not here")
    yield None


def resources(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """What the lifespan has yielded, and where."""
    return {"pid": os.getpid(), "resources": attempt.resources}


def start_options(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """What the chain was started with."""
    options = attempt.read_start_sync()
    return [dict(options.attributes), options.limit_key]


def earlier_jobs(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """What the earlier jobs of the chain had, and kept."""
    return str([(job.type, job.input, job.output) for job in attempt.read_earlier_jobs_sync()])
