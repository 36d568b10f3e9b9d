"""The prefetch, which keeps claimed jobs until a slot is free, and the slots, in which attempts run.

Short handlers must not wait for the store between two jobs. So the worker prefetches as many jobs as its slots run in a
twentieth of a second, by the measured duration of handlers. If handlers take longer than that, it prefetches nothing,
so that other workers can claim the jobs.

``Claimer`` waits for demand (``Prefetch.wait_for_demand``), claims, and adds what it got (``Prefetch.put``). Each slot
takes the next attempt (``Prefetch.next_attempt``) and runs it (``AttemptRunner.run``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queuert.observability.context import current_attempt
from queuert.state.types import CLAIM_BYTES
from queuert.worker import forks
from queuert.worker.leases import lease_time

if TYPE_CHECKING:
    from queuert.worker.runner import AttemptRunner
    from queuert.worker.runtime import WorkerRuntime

PREFETCH_HORIZON = 0.05
"""Seconds of work that are prefetched, by the duration of the last handlers."""

MAX_PREFETCH = 2_000
"""The most jobs that are prefetched."""

STALE_SECONDS = 1.0
"""When a job has waited here for so many seconds, handlers take longer than before, and all that wait are released."""

_MAX_WAIT = 0.25
"""Seconds that a prefetched job may be expected to wait, by the pace of the jobs that began last."""

_REFILL_SHARE, _REFILL_SHARE_OF_LARGE = 0.5, 0.75
_LARGE_PREFETCH = 1_000
"""When only this share of the prefetch is left, the next claim is sent; a larger share if the prefetch is large. What
is left must last until the answer, and a claim of very many jobs takes about as long as the worker needs for half of
them.
"""

_DECAY = 0.05
"""The weight of a duration that is shorter than the estimate."""

INPUT_BYTES = 64 * 1024 * 1024
"""The memory that the inputs of all claimed jobs may take, by default."""

SMALL = 1_000
"""Inputs of fewer characters are not counted: all of them in a worker take a few megabytes."""

_MAX_INLINE_RUNS = 512
_MAX_INLINE_SECONDS = 0.01
"""The most attempts, and seconds, of one turn of the event loop, if they never await anything."""


class HandlerDurationEstimate:
    """Estimates how long handlers take: a longer duration counts at once, shorter ones gradually."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def add(self, seconds: float) -> None:
        """Count the duration of a handler."""
        before = self._seconds
        slower = before is None or seconds >= before
        self._seconds = seconds if slower else before + _DECAY * (seconds - before)  # type: ignore[operator]

    def jobs_ahead(self, slots: int) -> int:
        """Return how many jobs so many slots run in ``PREFETCH_HORIZON``; 0 before the first duration is known."""
        if self._seconds is None:
            return 0
        return min(MAX_PREFETCH, int(slots * PREFETCH_HORIZON / max(self._seconds, 1e-9)))


@dataclass(slots=True)
class _Batch:
    """Jobs that were put in the prefetch together."""

    end: int
    """How many had been put there with it, since the beginning."""
    at: float
    """When, by the lease clock."""
    taken: int
    """How many had been taken before."""


