"""When hints go out: at once after a silence, and fewer times the more of them there are."""

from __future__ import annotations

import threading

SHORTEST, LONGEST = 0.002, 0.01
"""Seconds that hints which come one upon the other wait for each other: twice as long each time, up to the longest.

Each sending is a transaction, on the processors that should run jobs: sent each two milliseconds, the hints of a client
that starts one chain after the other took it a tenth of its time.
"""


class Gathering:
    """Counts no hints: tells from when on the next may go. For all threads."""

    def __init__(self) -> None:
        self._seconds = SHORTEST
        self._lock = threading.Lock()
        self.next_at = 0.0
        """The next sending, at the earliest (monotonic)."""

    def depart(self, now: float) -> bool:
        """Whether some may be sent now; if so they count. If they had waited for it, others will for longer."""
        with self._lock:
            if now < self.next_at:
                return False
            waited = now < self.next_at + self._seconds
            self._seconds = min(2 * self._seconds, LONGEST) if waited else SHORTEST
            self.next_at = now + self._seconds
            return True

    def arrive(self, now: float) -> None:
        """They were sent."""
        with self._lock:
            self.next_at = max(self.next_at, now + self._seconds)
