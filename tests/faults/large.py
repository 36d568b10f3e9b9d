"""A worker with bounded memory, for large inputs and outputs: ``python -m tests.faults.large SETTINGS``."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from tests.faults.child import EventPipe

MEGABYTE = 1024 * 1024

consume = JobType("consume", input=str, output=int)
produce = JobType("produce", input=int, output=str)
JOB_TYPES = JobTypes(consume, produce)


def processors(together: int) -> Processors:
    """Register a handler that takes a long text, and one that returns it; their jobs have one attempt, and may lose no
    lease.

    The handler that returns texts waits until ``together`` of its jobs run.
    """
    all_are_here = asyncio.Barrier(together)
    made = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1, max_crashes=1))

    @made.handles(consume)
    async def run_consume(attempt: Attempt[str, int]) -> Outcome[int]:
        return len(attempt.input)

    @made.handles(produce)
    async def run_produce(attempt: Attempt[int, str]) -> Outcome[str]:
        await all_are_here.wait()
        return "x" * attempt.input

    return made


def main() -> int:
    """Run a worker until it is asked to stop."""
    settings = json.loads(sys.argv[1])
    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], JOB_TYPES, observability=EventPipe())
    # The limit counts the memory that threads reserve for their stacks, 8 MB each by default, and not only what they
    # use.
    threading.stack_size(512 * 1024)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (settings.pop("megabytes") * MEGABYTE, most))
    together = settings.pop("together", 1)
    return InProcessWorker(client, processors(together), name="bounded", **settings).run()


if __name__ == "__main__":
    sys.exit(main())
