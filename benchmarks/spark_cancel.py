"""How soon Spark is idle after an attempt must stop: ``python -m benchmarks.spark_cancel [--rounds 5] [--work Java]``.

A real worker, a real ``local_session(2)`` and a Postgres of its own. For each way of losing a job and each kind of work
it prints, in seconds from the statement that takes the job away: when the handler's abort signal was set, when the
handler's exception came, and when Spark's scheduler ran no task any more. Medians, and the longest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.embedded import EmbeddedPostgres
from queuert.migrations import upgrade
from queuert.policies import LeasePolicy
from queuert.spark import local_session, spark_scope
from queuert.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = 2.0
JOB = JobType("job", input=str, output=int)
TAKE = "update queuert.job set lease_token = gen_random_uuid() where id = %s"


# --- work -------------------------------------------------------------------------------------------------------------


def in_java(spark: SparkSession) -> None:
    """A sum over far too many rows."""
    spark.range(0, 10**15, numPartitions=2).selectExpr("sum(hash(id) % 7)").collect()


def in_python(spark: SparkSession) -> None:
    """Two loops in Python that give Spark nothing."""

    def loop(_: Iterable[int]) -> Iterable[int]:
        while True:
            time.sleep(0.05)

    spark.sparkContext.parallelize(range(2), 2).mapPartitions(loop).count()


def shuffling(spark: SparkSession) -> None:
    """Many stages, one after the other."""
    frame = spark.range(0, 10**9, numPartitions=64)
    frame.groupBy((frame.id % 1_000_003).alias("key")).count().orderBy("count").write.format("noop").mode(
        "overwrite"
    ).save()


WORK: dict[str, Callable[[SparkSession], None]] = {
    "Java": in_java,
    "Python": in_python,
    "shuffles": shuffling,
}


# --- measuring --------------------------------------------------------------------------------------------------------


def running_tasks(spark: SparkSession) -> int:
    """How many tasks run, as the scheduler knows."""
    context: Any = spark.sparkContext
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
    count = 0
    while running.hasNext():
        count += running.next()
    return count


class Bench:
    """One session, one database, one worker."""

    def __init__(self, spark: SparkSession, dsn: str) -> None:
        self.spark = spark
        self.client = Client(PostgresState(dsn), JobTypes(JOB), observability=())
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.reported = self.raised = 0.0
        self.ended = threading.Event()
        self.processors = Processors(self.client.job_types)
        self.processors.handles(JOB, lease=LeasePolicy(seconds=3, renew_every=0.5))(self.handle)

    def handle(self, attempt: Attempt[str, int]) -> Outcome[int]:
        """Run the work that the input names."""
        attempt.abort.on_abort(self._tell)
        try:
            with spark_scope(attempt, self.spark):
                WORK[attempt.input](self.spark)
        finally:
            self.raised = time.monotonic()
            self.ended.set()
        return 0

    def _tell(self) -> None:
        self.reported = time.monotonic()

    async def round(self, work: str, lose: Callable[[Bench, str, InProcessWorker], Awaitable[None]]) -> list[float]:
        """Lose a job in the middle of its work: seconds to the signal, to the exception, to the last task's end."""
        self.ended.clear()
        async with InProcessWorker(self.client, self.processors, shutdown_timeout=0) as worker:
            chain = await asyncio.to_thread(self.client.start_chain, JOB, work)
            while await asyncio.to_thread(running_tasks, self.spark) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)
            began = time.monotonic()
            losing = asyncio.ensure_future(lose(self, chain.id, worker))
            while await asyncio.to_thread(running_tasks, self.spark) or not self.ended.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            idle = time.monotonic()
            await losing
            await asyncio.to_thread(self.client.delete_chains, [chain.id])
        return [self.reported - began, self.raised - began, idle - began]


async def taken(bench: Bench, chain_id: str, worker: InProcessWorker) -> None:
    """Another worker has the job: nobody tells, the next renewal finds out (every 0.5 s here)."""
    await asyncio.to_thread(bench.sql.execute, TAKE, (chain_id,))


async def cancelled(bench: Bench, chain_id: str, worker: InProcessWorker) -> None:
    """The chain is cancelled by a client."""
    await asyncio.to_thread(bench.client.cancel_chains, [chain_id])


async def stopped(bench: Bench, chain_id: str, worker: InProcessWorker) -> None:
    """The worker stops, without grace."""
    await worker.stop(shutdown_timeout=0)


LOSSES = {"taken, renewal each 0.5 s": taken, "cancelled by a client": cancelled, "worker stops": stopped}


async def measure(bench: Bench, rounds: int, works: Sequence[str]) -> None:
    """Print a line for each way of losing and kind of work."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"load average {load} on {os.cpu_count()} processors; Java {find_java().major}")
    print(f"seconds from the loss, median / longest of {rounds} (target: idle within {TARGET:g})")
    for work in works:
        await bench.round(work, taken)  # the first one waits for processes and classes
    print(f"{'how':27}{'work':10}{'signal':>15}{'exception':>15}{'Spark idle':>15}")
    for how, lose in LOSSES.items():
        for work in works:
            measured = [await bench.round(work, lose) for _ in range(rounds)]
            shown = [f"{statistics.median(one):.2f} / {max(one):.2f}" for one in zip(*measured, strict=True)]
            late = "" if max(one[2] for one in measured) <= TARGET else "  late"
            print(f"{how:27}{work:10}" + "".join(f"{one:>15}" for one in shown) + late, flush=True)


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", choices=WORK, nargs="+", default=list(WORK))
    arguments = parser.parse_args()
    spark = local_session(2, settings={"spark.log.level": "OFF"})
    try:
        with EmbeddedPostgres(durable=False) as server:
            upgrade(server.dsn())
            bench = Bench(spark, server.dsn())
            asyncio.run(measure(bench, arguments.rounds, arguments.work))
            bench.client.close()
            bench.sql.close()
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
