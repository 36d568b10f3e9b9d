"""What the workers of these tests run: handlers that do what their job's input says, and write down what they did.

The command line of ``queuert worker`` names this module as well. Records go directly to the database, whatever is
between the worker and its store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from pydantic import BaseModel

from queuert import Attempt, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.errors import LeaseLostError, StateError
from queuert.policies import LeasePolicy
from tests.support.worker_process import RECORDS

LEASE = LeasePolicy(seconds=1.0, renew_every=0.3)
"""For workers that are to lose their lease: they do even if the machine only stops for a second."""

KEPT = LeasePolicy(seconds=4.0, renew_every=0.7)
"""For tests that wait for longer than a lease lasts, and in which no lease may be lost."""

LASTING = LeasePolicy(seconds=60.0, renew_every=0.3)
"""For workers that must keep their lease, however slow the machine is. It is renewed as often as a short one."""

AT_ONCE = RetryPolicy(max_attempts=1000, initial_delay=0.0, jitter=0.0, max_crashes=1000)
"""With unlimited attempts: however many faults there are, no good job fails by their number."""

TWICE = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)

EFFECT = sql.SQL("insert into effect (job_id, attempt) values (%s, %s)")
_STEP = sql.SQL("insert into step (job_id, attempt, name, detail) values (%s, %s, %s, %s)")
_GATE = sql.SQL("select count(*) from gate where name = %s")
_POLL = 0.01
_CALLS = 10_000
_LEFT: list[asyncio.Task[None]] = []


class Plan(BaseModel):
    """The plan of a handler, by the number of the attempt."""

    before: list[int] = []
    """These attempts first wait for the gate ``before:NUMBER``."""
    completes: bool = False
    """Finish in complete(), with an effect; otherwise return the output."""
    inside: list[int] = []
    """These attempts wait in complete() for the gate ``inside:NUMBER``, after the effect is written."""
    busy: bool = False
    """Keep the transaction busy meanwhile: the server ends a transaction that is idle for longer than the lease."""
    queries: bool = False
    """Run another statement of the handler's own after that."""
    stubborn: bool = False
    """Continue when it is cancelled."""
    leaves: str = ""
    """Leave something behind that never ends: a `task` that ignores its cancellations, or a call in a `thread`."""
    deaf: bool = False
    """Never end when it is cancelled: wait for the gate ``end``."""
    ballast: str = ""
    """Makes the input large."""


patient = JobType("patient", input=Plan, output=int)
threaded = JobType("threaded", input=Plan, output=int)
quick = JobType("quick", input=int, output=int)
blocking = JobType("blocking", input=float, output=int)
poison = JobType("poison", input=str, output=int)
before_poison = JobType("before_poison", input=str, continues_with=poison)
JOB_TYPES = JobTypes(patient, threaded, quick, blocking, poison, before_poison)


class Records:
    """The records that a handler writes for the test, on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], attempt: Attempt[Any, Any]) -> None:
        self._connection = connection
        self._attempt = attempt

    def step(self, name: str, detail: object = None) -> None:
        """Record that the attempt has reached this step."""
        values = (self._attempt.job_id, self._attempt.number, name, None if detail is None else str(detail))
        self._connection.execute(_STEP, values)

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Record a failing statement."""
        try:
            yield
        except BaseException as error:
            self.step("broke", type(error).__name__)
            raise

    def is_open(self, gate: str) -> bool:
        """Whether the test lets the attempt continue."""
        row = self._connection.execute(_GATE, [gate]).fetchone()
        return row is not None and row[0] > 0


@contextmanager
def records(attempt: Attempt[Any, Any], address: str) -> Iterator[Records]:
    """The records of an attempt."""
    with psycopg.connect(address, autocommit=True) as connection:
        yield Records(connection, attempt)


async def perform(attempt: Attempt[Plan, int], address: str) -> Outcome[int]:
    """Execute a plan in a coroutine."""
    with records(attempt, address) as notes:
        if attempt.input.leaves:
            _LEFT.append(asyncio.ensure_future(_never_end(attempt.input.leaves)))
        notes.step("began")
        try:
            if attempt.number in attempt.input.before:
                await _passed(notes, f"before:{attempt.number}")
        except asyncio.CancelledError:
            notes.step("reported", attempt.abort.reason)
            if attempt.input.deaf:
                await _passed_whatever_comes(notes, "end")
            if not attempt.input.stubborn:
                raise
        try:
            return await _end(attempt, notes) if attempt.input.completes else attempt.number
        except asyncio.CancelledError:
            notes.step("refused", attempt.abort.reason)
            raise
        except (LeaseLostError, StateError) as error:
            notes.step("refused", error.reason if isinstance(error, LeaseLostError) else type(error).__name__)
            raise


