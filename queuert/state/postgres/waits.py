"""How long somebody waits for a connection, and what they are told if none comes."""

from __future__ import annotations

import threading
import time

from psycopg import Error
from psycopg_pool import PoolTimeout

_REMINDER = 0.5
"""Seconds between two tries to connect while somebody waits for a connection: so late is a worker after an outage."""


class Refusals:
    """The tries to connect of one pool that have failed. Added to from any thread.

    Attributes:
        told: how many they were, and what the last one's error said.
    """

    def __init__(self) -> None:
        self.told: tuple[int, str] = 0, ""
        self._lock = threading.Lock()

    def add(self, error: Error) -> None:
        """One more try has failed. The error itself is not kept: its frames hold the pool."""
        with self._lock:
            self.told = self.told[0] + 1, str(error)


class Wait:
    """One wait for a connection, a piece at a time.

    At each piece the pool tries anew to connect, if it had given up: nobody else reminds it after an outage.
    """

    def __init__(self, longest: float, refusals: Refusals) -> None:
        self._longest = longest
        self._until = time.monotonic() + longest
        self._refusals = refusals
        self._refused_before, _ = refusals.told
        self._refused_when_left: int | None = None

    @property
    def piece(self) -> float:
        """Seconds to wait now."""
        return max(0.0, min(_REMINDER, self._until - time.monotonic()))

    def meets_a_left_one(self) -> None:
        """The pool gave a connection that the server has left."""
        if self._refused_when_left is None:
            self._refused_when_left, _ = self._refusals.told

    def goes_on(self, timeout: PoolTimeout, in_use: int) -> None:
        """A piece is over, with so many of the pool's connections in use. Raise if that was the last one.

        Where the server has hung up, and then refused, and no connection is left that may become free, nobody waits to
        the end: an outage is told when it begins.
        """
        refused, last = self._refusals.told
        left = self._refused_when_left
        if left is not None and refused > left and not in_use:
            raise PoolTimeout(f"the server has hung up, and refuses to connect: {last}") from timeout
        if time.monotonic() >= self._until:
            why = f"tries to connect fail: {last}" if refused > self._refused_before else "none became free"
            raise PoolTimeout(f"no connection within {self._longest:g} s: {why}") from timeout
