"""Handlers that do what the input of their job says, and the desk at which each of them is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from queuert import Attempt, JobType, JobTypes, NewChain, RetryPolicy
from queuert.policies import LeasePolicy
from queuert.worker.processors import Processors
from tests.model.simulation.world import Process, World

Acts = list[str]
"""What a job does in its attempts, one after the other: a verb and seconds. After the last it returns at once."""

work: JobType[Acts, str] = JobType("work", input=Acts, output=str, continues_with="work")
plain: JobType[Acts, str] = JobType("plain", input=Acts, output=str)
JOB_TYPES = JobTypes(work, plain)

TIMEOUT = 12.0


@dataclass(eq=False)
class Sitting:
    """One run of a handler."""

    process: Process
    attempt: Attempt[Any, Any]
    began: float
    ended: float | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it works on, and nobody has told it to stop."""
        return self.ended is None and not self.attempt.abort and self.process.alive

    @property
    def holds_no_row(self) -> bool:
        """Whether it has opened no transaction: those hold the job by other means, and may outlast its lease."""
        return self.attempt._blocks_used is None


class Desk:
    """Who works at what."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sittings: list[Sitting] = []

    @contextmanager
    def noted(self, process: Process, attempt: Attempt[Any, Any]) -> Iterator[None]:
        """Note a handler from its beginning to its end."""
        sitting = Sitting(process, attempt, self.world.now)
        self.sittings.append(sitting)
        try:
            yield
        finally:
            sitting.ended = self.world.now


def processors(process: Process, desk: Desk, lease: float) -> Processors:
    """The handlers of a worker in this process."""
    found = Processors(
        JOB_TYPES,
        lease=LeasePolicy(seconds=lease),
        retry=RetryPolicy(max_attempts=12, initial_delay=0.5, max_delay=4.0, max_crashes=8),
    )

    @found.handles(work, timeout=TIMEOUT)
    async def do_work(attempt: Attempt[Acts, str]) -> Any:
        with desk.noted(process, attempt):
            verb, _, seconds = _act(attempt).partition(" ")
            return await getattr(_Verbs, verb)(process, attempt, float(seconds or 0.0))

    @found.handles(plain)
    def do_plain_work(attempt: Attempt[Acts, str]) -> Any:
        with desk.noted(process, attempt):
            verb, _, seconds = _act(attempt).partition(" ")
            attempt.abort.wait_sync(float(seconds or 0.0))
            if verb == "fault":
                raise RuntimeError("as asked for")
            return _output(attempt)

    return found


def _act(attempt: Attempt[Acts, Any]) -> str:
    acts = attempt.input
    return acts[attempt.number - 1] if attempt.number <= len(acts) else "end"


def _output(attempt: Attempt[Any, Any]) -> str:
    return f"{attempt.job_id}/{attempt.number}"


class _Verbs:
    """What a coroutine can do."""

    @staticmethod
    async def end(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        if seconds:
            await asyncio.sleep(seconds)
        return _output(attempt)

    @staticmethod
    async def fault(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        await asyncio.sleep(seconds)
        raise RuntimeError("as asked for")

    @staticmethod
    async def again(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        return attempt.retry(after=seconds)

    @staticmethod
    async def give_up(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return attempt.fail("as asked for")

    @staticmethod
    async def go_on(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return attempt.continue_with(work, [f"end {seconds}"])

    @staticmethod
    async def delegate(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        if attempt.blockers:
            return _output(attempt)
        return attempt.wait_for(NewChain(work, [f"end {seconds}"]), NewChain(work, []))

    @staticmethod
    async def hang(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        await asyncio.sleep(100_000)

    @staticmethod
    async def resist(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        """It does not end when it is told to, but takes its time."""
        try:
            await asyncio.sleep(100_000)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)
        return _output(attempt)

    @staticmethod
    async def block(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        """It keeps the event loop from everything else."""
        process.loop.block(seconds)
        await asyncio.sleep(0)
        return _output(attempt)

    @staticmethod
    async def write(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        """It completes its job together with writes of its own."""
        async with attempt.complete() as tx:
            await asyncio.sleep(seconds)
            return tx.finish(_output(attempt))

    @staticmethod
    async def write_and_fault(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        async with attempt.complete() as tx:
            await asyncio.sleep(seconds)
            tx.finish(_output(attempt))
            raise RuntimeError("as asked for")

    @staticmethod
    async def note(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        """It writes something before its end."""
        async with attempt.transaction():
            await asyncio.sleep(seconds)
        return _output(attempt)

    @staticmethod
    async def die(process: Process, attempt: Attempt[Acts, str], seconds: float) -> Any:
        """It takes its process with it."""
        await asyncio.sleep(seconds)
        process.world.soon(None, process.kill)
        await asyncio.sleep(100_000)
