"""A row that cannot be decoded fails one attempt of its own job, and does not affect jobs of the same claim."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors, RetryPolicy
from queuert.limits import Limits
from queuert.observability.events import LoopFailed
from queuert.testing.events import EventLog
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault

work = JobType("work", input=int, output=int)
limited = JobType("limited", input=int, output=int)
JOB_TYPES = JobTypes(work, limited)


async def echo(attempt: Attempt[int, int]) -> Outcome[int]:
    """The input of the job."""
    return attempt.input


async def check(url: str, damage: Callable[[str], None], job_type: JobType[int, int] = work) -> None:
    """Of eleven jobs the damaged one fails, by one attempt, and the others are completed."""
    log = EventLog()
    processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))
    processors.handles(work)(echo)
    if job_type is limited:
        processors.handles(limited, limits=Limits(concurrency=100))(echo)
    async with AsyncClient.from_url(url, JOB_TYPES, observability=log) as client:
        chains = await client.start_chains([NewChain(job_type, one) for one in range(11)])
        damage(chains[5].id)
        async with InProcessWorker(client, processors, concurrency=20, poll_interval=0.05):
            others = await client.wait(chains[:5] + chains[6:], timeout=WAIT)
            [bad] = await client.wait([chains[5]], timeout=WAIT)
        assert {one.status for one in others} == {"completed"}
        assert bad.status == "failed"
        assert log.of(LoopFailed) == []


def on_postgres(dsn: str) -> Callable[[str], None]:
    """A time before all times that Python supports."""

    def damage(job_id: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update queuert.job set scheduled_at = '-infinity' where id = %s", [job_id])

    return damage


@pytest.mark.parametrize("job_type", [work, limited], ids=lambda one: str(one.name))
@pytest.mark.parametrize("options", ["", "?prepare_threshold=none"], ids=["prepared", "not prepared"])
async def test_a_time_that_python_does_not_know_on_postgres(
    dsn: str, job_type: JobType[int, int], options: str
) -> None:
    await check(dsn + options, on_postgres(dsn), job_type)


async def test_a_damaged_hash_on_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:

        def damage(job_id: str) -> None:
            [key] = [one for one in connection.scan_iter("*:j:*") if one.endswith(job_id.encode())]
            connection.hset(key, "due", "-1e30")

        await check(redis_url, damage)


async def test_a_time_that_python_does_not_know_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    def damage(job_id: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("update queuert_job set scheduled_at = -1000000000000000000 where id = ?", [job_id])
        connection.close()

    await check(f"sqlite:///{path}", damage)
