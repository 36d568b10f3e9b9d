"""Jobs on their way to a handler: those that were claimed ahead of a free slot, and the slots in which attempts run.

Short handlers must not wait for the store between two jobs. So the worker claims ahead: as many jobs as its slots get
through in a twentieth of a second, which is measured and not set. Where handlers take longer than that, nothing is
claimed ahead, and no other worker is kept from a job that nobody runs.

``Claimer`` waits for demand (``Prefetch.wait_for_demand``), claims, and adds what it got (``Prefetch.put``). Each slot
takes the next attempt (``Prefetch.next_attempt``) and runs it (``AttemptRunner.run``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from queuert.state.types import CLAIM_BYTES

if TYPE_CHECKING:
    from queuert.worker.runner import AttemptRunner
    from queuert.worker.runtime import WorkerRuntime

PREFETCH_HORIZON = 0.05
"""Seconds of work that are claimed ahead, at the pace of the last handlers."""

MAX_PREFETCH = 2_000
"""Jobs that are claimed ahead at most, whatever the pace."""

STALE_SECONDS = 1.0
"""When no attempt has started for so long, the prefetched jobs are released: the pace has changed."""

_REFILL_SHARE, _REFILL_SHARE_OF_MANY = 0.5, 0.75
_MANY = 1_000
"""The share of the prefetch with which the next claim is sent. What is left must last until its answer, and a claim of
very many jobs takes the store about as long as the worker needs to run half as many.
"""

_DECAY = 0.05

INPUT_BYTES = 64 * 1024 * 1024
"""How much memory the inputs of all claimed jobs may take together, by default."""

SMALL = 1_000
"""Inputs of fewer characters are not counted: all that a worker can hold of them are a few megabytes."""

_MAX_INLINE_RUNS = 512
_MAX_INLINE_SECONDS = 0.01
"""Attempts that never wait run one after the other in one turn of the event loop: so many, or for so long."""


class HandlerDurationEstimate:
    """How long handlers took recently: a longer duration counts at once, shorter ones gradually."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def note(self, seconds: float) -> None:
        """A handler has run for so long."""
        known = self._seconds
        slower = known is None or seconds >= known
        self._seconds = seconds if slower else known + _DECAY * (seconds - known)  # type: ignore[operator]

    def ahead(self, slots: int) -> int:
        """How many jobs so many slots get through in ``PREFETCH_HORIZON``; 0 while nothing is known."""
        if self._seconds is None:
            return 0
        return min(MAX_PREFETCH, int(slots * PREFETCH_HORIZON / max(self._seconds, 1e-9)))


