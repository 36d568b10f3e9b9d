"""The handlers of a run. Each writes its effect in the transaction that finishes the job, if the store has one, and a
line before and after its body to a file, which no rollback removes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queuert.errors import LeaseLostError, StateError
from queuert.jobs import AbortReason
from queuert.outcomes import Outcome
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.resources import tidy, use_all_connections
from queuert.testing.chaos.workload import (
    CLASH,
    JOB_TYPES,
    LEASE,
    LIMITS,
    PAUSING,
    POISON,
    TAKEOVER,
    TIDY,
    Done,
    Task,
    blocking,
    effect,
    flaky,
    fleeting,
    keyed,
    limited,
    plain,
    poison,
    rated,
    steady,
    steady_in_thread,
    threaded,
)
from queuert.worker.attempt import Attempt
from queuert.worker.processors import Processors

TaskAttempt = Attempt[Task, Done]

EFFECTS = {
    "postgres": "INSERT INTO chaos.effect (job_id, attempt, token) VALUES (%s, %s, %s)",
    "sqlite": "INSERT INTO chaos_effect (job_id, attempt, token) VALUES (?, ?, ?)",
}
"""How a handler records its effect. Redis has no transaction that it could join."""

EVERY = "every"
LATER = "later"
"""Return the gate files of all attempts of a job, and of those after the first; without a job, of all jobs."""

_POLL = 0.01
_HANG = 0.7
_ROOM, _BITE = 48 << 20, 4 << 20
"""How many bytes a process may take beyond its present memory, and how many it takes at a time, before it is out of
memory."""


class Wrong(Exception):
    """The exception that a flaky handler raises."""


class Handlers:
    """The handlers of one worker process."""

    def __init__(self, store: str, traces: Records, gates: Path, slot: int) -> None:
        self._effect = EFFECTS.get(store)
        self._traces = traces
        self._gates = gates
        self._slot = slot

    def processors(self, *, limits: bool) -> Processors:
        """Return all handlers, registered; with ``limits`` also those of types with limits."""
        made = Processors(JOB_TYPES, retry=TAKEOVER, lease=LEASE)
        made.handles(effect)(self.complete)
        made.handles(threaded)(self.complete_in_thread)
        made.handles(plain)(self.answer)
        made.handles(fleeting)(self.answer)
        made.handles(flaky, retry=PAUSING)(self.fail_first)
        made.handles(blocking)(self.block)
        made.handles(poison, retry=POISON, timeout=_HANG)(self.die)
        if limits:
            made.handles(limited, limits=LIMITS[limited.name])(self.complete)
            made.handles(keyed, limits=LIMITS[keyed.name])(self.answer)
            made.handles(rated, limits=LIMITS[rated.name])(self.answer)
        return made

    def steady_processors(self) -> Processors:
        """Return the handlers of a leak probe: none of them ends the process or blocks the event loop."""
        made = Processors(JOB_TYPES, retry=TAKEOVER, lease=LEASE)
        made.handles(steady, retry=PAUSING)(self.fail_first)
        made.handles(steady_in_thread)(self.complete_in_thread)
        return made

    # --- handlers -----------------------------------------------------------------------------------------------------

    async def complete(self, attempt: TaskAttempt) -> Outcome[Done]:
        """Complete or continue, and write an effect in the transaction."""
        with self._traced(attempt):
            await self._wait(attempt)
            async with attempt.complete() as tx:
                if self._effect is not None:
                    written = tx.connection.execute(self._effect, _row(attempt))
                    if hasattr(written, "__await__"):
                        await written
                if attempt.input.inside:
                    await asyncio.sleep(attempt.input.inside)
                return tx.finish(_outcome(attempt))

    def complete_in_thread(self, attempt: TaskAttempt) -> Outcome[Done]:
        """Do the same in a thread."""
        with self._traced(attempt):
            time.sleep(attempt.input.pause)
            with attempt.complete() as tx:
                if self._effect is not None:
                    tx.connection.execute(self._effect, _row(attempt))
                time.sleep(attempt.input.inside)
                return tx.finish(_outcome(attempt))

    async def answer(self, attempt: TaskAttempt) -> Outcome[Done]:
        """Return an output or a continuation, which the worker writes."""
        with self._traced(attempt):
            await asyncio.sleep(attempt.input.pause)
            return _outcome(attempt)

    async def fail_first(self, attempt: TaskAttempt) -> Outcome[Done]:
        """Fail some attempts, and then complete."""
        if attempt.number <= attempt.input.fails:
            _raise(attempt.input.how)
        if attempt.input.how == TIDY:
            await use_all_connections()
            tidy()
        return await self.complete(attempt)

    async def block(self, attempt: TaskAttempt) -> Outcome[Done]:
        """Block the event loop for longer than the lease, and complete."""
        with self._traced(attempt, "blocked"):
            time.sleep(attempt.input.pause)  # noqa: ASYNC251  (the fault itself)
        return await self.complete(attempt)

    async def die(self, attempt: TaskAttempt) -> Outcome[Done]:
        """End the process, or never return."""
        self._mark(attempt, "began")
        match attempt.input.how:
            case "exit":
                os._exit(9)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "memory":
                _use_up_memory()
            case _:
                await asyncio.Event().wait()
        return Done(attempt=attempt.number)

    # --- traces and gates ---------------------------------------------------------------------------------------------

    def _mark(self, attempt: TaskAttempt, mark: str, detail: str = "") -> None:
        self._traces.add(
            m=mark, job=attempt.job_id, attempt=attempt.number, pid=os.getpid(), slot=self._slot, detail=detail
        )

    @contextmanager
    def _traced(self, attempt: TaskAttempt, prefix: str = "") -> Iterator[None]:
        self._mark(attempt, f"{prefix}began")
        try:
            yield
        except LeaseLostError as error:
            self._mark(attempt, "refused", str(error.reason))
            raise
        except (StateError, asyncio.CancelledError) as error:
            self._mark(attempt, "broke", str(attempt.abort.reason or type(error).__name__))
            raise
        self._mark(attempt, f"{prefix}ended")

    async def _wait(self, attempt: TaskAttempt) -> None:
        if not attempt.input.gated:
            await asyncio.sleep(attempt.input.pause)
            return
        while not self._is_open(attempt):
            try:
                await asyncio.sleep(_POLL)
            except asyncio.CancelledError:
                # The handler ignores its cancellation, as a thread in a long computation would.
                self._mark(attempt, "reported", str(attempt.abort.reason))
                if attempt.abort.reason is AbortReason.WORKER_STOPPING:
                    raise

    def _is_open(self, attempt: TaskAttempt) -> bool:
        names = [f"{attempt.job_id}-{attempt.number}", f"{attempt.job_id}-{EVERY}", EVERY]
        names += [f"{attempt.job_id}-{LATER}"] if attempt.number > 1 else []
        return any((self._gates / name).exists() for name in names)


def _row(attempt: TaskAttempt) -> tuple[Any, ...]:
    return attempt.job_id, attempt.number, attempt.token


def _outcome(attempt: TaskAttempt) -> Outcome[Done]:
    task = attempt.input
    if task.how == CLASH and attempt.number == 1:
        return attempt.continue_with(plain, Task(), id=attempt.job_id)
    if task.links:
        following = {effect.name: effect, steady.name: steady}.get(attempt.type, plain)
        return attempt.continue_with(following, task.model_copy(update={"links": task.links - 1}))
    return Done(attempt=attempt.number, ballast=task.ballast)


def _use_up_memory() -> None:
    """Take all memory that the process may have, as on a system with a limit, and be killed for it."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, limits[1]))
    taken: list[bytearray] = []
    try:
        while True:
            taken.append(bytearray(_BITE))
    except MemoryError:
        # Other allocations fail at this moment too. Linux does not raise, it kills.
        os.kill(os.getpid(), signal.SIGKILL)


def _raise(how: str) -> None:
    match how:
        case "recursion":
            _raise(how)
        case "exit":
            raise SystemExit(3)
        case "base":
            raise BaseExceptionGroup("many", [KeyError("one"), Wrong("two")])
        case "text":
            raise Wrong("a NUL \0 and half a pair \ud800")
        case _:
            raise Wrong(how)
