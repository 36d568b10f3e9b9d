"""What the workers of these tests run: handlers that write an effect into the file that their jobs are in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queuert import Attempt, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.policies import LeasePolicy

EFFECT = "INSERT INTO effect (job_id, attempt) VALUES (?, ?)"
LEASE = LeasePolicy(seconds=1.0, renew_every=0.3)
AT_ONCE = RetryPolicy(max_attempts=1_000, initial_delay=0.0, jitter=0.0, max_crashes=1_000)

single = JobType("single", input=int, output=int)
"""Completes in a transaction with its effect, in a coroutine."""
threaded = JobType("threaded", input=int, output=int)
"""The same in a thread."""
last = JobType("last", input=int, output=int)
first = JobType("first", input=int, continues_with=last)
"""Two steps, each with an effect."""
child = JobType("child", input=int, output=int)
parent = JobType("parent", input=int, output=int)
"""Starts three children in its transaction, and waits for them."""
patient = JobType("patient", input=int, output=int)
"""Stays in its transaction for ever at the first attempt, when its effect is written."""
slow = JobType("slow", input=str, output=int)
"""Waits, at the first attempt and before its transaction, until there is a file of the name that it is given."""
JOB_TYPES = JobTypes(single, threaded, first, last, child, parent, patient, slow)


def note(attempt: Attempt[Any, int], connection: object) -> None:
    """Write the attempt's effect."""
    connection.execute(EFFECT, (attempt.job_id, attempt.number))  # type: ignore[attr-defined]


async def complete(attempt: Attempt[int, int]) -> Outcome[int]:
    """Complete with an effect."""
    async with attempt.complete() as tx:
        note(attempt, tx.connection)
        return tx.finish(attempt.input)


def complete_in_thread(attempt: Attempt[int, int]) -> Outcome[int]:
    """Complete with an effect, in a thread."""
    with attempt.complete() as tx:
        note(attempt, tx.connection)
        return tx.finish(attempt.input)


async def go_on(attempt: Attempt[int, int]) -> Outcome[int]:
    """Continue with an effect."""
    async with attempt.complete() as tx:
        note(attempt, tx.connection)
        return tx.finish(attempt.continue_with(last, attempt.input))


async def wait_for_children(attempt: Attempt[int, int]) -> Outcome[int]:
    """Start children with an effect, and add up their outputs when all of them have closed."""
    if attempt.blockers:
        return sum(attempt.outputs_of(child))
    async with attempt.complete() as tx:
        note(attempt, tx.connection)
        return tx.finish(attempt.wait_for(*(NewChain(child, number) for number in range(3))))


def processors(reported: Callable[[str], None] = lambda line: None) -> Processors:
    """The handlers; ``told`` is how far those have come that wait."""
    made = Processors(JOB_TYPES, retry=AT_ONCE, lease=LEASE)
    made.handles(single)(complete)
    made.handles(child)(complete)
    made.handles(last)(complete)
    made.handles(first)(go_on)
    made.handles(threaded)(complete_in_thread)
    made.handles(parent)(wait_for_children)

    @made.handles(patient)
    async def patiently(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            note(attempt, tx.connection)
            if attempt.number == 1:
                reported(f"inside {attempt.job_id}")
                await asyncio.Event().wait()
            return tx.finish(attempt.input)

    @made.handles(slow)
    async def slowly(attempt: Attempt[str, int]) -> Outcome[int]:
        if attempt.number == 1:
            reported(f"began {attempt.job_id}")
            while not Path(attempt.input).exists():
                # Blocks the loop as well, so that nobody tells it of its lease before it goes on.
                time.sleep(0.01)
        async with attempt.complete() as tx:
            note(attempt, tx.connection)
            return tx.finish(attempt.number)

    return made
