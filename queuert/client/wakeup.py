"""Waiting to be woken from another thread, sync and async. The two classes have one shape."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class AsyncWakeup:
    """Set from any thread, awaited in the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter. Safe from any thread, also after the loop has closed."""
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float) -> bool:
        """Wait until set, at most ``timeout`` seconds, and clear it; whether it was set."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Wakeup:
    """Set from any thread, waited for in one."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the waiter."""
        self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait until set, at most ``timeout`` seconds, and clear it; whether it was set."""
        woken = self._event.wait(timeout)
        self._event.clear()
        return woken
