"""A handler's Spark work stops when its attempt must."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from queuert import Attempt, JobStatus, Outcome, RetryPolicy
from queuert.errors import ConfigurationError, DefinitionError
from queuert.jobs import AbortReason
from queuert.observability.events import AttemptAborted, AttemptFailed, AttemptInterrupted, FinishRejected
from queuert.spark.handlers import classic
from queuert.spark.handlers.progress import SparkProgress
from queuert.spark.handlers.scope import run_in_scope, spark_scope
from queuert.spark.jvm import java_of
from tests.spark.scope_support import (
    OFTEN,
    TAKE,
    WAIT,
    busy,
    check_stop,
    idle,
    in_java,
    in_python,
    python_processes,
    quiet_threads,
    running_tasks,
    until,
)
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

REAP = "update queuert.job set status = 'ready', lease_token = null, lease_expires_at = null where id = %s"


@pytest.mark.parametrize("work", [in_java, in_python])
async def test_spark_stops_when_the_lease_is_taken_away(
    harness: PostgresHarness, spark: SparkSession, work: Callable[[SparkSession], int]
) -> None:
    await check_stop(harness, spark, spark, work)


async def test_spark_stops_when_another_worker_reaps_the_job(harness: PostgresHarness, spark: SparkSession) -> None:
    """The lease has run out behind the worker's back; the successor's result is the one that counts."""
    taken = threading.Event()

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number > 1:
            taken.set()
            return attempt.number
        with spark_scope(attempt, spark):
            return in_java(spark)

    async with harness.worker(name="one"):
        chain = await harness.client.start_chain(number, 1)
        await busy(spark)
        harness.rows(REAP, chain.id)
        await harness.log.wait_for(AttemptAborted, job_id=chain.id, timeout=WAIT)
        assert await chain.result(WAIT) == 2
        await idle(spark)
    assert taken.is_set()


async def test_spark_stops_when_the_chain_is_cancelled(harness: PostgresHarness, spark: SparkSession) -> None:
    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            return in_java(spark)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await busy(spark)
        await harness.client.cancel_chains([chain])
        assert (
            await harness.log.wait_for(AttemptAborted, job_id=chain.id, timeout=WAIT)
        ).reason is AbortReason.CANCELLED
        await idle(spark)
    assert (await harness.job(chain.id)).status is JobStatus.CANCELLED


async def test_spark_stops_when_the_worker_stops(harness: PostgresHarness, spark: SparkSession) -> None:
    ended = threading.Event()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        try:
            with spark_scope(attempt, spark):
                return in_python(spark)
        finally:
            ended.set()

    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(number, 1)
    await busy(spark)
    await worker.stop(shutdown_timeout=0)
    await idle(spark)
    assert await asyncio.to_thread(ended.wait, WAIT)
    assert harness.log.of(AttemptInterrupted, job_id=chain.id)
    assert (await harness.job(chain.id)).status is JobStatus.READY


async def test_spark_stops_when_the_time_is_over(harness: PostgresHarness, spark: SparkSession) -> None:
    @harness.processors.handles(number, timeout=1.5)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number > 1:
            return attempt.number
        with spark_scope(attempt, spark):
            return in_java(spark)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        # A later attempt runs out of time only where the machine is that slow.
        assert await chain.result(WAIT) >= 2
        await idle(spark)
    assert [event.reason for event in harness.log.of(AttemptAborted, attempt=1)] == [AbortReason.TIMEOUT]


async def test_cancelling_one_of_two_handlers_leaves_the_other(harness: PostgresHarness, spark: SparkSession) -> None:
    """They share a session, and its two slots."""

    @harness.processors.handles(number)
    def endless(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            return in_java(spark)

    @harness.processors.handles(text)
    def short(attempt: Attempt[str, str]) -> Outcome[str]:
        with spark_scope(attempt, spark):
            begun.set()
            assert go_on.wait(WAIT)
            return str(spark.range(1000, numPartitions=4).where("id % 2 = 0").count())

    begun, go_on = threading.Event(), threading.Event()
    async with harness.worker(concurrency=2):
        one = await harness.client.start_chain(number, 1)
        other = await harness.client.start_chain(text, "x")
        await busy(spark)
        assert await asyncio.to_thread(begun.wait, WAIT)
        await harness.client.cancel_chains([one])
        await harness.log.wait_for(AttemptAborted, job_id=one.id, timeout=WAIT)
        go_on.set()
        assert await other.result(WAIT) == "500"


async def test_tasks_in_python_end_when_spark_notices(
    harness: PostgresHarness, spark: SparkSession, tmp_path: Path
) -> None:
    """Those of another handler run on, and are not repeated."""
    gate = tmp_path / "go on"

    def waiting(_: Iterable[int]) -> Iterable[int]:
        while not gate.exists():
            time.sleep(0.02)
        context = TaskContext.get()
        return [context.attemptNumber() if context is not None else -1]

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            return in_python(spark, tasks=1)

    @harness.processors.handles(text)
    def other(attempt: Attempt[str, str]) -> Outcome[str]:
        with spark_scope(attempt, spark):
            return str(spark.sparkContext.parallelize(range(1), 1).mapPartitions(waiting).collect())

    async with harness.worker(concurrency=2):
        stays = await harness.client.start_chain(text, "x")
        goes = await harness.client.start_chain(number, 1)
        await until(lambda: python_processes(spark) == 2, "both tasks have their processes")
        harness.rows(TAKE, goes.id)
        await harness.log.wait_for(FinishRejected, job_id=goes.id, timeout=WAIT)
        await until(lambda: running_tasks(spark) == 1, "one of two tasks runs")
        gate.touch()
        assert await stays.result(WAIT) == "[0]"


# --- without what pyspark has no public names for ---------------------------------------------------------------------


class Without:
    """A session of a version of pyspark that lacks a private name, there or in its context."""

    def __init__(self, session: Any, lacking: str) -> None:
        self._session = session
        self._lacking = lacking

    def __getattr__(self, name: str) -> Any:
        if name == self._lacking:
            raise AttributeError(name)
        found = getattr(self._session, name)
        return Without(found, self._lacking) if name == "sparkContext" else found


@pytest.mark.parametrize("lacking", ["_jvm", "_jsparkSession", "_jsc", "_gateway"])
def test_a_session_that_lacks_a_private_name_has_no_java(spark: SparkSession, lacking: str) -> None:
    assert java_of(spark) is not None
    assert java_of(Without(spark, lacking)) is None


@pytest.mark.parametrize("work", [in_java, in_python])
async def test_spark_stops_without_java(
    harness: PostgresHarness,
    spark: SparkSession,
    work: Callable[[SparkSession], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Running jobs are found, counted and cancelled by what is public."""
    monkeypatch.setattr(classic, "java_of", lambda session: None)
    await check_stop(harness, spark, spark, work)


