"""Runs a worker as a process: signals, exit codes, the health file."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from functools import partial
from pathlib import Path

from queuert.errors import LifespanError, RunningEventLoopError, StateError, StateUnavailableError
from queuert.store_addresses import what_to_check
from queuert.worker import forks
from queuert.worker.health import keep_health_file, remove_health_file
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.timeouts import CountedThreads, cancel_leftovers, ended_within
from queuert.worker.worker import InProcessWorker

_log = logging.getLogger("queuert.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_CANCEL_TIMEOUT = 2.0
"""Seconds for what was cancelled to end: a start, and what handlers have left in the event loop and in its threads."""

_CANCELS_OF_START = 2

_IDLE_POLL = 0.1
"""Seconds between two looks whether anything is due."""

_GC_THRESHOLD = 10_000
"""New objects, less those that were freed, after which the garbage collector runs. Python's default is 700."""


_left_behind: list[object] = []
"""The event loops, with their tasks, of workers in other threads than the main one whose handlers did not end."""


class ExitCode(IntEnum):
    """The exit codes of a worker process."""

    STOPPED = 0
    """Asked to stop, and all handlers ended."""
    UNASKED = 1
    """It stopped without having been asked: a task or callback of a handler raised SystemExit or KeyboardInterrupt, or
    one stopped the event loop, or cancelled all its tasks.
    """
    USAGE = 2
    """The command line, or the application that it names, is wrong."""
    UNAVAILABLE = 3
    """The store cannot be reached, has no schema, or does not let this login work: the worker did not start, or, with
    ``once``, could not find out whether jobs are due.
    """
    ABANDONED = 4
    """Asked to stop, and some handlers did not end in time. If they had begun, they count as crashes; their jobs go on.

    Or a handler that ended has left a task, or a call in a thread of the event loop, that does not end; in a process
    of the command line also a thread or a child process. Or somebody cancelled all tasks while the worker stopped.
    """
    LIFESPAN = 5
    """A lifespan could not be entered, so that nothing was claimed; or it ended while the worker ran."""


def run(
    worker: InProcessWorker,
    *,
    health_file: Path | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    once: bool = False,
    budget: float | None = None,
) -> int:
    """Run until SIGTERM or SIGINT, then stop, and return the exit code. A second signal cancels the running handlers.

    With ``once`` it also stops when nothing is due any more, or after ``budget`` seconds; then no more jobs begin, and
    the running ones have the shutdown timeout to finish.

    ``loop_factory`` makes the event loop, such as ``uvloop.new_event_loop``; by default it is asyncio's own.

    If handlers do not end, it ends the process at once, with the exit code ABANDONED, and does not return.

    In a thread that is not the main one, it handles no signals, since Python allows that only there: another thread
    stops it by ``worker.request_stop()``. The process is not ended there; the event loop is left as it is. A thread
    that is no daemon keeps the process alive until somebody stops the worker, also if the main thread raises.

    Raises:
        RunningEventLoopError: an event loop runs in this thread already, as in a notebook: use ``await worker.start()``
            and ``await worker.stop()``, or ``async with worker``.
    """
    _check_no_event_loop()
    requested = asyncio.Event()
    with ExitStack() as stack:
        handles_signals = threading.current_thread() is threading.main_thread()
        if handles_signals:
            stack.enter_context(_signals_as_before())
        runner = stack.enter_context(asyncio.Runner(loop_factory=loop_factory))
        loop = runner.get_loop()
        loop.set_task_factory(forks.make_task)
        main = loop.create_task(_main(worker, requested, health_file, budget if once else None, once=once))
        code, all_ended = _run_until_complete(loop, main, requested, worker, handles_signals=handles_signals)
        if not all_ended and handles_signals:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if not all_ended:
            worker.leave()
            # To close the event loop would wait for what does not end. The garbage collector would end the coroutines
            # of an event loop that nobody refers to, in whatever thread it runs.
            _left_behind.append((stack.pop_all(), asyncio.all_tasks(loop)))
        return code


