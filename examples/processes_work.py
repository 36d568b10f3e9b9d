"""What ``processes.py`` runs in other processes, which import it from here."""

from __future__ import annotations

from queuert import Attempt, JobType, JobTypes, Outcome, Processors, RetryPolicy

busy = JobType("busy", input=int, output=int)
job_types = JobTypes(busy)
processors = Processors(job_types)


@processors.handles(busy, executor="process", hard_timeout=6, retry=RetryPolicy(max_attempts=1))
def count(attempt: Attempt[int, int]) -> Outcome[int]:
    number = 0
    while number != attempt.input:
        number += 1
    return number
