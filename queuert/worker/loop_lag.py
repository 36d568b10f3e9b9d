"""How late an event loop is: it is to come by once a second, and a thread can see whether it did."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress

INTERVAL = 1.0
"""Seconds from one look to the next."""

_KEPT = 30
"""Looks that ``worst`` is about: half a minute."""


class LoopLag:
    """Measures the delay of an event loop, from the first time on that somebody asks; until then it costs nothing."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self._event_loop = event_loop
        self._lock = threading.Lock()
        self._expected: float | None = None
        """When the event loop is to come by next; None while nobody has asked, or after the end."""
        self._recent: deque[float] = deque(maxlen=_KEPT)
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def overdue(self) -> float:
        """Seconds by which the event loop is late now; 0 if it is not. From any thread."""
        self._start()
        expected = self._expected
        return 0.0 if expected is None else max(0.0, time.monotonic() - expected)

    def worst(self) -> float:
        """The longest delay of the last half minute, in seconds. From any thread."""
        return max([self.overdue(), *self._recent.copy()])

    def stop(self) -> None:
        """Measure no more. In the event loop."""
        self._stopped = True
        self._expected = None
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        with self._lock:
            if self._expected is not None or self._stopped:
                return
            self._expected = time.monotonic()
        with suppress(RuntimeError):  # It has closed: the worker has stopped.
            self._event_loop.call_soon_threadsafe(self._come_by)

    def _come_by(self) -> None:
        if self._stopped or self._expected is None:
            return
        now = time.monotonic()
        self._recent.append(max(0.0, now - self._expected))
        self._expected = now + INTERVAL
        self._timer = self._event_loop.call_later(INTERVAL, self._come_by)
