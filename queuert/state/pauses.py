"""Pauses between tries to reach a store again, in both colours: about ten seconds in all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 3.0)


async def async_pauses() -> AsyncIterator[float]:
    """Yield the pause that was just made, in seconds, for each try."""
    for pause in _PAUSES:
        await asyncio.sleep(pause)
        yield pause


def sync_pauses() -> Iterator[float]:
    """Yield the pause that was just made, in seconds, for each try."""
    for pause in _PAUSES:
        time.sleep(pause)
        yield pause