async def _never_end(where: str) -> None:
    while where == "task":
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.to_thread(threading.Event().wait)


async def _end(attempt: Attempt[Plan, int], notes: Records) -> Outcome[int]:
    async with attempt.complete() as tx:
        await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        notes.step("inside")
        if attempt.number in attempt.input.inside:
            while not notes.is_open(f"inside:{attempt.number}"):
                if attempt.input.busy:
                    await tx.connection.execute("select 1")
                await asyncio.sleep(_POLL)
        if attempt.input.queries:
            with notes.breaking():
                await tx.connection.execute("select 1")
        return tx.finish(attempt.number)


async def _passed(notes: Records, gate: str) -> None:
    while not notes.is_open(gate):  # noqa: ASYNC110  (the gate is a row)
        await asyncio.sleep(_POLL)


async def _passed_whatever_comes(notes: Records, gate: str) -> None:
    while not notes.is_open(gate):
        try:
            await asyncio.sleep(_POLL)
        except asyncio.CancelledError:
            notes.step("told again")


def perform_in_thread(attempt: Attempt[Plan, int], address: str) -> Outcome[int]:
    """Execute a plan in a thread."""
    with records(attempt, address) as notes:
        notes.step("began")
        if attempt.number in attempt.input.before:
            _pass(attempt, notes, f"before:{attempt.number}")
        try:
            return _end_in_thread(attempt, notes) if attempt.input.completes else attempt.number
        except (LeaseLostError, StateError) as error:
            notes.step("refused", error.reason if isinstance(error, LeaseLostError) else type(error).__name__)
            raise


def _end_in_thread(attempt: Attempt[Plan, int], notes: Records) -> Outcome[int]:
    with attempt.complete() as tx:
        tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        notes.step("inside")
        if attempt.number in attempt.input.inside:
            _pass(attempt, notes, f"inside:{attempt.number}", tx.connection if attempt.input.busy else None)
        if attempt.input.queries:
            with notes.breaking():
                tx.connection.execute("select 1")
        return tx.finish(attempt.number)


def _pass(attempt: Attempt[Plan, int], notes: Records, gate: str, busy: Any = None) -> None:
    reported = False
    while not notes.is_open(gate):
        if busy is not None:
            busy.execute("select 1")
        if attempt.abort and not reported:
            reported = True
            notes.step("reported", attempt.abort.reason)
            if not attempt.input.stubborn:
                return
        time.sleep(_POLL)


async def do_quickly(attempt: Attempt[int, int]) -> Outcome[int]:
    """Write an effect and complete, at once."""
    async with attempt.complete() as tx:
        await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
        return tx.finish(attempt.input)


async def block(attempt: Attempt[float, int], address: str) -> Outcome[int]:
    """Block the event loop, for so many seconds, or until the gate ``wake``: the fault itself.

    If the number is below zero, the handler first makes so many calls to the event loop that the pipe that wakes it is
    full.
    """
    with records(attempt, address) as notes:
        for _ in range(_CALLS if attempt.input < 0 else 0):
            asyncio.get_running_loop().call_soon_threadsafe(int)
        notes.step("began")
        time.sleep(max(0.0, attempt.input))
        while attempt.input <= 0 and not notes.is_open("wake"):
            time.sleep(_POLL)
        notes.step("woke", attempt.abort.reason)
    return attempt.number


async def go_on(attempt: Attempt[str, int]) -> Outcome[int]:
    """Continue the chain with a job that kills the process."""
    return attempt.continue_with(poison, attempt.input)


async def die(attempt: Attempt[str, int]) -> Outcome[int]:
    """Kill the whole process."""
    if attempt.input == "exit":
        os._exit(9)
    os.kill(os.getpid(), signal.SIGSEGV if attempt.input == "segfault" else signal.SIGKILL)
    return attempt.number


def processors_for(address: str, *, lease: LeasePolicy = LEASE) -> Processors:
    """Return the handlers, which write their records to this address."""
    made = Processors(JOB_TYPES, retry=AT_ONCE, lease=lease)

    @made.handles(patient)
    async def patiently(attempt: Attempt[Plan, int]) -> Outcome[int]:
        return await perform(attempt, address)

    @made.handles(threaded)
    def in_a_thread(attempt: Attempt[Plan, int]) -> Outcome[int]:
        return perform_in_thread(attempt, address)

    @made.handles(blocking)
    async def blockingly(attempt: Attempt[float, int]) -> Outcome[int]:
        return await block(attempt, address)

    made.handles(quick)(do_quickly)
    made.handles(before_poison)(go_on)
    made.handles(poison, retry=TWICE)(die)
    return made


def processors() -> Processors:
    """Return the handlers for a worker that is a separate process."""
    return processors_for(os.environ[RECORDS])
