"""Measures how late the event loop of a worker is, and reports when it is blocked, and by which job, or closed."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from queuert.observability.adapter import Observers
from queuert.observability.events import EventLoopBlocked, EventLoopUnblocked

_log = logging.getLogger("queuert.worker")

BLOCKED_AFTER = 5.0
"""Seconds for which the event loop may be blocked before an event is emitted."""

_TICK = 1.0
_STOP = 5.0
"""Seconds for which a stop waits for the thread."""
_DELAYS = 30
"""The number of delays that are kept: those of half a minute."""
_FRAMES = 30


class RunningAttempt(Protocol):
    """An attempt whose handler runs in the event loop."""

    @property
    def job(self) -> Any:
        """Its job."""
        ...


class LoopWatch:
    """A thread that schedules a call in the event loop each second, and reports its stack if the call does not run.

    It calls ``on_closed`` if the event loop is closed before the watch is stopped.
    """

    def __init__(
        self,
        attempt_of: Callable[[asyncio.Task[Any]], RunningAttempt | None],
        on_closed: Callable[[], None],
        *,
        worker: str,
        observers: Observers,
        blocked_after: float = BLOCKED_AFTER,
    ) -> None:
        self._attempt_of = attempt_of
        self._on_closed = on_closed
        self._worker = worker
        self._observers = observers
        self._blocked_after = blocked_after
        self._event_loop = asyncio.get_running_loop()
        self._thread_of_loop = threading.get_ident()
        self._sent_at: float | None = None
        """When the call that has not run yet was scheduled; None if the last one has run."""
        self._delays: deque[float] = deque(maxlen=_DELAYS)
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the event loop."""
        thread = threading.Thread(target=self._watch, name="queuert-loop-watch", daemon=True)
        thread.start()
        self._thread = thread

    def request_stop(self) -> None:
        """Let the thread end, without waiting for it. From any thread."""
        self._stopped.set()
        self._answered.set()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self.request_stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_STOP)  # An observer may hang. The thread is a daemon, and reports no more.
        self._sent_at = None

    def blocked_seconds(self) -> float:
        """Seconds for which the event loop has not run the call; 0 if none is open. From any thread."""
        sent_at = self._sent_at
        return 0.0 if sent_at is None else time.monotonic() - sent_at

    def longest_delay(self) -> float:
        """The longest delay of the event loop in the last half minute, in seconds. From any thread."""
        return max(self.blocked_seconds(), *self._delays.copy(), 0.0)

    def _watch(self) -> None:
        while not self._stopped.wait(min(_TICK, self._blocked_after)):
            self._answered.clear()
            if self._stopped.is_set():
                return  # `stop` waits for this thread in the event loop, which could not run the call.
            self._sent_at = sent_at = time.monotonic()
            try:
                self._event_loop.call_soon_threadsafe(self._answer)
                if not self._answered.wait(self._blocked_after) and not self._over:
                    self._report(sent_at)
            except Exception:
                # Usually the loop is closed. If it could not report, for lack of memory, it watches on.
                if not self._over:
                    with suppress(Exception):
                        _log.exception("a turn of the thread that watches the event loop has failed; it goes on")
            if self._over:
                break
        if not self._stopped.is_set():
            self._on_closed()

    @property
    def _over(self) -> bool:
        """Whether there is nothing left to watch."""
        return self._stopped.is_set() or self._event_loop.is_closed()

    def _answer(self) -> None:
        """Called in the event loop."""
        if self._sent_at is not None:
            self._delays.append(time.monotonic() - self._sent_at)
            self._sent_at = None
        self._answered.set()

    def _report(self, sent_at: float) -> None:
        frame = sys._current_frames().get(self._thread_of_loop)
        stack = "".join(traceback.format_stack(frame, _FRAMES)) if frame is not None else ""
        job = self._blocking_job()
        self._observers.emit(
            EventLoopBlocked(
                worker=self._worker,
                seconds=time.monotonic() - sent_at,
                job_id=None if job is None else job.id,
                type=None if job is None else job.type,
                stack=stack,
            )
        )
        while not self._answered.wait(_TICK) and not self._over:
            pass
        if not self._over:
            self._observers.emit(EventLoopUnblocked(worker=self._worker, seconds=time.monotonic() - sent_at))

    def _blocking_job(self) -> Any:
        task = asyncio.current_task(self._event_loop)
        attempt = None if task is None else self._attempt_of(task)
        return None if attempt is None else attempt.job
