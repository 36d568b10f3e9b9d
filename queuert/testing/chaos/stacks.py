"""Writes the stacks of a process's threads and tasks to its log when it gets a signal.

There are two signals, because neither way shows everything. faulthandler answers
``THREADS`` in C, also if a call never releases the interpreter. A thread that waits for nothing else answers ``TASKS``,
also if the event loop is blocked, but only if it gets the interpreter.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

THREADS = signal.SIGUSR1
TASKS = signal.SIGUSR2
_DEEPEST = 100
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_ERRORS = 2
"""The descriptor of the log."""

_loops: list[asyncio.AbstractEventLoop] = []


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Register an event loop whose tasks are to be written."""
    loop = asyncio.new_event_loop()
    _loops.append(loop)
    return loop


def tell_on_signals() -> None:
    """Answer the signals from now on. Call it before any thread starts: each thread must have ``TASKS`` blocked."""
    faulthandler.register(THREADS, file=_ERRORS, all_threads=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {TASKS})
    threading.Thread(target=_answer, name="queuert-chaos-stacks", daemon=True).start()


def end_of_tasks(pid: int) -> str:
    """The last line of an answer to ``TASKS``."""
    return f"--- end of the tasks of process {pid} ---"


def _answer() -> None:
    while True:
        signal.sigwait({TASKS})
        os.write(_ERRORS, reported_tasks().encode(errors="replace"))


def reported_tasks() -> str:
    """Return all tasks of this process's event loops, each with the calls in which it waits, the innermost last."""
    reported = io.StringIO()
    print(f"--- tasks of process {os.getpid()} ---", file=reported)
    for loop in _loops:
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
            print(f"Task {task.get_name()}, waits for {getattr(task, '_fut_waiter', None)!r}", file=reported)
            for frame in _frames(task.get_coro()):
                print(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {_name(frame)}', file=reported)
    print(end_of_tasks(os.getpid()), file=reported)
    return reported.getvalue()


def _frames(waits: Any) -> Iterator[FrameType]:
    """Return the frames of a coroutine and of everything that it awaits: `Task.get_stack` has only the first."""
    for _ in range(_DEEPEST):
        frame = _first(waits, _FRAMES)
        if frame is None:
            return
        yield frame
        waits = _first(waits, _AWAITED) or _stepped(frame)


def _first(one: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(one, name, None)) is not None), None)


def _stepped(frame: FrameType) -> Any:
    """Return the coroutine that an object steps by hand, as a worker's slot does with an attempt's."""
    return getattr(frame.f_locals.get("self"), "_coroutine", None)


def _name(frame: FrameType) -> str:
    return frame.f_code.co_qualname
