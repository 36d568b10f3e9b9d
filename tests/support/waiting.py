"""Ways to wait for what a test has begun: for a condition, an awaitable, an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from queuert import Attempt

WAIT = 30.0
"""Seconds: an upper bound for what takes milliseconds, or a lease or two."""

START = 60.0
"""Seconds: an upper bound for what begins with the start of processes, interpreters with all that they import."""

T = TypeVar("T")


async def until(condition: Callable[[], object], what: str, timeout: float = WAIT) -> None:
    """Wait for what only a look can tell, such as a row or the end of a session."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not so within {timeout:g} s: {what}") from None


async def none_left(look: Callable[[], Collection[object]], of_what: str) -> None:
    """Wait until a look finds nothing any more."""
    try:
        await until(lambda: not look(), of_what)
    except AssertionError:
        raise AssertionError(f"{of_what} are left: {look()}") from None


async def in_time(awaitable: Awaitable[T]) -> T:
    """Wait for something that must not hang."""
    return await asyncio.wait_for(awaitable, WAIT)


class Gate:
    """Where handlers wait until a test lets them go on; it knows who came."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Attempt[Any, Any]] = asyncio.Queue()
        self._open = asyncio.Event()

    async def pass_through(self, attempt: Attempt[Any, Any]) -> None:
        """Say that we are here, and wait."""
        self.arrived.put_nowait(attempt)
        await self._open.wait()

    async def next(self) -> Attempt[Any, Any]:
        """The next attempt that arrives."""
        return await in_time(self.arrived.get())

    def open(self) -> None:
        """Let everybody pass, now and later."""
        self._open.set()
