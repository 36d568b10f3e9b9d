"""The places in which attempts run: as many at once as the worker's concurrency.

A place is a task that runs one attempt after the other. So an attempt that never waits costs no task and no turn of the
event loop; when one does wait, another place takes over. Each attempt has a context of its own: what a handler sets in
context variables ends with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_TURN = 512
_TURN_SECONDS = 0.01
"""Attempts that never wait, one after the other, before the event loop has its turn: so many, or for so long."""


class Slots(Generic[T]):
    """Counts free places and keeps the tasks that fill them.

    ``take`` gives what may run next, or None. ``run`` runs it in the task that it is given; it does not raise, and says
    whether that may run another: one that was cancelled meanwhile may not. A place is taken while a handler runs. What
    is left to do then, the writing of its finish, goes on beside the next attempt. ``drop`` gets what was taken and
    could not be begun with, for want of memory: nobody else knows of it.
    """

    def __init__(
        self,
        size: int,
        take: Callable[[], T | None],
        run: Callable[[T, asyncio.Task[None]], Coroutine[Any, Any, bool]],
        drop: Callable[[T], None],
    ) -> None:
        self.size = size
        self._take = take
        self._run = run
        self._drop = drop
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = False
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def running(self) -> int:
        """Places that are taken."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Places that are free."""
        return self.size - len(self._tasks)

    @property
    def about_to_begin(self) -> bool:
        """Whether a place begins with something, or looks for it, in the next turn of the event loop."""
        return self._looking

    def fill(self) -> None:
        """There may be something to run: begin with it in a free place, unless one is about to look anyway."""
        if self._looking or len(self._tasks) >= self.size:
            return
        one = None if self._closed else self._take()
        if one is not None:
            try:
                task = asyncio.create_task(self._work(one), context=self._context.copy())
            except BaseException:
                self._drop(one)
                raise
            self._looking = True
            self._tasks.add(task)
            task.add_done_callback(self._end)

    async def _work(self, one: T | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        turn, ends_at = 0, time.monotonic() + _TURN_SECONDS
        while one is not None:
            self._looking = False
            try:
                attempt, context = self._run(one, task), self._context.copy()
            except BaseException:
                self._drop(one)
                raise
            try:
                waits_for = context.run(attempt.send, None)
            except StopIteration as end:
                again = end.value
                turn += 1
            else:
                self.fill()
                again = await _SuspendedAttempt(attempt, context, waits_for)
                turn, ends_at = 0, time.monotonic() + _TURN_SECONDS
            if not again:
                # What cancelled the attempt may reach the task only now: it must not meet the next one.
                return
            if turn == _TURN or time.monotonic() >= ends_at:
                self._looking = True
                await asyncio.sleep(0)
                turn, ends_at = 0, time.monotonic() + _TURN_SECONDS
            one = None if self._closed else self._take()
        self._looking = False

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._looking = False  # It may have been cancelled while it was about to look. One task too many does no harm.
        self.tell()
        self.fill()

    def tell(self) -> None:
        """Something changed for whoever waits: a place became free, or less waits for one."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until something changed, or nobody should wait any more."""
        self._changed.clear()
        if not self._closed:
            await self._changed.wait()

    @property
    def closed(self) -> bool:
        """Whether nobody should wait for a place any more."""
        return self._closed

    def stop_waiting(self) -> None:
        """Let ``changed`` return, now and from now on; nothing more is run."""
        self._closed = True
        self._changed.set()

    def cancel(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            task.cancel()


class _SuspendedAttempt:
    """What is left of a coroutine after its first step, in the context in which that ran."""

    __slots__ = ("_context", "_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, bool], context: Context, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, bool]:
        step, waits_for = self._context.run, self._waits_for
        send, throw = self._coroutine.send, self._coroutine.throw
        try:
            while True:
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = step(throw, error)
                else:
                    waits_for = step(send, value)
        except StopIteration as end:
            return bool(end.value)
