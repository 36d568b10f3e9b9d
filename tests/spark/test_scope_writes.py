"""What a handler writes by Spark is not there when its lease is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from queuert import Attempt, Outcome
from queuert.errors import LeaseLostError
from queuert.jobs import AbortReason
from queuert.observability.events import FinishRejected
from queuert.spark import enqueue, register, spark_scope
from queuert.spark.handlers.scope import fence_of
from queuert.spark.options import Fence
from tests.spark.scope_support import OFTEN, TAKE, WAIT, busy, until
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

WRITTEN = "select count(*) from queuert.job where type = 'text'"


@pytest.mark.parametrize("how", ["enqueue", "writer"])
async def test_a_write_that_is_fenced_commits_only_under_the_lease(
    harness: PostgresHarness, spark: SparkSession, how: str
) -> None:
    """The worker does not know that the lease is lost: the database says so, in the commit."""
    raised: list[BaseException] = []

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            with spark_scope(attempt, spark) as scope:
                words = spark.range(4).selectExpr("cast(id as string) as input")
                if attempt.input:
                    harness.rows(TAKE, attempt.job_id)
                if how == "enqueue":
                    return enqueue(words, text.name, url=harness.dsn, fence=scope.fence).rows
                register(spark)
                options = {"url": harness.dsn, "jobType": text.name}
                scope.fenced(words.write.format("queuert").options(**options)).mode("append").save()
                return 4
        except BaseException as error:
            raised.append(error)
            raise

    async with harness.worker():
        kept = await harness.client.start_chain(number, 0)
        assert await kept.result(WAIT) == 4
        assert harness.one(WRITTEN) == 4
        lost = await harness.client.start_chain(number, 1)
        await harness.log.wait_for(FinishRejected, job_id=lost.id, timeout=WAIT)
    assert harness.one(WRITTEN) == 4
    (error,) = raised
    assert isinstance(error, LeaseLostError)
    assert error.reason == AbortReason.TAKEN_BY_ANOTHER_WORKER


async def test_a_write_in_its_middle_is_cancelled_and_leaves_nothing(
    harness: PostgresHarness, spark: SparkSession
) -> None:
    def slowly(rows: Iterable[int]) -> Iterable[tuple[str]]:
        for row in rows:
            yield (str(row),)
            time.sleep(600)

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark) as scope:
            rows = spark.sparkContext.parallelize(range(4), 2).mapPartitions(slowly)
            words = spark.createDataFrame(rows, "input string")
            return enqueue(words, text.name, url=harness.dsn, fence=scope.fence).rows

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await busy(spark)
        harness.rows(TAKE, chain.id)
        await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
    assert harness.one(WRITTEN) == 0


async def test_a_query_of_a_task_ends_in_postgres_too(harness: PostgresHarness, spark: SparkSession) -> None:
    """With client_connection_check_interval; without it, it would run to its end."""
    dsn, sleeping = harness.dsn, "select count(*) from pg_stat_activity where application_name = 'from a task'"

    def query(_: Iterable[int]) -> Iterable[int]:
        import psycopg

        options = "-c client_connection_check_interval=200"
        with psycopg.connect(dsn, options=options, application_name="from a task") as connection:
            connection.execute("select pg_sleep(600)")
        return [1]

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            return int(spark.sparkContext.parallelize(range(1), 1).mapPartitions(query).count())

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await until(lambda: harness.one(sleeping) == 1, "the task asks Postgres")
        harness.rows(TAKE, chain.id)
        await until(lambda: harness.one(sleeping) == 0, "Postgres has given up the query")


async def test_the_fence_is_read_back_whatever_the_id(harness: PostgresHarness) -> None:
    fences: list[str] = []
    done = threading.Event()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        fences.append(fence_of(attempt))
        done.set()
        return 1

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1, id="a:b/c,d")
        assert await chain.result(WAIT) == 1
    assert (Fence.parse(fences[0]).job_id, Fence.parse(fences[0]).attempt) == ("a:b/c,d", 1)
