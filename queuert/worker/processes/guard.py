"""No handler's process outlives its worker, nor does anything that it started, whatever the handler is at.

A process that never lets go of the interpreter notices nothing. So a second one, forked when the child is fresh and
has one thread, does nothing but wait for the worker's end of the socket to close, and kills their process group then.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_GRACE = 1.0
"""Seconds in which an idle child ends by itself."""


def die_with(worker: int, socket: int) -> None:
    """End this process, and its group, when the worker does. Call it first of all, in the leader of a group."""
    guarded = os.getpid()
    if os.fork() == 0:
        _guard(guarded, socket)
    # Should a process that the worker forked hold on to its end of the socket.
    _tell_when_parent_dies(signal.SIGKILL, worker)


def kill_group() -> NoReturn:
    """Kill this process and its group."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _guard(guarded: int, socket: int) -> NoReturn:
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, lambda *_: kill_group())
        _tell_when_parent_dies(signal.SIGUSR2, guarded)
        closed = select.poll()
        closed.register(socket, 0)  # Nothing but its end is of interest.
        closed.poll()
        time.sleep(_GRACE)
    finally:
        kill_group()


def _tell_when_parent_dies(number: signal.Signals, parent: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        kill_group()
