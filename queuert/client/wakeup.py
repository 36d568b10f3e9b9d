"""Wakes a waiting caller from another thread. The sync and the async class have the same methods."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


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
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the waiter."""
        self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait until the flag is set, at most ``timeout`` seconds, and clear it; return whether it was set."""
        woken = self._event.wait(timeout)
        self._event.clear()
        return woken
