"""Jobs that were claimed ahead of a free place, so that short handlers do not wait for the store between two of them.

How many may be is measured, not set: as many as the places get through in a twentieth of a second. Where handlers are
longer than that nothing is claimed ahead, and nobody else is kept from a job that nobody runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from queuert.worker.slots import Slots

T = TypeVar("T")

AHEAD_SECONDS = 0.05
"""How far the jobs that wait here reach, at the pace of late."""

MOST_AHEAD = 1_000
"""Jobs, whatever the pace."""

STALE_SECONDS = 1.0
"""So long after the last start, what waits here is given back: the pace has changed."""

_SLOWEST_CHANGE = 0.05


class Pace:
    """How long handlers ran of late: a longer one counts at once, shorter ones by and by."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A handler has run for so long."""
        known = self._seconds
        slower = known is None or seconds >= known
        self._seconds = seconds if slower else known + _SLOWEST_CHANGE * (seconds - known)  # type: ignore[operator]

    def ahead(self, places: int) -> int:
        """How many jobs so many places get through in ``AHEAD_SECONDS``; 0 while nothing is known."""
        if self._seconds is None:
            return 0
        return min(MOST_AHEAD, int(places * AHEAD_SECONDS / max(self._seconds, 1e-9)))


class Prefetch(Generic[T]):
    """What was claimed, in the order in which it is to be started.

    ``start`` is called for each when there is a place for it and ``may_start`` says so. With ``enabled`` false there is
    never more than places.
    """

    def __init__(
        self,
        slots: Slots,
        start: Callable[[T], None],
        *,
        enabled: bool,
        may_start: Callable[[T], bool] = lambda one: True,
    ) -> None:
        self._slots = slots
        self._start = start
        self._may_start = may_start
        self._enabled = enabled
        self._waiting: deque[T] = deque()
        self._most = 0
        self._last_start = time.monotonic()
        self.pace = Pace()
        slots.on_free = self._start_next

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, one: T) -> None:
        """Start it if there is a place, else let it wait for one. When nobody should claim any more it waits."""
        self._waiting.append(one)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and self._slots.free > 0 and not self._slots.closed:
            if not self._may_start(self._waiting[0]):
                return
            self._last_start = time.monotonic()
            self._start(self._waiting.popleft())

    def take_back(self) -> list[T]:
        """All that wait: they are not started."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._most = 0
        return waiting

    # --- how many more ------------------------------------------------------------------------------------------------

    async def room(self) -> int:
        """Wait until a claim is worth while; for how many jobs. 0: nobody should claim any more, or it is stale."""
        while not self._slots.closed:
            wanted = self._wanted()
            if wanted > 0:
                return wanted
            if self.stale:
                return 0
            try:
                async with asyncio.timeout(STALE_SECONDS if self._waiting else None):
                    await self._slots.changed()
            except TimeoutError:
                continue
        return 0

    def _wanted(self) -> int:
        waiting, free = len(self._waiting), self._slots.free
        allowed = self.pace.ahead(self._slots.size) if self._enabled else 0
        if waiting > min(allowed, self._most) // 2:
            return 0
        # Twice as many each time, at most: one quick handler says little about the next.
        self._most = min(allowed, 2 * max(self._most, self._slots.size))
        return max(0, free + self._most - waiting)

    @property
    def stale(self) -> bool:
        """Whether jobs wait here and none was started for a while."""
        seconds = time.monotonic() - self._last_start
        if not self._waiting or seconds < STALE_SECONDS:
            return False
        self.pace.note(seconds)
        return True
