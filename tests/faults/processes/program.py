"""A worker process for tests to break: run with a connection string, the way of its handlers, and settings as JSON.

It writes what happens to its standard output, one line each: ``ready``, ``in <job> <attempt>``, ``aborted <reason>``,
``refused <reason>``, ``done <job>``. Handlers that wait go on when a line comes in.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from queuert import Attempt, Client, InProcessWorker, LeasePolicy, PostgresState, Processors, RetryPolicy
from queuert.errors import LeaseLostError
from queuert.observability.events import Event, WorkerStarted, WorkerStopping
from tests.worker.support import JOB_TYPES, number, text

EFFECT = "insert into effect values (%s, %s)"

_input_came = threading.Event()


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Teller:
    """Tells when the worker has started, and when it begins to stop."""

    def emit(self, event: Event) -> None:
        if isinstance(event, WorkerStarted):
            say("ready")
        elif isinstance(event, WorkerStopping):
            say("stopping")
        elif event.level in ("warning", "error"):
            say("trouble", event)


async def effect(attempt: Attempt[Any, Any]) -> Any:
    """Write one row and the output, together."""
    async with attempt.complete() as tx:
        await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        finished = tx.finish(attempt.input)
    say("done", attempt.job_id)
    return finished


async def hang(attempt: Attempt[Any, Any]) -> Any:
    say("in", attempt.job_id, attempt.number)
    await asyncio.Event().wait()


def hang_in_thread(attempt: Attempt[Any, Any]) -> Any:
    say("in", attempt.job_id, attempt.number)
    threading.Event().wait()


async def inside(attempt: Attempt[Any, Any]) -> Any:
    """Write, and wait inside the transaction."""
    async with attempt.complete() as tx:
        await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        finished = tx.finish(attempt.input)
        say("in", attempt.job_id, attempt.number)
        await asyncio.to_thread(_input_came.wait)
    return finished


def late(attempt: Attempt[Any, Any]) -> Any:
    """Wait for a line, then complete."""
    say("in", attempt.job_id, attempt.number)
    _input_came.wait()
    try:
        with attempt.complete() as tx:
            tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
            finished = tx.finish(attempt.input)
        say("done", attempt.job_id)
        return finished
    except LeaseLostError as error:
        say("refused", error.reason)
        say("aborted", attempt.abort.wait(10))
        raise


async def plain(attempt: Attempt[Any, Any]) -> Any:
    """Wait for a line, then return the output."""
    say("in", attempt.job_id, attempt.number)
    try:
        await asyncio.to_thread(_input_came.wait)
    except asyncio.CancelledError:
        say("aborted", attempt.abort.reason)
        raise
    return attempt.input


async def block(attempt: Attempt[Any, Any]) -> Any:
    """Block the event loop for three leases: the fault itself."""
    say("in", attempt.job_id, attempt.number)
    time.sleep(3 * attempt.claimed.lease_seconds)
    return await effect(attempt)


async def leave(attempt: Attempt[Any, Any]) -> Any:
    say("in", attempt.job_id, attempt.number)
    os._exit(9)


async def crash(attempt: Attempt[Any, Any]) -> Any:
    say("in", attempt.job_id, attempt.number)
    os.kill(os.getpid(), signal.SIGSEGV)


HANDLERS: dict[str, Callable[[Attempt[Any, Any]], Any]] = {
    one.__name__: one for one in (effect, hang, hang_in_thread, inside, late, plain, block, leave, crash)
}


def read_input() -> None:
    for _ in sys.stdin:
        _input_came.set()


def main() -> int:
    dsn, way = sys.argv[1:3]
    settings = json.loads(sys.argv[3])
    threading.Thread(target=read_input, daemon=True).start()
    retry = RetryPolicy(max_attempts=settings.get("cap", 25), initial=0.0, jitter=0.0)
    lease = LeasePolicy(seconds=settings.get("lease", 1.0))
    processors = Processors(JOB_TYPES, retry=retry, lease=lease)
    processors.handles(number)(HANDLERS[way])
    processors.handles(text)(effect)
    client = Client(PostgresState(dsn), JOB_TYPES, observability=Teller())
    worker = InProcessWorker(
        client, processors, name="child", concurrency=settings.get("concurrency", 1), grace=settings.get("grace", 10.0)
    )
    say("begun")
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
