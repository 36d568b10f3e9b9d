"""When notifications go out: at once after a silence, and fewer times the more of them there are."""

from __future__ import annotations

import threading

SHORTEST, LONGEST = 0.002, 0.01
"""Seconds that notifications which come one upon the other wait for each other: twice as long each time, up to the
longest.

Each sending is a transaction, and one more for each that listens, on the processors that should run jobs: sent each two
milliseconds, the notifications of a client that starts one chain after the other took it a tenth of its time.
"""

MANY = 100
LONGEST_OF_MANY = 0.04
"""Seconds, at the longest, while each sending has so many keys to tell: of ten thousand chains a second."""


class NotifyThrottle:
    """Counts no notifications: tells from when on the next may go. For all threads."""

    def __init__(self) -> None:
        self._seconds = SHORTEST
        self._many = False
        self._lock = threading.Lock()
        self.next_at = 0.0
        """The next sending, at the earliest (monotonic)."""

    def depart(self, now: float) -> bool:
        """Whether some may be sent now; if so they count. If they had waited for it, others will for longer."""
        with self._lock:
            if now < self.next_at:
                return False
            waited = now < self.next_at + self._seconds
            self._seconds = min(2 * self._seconds, LONGEST_OF_MANY if self._many else LONGEST) if waited else SHORTEST
            self.next_at = now + self._seconds
            return True

    def arrive(self, now: float, keys: int = 1) -> None:
        """They were sent, and told of so many keys."""
        with self._lock:
            self._many = keys >= MANY
            self.next_at = max(self.next_at, now + self._seconds)
