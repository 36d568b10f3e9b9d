"""The same work through the library: typed inputs and outputs, leases, fences, events."""

from __future__ import annotations

import asyncio
import logging
import time

from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, NewChain, Outcome, PostgresState, Processors
from queuert.observability.events import AttemptCompleted, Event

noop = JobType("noop", input=int, output=int)
job_types = JobTypes(noop)


class Countdown:
    """An observability adapter that says when so many jobs are completed."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = asyncio.Event()

    def emit(self, event: Event) -> None:
        """Count completions."""
        if isinstance(event, AttemptCompleted):
            self._left -= 1
            if self._left == 0:
                self.done.set()


def start(dsn: str, count: int, batch: int) -> float:
    """Start no-op chains, ``batch`` a call; chains a second."""
    logging.disable(logging.CRITICAL)
    with Client(PostgresState(dsn), job_types) as client:
        began = time.perf_counter()
        for first in range(0, count, batch):
            if batch == 1:
                client.start_chain(noop, first)
            else:
                client.start_chains([NewChain(noop, first + one) for one in range(batch)])
        return count / (time.perf_counter() - began)


def drain(dsn: str, count: int, concurrency: int) -> float:
    """Run what was started with one worker; jobs a second."""
    return asyncio.run(_drain(dsn, count, concurrency))


async def _drain(dsn: str, count: int, concurrency: int) -> float:
    processors = Processors(job_types)

    @processors.handles(noop)
    async def run(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    countdown = Countdown(count)
    with Client(PostgresState(dsn), job_types, observability=countdown) as client:
        worker = InProcessWorker(client, processors, concurrency=concurrency)
        began = time.perf_counter()
        await worker.start()
        await countdown.done.wait()
        seconds = time.perf_counter() - began
        await worker.stop()
    return count / seconds
