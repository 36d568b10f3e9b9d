"""Carries out bulk operations beside the jobs of the worker. Any worker does, whatever its processors."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from queuert.client.async_bulk_runner import AsyncBulkRunner
from queuert.notify.adapter import Notification, NotifyAdapter, Subscription, Topic
from queuert.observability.adapter import Observers
from queuert.state.async_store import AsyncStore
from queuert.worker.supervisor import SupervisedLoop

INTERVAL = 60.0
"""Seconds between two polls for operations, plus or minus a half. A notification ends the pause."""

ACTIVE_INTERVAL = 2.0
"""The same, while an operation is open that another process carries out."""

_BATCH_PAUSE = 0.02
"""Seconds between two batches, which leave the database to the jobs."""


class BulkOperationRunner:
    """Does the batches of open bulk operations, one after the other; several workers take turns."""

    def __init__(
        self, store: AsyncStore, notify: NotifyAdapter, *, transactional: bool, worker: str, observers: Observers
    ) -> None:
        self._notify = notify
        self._runner = AsyncBulkRunner(store, notify, observers, (), transactional=transactional, holder=worker)
        self._pause = random.uniform(0.0, INTERVAL / 2)
        self._woken = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()
        self._subscription: Subscription | None = None
        self.loop = SupervisedLoop("bulk_operations", self._step, worker=worker, observers=observers)

    def start(self) -> None:
        """Start the loop, and listen for operations that are started."""
        self._subscription = self._notify.subscribe(Topic.BULK_OPERATIONS, self._on_notification)
        self.loop.start()

    async def stop(self) -> None:
        """Begin no other batch; a batch that is being done is rolled back, and done again later. Idempotent."""
        if self._subscription is not None:
            self._subscription.close()
        await self.loop.stop()

    def _on_notification(self, notification: Notification) -> None:
        # The event loop may have closed, since the worker has stopped.
        if notification.keys is not None:
            with suppress(RuntimeError):
                self._event_loop.call_soon_threadsafe(self._woken.set)

    async def _step(self) -> None:
        # The pause comes first, so that a step that succeeded counts at once, and not when the next one is due.
        pause, self._pause = self._pause, 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._woken.wait()
        self._woken.clear()
        if await self._runner.run_batch():
            self._pause = _BATCH_PAUSE
            return
        # Another process does the batches: it may die, between two of them too, when no lease would tell of it.
        await self._runner.reap()
        is_active = await self._runner.is_any_open()
        self._pause = (ACTIVE_INTERVAL if is_active else INTERVAL) * random.uniform(0.5, 1.5)