@contextmanager
def _signals_as_before() -> Iterator[None]:
    """Let signals be handled after a ``with`` block as they were before it."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        # Ignored signals would be inherited by processes that the caller starts later.
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_until_complete(
    loop: asyncio.AbstractEventLoop,
    main: asyncio.Task[tuple[ExitCode, bool]],
    requested: asyncio.Event,
    worker: InProcessWorker,
    *,
    handles_signals: bool,
) -> tuple[ExitCode, bool]:
    """Return what ``_main`` returns. An exception that leaves the event loop before stops the worker as a signal does.

    asyncio raises SystemExit and KeyboardInterrupt of any task or callback where the loop was run, and a RuntimeError
    if one has stopped the loop. Once a stop is requested, by whatever, such an exception is no second signal: what was
    left behind is ended by the stop anyway.
    """
    unasked = False
    before = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            with forks.no_way_back():  # A child that leaves the event loop by an exception ends here.
                code, all_ended = loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            not_yet_or_over = handles_signals and signal.getsignal(signal.SIGTERM) == before
            if main.done() or loop.is_closed() or not_yet_or_over:
                raise
            did = "stopped the event loop" if isinstance(error, RuntimeError) else f"raised {type(error).__name__}"
            if unasked or requested.is_set() or worker.stop_requested:
                _log.error("a task or callback %s while the worker stops", did, exc_info=error)
                continue
            unasked = True
            _log.critical("a task or callback %s, so the worker stops", did, exc_info=error)
            if handles_signals:
                signal.raise_signal(signal.SIGTERM)
            else:
                worker.request_stop()
        else:
            return ExitCode.UNASKED if unasked and code is ExitCode.STOPPED else code, all_ended


def _check_no_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunningEventLoopError(
        "worker.run() needs a thread without a running event loop, and one runs here already, as in a notebook: use "
        "await worker.start() and later await worker.stop(), or async with worker"
    )


async def _main(
    worker: InProcessWorker, requested: asyncio.Event, health_file: Path | None, budget: float | None, *, once: bool
) -> tuple[ExitCode, bool]:
    """Return the exit code, and whether all tasks and threads have ended, so that the event loop can be closed."""
    stops: set[asyncio.Task[None]] = set()
    threads = CountedThreads()
    asyncio.get_running_loop().set_default_executor(threads)

    def stop() -> None:
        requested.set()
        stops.add(asyncio.ensure_future(worker.stop()))

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(forks.defaults_in_children(_SIGNALS))
            stack.enter_context(on_signals(stop))
        work_off = partial(_work_off, worker, budget, stop) if once else None
        code = ExitCode.STOPPED
        try:
            code = await _serve(worker, requested, stops, health_file, work_off)
            if code is ExitCode.ABANDONED or await _all_ended(threads):
                return code, code is not ExitCode.ABANDONED
        except asyncio.CancelledError:
            then = "the process ends at once" if _in_main_thread() else "run() returns and leaves what still runs"
            _log.critical("somebody cancelled all tasks while the worker starts or stops: %s", then)
            if health_file is not None:
                remove_health_file(health_file)
        return ExitCode.ABANDONED if code is ExitCode.STOPPED else code, False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


async def _all_ended(threads: CountedThreads) -> bool:
    """Cancel what handlers have left in the event loop, and return whether it has ended within a timeout."""
    tasks, calls = await cancel_leftovers(_CANCEL_TIMEOUT, threads)
    if tasks or calls:
        then = "the process ends without them" if _in_main_thread() else "run() returns and leaves them"
        message = "tasks that handlers left behind do not end (%d), or calls in threads (%d): %s"
        _log.warning(message, tasks, calls, then)
    return not tasks and not calls


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` in the event loop for each SIGTERM and SIGINT, for the length of a ``with`` block.

    asyncio receives signals through the pipe that wakes the event loop. While the loop is blocked, some hundred calls
    from threads fill that pipe, and a signal is lost. So the interpreter's own handler counts the signals as well, and
    the higher of both counts is right. The pipe is needed all the same: it wakes a loop that waits.
    """
    loop = asyncio.get_running_loop()
    from_pipe, from_interpreter, handled = 0, 0, 0

    def handle() -> None:
        nonlocal handled
        while handled < max(from_pipe, from_interpreter):
            handled += 1
            stop()

    def on_pipe() -> None:
        nonlocal from_pipe
        from_pipe += 1
        handle()

    def on_signal(number: int, frame: object) -> None:
        nonlocal from_interpreter
        from_interpreter += 1
        loop.call_soon_threadsafe(handle)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_pipe)
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            # The worker has stopped. Another signal, while the loop closes, must not change its exit code.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


