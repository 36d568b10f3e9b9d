"""Runs the loops of a worker: restarts one that raised, and emits an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from queuert.observability.adapter import Observers
from queuert.observability.events import LoopFailed, LoopRecovered
from queuert.policies import Backoff

FAILING_AFTER = 30.0
"""Seconds without a successful step after which a loop counts as failing."""


class SupervisedLoop:
    """Calls ``step`` again and again until it is stopped.

    When a step raises, the loop emits an event and pauses. The pauses grow up to the maximum of the backoff; a step
    that succeeds resets them. A step may return the seconds to pause before the next one. It counts as successful
    before that pause, so a recovery is reported at once. ``stop`` cancels the current step, or waits for it.
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
        """Whether it has been asked to stop; a long step checks it."""
        self._woken = asyncio.Event()
        """Set by ``request_stop``: it ends a pause."""
        self._task: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self.error: Exception | None = None
        """Why the last step failed; None if it succeeded."""

    def start(self) -> None:
        """Start the loop. Call it once, in the event loop."""
        self._task = asyncio.create_task(self._run(), name=f"queuert-{self.name}")

    @property
    def failing(self) -> bool:
        """Whether no step has succeeded for longer than an outage should last."""
        return self._failing_since is not None and time.monotonic() - self._failing_since > FAILING_AFTER

    @property
    def failing_seconds(self) -> float:
        """Seconds since which no step has succeeded; 0 if the last one did."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def request_stop(self) -> None:
        """Begin no other step."""
        self.stopping = True
        self._woken.set()

    async def stop(self, *, cancel: bool = True) -> None:
        """Stop the loop and wait for its end; with ``cancel`` false the current step is not cancelled. Idempotent."""
        self.request_stop()
        if self._task is None or self._task.done():
            return
        if cancel:
            self._task.cancel()
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Cancel the current step, perhaps once more. Call it after ``stop``."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        error_to_report: Exception | None = None
        while not self.stopping:
            try:
                if error_to_report is not None:
                    # Yield to other tasks, even if an observer raises what looks like one more cancellation.
                    await asyncio.sleep(0)
                    await self._report_safely(error_to_report)
                    error_to_report = None
                    continue
                pause = await self._step()
                self._failing_since = None
                if self._failures:
                    failures, self._failures = self._failures, 0
                    self.error = None
                    self._observers.emit(LoopRecovered(worker=self._worker, loop=self.name, failures=failures))
                # A step may end without having waited for anything, and so may all that follow: others must run.
                await (asyncio.sleep(0) if pause is None else self.pause(pause))
            except asyncio.CancelledError:
                error_to_report = self._unrequested_cancellation()
            except Exception as error:
                error_to_report = error

    async def _report_safely(self, error: Exception) -> None:
        try:
            await self._report_and_pause(error)
        except Exception:
            # It can neither report nor pause, usually for lack of memory, which other tasks may free.
            await asyncio.sleep(0)

    def _unrequested_cancellation(self) -> Exception:
        """Return the error to report for a cancellation by others; one by ``stop`` is raised."""
        task = asyncio.current_task()
        if self.stopping or task is None:
            raise asyncio.CancelledError
        # A handler that cancels all tasks of the event loop must not end the worker's loops.
        task.uncancel()
        return RuntimeError("the loop was cancelled by somebody else")

    async def _report_and_pause(self, error: Exception) -> None:
        self._failures += 1
        self.error = error
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
        """Sleep, at most until the loop is asked to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
