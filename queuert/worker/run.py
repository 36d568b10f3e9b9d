"""A worker as a process: signals, and exit codes that mean something."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path

from queuert.errors import SchemaMissingError, StateError
from queuert.worker.health import keep_health_file, remove_health_file
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.timeouts import CountedThreads, ended_within, leftovers
from queuert.worker.worker import InProcessWorker

_log = logging.getLogger("queuert.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LEFTOVERS = 2.0
"""Seconds for what was cancelled to end: a start, what handlers have left in the event loop and in its threads."""

_CANCELS = 2

_NEW_OBJECTS = 10_000
"""More than were freed since: then the garbage collector looks at the newest. By default it is 700."""


class ExitCode(IntEnum):
    """What the end of a worker process says."""

    STOPPED = 0
    """Asked to stop, and all handlers ended."""
    USAGE = 2
    """The command line, or the application that it names, is wrong."""
    UNAVAILABLE = 3
    """The store cannot be reached, or has no schema: nothing was begun."""
    ABANDONED = 4
    """Asked to stop, and some handlers would not end within the grace. Their jobs were released.

    Or a handler that ended has left a task, or a call in a thread of the event loop, that would not end.
    """


def run(
    worker: InProcessWorker,
    *,
    health_file: Path | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run until SIGTERM or SIGINT, then stop with grace; a second signal ends the grace. Returns the exit code.

    ``loop_factory`` makes the event loop, such as ``uvloop.new_event_loop``; by default it is asyncio's own.

    When handlers would not end, the process is ended here and now, with ABANDONED: waiting for them would be for ever.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return _run(worker, health_file, loop_factory)
    finally:
        # Not to be inherited, ignored, by processes that the caller starts later.
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    worker: InProcessWorker, health_file: Path | None, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> int:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        code, whole = runner.run(_main(worker, health_file))
        if not whole:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


async def _main(worker: InProcessWorker, health_file: Path | None) -> tuple[ExitCode, bool]:
    """The exit code, and whether the event loop, and the process, can be ended in the ordinary way."""
    requested = asyncio.Event()
    stops: set[asyncio.Task[None]] = set()
    threads = CountedThreads()
    asyncio.get_running_loop().set_default_executor(threads)

    def stop() -> None:
        requested.set()
        stops.add(asyncio.ensure_future(worker.stop()))

    with heard_signals(stop):
        code = await _serve(worker, requested, stops, health_file)
        if code is ExitCode.ABANDONED or await _nothing_is_left(threads):
            return code, code is not ExitCode.ABANDONED
        return ExitCode.ABANDONED if code is ExitCode.STOPPED else code, False


async def _nothing_is_left(threads: CountedThreads) -> bool:
    """Whether all that handlers have left has ended; it is cancelled, and has a moment for it."""
    tasks, calls = await leftovers(_LEFTOVERS, threads)
    if tasks or calls:
        what = (
            "tasks that handlers left behind do not end (%d), or calls in threads (%d): the process ends without them"
        )
        _log.warning(what, tasks, calls)
    return not tasks and not calls


@contextmanager
def heard_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` in the event loop for each SIGTERM and SIGINT, for the length of a ``with`` block.

    The event loop by itself hears of a signal through the pipe that wakes it. While it is blocked, and threads call for
    it some hundred times, that pipe is full, and a signal that comes then is lost. So the interpreter's own handler
    counts them too: what either has heard of was sent. It cannot do without the pipe, which wakes a loop that waits.
    """
    loop = asyncio.get_running_loop()
    heard, counted, done = 0, 0, 0

    def act() -> None:
        nonlocal done
        while done < max(heard, counted):
            done += 1
            stop()

    def on_pipe() -> None:
        nonlocal heard
        heard += 1
        act()

    def on_signal(number: int, frame: object) -> None:
        nonlocal counted
        counted += 1
        loop.call_soon_threadsafe(act)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_pipe)
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            # The worker has stopped; one signal more, while the loop closes, must not turn its exit code into another.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


async def _serve(
    worker: InProcessWorker, requested: asyncio.Event, stops: set[asyncio.Task[None]], health_file: Path | None
) -> ExitCode:
    code = await _start(worker, requested)
    if code is not None:
        return code
    with tuned_gc():
        heart = _heart(worker, health_file)
        await requested.wait()
        await asyncio.gather(*stops)
        await _end(heart, health_file)
    return ExitCode.ABANDONED if worker.abandoned else ExitCode.STOPPED


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Let the garbage collector look seldom, for the length of a ``with`` block in which jobs are run.

    What is there by now lives as long as the process, and need not be looked through again and again. And attempts end
    without leaving anything to the collector, which by itself would go through all that are under way for every hundred
    of them. A process that has switched it off, or lets it look more seldom still, is left as it is.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _start(worker: InProcessWorker, requested: asyncio.Event) -> ExitCode | None:
    """Start the worker; an exit code where that failed, or was called off."""
    start, stop = asyncio.ensure_future(worker.start()), asyncio.ensure_future(requested.wait())
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not start.done():
        for _ in range(_CANCELS):
            # Once makes a driver ask the server to stop, and wait for that as well.
            start.cancel()
            if await ended_within(_LEFTOVERS, [start]):
                break
        return ExitCode.STOPPED if not start.done() or start.cancelled() or start.exception() else None
    try:
        await start
    except StateError as error:
        way_out = "" if isinstance(error, SchemaMissingError) else " (check the address, and that the server runs)"
        print(f"queuert: {error}{way_out}", file=sys.stderr)  # noqa: T201
        return ExitCode.UNAVAILABLE
    return None


def _heart(worker: InProcessWorker, path: Path | None) -> SupervisedLoop | None:
    if path is None:
        return None
    pauses: list[SupervisedLoop] = []
    beat = partial(keep_health_file, path, worker.health, lambda seconds: pauses[0].pause(seconds))
    loop = SupervisedLoop("health", beat, worker=worker.name, observers=worker.observers)
    pauses.append(loop)
    loop.start()
    return loop


async def _end(heart: SupervisedLoop | None, path: Path | None) -> None:
    if heart is not None and path is not None:
        await heart.stop()
        remove_health_file(path)
