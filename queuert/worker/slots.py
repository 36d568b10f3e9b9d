"""The places in which attempts run: as many at once as the worker's concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_MOST_CONCLUDING = 1_000
"""Attempts whose handler has ended and whose ending is not written yet; with more, they keep their places."""


class Slots:
    """Counts free places and keeps the tasks that fill them.

    A place is taken while a handler runs. What is left to do then, the writing of its ending, goes on beside the next
    attempt.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tasks: set[asyncio.Task[None]] = set()
        self._placed: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = False
        self.on_free: Callable[[], None] = lambda: None
        """Called whenever a place became free, or an ending was written."""

    @property
    def running(self) -> int:
        """Attempts that run now, or whose ending is yet to be written."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Places that are free."""
        return self.size - len(self._placed)

    def start(self, attempt: Coroutine[Any, Any, None]) -> None:
        """Run an attempt in a free place."""
        task = asyncio.create_task(attempt)
        self._tasks.add(task)
        self._placed.add(task)
        task.add_done_callback(self._end)

    def vacate(self) -> None:
        """The handler of the attempt that calls this has ended: its place is free for the next."""
        task = asyncio.current_task()
        if task in self._placed and len(self._tasks) - len(self._placed) < _MOST_CONCLUDING:
            self._placed.discard(task)
            self._freed()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._placed.discard(task)
        self._freed()

    def _freed(self) -> None:
        self.on_free()
        self._changed.set()

    async def changed(self) -> None:
        """Wait until a place became free, or nobody should wait any more."""
        self._changed.clear()
        if not self._closed:
            await self._changed.wait()

    @property
    def closed(self) -> bool:
        """Whether nobody should wait for a place any more."""
        return self._closed

    def stop_waiting(self) -> None:
        """Let ``changed`` return, now and from now on."""
        self._closed = True
        self._changed.set()

    async def wait_until_empty(self, timeout: float | None) -> bool:
        """Wait until nothing runs, at most ``timeout`` seconds; whether nothing does."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        return not self._tasks

    def cancel(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            task.cancel()