class Prefetch:
    """The claimed jobs that wait for a slot, in the order in which they are to run.

    With ``enabled`` false no more jobs are claimed than slots are free. ``WorkerRuntime.may_begin`` decides about the
    next attempt; when its answer may have changed, ``slots.start_next`` has to be called.

    The inputs of claimed jobs take memory until their finishes are written. When they take ``max_input_bytes``, nothing
    is claimed. One claim may exceed the bound by one input, and with no job in hand any input is taken, so that each
    job is run.
    """

    def __init__(self, worker: WorkerRuntime, slots: int, *, enabled: bool, max_input_bytes: int = INPUT_BYTES) -> None:
        self.slots = Slots(slots, self)
        self.durations = HandlerDurationEstimate()
        self.input_bytes = 0
        """Of the inputs of all claimed jobs."""
        self._worker = worker
        self._enabled = enabled
        self._max_input_bytes = max_input_bytes
        self._suspended_until = 0.0
        self._waiting: deque[AttemptRunner] = deque()
        self._size = 0
        """How many jobs were to be prefetched with the last claim."""
        self._refill_below = 0
        """With so many left, the next claim is sent."""
        self._last_start = time.monotonic()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def more_to_start(self) -> bool:
        """Whether another attempt begins without anything else having to happen first."""
        if self.slots.start_pending:
            return True
        can_begin = bool(self._waiting) and self.slots.free > 0 and not self.slots.closed
        return can_begin and self._worker.may_begin(self._waiting[0])

    def put(self, claimed: Sequence[AttemptRunner]) -> None:
        """Start as many attempts as slots are free; the others wait. When the worker stops, all of them wait.

        Those for which there is no memory are released: leases that are renewed for nobody would never expire.
        """
        kept = 0
        try:
            for runner in claimed:
                self._waiting.append(runner)
                kept += 1
        except BaseException:
            for runner in claimed[kept:]:
                runner.release()
            raise
        self.slots.start_next()

    def next_attempt(self) -> AttemptRunner | None:
        """Take the attempt that a free slot is to run; None where none waits, or the next one may not begin yet."""
        waiting = self._waiting
        if not waiting or not self._worker.may_begin(waiting[0]):
            return None
        self._last_start = time.monotonic()
        runner = waiting.popleft()
        if len(waiting) == self._refill_below:
            self.slots.notify()
        return runner

    def drain(self) -> list[AttemptRunner]:
        """Take all that wait: they are not started."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._size = 0
        return waiting

    def suspend(self) -> None:
        """Prefetch nothing for a while: an attempt began that may take down the process with all that waits."""
        self._suspended_until = time.monotonic() + STALE_SECONDS

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def claimable_bytes(self) -> int:
        """What the inputs of the next claim may measure together."""
        return max(1, min(CLAIM_BYTES, self._max_input_bytes - self.input_bytes))

    def free_input(self, runner: AttemptRunner) -> None:
        """Count the input of an attempt no longer, since it is over or will not begin."""
        was_full = self.input_bytes >= self._max_input_bytes
        self.input_bytes -= runner.input_bytes
        runner.input_bytes = 0
        if was_full and self.input_bytes < self._max_input_bytes:
            self.slots.notify()

    # --- how many to claim --------------------------------------------------------------------------------------------

    async def wait_for_demand(self) -> int:
        """Wait until a claim is worth while; for how many jobs. 0: the worker stops, or what waits here is stale."""
        while not self.slots.closed:
            demand = self._demand()
            if demand > 0:
                return demand
            if self.stale:
                return 0
            try:
                async with asyncio.timeout(STALE_SECONDS if self._waiting else None):
                    await self.slots.changed()
            except TimeoutError:
                continue
        return 0

    def _demand(self) -> int:
        if self.input_bytes >= self._max_input_bytes:
            return 0
        waiting, slots = len(self._waiting), self.slots
        suspended = time.monotonic() < self._suspended_until
        allowed = self.durations.ahead(slots.size) if self._enabled and not suspended else 0
        size = min(allowed, self._size)
        self._refill_below = int(size * (_REFILL_SHARE if size < _MANY else _REFILL_SHARE_OF_MANY))
        if waiting > self._refill_below:
            return 0
        # Twice as many each time, at most: one quick handler says little about the next.
        self._size = min(allowed, 2 * max(self._size, slots.size))
        return max(0, slots.free + self._size - waiting)

    @property
    def stale(self) -> bool:
        """Whether jobs wait here and none was started for a while."""
        seconds = time.monotonic() - self._last_start
        if not self._waiting or seconds < STALE_SECONDS:
            return False
        self.durations.note(seconds)
        return True


class Slots:
    """The slots in which attempts run: as many at once as the worker's concurrency.

    A slot is a task that runs one attempt after the other. So an attempt that never waits costs no task and no turn of
    the event loop; when one does wait, another slot takes over. Each attempt has a context of its own: what a handler
    sets in context variables ends with it.

    A slot is taken while a handler runs. The write of its finish goes on beside the next attempt.
    """

    def __init__(self, size: int, prefetch: Prefetch) -> None:
        self.size = size
        self.start_pending = False
        """Whether a slot begins with an attempt, or looks for one, in the next turn of the event loop."""
        self.closed = False
        """Whether nothing is started any more."""
        self._prefetch = prefetch
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self.size - len(self._tasks)

    def start_next(self) -> None:
        """Start the next attempt in a free slot, if there is one, unless a slot is about to look anyway."""
        if self.start_pending or self.closed or len(self._tasks) >= self.size:
            return
        runner = self._prefetch.next_attempt()
        if runner is not None:
            try:
                task = asyncio.create_task(self._work(runner), context=self._context.copy())
            except BaseException:
                runner.release()
                raise
            self.start_pending = True
            self._tasks.add(task)
            task.add_done_callback(self._end)

    async def _work(self, runner: AttemptRunner | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        runs, ends_at = 0, time.monotonic() + _MAX_INLINE_SECONDS
        while runner is not None:
            self.start_pending = False
            try:
                attempt, context = runner.run(task), self._context.copy()
            except BaseException:
                runner.release()
                raise
            try:
                awaited = context.run(attempt.send, None)
            except StopIteration as end:
                reusable = end.value
                runs += 1
            else:
                self.start_next()
                reusable = await _SuspendedAttempt(attempt, context, awaited)
                runs, ends_at = 0, time.monotonic() + _MAX_INLINE_SECONDS
            if not reusable:
                # The cancellation of the attempt may reach the task only now: it must not meet the next one.
                return
            if runs == _MAX_INLINE_RUNS or time.monotonic() >= ends_at:
                self.start_pending = True
                await asyncio.sleep(0)
                runs, ends_at = 0, time.monotonic() + _MAX_INLINE_SECONDS
            runner = None if self.closed else self._prefetch.next_attempt()
        self.start_pending = False

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # It may have been cancelled while it was about to look. One task too many does no harm.
        self.start_pending = False
        self.notify()
        self.start_next()

    def notify(self) -> None:
        """Wake whoever waits in ``changed``: a slot became free, or fewer jobs wait for one."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until something changed, or the worker stops."""
        self._changed.clear()
        if not self.closed:
            await self._changed.wait()

    def close(self) -> None:
        """Start nothing any more, and let ``changed`` return, now and from now on."""
        self.closed = True
        self._changed.set()

    def cancel(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            task.cancel()


class _SuspendedAttempt:
    """The rest of an attempt whose first step had to wait, to be awaited in the context of that step.

    The first step ran by ``send``, without a task. Everything that the attempt waits for from then on is yielded to the
    task that awaits this object.
    """

    __slots__ = ("_attempt", "_awaited", "_context")

    def __init__(self, attempt: Coroutine[Any, Any, bool], context: Context, awaited: Any) -> None:
        self._attempt = attempt
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, bool]:
        step, awaited = self._context.run, self._awaited
        send, throw = self._attempt.send, self._attempt.throw
        try:
            while True:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = step(throw, error)
                else:
                    awaited = step(send, value)
        except StopIteration as end:
            return bool(end.value)
