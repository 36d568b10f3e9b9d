"""A bell beside a socket: it ends a thread's wait from any other thread."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Waker:
    """Rung by any thread, watched by one, which can wait for it together with other descriptors.

    Rings before the next ``clear`` count once. After ``close`` ringing does nothing.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._rung = False
        self._closed = False
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """The descriptor that is readable from the first ring to the next ``clear``."""
        return self._reader.fileno()

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        with self._lock:
            if not self._rung and not self._closed:
                self._rung = True
                with suppress(BlockingIOError):
                    self._writer.send(b"!")

    def clear(self) -> None:
        """Forget the rings so far. Look at what they may have been about *after* this."""
        with self._lock:
            self._rung = False
            with suppress(BlockingIOError):
                self._reader.recv(64)

    def wait(self, timeout: float) -> None:
        """Wait for a ring, at most ``timeout`` seconds, and clear it."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.poll(max(0.0, timeout) * 1000)
        self.clear()

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            self._closed = True
            self._reader.close()
            self._writer.close()