async def _work_off(worker: InProcessWorker, budget: float | None, stop: Callable[[], None]) -> None:
    """Call ``stop`` when nothing is due any more, or when the budget is used up, or if that cannot be known."""
    with suppress(TimeoutError):
        async with asyncio.timeout(budget):
            try:
                while not await _is_idle(worker):  # noqa: ASYNC110  (what is due is known to the store alone)
                    await asyncio.sleep(_IDLE_POLL)
            except Exception as error:
                _log.critical("cannot read whether jobs are due, so the worker stops: %s", error, exc_info=error)
                stop()
                raise
    stop()


async def _is_idle(worker: InProcessWorker) -> bool:
    try:
        return await worker.is_idle()
    except StateUnavailableError as error:
        _log.warning("cannot read whether jobs are due: %s", error)
        return False


async def _serve(
    worker: InProcessWorker,
    requested: asyncio.Event,
    stops: set[asyncio.Task[None]],
    health_file: Path | None,
    work_off: Callable[[], Coroutine[None, None, None]] | None,
) -> ExitCode:
    code = await _start(worker, requested)
    if code is not None:
        return code
    with tuned_gc():
        health_loop = _start_health_loop(worker, health_file)
        working = None if work_off is None else asyncio.ensure_future(work_off())
        unasked = await _wait_stopped(worker, requested)
        failed = False
        if working is not None and not working.cancel():
            failed = not working.cancelled() and working.exception() is not None
        await asyncio.gather(*stops, *worker.stops)
        await _stop_health_loop(health_loop, health_file)
    if worker.abandoned:
        return ExitCode.ABANDONED
    if failed:
        return ExitCode.UNAVAILABLE
    if unasked:
        return ExitCode.UNASKED
    return ExitCode.LIFESPAN if worker.lifespan_ended.is_set() else ExitCode.STOPPED


async def _wait_stopped(worker: InProcessWorker, requested: asyncio.Event) -> bool:
    """Wait until the worker has stopped, and return whether that was because somebody has cancelled all tasks."""
    try:
        await worker.wait_stopped()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not worker.stop_since_cancelled():
            raise
        task.uncancel()
        requested.set()
        await worker.wait_stopped()
    return worker.cancelled_unasked


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Make the garbage collector run less often, for the length of a ``with`` block in which jobs are run.

    Existing objects are frozen, since they live as long as the process. Attempts leave nothing to the collector, which
    by default would run for every hundred of them, and scan all that are running. A process that has switched it off,
    or has a higher threshold, is not changed. Nor is it by a worker in a thread that is not the main one: the collector
    is that of the process, which others set up, and of several workers each would restore what another one has set.
    """
    if not _in_main_thread():
        yield
        return
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    if 0 < before[0] < _GC_THRESHOLD:
        gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _start(worker: InProcessWorker, requested: asyncio.Event) -> ExitCode | None:
    """Start the worker. Return an exit code if that failed, or if a signal or another thread stopped it first."""
    start, signalled = asyncio.ensure_future(worker.start()), asyncio.ensure_future(requested.wait())
    stopped = asyncio.ensure_future(worker.wait_stopped())
    await asyncio.wait({start, signalled, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if worker.lifespan_ended.is_set():
        # That stops the worker too, once it has started: its exit code says why.
        await asyncio.wait({start, signalled}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    stopped.cancel()
    if not start.done():
        for _ in range(_CANCELS_OF_START):
            # After the first cancellation a driver asks the server to cancel its statement, and waits for that.
            start.cancel()
            if await ended_within(_CANCEL_TIMEOUT, [start]):
                break
        return ExitCode.STOPPED if not start.done() or start.cancelled() or start.exception() else None
    try:
        await start
    except StateError as error:
        advice = what_to_check(error) if isinstance(error, StateUnavailableError) else ""
        print(f"queuert: {error}{advice}", file=sys.stderr)  # noqa: T201
        return ExitCode.UNAVAILABLE
    except LifespanError as error:
        _log.error("%s", error, exc_info=error.__cause__)
        print(f"queuert: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.LIFESPAN
    return None


def _start_health_loop(worker: InProcessWorker, path: Path | None) -> SupervisedLoop | None:
    if path is None:
        return None
    loops: list[SupervisedLoop] = []
    step = partial(keep_health_file, path, worker.health, lambda seconds: loops[0].pause(seconds))
    loop = SupervisedLoop("health", step, worker=worker.name, observers=worker.observers)
    loops.append(loop)
    loop.start()
    return loop


async def _stop_health_loop(loop: SupervisedLoop | None, path: Path | None) -> None:
    if loop is not None and path is not None:
        await loop.stop()
        remove_health_file(path)
