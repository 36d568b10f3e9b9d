"""Supervision: a loop of a worker never dies in silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from queuert.observability.adapter import Observers
from queuert.observability.events import LoopFailed, LoopRecovered
from queuert.policies import Backoff

FAILING_AFTER = 30.0
"""Seconds of nothing but failures after which a loop counts as failing."""


class SupervisedLoop:
    """Runs ``step`` again and again until stopped.

    A step that raises is an event and a pause; the pauses double up to the backoff's maximum, and begin anew after a
    step that went well. A step may return seconds to pause before the next: it has gone well by then, so that a long
    pause does not postponed the news. Stopping lets a step that is under way finish, or cancels it.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[float | None]],
        *,
        worker: str,
        observers: Observers,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._worker = worker
        self._observers = observers
        self._backoff = backoff or Backoff()
        self._failures = 0
        self.stopping = False
        """Whether it was told to stop; a long step looks at it."""
        self._woken = asyncio.Event()
        """Ends a pause: it was told to stop."""
        self._task: asyncio.Task[None] | None = None
        self._failing_since: float | None = None

    def start(self) -> None:
        """Begin to run. Call it once, inside the event loop."""
        self._task = asyncio.create_task(self._run(), name=f"queuert-{self.name}")

    @property
    def failing(self) -> bool:
        """Whether no step has gone well for longer than an outage should last."""
        return self._failing_since is not None and time.monotonic() - self._failing_since > FAILING_AFTER

    def tell_to_stop(self) -> None:
        """Begin no other step."""
        self.stopping = True
        self._woken.set()

    async def stop(self, *, cancel: bool = True) -> None:
        """End the loop and wait for it; without ``cancel`` the step under way goes to its end. Idempotent."""
        self.tell_to_stop()
        if self._task is None or self._task.done():
            return
        if cancel:
            self._task.cancel()
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Cancel the step under way, perhaps once more; after ``stop`` was called."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failed: Exception | None = None
        while not self.stopping:
            try:
                if failed is not None:
                    # Others have a turn, even if whoever is told raises what looks like one more cancellation.
                    await asyncio.sleep(0)
                    await self._survive(failed)
                    failed = None
                    continue
                rest = await self._step()
                self._failing_since = None
                if self._failures:
                    failures, self._failures = self._failures, 0
                    self._observers.emit(LoopRecovered(worker=self._worker, loop=self.name, failures=failures))
                if rest is not None:
                    await self.pause(rest)
            except asyncio.CancelledError:
                failed = self._cancelled()
            except Exception as error:
                failed = error

    async def _survive(self, error: Exception) -> None:
        try:
            await self._fail(error)
        except Exception:
            # It can neither be told nor be waited for, for want of memory as a rule: others may give some back.
            await asyncio.sleep(0)

    def _cancelled(self) -> Exception:
        """What to tell of a cancellation that is not our own; ours is raised."""
        task = asyncio.current_task()
        if self.stopping or task is None:
            raise asyncio.CancelledError
        # A handler that cancels all tasks of the event loop must not end the worker's, whatever they are at.
        task.uncancel()
        return RuntimeError("the loop was cancelled by somebody else")

    async def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._failing_since = self._failing_since or time.monotonic()
        pause = self._backoff.delay(self._failures)
        self._observers.emit(
            LoopFailed(
                worker=self._worker,
                loop=self.name,
                error=f"{type(error).__name__}: {error}",
                failures=self._failures,
                retry_in=pause,
            )
        )
        await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond a stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
