"""Wakes a waiting caller from another thread. The sync and the async class have the same methods."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from queue import Empty, SimpleQueue


class AsyncWakeup:
    """A flag that any thread sets, awaited in the event loop that created it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter. Safe from any thread, also after the loop has closed."""
        with suppress(RuntimeError):  # The loop is closed, so nobody waits.
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float) -> bool:
        """Wait until the flag is set, at most ``timeout`` seconds, and clear it; return whether it was set."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Wakeup:
    """A flag that any thread sets, and one thread waits for."""

    def __init__(self) -> None:
        # Not an Event, whose lock is not re-entrant: the garbage collector may close a follower, and so set its flag,
        # in a thread that is just setting it.
        self._flag: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the waiter. Safe from any thread, and within a call of itself."""
        if self._flag.empty():
            self._flag.put(None)

    def wait(self, timeout: float) -> bool:
        """Wait until the flag is set, at most ``timeout`` seconds, and clear it; return whether it was set."""
        try:
            self._flag.get(timeout=max(0.0, timeout))
        except Empty:
            return False
        with suppress(Empty):  # Two threads that set it at once may both have put something.
            self._flag.get_nowait()
        return True
