"""Limits the wait for an answer of the database: a thread shuts down connections that exceed it.

If the peer of a connection disappears silently (a black-holed network, a frozen server), a call may wait for ever:
neither cancelling the query nor the timers of TCP help while packets are still acknowledged. Shutting down the socket
does: the waiting call fails at once, whatever its mode, even if the event loop is blocked.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import BaseConnection

_IDLE = 60.0
"""Seconds without calls to watch after which the thread ends."""


class Watchdog:
    """Shuts down connections whose call has waited for longer than ``seconds``, or up to a twentieth more.

    Calls do not wake the thread, which would cost each statement two thread switches. The thread polls instead.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._pause = seconds / 20
        self._waits: deque[Deadline] = (
            deque()
        )  # All have the same duration, so the first to begin is the first to expire.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, connection: BaseConnection[Any]) -> Iterator[None]:
        """Shut down ``connection`` unless the block ends in time; the call that waits then raises an
        OperationalError."""
        deadline = self.begin(connection)
        try:
            yield
        finally:
            self.end(deadline)

    def restart(self, connection: BaseConnection[Any]) -> None:
        """Restart the time limit of a block: until now its caller was busy, and did not wait for the server."""
        with self._lock:
            for deadline in self._waits:
                if deadline.connection is connection:
                    self._waits.remove(deadline)
                    deadline.expires_at = time.monotonic() + self.seconds
                    self._waits.append(deadline)
                    return

    def begin(self, connection: BaseConnection[Any]) -> Deadline:
        """Shut down ``connection`` unless :meth:`end` is called with the returned value in time."""
        deadline = Deadline(connection, time.monotonic() + self.seconds)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="queuert-watchdog", daemon=True)
                self._thread.start()
            self._waits.append(deadline)
        return deadline

    def end(self, deadline: Deadline) -> None:
        """End the wait, in time or after the connection was shut down."""
        with self._lock:
            deadline.connection = None
            while self._waits and self._waits[0].connection is None:
                self._waits.popleft()

    def _watch(self) -> None:
        ends_at = time.monotonic() + _IDLE
        while True:
            with self._lock:
                now = time.monotonic()
                if self._waits:
                    ends_at = now + _IDLE
                elif now >= ends_at:
                    self._thread = None
                    return
                late = self._late_connection(now)
                pause = self._waits[0].expires_at - now if self._waits else self._pause
            if late is not None:
                cut(late)
            elif pause > 0:
                time.sleep(pause)

    def _late_connection(self, now: float) -> BaseConnection[Any] | None:
        if not self._waits or self._waits[0].expires_at > now:
            return None
        return self._waits.popleft().connection


class Deadline:
    """One call that waits on a connection. The connection is None once the call has ended."""

    __slots__ = ("connection", "expires_at")

    def __init__(self, connection: BaseConnection[Any], expires_at: float) -> None:
        self.connection: BaseConnection[Any] | None = connection
        self.expires_at = expires_at


def cut(connection: BaseConnection[Any]) -> None:
    """Shut down a connection's socket, from any thread; the call that uses it fails."""
    # Closing the duplicate leaves the original descriptor to libpq. A connection that broke meanwhile has no socket.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
