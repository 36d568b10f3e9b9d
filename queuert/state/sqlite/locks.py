"""A lock that an exception of a signal handler cannot leave behind.

Python runs signal handlers when a function begins and after each call, so that of Ctrl-C may raise between the
``acquire()`` of a plain lock and the ``try`` that follows, or at the beginning of what releases it. The program may
catch that and go on, and then nobody holds the lock for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from queuert.state.sqlite.errors import too_long

_LOOK = 0.05
"""Seconds after which a waiter looks again: whoever freed the lock may have been interrupted before it could wake."""
_BY: Final = "by"


class OwnedLock:
    """A lock that knows its holder, which is any object. It may be released from any thread."""

    def __init__(self) -> None:
        self._held: dict[str, object] = {}
        """The holder. It is set, and removed, by one instruction."""
        self._freed = threading.Lock()
        """Free once the lock was released, until a waiter has seen that."""

    def acquire(self, holder: object, timeout: float = 0.0) -> bool:
        """Wait for the lock. Call it inside the ``try`` whose end calls :meth:`release`."""
        if self._held.setdefault(_BY, holder) is holder:
            return True
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            self._freed.acquire(timeout=min(left, _LOOK))
            if self._held.setdefault(_BY, holder) is holder:
                return True
        return False

    def release(self, holder: object) -> None:
        """Release the lock, if this is its holder."""
        if self._held.get(_BY) is holder:
            del self._held[_BY]
        self._wake()

    def _wake(self) -> None:
        if self._freed.locked():
            with suppress(RuntimeError):  # Another thread was faster.
                self._freed.release()

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Hold the lock in the block.

        Raises:
            StateUnavailableError: another held it for longer than the timeout.
        """
        held, holder = self._held, object()
        try:
            if not self.acquire(holder, timeout):
                raise too_long()
            yield
        finally:
            # No call, also none of `suppress`, before it is free. If the end of the block is interrupted before it
            # comes here, the generator ends when the error has been handled.
            try:
                if held[_BY] is holder:
                    del held[_BY]
            except KeyError:
                pass
            self._wake()