async def test_progress_is_counted_without_java(
    harness: PostgresHarness, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "java_of", lambda session: None)
    seen: list[SparkProgress] = []

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark, on_progress=seen.append):
            return _count(spark)

    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 10
    assert seen[-1].done == seen[-1].known > 0


async def test_only_a_query_that_the_scope_tracks_is_stopped_without_java(
    harness: PostgresHarness, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classic, "java_of", lambda session: None)
    others = spark.readStream.format("rate").load().writeStream.format("noop").start()

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark) as scope:
            query = spark.readStream.format("rate").load().writeStream.format("noop").queryName("tracked").start()
            scope.track(query)
            query.awaitTermination()
            return 1

    try:
        async with harness.worker():
            chain = await harness.client.start_chain(number, 1)
            await until(lambda: "tracked" in [query.name for query in spark.streams.active], "the query runs")
            harness.rows(TAKE, chain.id)
            await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
            assert [query.runId for query in spark.streams.active] == [others.runId]
    finally:
        others.stop()


# --- all that belongs to the attempt ----------------------------------------------------------------------------------


async def test_work_that_comes_after_the_abort_is_refused(harness: PostgresHarness, spark: SparkSession) -> None:
    """Each piece of it, also what would end sooner than it could be cancelled."""
    later: list[int] = []
    refused: list[Exception] = []

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            for work in (in_java, *[_count] * 30):
                try:
                    later.append(work(spark))
                except Exception as error:
                    refused.append(error)
            return 1

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await busy(spark)
        harness.rows(TAKE, chain.id)
        await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
    assert (later, len(refused)) == ([], 31)


def _count(spark: SparkSession) -> int:
    return spark.range(10).count()


async def test_threads_of_the_handler_are_cancelled_too(harness: PostgresHarness, spark: SparkSession) -> None:
    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark) as scope:

            def inside() -> None:
                with scope.bound():
                    in_java(spark)

            thread = threading.Thread(target=inside, daemon=True)
            thread.start()
            thread.join(WAIT)
            assert not thread.is_alive()
            return 1

    with quiet_threads():
        async with harness.worker():
            chain = await harness.client.start_chain(number, 1)
            await busy(spark)
            harness.rows(TAKE, chain.id)
            await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)


