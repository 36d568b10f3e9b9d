"""The places in which attempts run: as many at once as the worker's concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Slots:
    """Counts free places and keeps the tasks that fill them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def running(self) -> int:
        """Attempts that run now."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Places that are free."""
        return self._size - len(self._tasks)

    def start(self, attempt: Coroutine[Any, Any, None]) -> None:
        """Run an attempt in a free place."""
        task = asyncio.create_task(attempt)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def wait_for_free(self) -> int:
        """Wait until a place is free; how many are. 0 once nobody should wait any more."""
        while self.free <= 0 and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return 0 if self._closed else self.free

    def stop_waiting(self) -> None:
        """Let ``wait_for_free`` return."""
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
