"""Good jobs beside a flood of jobs that can only fail, in one worker, configured as the documents advise."""

from __future__ import annotations

import asyncio
import os
import signal

from benchmarks.child import Meter, Request, nap, serve
from benchmarks.contestants.ours import prepare
from benchmarks.contestants.support import batches
from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    Limits,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
)
from queuert.limits import Rate
from queuert.observability.adapter import ObservabilityAdapter
from queuert.observability.events import AttemptCompleted, AttemptFailed, AttemptRetried, Event
from queuert.observability.log import LogObservability

good = JobType("good", input=int, output=int)
raising = JobType("raise", input=int, output=int)
killing = JobType("kill", input=int, output=int)
job_types = JobTypes(good, raising, killing)

_FAILURES = (AttemptFailed, AttemptRetried)


class Completions:
    """Hears when so many chains have completed, which is when the store has said so."""

    def __init__(self, chains: int, job_type: str) -> None:
        self._left = chains
        self._type = job_type
        self.all = asyncio.Event()

    def wants(self, kind: type[Event]) -> bool:
        """Only completions, so that no other events are made for it."""
        return kind is AttemptCompleted

    def emit(self, event: Event) -> None:
        """Count the completions of one type."""
        if isinstance(event, AttemptCompleted) and event.type == self._type:
            self._left -= 1
            if self._left == 0:
                self.all.set()


class Failures:
    """Counts the attempts that failed."""

    def __init__(self) -> None:
        self.count = 0

    def wants(self, kind: type[Event]) -> bool:
        """Only failures, those that are tried again as well."""
        return issubclass(kind, _FAILURES)

    def emit(self, event: Event) -> None:
        """One more, if it is one: others may want other events."""
        self.count += isinstance(event, _FAILURES)


def load(request: Request) -> None:
    """The flood, if there is one, and the good jobs after it."""
    flood: str | None = request.option("flood")
    with Client(PostgresState(request.server), job_types) as client:
        if flood is not None:
            client.start_chains([NewChain(job_types[flood], number) for number in range(request.option("poison"))])
        for numbers in batches(request.jobs):
            client.start_chains([NewChain(good, number) for number in numbers])


def kill(attempt: Attempt[int, int]) -> int:
    """End the process that it runs in, as a segmentation fault would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _processors(request: Request) -> Processors:
    processors = Processors(job_types)

    @processors.handles(good)
    async def run(attempt: Attempt[int, int]) -> Outcome[int]:
        await nap(request)
        return attempt.input

    @processors.handles(raising, limits=_at_most(request.option("limit")))
    async def fail(attempt: Attempt[int, int]) -> Outcome[int]:
        raise ValueError("poison")

    limits = _at_most(request.option("children"), request.option("pause"))
    processors.handles(killing, limits=limits, executor="process")(kill)
    return processors


def _at_most(count: int, pause: float | None = None) -> Limits | None:
    rate = Rate(1, per=pause) if pause else None
    return Limits(concurrency=count or None, rate=rate) if count or rate else None


def drain(request: Request) -> dict[str, float]:
    """The good jobs, from the worker's start to the last of their completions."""
    return asyncio.run(_drain(request))


async def _drain(request: Request) -> dict[str, float]:
    completions, failures = Completions(request.jobs, good.name), Failures()
    observability: list[ObservabilityAdapter] = [LogObservability(), completions, failures]
    async with AsyncClient(PostgresState(request.server), job_types, observability=observability) as client:
        worker = InProcessWorker(client, _processors(request), concurrency=request.option("concurrency"))
        with Meter(request.jobs) as meter:
            await worker.start()
            await completions.all.wait()
        failed = failures.count
        await worker.stop()
    return {**meter.answer(), "failed": float(failed)}


ACTIONS = {"prepare": prepare, "load": load, "drain": drain}

if __name__ == "__main__":
    # Under its own name: a child process has to import the handler.
    from benchmarks.contestants import ours_poisoned

    serve(ours_poisoned.ACTIONS)