async def test_streaming_queries_are_stopped(harness: PostgresHarness, spark: SparkSession) -> None:
    """That of the attempt, though it hides its group; not that of somebody else."""
    others = spark.readStream.format("rate").load().writeStream.format("noop").start()

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            query = spark.readStream.format("rate").load().writeStream.format("noop").queryName("mine").start()
            query.awaitTermination()
            return 1

    try:
        async with harness.worker():
            chain = await harness.client.start_chain(number, 1)
            await until(lambda: "mine" in [query.name for query in spark.streams.active], "the query runs")
            harness.rows(TAKE, chain.id)
            await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
            assert [query.runId for query in spark.streams.active] == [others.runId]
    finally:
        others.stop()


async def test_nothing_is_left_when_the_handler_ends(harness: PostgresHarness, spark: SparkSession) -> None:
    """A thread that the handler forgot, and a streaming query; the settings of its own thread are as they were."""
    context: Any = spark.sparkContext

    def settings() -> list[object]:
        names = ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool", "spark.job.tags")
        return [context.getLocalProperty(name) or None for name in names]

    seen: list[list[object]] = []

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        seen.append(settings())
        with spark_scope(attempt, spark, pool="short") as scope:

            def inside() -> None:
                with scope.bound():
                    in_java(spark)

            thread = threading.Thread(target=inside, daemon=True)
            thread.start()
            assert begun.wait(WAIT)
            spark.readStream.format("rate").load().writeStream.format("noop").start()
            seen.append(settings())
        seen.append(settings())
        assert spark.streams.active == []
        thread.join(WAIT)
        assert not thread.is_alive()
        return 1

    begun = threading.Event()
    with quiet_threads():
        async with harness.worker():
            chain = await harness.client.start_chain(number, 1)
            await busy(spark)
            begun.set()
            assert await chain.result(WAIT) == 1
    before, inside, after = seen
    assert before == after == [None, None, None, None]
    assert [chain.id in str(value) for value in inside] == [True, True, False, True]
    assert inside[2] == "short"


async def test_an_error_of_the_handler_stays_what_it_is(harness: PostgresHarness, spark: SparkSession) -> None:
    @harness.processors.handles(number, retry=RetryPolicy(max_attempts=1))
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark):
            spark.sql("select raise_error('no such day')").collect()
            return 1

    async with harness.worker():
        await harness.client.start_chain(number, 1)
        failed = await harness.log.wait_for(AttemptFailed, timeout=WAIT)
    assert "no such day" in failed.error.message


# --- coroutines, misuse -----------------------------------------------------------------------------------------------


async def test_a_coroutine_runs_spark_in_a_thread(harness: PostgresHarness, spark: SparkSession) -> None:
    @harness.processors.handles(number, lease=OFTEN)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == 1:
            return await run_in_scope(attempt, spark, lambda scope: spark.range(5).count())
        return await run_in_scope(attempt, spark, lambda scope: in_java(spark))

    async with harness.worker():
        assert await harness.client.start_and_wait(number, 1, timeout=WAIT) == 5
        chain = await harness.client.start_chain(number, 2)
        await busy(spark)
        harness.rows(TAKE, chain.id)
        await harness.log.wait_for(AttemptAborted, job_id=chain.id, timeout=WAIT)
        await idle(spark)


async def test_a_timeout_of_the_coroutines_own_cancels_spark(harness: PostgresHarness, spark: SparkSession) -> None:
    begun = asyncio.Event()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        task = asyncio.create_task(run_in_scope(attempt, spark, lambda scope: in_java(spark)))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        return 2 if task.cancelled() else 3

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await busy(spark)
        begun.set()
        assert await chain.result(WAIT) == 2
        await idle(spark)


async def test_misuse_is_reported(harness: PostgresHarness, spark: SparkSession) -> None:
    reported: list[str] = []

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with pytest.raises(DefinitionError, match="run_in_scope") as error, spark_scope(attempt, spark):
            pass
        reported.append(str(error.value))
        with pytest.raises(ConfigurationError, match="every must be above 0 seconds, got 0"):
            await run_in_scope(attempt, spark, lambda scope: 1, every=0)
        return 1

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 1
    assert reported
