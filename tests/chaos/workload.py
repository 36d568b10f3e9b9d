"""Handlers of a user's own, which take part in a run."""

from __future__ import annotations

from queuert import Attempt, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.policies import LeasePolicy
from queuert.testing.chaos import Workload

double = JobType("double", input=int, output=int)


def processors() -> Processors:
    """The user's own."""
    made = Processors(
        JobTypes(double),
        lease=LeasePolicy(seconds=1.0),
        retry=RetryPolicy(max_crashes=100, initial_delay=0.0, jitter=0.0),
    )

    @made.handles(double)
    async def handle(attempt: Attempt[int, int]) -> Outcome[int]:
        return 2 * attempt.input

    return made


workload = Workload(processors, lambda random, number: NewChain(double, random.randint(0, 9)))
