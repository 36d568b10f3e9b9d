"""Calls that a cancellation must not cut short."""

from __future__ import annotations

import asyncio
from typing import TypeVar

_T = TypeVar("_T")


async def to_the_end(call: asyncio.Future[_T]) -> _T:
    """The result of what is under way; a cancellation waits for its end, and is raised then."""
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if not call.done():
            await asyncio.wait([call])
        raise
