"""What workers on Redis run: handlers that do what their input says, and note each attempt in keys of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from pydantic import BaseModel

from queuert import Attempt, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.errors import LeaseLostError, StateError
from queuert.policies import LeasePolicy

LEASE = LeasePolicy(seconds=2.0, renew_every=0.3)
"""For workers that are to lose it: a machine that stands still for two seconds makes them lose it as well."""

KEPT = LeasePolicy(seconds=4.0, renew_every=0.7)
"""For tests that wait for longer than a lease lasts, and in which none may be lost."""

LASTING = LeasePolicy(seconds=60.0, renew_every=0.3)
"""For workers that keep it, however slow the machine is. It is renewed as often as a short one."""

AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)
_POLL = 0.01


class Plan(BaseModel):
    """What a handler does, by the number of the attempt."""

    before: list[int] = []
    """These attempts wait for the gate ``before:NUMBER`` first."""
    completes: bool = False
    """Ends in complete(); otherwise the output is returned."""
    inside: list[int] = []
    """These attempts wait for the gate ``inside:NUMBER`` in complete()."""
    prepares: bool = False
    """Begins with a prepare() block."""
    continues: bool = False
    """Goes on with a job of the same type and an empty plan."""
    fans_out: int = 0
    """Starts so many chains and waits for them, in the first attempt."""
    retries: int = 0
    """So many attempts fail first."""
    stubborn: bool = False
    """Goes on when it is cancelled."""


patient = JobType("patient", input=Plan, output=int, continues_with="patient")
threaded = JobType("threaded", input=Plan, output=int, continues_with="threaded")
quick = JobType("quick", input=int, output=int)
blocking = JobType("blocking", input=None, output=int)
JOB_TYPES = JobTypes(patient, threaded, quick, blocking)


class Records:
    """What an attempt notes, for the test to read. Nothing of it is among the queue's keys."""

    def __init__(self, client: Any, attempt: Attempt[Any, Any]) -> None:
        self._client = client
        self._attempt = attempt

    def begun(self) -> tuple[Any, ...]:
        """The command that notes that the attempt begins: the same one must never begin twice."""
        return ("HINCRBY", "test:begun", f"{self._attempt.job_id}\n{self._attempt.number}", 1)

    def step(self, name: str, detail: object = "") -> tuple[Any, ...]:
        """The command that notes that the attempt has come so far."""
        return ("HSET", "test:steps", f"{self._attempt.job_id}\n{self._attempt.number}\n{name}", str(detail))

    @staticmethod
    def gate(name: str) -> tuple[Any, ...]:
        """The command that asks whether the test lets the attempt go on."""
        return ("SISMEMBER", "test:gates", name)


@contextmanager
def client_of(address: str) -> Iterator[Any]:
    """A client for records. Waiting for it blocks the event loop, so that no cancellation comes in between."""
    client = redis.Redis.from_url(address)
    try:
        yield client
    finally:
        client.close()


async def perform(attempt: Attempt[Plan, int], address: str) -> Outcome[int]:
    """Carry out a plan in a coroutine."""
    with client_of(address) as client:
        notes = Records(client, attempt)
        client.execute_command(*notes.begun())
        client.execute_command(*notes.step("began"))
        plan = attempt.input
        try:
            if plan.prepares:
                async with attempt.prepare():
                    client.execute_command(*notes.step("prepared"))
            if attempt.number in plan.before:
                while not client.execute_command(*notes.gate(f"before:{attempt.number}")):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
        except asyncio.CancelledError:
            client.execute_command(*notes.step("reported", attempt.abort.reason))
            if not plan.stubborn:
                raise
        if attempt.number <= plan.retries:
            raise ValueError("as planned")
        try:
            return await _end(attempt, client, notes)
        except asyncio.CancelledError:
            client.execute_command(*notes.step("refused", attempt.abort.reason))
            raise
        except (LeaseLostError, StateError) as error:
            reason = error.reason if isinstance(error, LeaseLostError) else type(error).__name__
            client.execute_command(*notes.step("refused", reason))
            raise


async def _end(attempt: Attempt[Plan, int], client: Any, notes: Records) -> Outcome[int]:
    plan = attempt.input
    outcome: Outcome[int] = attempt.number
    if plan.continues:
        outcome = attempt.continue_with(patient, Plan())
    elif plan.fans_out and not attempt.blockers:
        outcome = attempt.wait_for(*(NewChain(quick, number) for number in range(plan.fans_out)))
    if not plan.completes:
        return outcome
    async with attempt.complete() as tx:
        client.execute_command(*notes.step("inside"))
        if attempt.number in plan.inside:
            while not client.execute_command(*notes.gate(f"inside:{attempt.number}")):  # noqa: ASYNC110
                await asyncio.sleep(_POLL)
        return tx.finish(outcome)


def perform_in_thread(attempt: Attempt[Plan, int], address: str) -> Outcome[int]:
    """Carry out a plan in a thread: waiting, completing, and no more."""
    with client_of(address) as client:
        notes = Records(client, attempt)
        client.execute_command(*notes.begun())
        client.execute_command(*notes.step("began"))
        reported = False
        if attempt.number in attempt.input.before:
            while not client.execute_command(*notes.gate(f"before:{attempt.number}")):
                if attempt.abort and not reported:
                    reported = True
                    client.execute_command(*notes.step("reported", attempt.abort.reason))
                    if not attempt.input.stubborn:
                        return attempt.number
                time.sleep(_POLL)
        try:
            if not attempt.input.completes:
                return attempt.number
            with attempt.complete() as tx:
                client.execute_command(*notes.step("inside"))
                if attempt.number in attempt.input.inside:
                    while not client.execute_command(*notes.gate(f"inside:{attempt.number}")):
                        time.sleep(_POLL)
                return tx.finish(attempt.number)
        except (LeaseLostError, StateError) as error:
            reason = error.reason if isinstance(error, LeaseLostError) else type(error).__name__
            client.execute_command(*notes.step("refused", reason))
            raise


def processors_for(address: str, *, lease: LeasePolicy) -> Processors:
    """The handlers, with records that go to this address."""
    made = Processors(JOB_TYPES, retry=AT_ONCE, lease=lease)

    @made.handles(patient)
    async def patiently(attempt: Attempt[Plan, int]) -> Outcome[int]:
        return await perform(attempt, address)

    @made.handles(threaded)
    def in_a_thread(attempt: Attempt[Plan, int]) -> Outcome[int]:
        return perform_in_thread(attempt, address)

    recorder: Any = redis.Redis.from_url(address)

    @made.handles(quick)
    async def do_quickly(attempt: Attempt[int, int]) -> Outcome[int]:
        recorder.execute_command(*Records(recorder, attempt).begun())
        return attempt.input

    @made.handles(blocking)
    async def block(attempt: Attempt[None, int]) -> Outcome[int]:
        """Block the event loop until the gate ``wake`` is opened: the fault itself."""
        with client_of(address) as client:
            notes = Records(client, attempt)
            client.execute_command(*notes.begun())
            client.execute_command(*notes.step("began"))
            while not client.execute_command(*notes.gate("wake")):
                time.sleep(_POLL)
            client.execute_command(*notes.step("woke", attempt.abort.reason))
        return attempt.number

    return made
