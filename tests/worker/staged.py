"""Handlers with blocks that run in a process of their own; they are imported there. Job inputs say what they do."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import psycopg

from queuert import Attempt, JobType, NewChain, Outcome
from queuert.errors import EventTimeoutError, RetryLater, Unrecoverable
from queuert.worker import GuardedTransaction
from tests.support.job_types import number
from tests.worker.completing import WRITE


def in_stages(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """One block of each kind."""
    with attempt.prepare() as tx:
        tx.connection.execute(WRITE, ("prepare", os.getpid()))
    with attempt.transaction() as tx:
        tx.connection.execute(WRITE, ("transaction", os.getpid()))
    with attempt.complete() as done:
        done.connection.execute(WRITE, ("complete", os.getpid()))
        return done.finish(os.getpid())


def poisoned(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """A statement of prepare() fails, in the first attempt."""
    with attempt.prepare() as tx:
        tx.connection.execute(WRITE, ("prepare", attempt.number))
        if attempt.number == 1:
            with suppress(psycopg.errors.DivisionByZero):
                tx.connection.execute("select 1 / 0")
    return attempt.number


def nested(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """A block inside another."""
    with attempt.prepare(), attempt.transaction():
        return 1


def dies_in_prepare(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """The process ends inside the block, in the first attempt."""
    with attempt.prepare() as tx:
        tx.connection.execute(WRITE, ("prepare", attempt.number))
        if attempt.number == 1:
            os._exit(3)
    return attempt.number


def joins(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Starts chains, waits for them, and adds them up."""
    if attempt.blockers:
        return sum(attempt.outputs_of(number))
    waiting = attempt.wait_for(NewChain(number, 1), NewChain(number, 2))
    if attempt.input == "returned":
        return waiting
    with attempt.complete() as tx:
        return tx.finish(waiting)


def returns_its_input(attempt: Attempt[Any, Any]) -> Any:
    """The outcome is the input."""
    return attempt.input


def completes_its_input(attempt: Attempt[Any, Any]) -> Any:
    """The same, inside a block."""
    with attempt.complete() as tx:
        return tx.finish(attempt.input)


def raises(attempt: Attempt[Any, Any]) -> Any:
    """What the input names."""
    if attempt.input == "unrecoverable":
        raise Unrecoverable("no use")
    raise RetryLater(after=0.001, reason="busy")


def _write(tx: GuardedTransaction, step: str, number: int) -> int:
    tx.connection.execute(WRITE, (step, number))
    return number


def in_steps(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """A step, a step transaction and a sleep; the process dies after the first two, in the first attempt."""
    first = attempt.step_sync("number", lambda: attempt.number, returns=int)
    second = attempt.step_transaction_sync("write", _write, "written", attempt.number)
    if attempt.number == 1:
        os._exit(3)
    attempt.sleep_sync("short", 0.001)
    return [first, second]


PARTS = JobType("parts", input=None, output=list[int], phases=("first", "second"))


def in_phases(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """Two phases; the process dies in the second one, in the first attempt, after it has recorded progress."""
    first = attempt.phase_sync("first", lambda: attempt.number, returns=int)
    return [first, attempt.phase_sync("second", _dies_once, attempt)]


def _dies_once(attempt: Attempt[Any, Any]) -> int:
    for done in range(100):
        attempt.record_progress(done, 100)
    if attempt.number == 1:
        os._exit(3)
    return attempt.number


def waits_for_an_event(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """An event, and a timeout."""
    try:
        return attempt.wait_for_event_sync("late", int, 0.001)
    except EventTimeoutError:
        return attempt.wait_for_event_sync("number", int, 3600)


def dies_in_a_step(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    """The process ends inside a step transaction, in the first attempt."""

    def write(tx: GuardedTransaction) -> int:
        _write(tx, "step", attempt.number)
        if attempt.number == 1:
            os._exit(3)
        return attempt.number

    return attempt.step_transaction_sync("step", write)
