"""How long somebody waits for a connection, and what they are told if none comes."""

from __future__ import annotations

import time

from psycopg import Error
from psycopg_pool import PoolTimeout

_REMINDER = 0.5
"""Seconds between two tries to connect while somebody waits for a connection: so late is a worker after an outage."""


class Refusals:
    """The tries to connect of one pool that have failed.

    Attributes:
        count: how many they were.
        last: the last one's error.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: Error | None = None

    def add(self, error: Error) -> None:
        """One more try has failed."""
        self.count, self.last = self.count + 1, error


class Wait:
    """One wait for a connection, a piece at a time.

    At each piece the pool tries anew to connect, if it had given up: nobody else reminds it after an outage.
    """

    def __init__(self, longest: float, refusals: Refusals) -> None:
        self._longest = longest
        self._until = time.monotonic() + longest
        self._refusals = refusals
        self._refused_before = refusals.count
        self._refused_when_left: int | None = None

    @property
    def piece(self) -> float:
        """Seconds to wait now."""
        return max(0.0, min(_REMINDER, self._until - time.monotonic()))

    def meets_a_left_one(self) -> None:
        """The pool gave a connection that the server has left."""
        if self._refused_when_left is None:
            self._refused_when_left = self._refusals.count

    def goes_on(self, timeout: PoolTimeout) -> None:
        """A piece is over. Raise if that was the last one.

        Where the server has hung up, and then refused, nobody waits to the end: an outage is told when it begins.
        """
        refused = self._refusals.count
        left = self._refused_when_left
        if left is not None and refused > left:
            raise PoolTimeout(f"the server has hung up, and refuses to connect: {self._refusals.last}") from timeout
        if time.monotonic() >= self._until:
            why = "none became free"
            if refused > self._refused_before:
                why = f"tries to connect fail: {self._refusals.last}"
            raise PoolTimeout(f"no connection within {self._longest:g} s: {why}") from timeout
