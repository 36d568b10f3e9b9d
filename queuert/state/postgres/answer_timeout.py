"""A limit on the wait for the database's answer, kept by a thread.

A connection whose peer has vanished without a word (a black-holed network, a frozen server) can keep its user waiting
for ever: neither cancelling the query nor TCP's own timers help while packets are still acknowledged. Shutting the
socket down does: the waiting call fails at once, whatever its mode and even if the event loop is blocked.
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
"""Seconds without anything to watch after which the thread ends."""


class Watchdog:
    """Cuts connections that have been waited for longer than ``seconds``, or a twentieth more.

    The thread is not told of a wait, which would cost each statement a switch to it and back. It looks now and then.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._pause = seconds / 20
        self._waits: deque[Wait] = deque()  # Each lasts equally long, so the first to begin is the first to expire.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, connection: BaseConnection[Any]) -> Iterator[None]:
        """Cut ``connection`` unless the block ends in time; what waits inside then fails with an OperationalError."""
        wait = self.begin(connection)
        try:
            yield
        finally:
            self.end(wait)

    def reset_after_fork(self, connection: BaseConnection[Any]) -> None:
        """Let a block's time begin now: what it has done so far was no waiting for the server."""
        with self._lock:
            for wait in self._waits:
                if wait.connection is connection:
                    self._waits.remove(wait)
                    wait.deadline = time.monotonic() + self.seconds
                    self._waits.append(wait)
                    return

    def begin(self, connection: BaseConnection[Any]) -> Wait:
        """Cut ``connection`` unless :meth:`end` is called with what this returns, in time."""
        wait = Wait(connection, time.monotonic() + self.seconds)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="queuert-watchdog", daemon=True)
                self._thread.start()
            self._waits.append(wait)
        return wait

    def end(self, wait: Wait) -> None:
        """It was in time, or was cut."""
        with self._lock:
            wait.connection = None
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
                pause = self._waits[0].deadline - now if self._waits else self._pause
            if late is not None:
                cut(late)
            elif pause > 0:
                time.sleep(pause)

    def _late_connection(self, now: float) -> BaseConnection[Any] | None:
        if not self._waits or self._waits[0].deadline > now:
            return None
        return self._waits.popleft().connection


class Wait:
    """A connection that is waited for; None from the end on."""

    __slots__ = ("connection", "deadline")

    def __init__(self, connection: BaseConnection[Any], deadline: float) -> None:
        self.connection: BaseConnection[Any] | None = connection
        self.deadline = deadline


def cut(connection: BaseConnection[Any]) -> None:
    """Shut a connection's socket down, from any thread; its user finds it broken."""
    # A duplicate, so that closing it here leaves the descriptor to libpq. A connection that broke meanwhile has none.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
