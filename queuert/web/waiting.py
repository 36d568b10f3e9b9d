"""How many requests wait at once: for results, for events, and for something to happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from queuert.web.problems import Problem


class WaitingRequests:
    """The requests of an application that wait: ``most`` at once, and so many of one principal."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of = Counter[str]()

    def __len__(self) -> int:
        return self._of.total()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Count a request, for the length of a ``with`` block. Those without a principal share the places of all.

        Raises:
            Problem: 503, too many requests wait already.
        """
        if (principal and self._of[principal] >= self._most_of_one) or len(self) >= self._most:
            raise Problem(
                503, "too-many-waiting", "too many requests wait: repeat it later, or without waiting",
                headers={"Retry-After": "5"},
            )  # fmt: skip
        self._of[principal] += 1
        try:
            yield
        finally:
            self._of[principal] -= 1
            if not self._of[principal]:
                del self._of[principal]
