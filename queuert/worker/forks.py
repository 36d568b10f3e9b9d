"""What a process that a handler forks must not keep of the worker: its signal handlers, and its way on.

A forked child has copies of the parent's signal handlers, and the pipe through which signals wake the parent's event
loop. With these the SIGTERM by which a pool ends its processes is read by the worker, as a request to stop, and ends
none of them. See https://github.com/python/cpython/issues/94454.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

in_child = False
"""Whether this process was forked by a handler. It must not go on as the worker when the handler ends."""

_RAISED = 1

_defaults: dict[int, signal.Handlers] = {}
"""The signals that this process handles, and what they do in forked children."""


class _Local(threading.local):
    mask: set[int] | None = None


_local = _Local()


def default_in_children(numbers: Iterable[signal.Signals]) -> None:
    """From now on, let signals end forked children. Call it before they are handled: those that are ignored now are
    ignored there as well.

    So does SIGINT, without a KeyboardInterrupt: one that is raised before the fork has returned is lost.
    """
    for number in numbers:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        _defaults[number] = signal.SIG_IGN if ignored else signal.SIG_DFL


@contextmanager
def defaults_in_children(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """``default_in_children`` for the length of a ``with`` block."""
    default_in_children(numbers)
    try:
        yield
    finally:
        _defaults.clear()


def begin_worker() -> None:
    """A worker starts in this process: from now on handlers end here, whoever forked it."""
    global in_child
    in_child = False


def end_child() -> NoReturn:
    """End this process, which a handler has forked and in which that handler has returned or raised.

    It has no event loop, no threads and no connections of its own: it cannot do what comes after a handler.
    """
    error, code = sys.exc_info()[1], _RAISED
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if not isinstance(error.code, int | None):
                print(error.code, file=sys.stderr)  # noqa: T201
        elif error is not None:
            traceback.print_exception(error)
        else:
            text = "queuert: a process that a handler forked must end with os._exit(), and returned from the handler"
            print(text, file=sys.stderr)  # noqa: T201
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # Also if the handler has closed these, or they lead nowhere.
        os._exit(code & 0xFF)


def _before() -> None:
    # A signal that arrives in the child before it has its own actions would be handled as in the parent.
    if _defaults:
        _local.mask = {*signal.pthread_sigmask(signal.SIG_BLOCK, _defaults)}


def _in_parent() -> None:
    if _local.mask is not None:
        mask, _local.mask = _local.mask, None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global in_child
    if _defaults:
        in_child = True
        signal.set_wakeup_fd(-1)
        for number, action in _defaults.items():
            signal.signal(number, action)
        _defaults.clear()
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
