"""Jobs on their way to a handler: those that were claimed ahead of a free slot, and the slots in which attempts run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from queuert.state.types import CLAIM_BYTES

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


PREFETCH_HORIZON = 0.05
"""How far the jobs that wait here reach, at the pace of late."""

MAX_PREFETCH = 2_000
"""Jobs, whatever the pace."""

STALE_SECONDS = 1.0
"""So long after the last start, what waits here is released: the pace has changed."""

_CLAIM_BELOW, _CLAIM_MANY_BELOW = 0.5, 0.75
_MANY = 1_000
"""The share of them with which the next claim is sent: what is left has to last until its answer, and a claim of very
many takes the store about as long as it takes the worker to run half as many.
"""

_SLOWEST_CHANGE = 0.05


class HandlerDurationEstimate:
    """How long handlers ran of late: a longer one counts at once, shorter ones by and by."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A handler has run for so long."""
        known = self._seconds
        slower = known is None or seconds >= known
        self._seconds = seconds if slower else known + _SLOWEST_CHANGE * (seconds - known)  # type: ignore[operator]

    def ahead(self, places: int) -> int:
        """How many jobs so many places get through in ``PREFETCH_HORIZON``; 0 while nothing is known."""
        if self._seconds is None:
            return 0
        return min(MAX_PREFETCH, int(places * PREFETCH_HORIZON / max(self._seconds, 1e-9)))


INPUT_BYTES = 64 * 1024 * 1024
"""What the inputs of all jobs in a worker's hands may measure together, if nothing else is set."""


SMALL = 1_000
"""Inputs of fewer characters are not counted: all that a worker may hold of them are a few megabytes."""


class HasInput(Protocol):
    """An attempt, and what its job's input takes of the memory; 0 once that was released."""

    input_bytes: int


class InputBytes:
    """The memory that the inputs of a worker's jobs take, from their claim until their finishes are written.

    With ``most`` reached nothing is claimed. One claim may exceed it by one input, and with nothing in hand any is
    taken, so that each job is run.
    """

    def __init__(self, most: int = INPUT_BYTES) -> None:
        self.held = 0
        self._most = most
        self.on_room: Callable[[], None] = lambda: None
        """Called when a claim has become possible again."""

    @property
    def full(self) -> bool:
        """Whether nothing should be claimed."""
        return self.held >= self._most

    @property
    def claimable(self) -> int:
        """What the inputs of the next claim may measure together."""
        return max(1, min(CLAIM_BYTES, self._most - self.held))

    def give_back(self, attempt: HasInput) -> None:
        """An attempt is over, or will not begin."""
        was_full = self.held >= self._most
        self.held -= attempt.input_bytes
        attempt.input_bytes = 0
        if was_full and self.held < self._most:
            self.on_room()


class Prefetch(Generic[T]):
    """What was claimed, in the order in which it is to be run by ``run`` in one of ``places``.

    With ``enabled`` false there is never more than places. ``may_start`` is asked for the next one; when its answer may
    have changed, call ``slots.fill``.
    """

    def __init__(
        self,
        places: int,
        run: Callable[[T, asyncio.Task[None]], Coroutine[Any, Any, bool]],
        *,
        enabled: bool,
        inputs: InputBytes | None = None,
        may_start: Callable[[T], bool] = lambda one: True,
        drop: Callable[[T], None] = lambda one: None,
    ) -> None:
        self.slots: Slots[T] = Slots(places, self._take, run, drop)
        self.inputs = inputs or InputBytes()
        self.inputs.on_room = self.slots.tell
        self._may_start = may_start
        self._drop = drop
        self._enabled = enabled
        self._beware_until = 0.0
        self._waiting: deque[T] = deque()
        self._most = 0
        self._refill_below = 0
        """With so many left, whoever claims should know."""
        self._last_start = time.monotonic()
        self.pace = HandlerDurationEstimate()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def more_to_start(self) -> bool:
        """Whether another begins without anything else having to happen first."""
        if self.slots.about_to_begin:
            return True
        can_begin = bool(self._waiting) and self.slots.free > 0 and not self.slots.closed
        return can_begin and self._may_start(self._waiting[0])

    def put(self, claimed: Sequence[T]) -> None:
        """Start as many as there are places for; let the others wait. When nobody should claim any more, all wait.

        Those for which there is no memory are dropped: leases that were looked after for nobody would never run out.
        """
        kept = 0
        try:
            for one in claimed:
                self._waiting.append(one)
                kept += 1
        except BaseException:
            for one in claimed[kept:]:
                self._drop(one)
            raise
        self.slots.fill()

    def _take(self) -> T | None:
        waiting = self._waiting
        if not waiting or not self._may_start(waiting[0]):
            return None
        self._last_start = time.monotonic()
        one = waiting.popleft()
        if len(waiting) == self._refill_below:
            self.slots.tell()
        return one

    def drain(self) -> list[T]:
        """All that wait: they are not started."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._most = 0
        return waiting

    def suspend(self) -> None:
        """Something began that may take all that waits with it: for a while nothing is to wait."""
        self._beware_until = time.monotonic() + STALE_SECONDS

    # --- how many more ------------------------------------------------------------------------------------------------

    async def room(self) -> int:
        """Wait until a claim is worth while; for how many jobs. 0: nobody should claim any more, or it is stale."""
        while not self.slots.closed:
            wanted = self._wanted()
            if wanted > 0:
                return wanted
            if self.stale:
                return 0
            try:
                async with asyncio.timeout(STALE_SECONDS if self._waiting else None):
                    await self.slots.changed()
            except TimeoutError:
                continue
        return 0

    def _wanted(self) -> int:
        if self.inputs.full:
            return 0
        waiting, free = len(self._waiting), self.slots.free
        cautious = time.monotonic() < self._beware_until
        allowed = self.pace.ahead(self.slots.size) if self._enabled and not cautious else 0
        most = min(allowed, self._most)
        self._refill_below = int(most * (_CLAIM_BELOW if most < _MANY else _CLAIM_MANY_BELOW))
        if waiting > self._refill_below:
            return 0
        # Twice as many each time, at most: one quick handler says little about the next.
        self._most = min(allowed, 2 * max(self._most, self.slots.size))
        return max(0, free + self._most - waiting)

    @property
    def stale(self) -> bool:
        """Whether jobs wait here and none was started for a while."""
        seconds = time.monotonic() - self._last_start
        if not self._waiting or seconds < STALE_SECONDS:
            return False
        self.pace.note(seconds)
        return True
