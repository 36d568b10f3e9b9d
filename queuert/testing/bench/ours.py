"""The measurements of Queuert."""

from __future__ import annotations

import asyncio
import time

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
)
from queuert.observability.adapter import ObservabilityAdapter
from queuert.observability.events import AttemptCompleted, Event
from queuert.testing.bench.bare import BATCH
from queuert.testing.bench.scratch import Scratch

noop = JobType("noop", input=int, output=int)
_job_types = JobTypes(noop)


class _Completions:
    """Sets an event when this many jobs have completed."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self.all = asyncio.Event()

    def wants(self, kind: type[Event]) -> bool:
        return kind is AttemptCompleted

    def emit(self, event: Event) -> None:
        self._left -= 1
        if self._left == 0:
            self.all.set()


def _state(scratch: Scratch) -> PostgresState:
    return PostgresState(scratch.dsn, schema=scratch.schema, application_name="queuert bench")


class Ours:
    """Starts jobs through the synchronous client, and runs them by one worker in this process.

    Event loops are made before the coroutines that run in them: with ``asyncio.run``, Ctrl-C while a loop is made
    leaves a coroutine that nobody awaits, and a warning of it.
    """

    def __init__(self, scratch: Scratch, *, concurrency: int) -> None:
        self._scratch = scratch
        self._concurrency = concurrency

    def start_single(self, jobs: int) -> float:
        """Return the seconds of so many starts, one after the other."""
        with Client(_state(self._scratch), _job_types) as client:
            client.open()
            began = time.perf_counter()
            for number in range(jobs):
                client.start_chain(noop, number)
            return time.perf_counter() - began

    def start_batches(self, jobs: int) -> float:
        """Return the seconds of so many starts, a thousand a call."""
        with Client(_state(self._scratch), _job_types) as client:
            client.open()
            began = time.perf_counter()
            for begin in range(0, jobs, BATCH):
                client.start_chains([NewChain(noop, number) for number in range(begin, min(begin + BATCH, jobs))])
            return time.perf_counter() - began

    def drain(self, jobs: int) -> float:
        """Return the seconds from the worker's start until all jobs are completed."""
        with asyncio.Runner() as runner:
            return runner.run(self._drain(jobs))

    async def _drain(self, jobs: int) -> float:
        completions = _Completions(jobs)
        observability: list[ObservabilityAdapter] = [completions]
        processors = Processors(_job_types)

        @processors.handles(noop)
        async def run(attempt: Attempt[int, int]) -> Outcome[int]:
            return attempt.input

        async with AsyncClient(_state(self._scratch), _job_types, observability=observability) as client:
            worker = InProcessWorker(client, processors, concurrency=self._concurrency)
            began = time.perf_counter()
            async with worker:
                await completions.all.wait()
                return time.perf_counter() - began

    def latencies(self, jobs: int) -> list[float]:
        """Return the seconds from a start to its handler with an idle worker, for one job after the other."""
        with asyncio.Runner() as runner:
            return runner.run(self._latencies(jobs))

    async def _latencies(self, jobs: int) -> list[float]:
        found: list[float] = []
        ran: asyncio.Queue[float] = asyncio.Queue()
        processors = Processors(_job_types)

        @processors.handles(noop)
        async def run(attempt: Attempt[int, int]) -> Outcome[int]:
            ran.put_nowait(time.perf_counter())
            return attempt.input

        async with (
            AsyncClient(_state(self._scratch), _job_types, observability=[]) as client,
            InProcessWorker(client, processors),
        ):
            for number in range(jobs):
                began = time.perf_counter()
                chain = await client.start_chain(noop, number)
                found.append(await ran.get() - began)
                await chain.result()
        return found
