"""A flood of jobs that can only fail costs the others one attempt each. (Those that kill processes: tests/faults.)"""

from __future__ import annotations

from typing import Any

import pytest

from queuert import AsyncClient, InProcessWorker, JobStatus, JobType, JobTypes, NewChain, PostgresState, RetryPolicy
from queuert.errors import ConfigurationError
from queuert.observability.events import AttemptFailed, AttemptStarted
from queuert.testing.events import EventLog
from queuert.worker import Processors

WAIT = 40.0
poison = JobType("poison", input=int, output=int)
good = JobType("good", input=int, output=int)
mixed = JobType("mixed", input=int, output=int)
TYPES = JobTypes(poison, good, mixed)


def processors() -> Processors:
    """Handlers that fail at once, as long as they are let."""
    found = Processors(TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=3))

    async def handler(attempt: Any) -> Any:
        if attempt.type == "poison" or attempt.input < 0:
            raise ValueError("poison")
        return attempt.input

    for job_type in TYPES:
        found.handles(job_type)(handler)
    return found


async def test_good_jobs_of_another_type_wait_for_one_attempt_of_each(dsn: str) -> None:
    """A thousand were there first, and are good for three thousand attempts."""
    log = EventLog()
    async with AsyncClient(PostgresState(dsn), TYPES, observability=log) as client:
        await client.start_chains([NewChain(poison, number) for number in range(1_000)])
        chains = await client.start_chains([NewChain(good, number) for number in range(100)])
        async with InProcessWorker(client, processors(), concurrency=4):
            assert [await chain.result(WAIT) for chain in chains] == list(range(100))
    order = log.of(AttemptStarted)
    last = max(at for at, event in enumerate(order) if event.type == "good")
    again = [event for event in order[:last] if event.attempt > 1]
    assert len(again) < 100, "what was claimed ahead, at most"
    assert max(event.attempt for event in order[:last]) < 3


async def test_repeated_failures_come_after_what_was_not_tried_yet(dsn: str) -> None:
    """Of one type too: an attempt that failed costs its job a place, so a good job waits for one attempt of each."""
    log = EventLog()
    async with AsyncClient(PostgresState(dsn), TYPES, observability=log) as client:
        bad = await client.start_chains([NewChain(mixed, -1 - number) for number in range(200)])
        chains = await client.start_chains([NewChain(mixed, number) for number in range(100)])
        async with InProcessWorker(client, processors(), concurrency=4):
            assert [await chain.result(WAIT) for chain in chains] == list(range(100))
            await log.wait_for(AttemptFailed, times=200)
        jobs = [await client.get_job(chain.id) for chain in bad]
    assert {(job.status, job.attempt) for job in jobs} == {(JobStatus.FAILED, 3)}
    # What is begun, in its order: finishes are written beside the next attempts.
    begun, good = log.of(AttemptStarted), {chain.id for chain in chains}
    last = max(at for at, event in enumerate(begun) if event.job_id in good)
    assert [event for event in begun[:last] if event.attempt == 3] == []


def test_nothing_is_tried_without_end_by_default() -> None:
    policy = RetryPolicy()
    assert policy.max_attempts is not None
    assert 1 <= policy.max_attempts <= 100
    assert policy.max_delay <= 86_400
    for wrong in (0, -1, 10**9):
        with pytest.raises(ConfigurationError):
            RetryPolicy(max_attempts=wrong)
