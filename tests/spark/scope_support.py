"""What tests of handlers that run Spark share: work that takes its time, and looks at what Spark is doing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from queuert import Attempt, Outcome
from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.events import FinishRejected
from queuert.policies import LeasePolicy
from queuert.spark import spark_scope
from tests.support.harness import PostgresHarness
from tests.support.job_types import number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKE = "update queuert.job set lease_token = gen_random_uuid() where id = %s"

WAIT = 90.0
"""Seconds: a bound for what takes a few, and longer the first time that a session does it."""


OFTEN = LeasePolicy(seconds=60, renew_every=0.2)
"""A loss is found soon, and a machine that is busy loses none."""


def in_java(spark: SparkSession) -> int:
    """A sum that Java would compute for hours, in both slots of the session."""
    row = spark.range(0, 10**15, numPartitions=2).selectExpr("sum(hash(id) % 7) as total").first()
    return int(row[0]) if row is not None else 0


def in_python(spark: SparkSession, tasks: int = 2) -> int:
    """Tasks in Python that count the moments of an hour."""

    def moments(_: Iterable[int]) -> Iterable[int]:
        for moment in range(36_000):
            time.sleep(0.1)
            yield moment

    return int(spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(moments).count())


def running_tasks(spark: SparkSession) -> int:
    """How many tasks run in the session, as its scheduler knows: what Spark shows lags behind by seconds."""
    context: Any = spark.sparkContext
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
    count = 0
    while running.hasNext():
        count += running.next()
    return count


def python_processes(spark: SparkSession) -> int:
    """How many processes of Python work for tasks."""
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.api.python.PythonRunner.runningMonitorThreads().size())


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, off the event loop, for what only a look at Spark can tell."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return
    raise AssertionError(f"not so within {WAIT:g} s: {what}")


async def busy(spark: SparkSession, tasks: int = 1) -> None:
    """Wait until so many tasks run."""
    await until(lambda: running_tasks(spark) >= tasks, f"{tasks} Spark task(s) run")


async def idle(spark: SparkSession) -> None:
    """Wait until no task runs any more."""
    await until(lambda: running_tasks(spark) == 0, "no Spark task runs")


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Threads may end with the error of a cancelled job."""
    before = threading.excepthook
    threading.excepthook = lambda arguments: None
    try:
        yield
    finally:
        threading.excepthook = before


async def check_stop(
    harness: PostgresHarness, spark: SparkSession, session: SparkSession, work: Callable[[SparkSession], int]
) -> None:
    """Take the lease of two tasks' work away: the handler ends by the error that says so, and Spark is idle.

    ``session`` is the handler's, and may be one of Spark Connect; ``spark`` knows what runs.
    """
    raised: list[BaseException] = []

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            with spark_scope(attempt, session):
                return work(session)
        except BaseException as error:
            raised.append(error)
            raise

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await busy(spark, 2)
        harness.rows(TAKE, chain.id)
        await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
        await idle(spark)
    (error,) = raised
    assert isinstance(error, LeaseLostError)
    assert error.reason == AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert "CANCEL" in str(error.__cause__).upper()
