"""An observability adapter for tests: it keeps all events, and lets a test wait for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from queuert.observability.events import Event

E = TypeVar("E", bound=Event)

DEFAULT_TIMEOUT = 20.0
"""The default timeout in seconds: far more than an event takes, so that only a failing test reaches it."""

_SHOWN = 30


class EventLog:
    """Keeps every event that a client or worker emits, in order. Any thread may use it.

    Example::

        log = EventLog()
        client = AsyncClient(PostgresState(dsn), job_types, observability=log)
        async with InProcessWorker(client, processors):
            chain = await client.start_chain(resize, Resize(url=url, width=200))
            await log.wait_for(AttemptStarted, job_id=chain.id)
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []

    def emit(self, event: Event) -> None:
        """Keep an event, and wake the waiting callers."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    @property
    def events(self) -> tuple[Event, ...]:
        """Return all events so far, in order."""
        with self._changed:
            return tuple(self._events)

    def of(self, kind: type[E], **fields: object) -> list[E]:
        """Return the events so far of this class whose fields have these values."""
        _check_fields(kind, fields)
        return [event for event in self.events if isinstance(event, kind) and _fits(event, fields)]

    def forget(self) -> None:
        """Drop all events: later waits need new events."""
        with self._changed:
            self._events.clear()

    async def wait_for(self, kind: type[E], *, times: int = 1, timeout: float = DEFAULT_TIMEOUT, **fields: object) -> E:
        """Wait in a coroutine until an event of this class, with these values, was emitted ``times`` times.

        Return the last of those. Events before the call count.

        Raises:
            AssertionError: it was not emitted within ``timeout`` seconds; the message lists all events.
        """
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop has closed: no caller waits any more.
                loop.call_soon_threadsafe(arrived.set)

        with self._woken_by(wake):
            try:
                async with asyncio.timeout(timeout):
                    while (found := self._found(kind, times, fields)) is None:
                        await arrived.wait()
                        arrived.clear()
            except TimeoutError:
                raise self._missing(kind, times, timeout, fields) from None
        return found

    def wait_for_sync(self, kind: type[E], *, times: int = 1, timeout: float = DEFAULT_TIMEOUT, **fields: object) -> E:
        """Wait as ``wait_for`` does, in a thread."""
        with self._changed:
            if self._changed.wait_for(lambda: self._found(kind, times, fields) is not None, timeout):
                return self.of(kind, **fields)[times - 1]
        raise self._missing(kind, times, timeout, fields)

    @contextmanager
    def _woken_by(self, wake: Callable[[], None]) -> Iterator[None]:
        with self._changed:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _found(self, kind: type[E], times: int, fields: dict[str, object]) -> E | None:
        found = self.of(kind, **fields)
        return found[times - 1] if len(found) >= times else None

    def _missing(self, kind: type[Any], times: int, timeout: float, fields: dict[str, object]) -> AssertionError:
        wanted = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        reported = "\n  ".join(map(repr, self.events[-_SHOWN:])) or "nothing"
        return AssertionError(
            f"{kind.__name__}({wanted}) was not told {times} time(s) in {timeout:g} s; the last events were:\n  "
            f"{reported}"
        )


def _check_fields(kind: type[Event], requested: dict[str, object]) -> None:
    known = {one.name for one in dataclass_fields(kind)}
    if not requested.keys() <= known:
        raise TypeError(
            f"{kind.__name__} has no field {', '.join(sorted(requested.keys() - known))}: it would never fit"
        )


def _fits(event: Event, requested: dict[str, object]) -> bool:
    return all(getattr(event, name) == value for name, value in requested.items())
