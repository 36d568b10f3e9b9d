"""A workload of which one job blocks the event loop of its worker for ever, once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from queuert import Attempt, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.policies import LeasePolicy
from queuert.testing.chaos import Workload

HUNG = "QUEUERT_TEST_HUNG"
"""The variable with the path of a file that is there once a worker hangs."""

hang = JobType("hang", input=int, output=int)


def block_for_ever() -> None:
    """What the report must name."""
    threading.Event().wait()


def _processors() -> Processors:
    made = Processors(JobTypes(hang), lease=LeasePolicy(seconds=1.0), retry=RetryPolicy(initial_delay=0.0, jitter=0.0))

    @made.handles(hang)
    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            Path(os.environ[HUNG]).touch(exist_ok=False)
        except FileExistsError:
            return 1
        block_for_ever()
        return 2

    return made


workload = Workload(_processors, lambda random, number: NewChain(hang, number))