class Prefetch:
    """The claimed jobs that wait for a slot, in the order in which they are to run.

    With ``enabled`` false, no more jobs are claimed than slots are free. ``WorkerRuntime.may_begin`` decides whether
    the next attempt begins. When its answer may have changed, ``slots.start_next`` must be called.

    A timer releases what has waited for ``STALE_SECONDS``, whatever the claimer waits for.

    The inputs of claimed jobs take memory until their finishes are written. When they take ``max_input_bytes``, nothing
    is claimed. One claim may exceed the bound by one input. Without other jobs an input of any size is claimed, so that
    each job is run.
    """

    def __init__(self, worker: WorkerRuntime, slots: int, *, enabled: bool, max_input_bytes: int = INPUT_BYTES) -> None:
        self.slots = Slots(slots, self)
        self.durations = HandlerDurationEstimate()
        self.input_bytes = 0
        """Memory of the inputs of all claimed jobs, in bytes."""
        self._worker = worker
        self._enabled = enabled
        self._max_input_bytes = max_input_bytes
        self._suspended_until = 0.0
        self._waiting: deque[AttemptRunner] = deque()
        self._size = 0
        """How many jobs the last claim was to prefetch."""
        self._refill_below = 0
        """When so many are left, the next claim is sent."""
        self.put_count = 0
        """How many jobs were put here so far."""
        self._stale_count = -1
        """How many jobs were put here before the last that became stale."""
        self._timer: asyncio.TimerHandle | None = None
        """Releases what is stale; set while jobs may wait."""
        self._batches: deque[_Batch] = deque()
        """What was put here, by time; those of which no job waits any more are removed when somebody asks."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def more_to_start(self) -> bool:
        """Whether another attempt begins in the next turn of the event loop."""
        if self.slots.start_pending:
            return True
        can_begin = bool(self._waiting) and self.slots.free > 0 and not self.slots.closed
        return can_begin and self._worker.may_begin(self._waiting[0])

    def put(self, claimed: Sequence[AttemptRunner]) -> None:
        """Start as many attempts as slots are free; the others wait. While the worker stops, all of them wait.

        If memory is exhausted the rest is released: leases that are renewed for nobody would never expire.
        """
        kept, batch = 0, None
        if not self._waiting:
            self._batches.clear()
        try:
            if self._timer is None:
                self._set_timer(STALE_SECONDS)
            batch = _Batch(self.put_count, lease_time(), self._taken)
            self._batches.append(batch)
            for runner in claimed:
                self._waiting.append(runner)
                kept += 1
        except BaseException:
            for runner in claimed[kept:]:
                runner.release()
            raise
        finally:
            self.put_count += kept
            if batch is not None:
                batch.end = self.put_count
        self.slots.start_next()

    def next_attempt(self) -> AttemptRunner | None:
        """Remove and return the next attempt for a free slot; None if none waits, or if it may not begin yet."""
        waiting = self._waiting
        if not waiting or not self._worker.may_begin(waiting[0]):
            return None
        runner = waiting.popleft()
        if len(waiting) == self._refill_below:
            self.slots.notify()
        return runner

    def release_waiting(self) -> None:
        """Release all that wait: they are not started. If it raises, the rest still waits."""
        self._size = 0
        while self._waiting:
            self._waiting.popleft().release()
        self._batches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.slots.notify()

    def suspend(self) -> None:
        """Prefetch nothing for a while, since an attempt may kill the process, and all jobs that wait with it."""
        self._suspended_until = time.monotonic() + STALE_SECONDS

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def claimable_bytes(self) -> int:
        """The bound for the inputs of the next claim, in bytes."""
        return max(1, min(CLAIM_BYTES, self._max_input_bytes - self.input_bytes))

    def free_input(self, runner: AttemptRunner) -> None:
        """Stop counting the input of an attempt that is over, or will not begin."""
        was_full = self.input_bytes >= self._max_input_bytes
        self.input_bytes -= runner.input_bytes
        runner.input_bytes = 0
        if was_full and self.input_bytes < self._max_input_bytes:
            self.slots.notify()

    # --- how many to claim --------------------------------------------------------------------------------------------

    async def wait_for_demand(self) -> int:
        """Wait until jobs should be claimed, and return how many; 0 when the worker stops."""
        while not self.slots.closed:
            demand = self._demand()
            if demand > 0:
                return demand
            await self.slots.changed()
        return 0

    def _demand(self) -> int:
        if self.input_bytes >= self._max_input_bytes:
            return 0
        waiting, slots = len(self._waiting), self.slots
        allowed = self.durations.jobs_ahead(slots.size) if self._may_prefetch else 0
        size = min(allowed, self._size)
        self._refill_below = int(size * (_REFILL_SHARE if size < _LARGE_PREFETCH else _REFILL_SHARE_OF_LARGE))
        if waiting > self._refill_below:
            return 0
        # Grows by a factor of two at most, since one short duration says little about the next.
        self._size = min(allowed, 2 * max(self._size, slots.size), self._begin_soon)
        return max(0, slots.free + self._size - waiting)

    @property
    def _may_prefetch(self) -> bool:
        """False for a while after ``suspend``, and until an attempt has begun after jobs became stale."""
        return self._enabled and self._taken != self._stale_count and time.monotonic() >= self._suspended_until

    @property
    def _taken(self) -> int:
        """How many jobs do not wait here any more, of all that were put here."""
        return self.put_count - len(self._waiting)

    @property
    def _begin_soon(self) -> int:
        """How many jobs begin in ``_MAX_WAIT``, at the pace since the last claim; if none waits, there may be more.

        The estimate of durations knows nothing of the handlers that still run: with one quick slot of a hundred, a
        hundred times as many jobs would wait as that slot runs.
        """
        if not self._waiting:
            return MAX_PREFETCH
        last = self._batches[-1]
        return int(_MAX_WAIT * (self._taken - last.taken) / max(lease_time() - last.at, 1e-9))

    # --- what is stale ------------------------------------------------------------------------------------------------

    @property
    def stale_in(self) -> float:
        """Seconds until the job that has waited longest has done so for too long; infinite if none waits."""
        if not self._waiting:
            return math.inf
        return self._oldest.at + STALE_SECONDS - lease_time()

    @property
    def _oldest(self) -> _Batch:
        """What the job that has waited longest was put here with."""
        taken = self._taken
        while self._batches[0].end <= taken:
            self._batches.popleft()
        return self._batches[0]

    def _count_as_long(self) -> None:
        """Let the estimate know how long the jobs take that were to be run while the oldest one waited."""
        oldest = self._oldest
        began = self._taken - oldest.taken
        seconds = lease_time() - oldest.at
        self.durations.add(seconds if began == 0 else seconds * self.slots.size / began)

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._release_stale)

    def _release_stale(self) -> None:
        """Release what waits if the oldest of it is stale; else look again when it would be."""
        self._timer = None
        if not self._waiting:
            return
        stale_in = self.stale_in
        # First, since the rest may fail for want of memory.
        self._set_timer(stale_in if stale_in > 0 else STALE_SECONDS)
        if stale_in <= 0:
            self._count_as_long()
            self.release_waiting()
            self._stale_count = self.put_count


class Slots:
    """The slots in which attempts run: as many at once as the worker's concurrency.

    A slot is a task that runs one attempt after the other. So an attempt that never awaits anything costs no task and
    no turn of the event loop. When an attempt awaits something, another slot runs the next one. Each attempt has a
    context of its own, so context variables that a handler sets end with it.

    A slot is taken while a handler runs. The finish is written while the slot runs the next attempt.
    """

    def __init__(self, size: int, prefetch: Prefetch) -> None:
        self.size = size
        self.start_pending = False
        """Whether a slot starts an attempt, or looks for one, in the next turn of the event loop."""
        self.closed = False
        """Whether no attempts are started any more."""
        self._prefetch = prefetch
        self._context = copy_context()
        self._context.run(current_attempt.set, None)
        self._bound = [
            (variable, value) for variable, value in self._context.items() if variable is not current_attempt
        ]
        """The variables that every attempt begins with."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbegun: dict[asyncio.Task[None], AttemptRunner] = {}
        """The attempts of tasks that have not run yet."""
        self._changed = asyncio.Event()

    @property
    def running(self) -> int:
        """The number of slots that are taken."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """The number of slots that are free."""
        return self.size - len(self._tasks)

    def start_next(self) -> None:
        """Start the next attempt in a free slot, if there is one, unless a slot looks for one anyway."""
        if self.start_pending or self.closed or len(self._tasks) >= self.size:
            return
        runner = self._prefetch.next_attempt()
        if runner is not None:
            try:
                task = asyncio.Task(self._work(runner), context=self._context.copy())
            except BaseException:
                runner.release()
                raise
            self.start_pending = True
            self._tasks.add(task)
            self._unbegun[task] = runner
            task.add_done_callback(self._end)

    async def _work(self, runner: AttemptRunner | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        del self._unbegun[task]
        generation = forks.generation
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
                if self._has_bound(context):
                    runner.keep_context(context)
            else:
                if forks.generation != generation:
                    forks.end_child()
                runner.keep_context(context)
                self.start_next()
                reusable = await _SuspendedAttempt(attempt, context, awaited)
                runs, ends_at = 0, time.monotonic() + _MAX_INLINE_SECONDS
                if not self._has_bound(context):
                    runner.context = None
            if not reusable:
                # The cancellation of the attempt may reach the task only now: it must not affect the next attempt.
                return
            if runs == _MAX_INLINE_RUNS or time.monotonic() >= ends_at:
                self.start_pending = True
                await asyncio.sleep(0)
                runs, ends_at = 0, time.monotonic() + _MAX_INLINE_SECONDS
            runner = None if self.closed else self._prefetch.next_attempt()
        self.start_pending = False

    def _has_bound(self, context: Context) -> bool:
        """Whether an attempt has bound a variable in its context.

        Else that is not kept until its finish is written: to keep them all costs a drain three percent.
        """
        if len(context) != len(self._context):
            return True
        for variable, value in self._bound:  # noqa: SIM110  (for each job)
            if context.get(variable) is not value:
                return True
        return False

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        unbegun = self._unbegun.pop(task, None)
        if unbegun is not None:
            # Somebody has cancelled it, with all tasks of the event loop, before its first step.
            unbegun.release()
        # It may have been cancelled before it looked for an attempt. One slot too many does no harm.
        self.start_pending = False
        self.notify()
        self.start_next()

    def notify(self) -> None:
        """Wake the caller of ``changed``: a slot became free, or fewer jobs wait for one."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until something changed, or the worker stops."""
        self._changed.clear()
        if not self.closed:
            await self._changed.wait()

    def close(self) -> None:
        """Start no more attempts; from now on ``changed`` returns at once."""
        self.closed = True
        self._changed.set()

    def cancel(self) -> None:
        """Cancel the attempts that still run."""
        for task in list(self._tasks):
            task.cancel()


class _SuspendedAttempt:
    """The rest of an attempt that awaited something in its first step, to be awaited in the context of that step.

    ``send`` has run the first step, without a task. From then on, each future that the attempt awaits is yielded to the
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
        generation = forks.generation
        try:
            while True:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = step(throw, error)
                else:
                    awaited = step(send, value)
                if forks.generation != generation:
                    forks.end_child()
        except StopIteration as end:
            return bool(end.value)
