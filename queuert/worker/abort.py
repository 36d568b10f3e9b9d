"""How a running handler is told to stop, and why. Set from any thread, read from any."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason

_log = logging.getLogger("queuert.worker")

_lock = threading.Lock()
"""For all signals: it is taken when one is set or listened to, and most never are."""


class AbortSignal:
    """Says whether an attempt must stop. It is set once; the first reason stays.

    A coroutine is cancelled when it is set; a function in a thread cannot be, and should look at ``reason`` between
    its steps, or wait on the signal instead of sleeping::

        if attempt.abort.wait(5.0):
            return attempt.retry()          # nobody will hear it; what matters is to stop
    """

    __slots__ = ("_callbacks", "_job_id", "_reason")

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._reason: AbortReason | None = None
        self._callbacks: tuple[Callable[[], None], ...] = ()

    @property
    def reason(self) -> AbortReason | None:
        """Why the attempt must stop; None while it need not."""
        return self._reason

    def __bool__(self) -> bool:
        return self._reason is not None

    def wait(self, timeout: float | None = None) -> AbortReason | None:
        """Wait, in a thread, until the attempt must stop, at most ``timeout`` seconds; the reason, or None."""
        event = threading.Event()
        with self._listening(event.set):
            event.wait(timeout)
        return self._reason

    async def wait_async(self, timeout: float | None = None) -> AbortReason | None:
        """Wait, in a coroutine, until the attempt must stop, at most ``timeout`` seconds; the reason, or None."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop has closed: nobody waits any more.
                loop.call_soon_threadsafe(event.set)

        with self._listening(wake), suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()
        return self._reason

    @contextmanager
    def _listening(self, callback: Callable[[], None]) -> Iterator[None]:
        self.on_abort(callback)
        try:
            yield
        finally:
            with _lock:
                self._callbacks = tuple(one for one in self._callbacks if one is not callback)

    def raise_if_set(self) -> None:
        """Raise LeaseLostError with the reason if the attempt must stop."""
        if self._reason is not None:
            raise LeaseLostError(self._job_id, self._reason)

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the signal is set, from the thread that sets it; at once if it is set already.

        Be quick in it. What it raises goes to the log and disturbs nobody.
        """
        with _lock:
            if self._reason is None:
                self._callbacks = (*self._callbacks, callback)
                return
        _call(callback)

    def forget_callbacks(self) -> None:
        """The attempt is over. Its callbacks lead back to it, and would leave it to the garbage collector."""
        self._callbacks = ()

    def set(self, reason: AbortReason) -> bool:
        """Set the signal. The worker does; False if it was set before."""
        with _lock:
            if self._reason is not None:
                return False
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            _call(callback)
        return True


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("a callback of attempt.abort failed")
