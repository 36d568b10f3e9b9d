"""What a cron job does every night: roll up the hours that are over, archive old chains and delete them, and report.

Needs ``queuert[spark]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.spark_nightly_archive DIRECTORY``. ``queuert history run`` is the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

from pyspark.sql import SparkSession

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, PostgresState, Processors
from queuert.errors import Unrecoverable
from queuert.spark import local_session
from queuert.spark.history import Progress, run_history

greet = JobType("greet", input=str, output=str)
job_types = JobTypes(greet)
processors = Processors(job_types)


@processors.handles(greet)
async def say(attempt: Attempt[str, str]) -> str:
    if not attempt.input:
        raise Unrecoverable("nobody to greet")
    return f"Hello, {attempt.input}"


async def work() -> None:
    """A day's work, of which the night is to be about."""
    client = AsyncClient(PostgresState(os.environ["QUEUERT_URL"]), job_types)
    async with client, InProcessWorker(client, processors):
        chains = await client.start_chains(NewChain(greet, name) for name in ("Ada", "", "Grace"))
        await client.wait(chains, timeout=60)


def tell(progress: Progress) -> None:
    print(progress.text, file=sys.stderr)


def night(spark: SparkSession, output: str, older_than: timedelta) -> None:
    result = run_history(spark, os.environ["QUEUERT_URL"], output, older_than=older_than, on_progress=tell)
    for done in result.archives:
        kept = sum(done.kept.values())
        print(f"archived {done.chains} chains with {done.jobs} jobs and {done.events} events; kept {kept}")
    chains = spark.read.parquet(f"{output}/archive/chains")
    for row in chains.groupBy("type", "status").count().orderBy("status").collect():
        print(row["type"], row["status"], row["count"])


def main(output: str) -> None:
    asyncio.run(work())
    spark = local_session(2, settings={"spark.log.level": "OFF"})
    night(spark, output, timedelta())  # for good: timedelta(days=30)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
