"""Timers of the event loop: monotonic, and nothing polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def timer(seconds: float | None, action: Callable[[], None]) -> Iterator[None]:
    """Do something unless the ``with`` block ends within so many seconds; None is for ever."""
    handle = None if seconds is None else asyncio.get_running_loop().call_later(seconds, action)
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()
