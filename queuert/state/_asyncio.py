"""Helpers for asyncio, and the pauses between retries, that several stores need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

_T = TypeVar("_T")


async def finish_despite_cancel(call: asyncio.Future[_T]) -> _T:
    """Await the call and return its result. If the caller is cancelled, the call still completes before that is
    raised."""
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if not call.done():
            await asyncio.wait([call])
        raise


async def async_turn() -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


def sync_turn() -> None:
    """Do nothing: others have their own threads."""


_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 3.0)


async def async_pauses() -> AsyncIterator[float]:
    """Yield once for each try, after its pause; the value is the pause in seconds."""
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        yield pause


def sync_pauses() -> Iterator[float]:
    """Yield once for each try, after its pause; the value is the pause in seconds."""
    for pause in _PAUSES:
        time.sleep(pause)
        yield pause
