"""Kills the process of a handler, and all processes that it started, when the worker ends.

A handler that never releases the interpreter lock cannot notice that. So a second process, forked while the child is
new and has one thread, only waits until the worker's end of the socket closes, and then kills the process group.
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
_END_TIMEOUT = 1.0
"""Seconds that an idle child has to end by itself."""


def die_with(worker: int, socket: int) -> None:
    """Kill this process and its group when the worker ends. Call it first, in the leader of the group."""
    guarded = os.getpid()
    if os.fork() == 0:
        _guard(guarded, socket)
    # In addition, since a process that the worker forked may keep the worker's end of the socket open.
    _signal_on_parent_death(signal.SIGKILL, worker)


def kill_group() -> NoReturn:
    """Kill this process and its group."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _guard(guarded: int, socket: int) -> NoReturn:
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, lambda *_: kill_group())
        _signal_on_parent_death(signal.SIGUSR2, guarded)
        closed = select.poll()
        closed.register(socket, 0)  # Reports only the end of the connection.
        closed.poll()
        time.sleep(_END_TIMEOUT)
    finally:
        kill_group()


def _signal_on_parent_death(number: signal.Signals, parent: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        kill_group()
