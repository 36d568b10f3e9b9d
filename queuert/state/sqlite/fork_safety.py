"""Makes forks safe: connections are closed before a fork, and opened again when they are used next.

SQLite records the locks of a process next to the file, not next to the connection. A child that is forked while a
connection is open inherits these records without the locks, and then corrupts the file, even on a connection of its
own. So no connection may be open during a fork. If one cannot be closed because a transaction is in progress, the child
may not use the file.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

from queuert.errors import StateError

_TIMEOUT = 1.0
"""Seconds to wait, in all, for transactions in progress."""


class Suspendable(Protocol):
    """A connection to a file."""

    path: str

    def suspend(self, timeout: float) -> bool:
        """Close it and keep it closed. Returns False if it was in use for the whole timeout."""
        ...

    def resume(self) -> None:
        """Allow its use again."""
        ...


_known: WeakSet[Suspendable] = WeakSet()
_suspended: list[Suspendable] = []
_held_at_fork: set[str] = set()
_refused: set[str] = set()
connecting = threading.RLock()
"""Held while a connection is made, so that no fork happens meanwhile."""


def keep_from_children(link: Suspendable) -> None:
    """Register a connection to be closed before each fork, as long as it exists."""
    _known.add(link)


def check_usable(path: str) -> None:
    """Check that the file was not in use when this process was forked.

    Raises:
        StateError: it was in use.
    """
    if path in _refused:
        raise StateError(
            f"{path} had an open transaction when this process was forked, so SQLite cannot use it here: "
            "fork earlier, or start a new process"
        )


def _before() -> None:
    connecting.acquire()
    until = time.monotonic() + _TIMEOUT
    for link in tuple(_known):
        if link.suspend(max(0.0, until - time.monotonic())):
            _suspended.append(link)
        else:
            _held_at_fork.add(link.path)


def _resume() -> None:
    for link in _suspended:
        link.resume()
    _suspended.clear()
    _held_at_fork.clear()
    connecting.release()


def _after_in_child() -> None:
    _refused.update(_held_at_fork)
    _known.clear()
    _resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_resume, after_in_child=_after_in_child)
