"""Waits for a condition, an awaitable, or an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from queuert import Attempt

WAIT = 30.0
"""The default timeout in seconds, for waits of milliseconds, or of a lease or two."""

START = 60.0
"""The timeout in seconds for waits that include the start of processes and their imports."""

T = TypeVar("T")


async def until(condition: Callable[[], object], what: str, timeout: float = WAIT) -> None:
    """Poll until a condition holds that has no signal, such as one about a row or the end of a session."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not so within {timeout:g} s: {what}") from None


async def none_left(look: Callable[[], Collection[object]], of_what: str) -> None:
    """Poll until a query returns nothing any more."""
    try:
        await until(lambda: not look(), of_what)
    except AssertionError:
        raise AssertionError(f"{of_what} are left: {look()}") from None


async def in_time(awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable that must not hang."""
    return await asyncio.wait_for(awaitable, WAIT)


class Gate:
    """A gate at which handlers wait until a test opens it; it records who arrived."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Attempt[Any, Any]] = asyncio.Queue()
        self._open = asyncio.Event()

    async def pass_through(self, attempt: Attempt[Any, Any]) -> Any:
        """Record the arrival, and wait."""
        self.arrived.put_nowait(attempt)
        await self._open.wait()

    async def next(self) -> Attempt[Any, Any]:
        """Return the next attempt that arrives."""
        return await in_time(self.arrived.get())

    def open(self) -> None:
        """Open the gate for all, now and later."""
        self._open.set()


class Turnstile(Gate):
    """Lets one through at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = asyncio.Semaphore(0)

    async def pass_through(self, attempt: Attempt[Any, Any]) -> None:
        self.arrived.put_nowait(attempt)
        await self._turns.acquire()

    def turn(self, times: int = 1) -> None:
        """Let so many pass, who are here or will come."""
        for _ in range(times):
            self._turns.release()
