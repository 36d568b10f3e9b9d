"""Middlewares wrap each attempt as an onion: before 1, before 2, handler, after 2, after 1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from queuert.worker.attempt import Attempt

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the rest of the onion; returns the handler's outcome or raises what it raised."""

AttemptMiddleware: TypeAlias = Callable[[Attempt[Any, Any], CallNext], Awaitable[Any]]
"""``async def middleware(attempt, call_next)``: awaits ``call_next()`` once and returns its outcome, or another.

It runs in the event loop also where the handler runs in a thread; context variables that it sets are seen there. What
it raises is a failed attempt, as if the handler had raised it.
"""


def wrapped(middlewares: Sequence[AttemptMiddleware], attempt: Attempt[Any, Any], handler: CallNext) -> CallNext:
    """The handler inside its middlewares, the first one outermost."""
    for middleware in reversed(middlewares):
        handler = _layer(middleware, attempt, handler)
    return handler


def _layer(middleware: AttemptMiddleware, attempt: Attempt[Any, Any], inner: CallNext) -> CallNext:
    async def layer() -> Any:
        return await middleware(attempt, inner)

    return layer
