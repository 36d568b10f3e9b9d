"""All that is promised for Spark Connect, in one session: writes, reads, requests, streams, and handlers that stop.

The server runs in the JVM of the classic session, which is only asked what Spark does; the client knows its address.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from queuert import Attempt, Outcome
from queuert.errors import ConfigurationError
from queuert.observability.events import FinishRejected, SparkUnreachable
from queuert.policies import LeasePolicy
from queuert.spark import enqueue, register, request, run_in_scope, snapshot, spark_scope
from queuert.spark.errors import BadRowsError, FenceLostError, SparkOptionError, found_in
from queuert.spark.handlers.progress import SparkProgress
from queuert.spark.history import run_history
from tests.spark.scope_support import OFTEN, TAKE, WAIT, check_stop
from tests.spark.support import numbers, resize
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def connect(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of Spark Connect, in which pyspark believes that there is no other."""
    pytest.importorskip("grpc")
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    java = context._jsc.sc()
    java.conf().set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", "0")
    service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    server = getattr(service, "MODULE$")
    server.start(java)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        builder: Any = ConnectSession.builder
        session = builder.remote(f"sc://127.0.0.1:{server.localPort()}").getOrCreate()
        register(session)
        try:
            yield session
        finally:
            session.stop()


# --- writes and reads -------------------------------------------------------------------------------------------------


async def test_writes(connect: SparkSession, dsn: str) -> None:
    """From another thread too; errors are those of a classic session."""
    assert enqueue(connect.range(3).toDF("n"), resize, url=dsn, write_id="w").rows == 3
    again = await asyncio.to_thread(enqueue, connect.range(3).toDF("n"), resize, url=dsn, write_id="w")
    assert (again.rows, numbers(dsn)) == (3, [0, 1, 2])
    with pytest.raises(BadRowsError, match="1 of 2 rows are not valid jobs"):
        enqueue(connect.sql("select explode(array(1, null)) as n"), resize, url=dsn)
    writer = connect.range(3, 5).toDF("n").write.format("queuert").option("url", dsn).option("jobType", "resize")
    writer.mode("append").save()
    assert numbers(dsn) == [0, 1, 2, 3, 4]
    with pytest.raises(Exception, match="typo") as refused:
        writer.option("typo", "1").mode("append").save()
    assert isinstance(found_in(refused.value), SparkOptionError)


def test_reads(connect: SparkSession, dsn: str) -> None:
    enqueue(connect.range(3).toDF("n"), resize, url=dsn)
    with snapshot(dsn) as name:
        reader = connect.read.format("queuert").option("url", dsn).option("table", "jobs").option("snapshot", name)
        found = reader.load().groupBy("type", "status").count().collect()
    assert [tuple(row) for row in found] == [("resize", "ready", 3)]
    settled = connect.read.format("queuert").option("url", dsn).load()
    assert settled.count() == 0


def test_streams(connect: SparkSession, dsn: str, tmp_path: Path) -> None:
    """Files become jobs, and their events become files, each once."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text("\n".join(json.dumps({"n": n}) for n in range(4)))
    for _ in range(2):
        rows = connect.readStream.schema("n long").json(str(tmp_path / "in"))
        writer = rows.writeStream.format("queuert").option("url", dsn).option("jobType", "resize")
        run_stream(writer, tmp_path / "written")
        events = connect.readStream.format("queuert").option("url", dsn).option("table", "events").load()
        writer = events.select("kind").writeStream.format("json").option("path", str(tmp_path / "out"))
        run_stream(writer, tmp_path / "read")
    assert numbers(dsn) == [0, 1, 2, 3]
    assert [row["kind"] for row in connect.read.schema("kind string").json(str(tmp_path / "out")).collect()] == [
        "created"
    ] * 4
    jobs = connect.readStream.format("queuert").option("url", dsn).option("table", "jobs").load()
    with pytest.raises(Exception, match="SparkOptionError") as refused:
        run_stream(jobs.writeStream.format("noop"), tmp_path / "refused")
    assert isinstance(found_in(refused.value), SparkOptionError)


def run_stream(writer: Any, checkpoint: Path) -> None:
    """Run a streaming query to where its source ends."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def test_a_history_is_refused(connect: SparkSession, dsn: str, tmp_path: Path) -> None:
    with pytest.raises(SparkOptionError, match="must be a classic one"):
        run_history(connect, dsn, str(tmp_path), older_than=1)


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_requests(harness: PostgresHarness, connect: SparkSession) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input * 2

    def ask() -> list[Any]:
        from queuert import Client, PostgresState
        from tests.support.job_types import JOB_TYPES

        with Client(PostgresState(harness.dsn), JOB_TYPES) as client:
            answers = request(
                connect.range(3).selectExpr("id as input"), number, client=client, output=int, timeout=WAIT
            )
            return answers.orderBy("output").collect()

    async with harness.worker():
        found = await asyncio.to_thread(ask)
    assert [(row["input"], row["output"]) for row in found] == [("0", 0), ("1", 2), ("2", 4)]


# --- handlers ---------------------------------------------------------------------------------------------------------


def in_java(connect: SparkSession) -> int:
    """A sum that Java would compute for hours."""
    rows = connect.range(0, 10**15, numPartitions=2).selectExpr("sum(hash(id) % 7) as total").collect()
    return int(rows[0]["total"])


def in_python(connect: SparkSession) -> int:
    """Two tasks in Python that count the moments of an hour."""

    def moments(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            time.sleep(3600)
            yield batch

    return connect.range(0, 2, numPartitions=2).mapInArrow(moments, "id long").count()


@pytest.mark.parametrize("work", [in_java, in_python])
async def test_a_handler_stops(
    harness: PostgresHarness, spark: SparkSession, connect: SparkSession, work: Callable[[SparkSession], int]
) -> None:
    await check_stop(harness, spark, connect, work)


async def test_queries_that_the_scope_was_reported_of_stop(harness: PostgresHarness, connect: SparkSession) -> None:
    """One that the server does not know any more, as it ended an hour ago, keeps no other from being stopped."""
    from pyspark.sql.connect.streaming.query import StreamingQuery

    reported = threading.Event()

    @harness.processors.handles(number, lease=OFTEN)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, connect, observability=harness.log) as scope:
            session: Any = connect
            forgotten: Any = StreamingQuery(session, str(uuid4()), str(uuid4()))
            query = connect.readStream.format("rate").load().writeStream.format("noop").start()
            scope.track(forgotten)
            scope.track(query)
            reported.set()
            query.awaitTermination()
            return 1

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        # The server shows a query before its start() returns.
        assert await asyncio.to_thread(reported.wait, WAIT)
        harness.rows(TAKE, chain.id)
        await harness.log.wait_for(FinishRejected, job_id=chain.id, timeout=WAIT)
    assert connect.streams.active == []
    assert harness.log.of(SparkUnreachable) == []


async def test_a_write_is_fenced_and_progress_is_reported(
    harness: PostgresHarness, connect: SparkSession, tmp_path: Path
) -> None:
    """The server tells of what runs every two seconds: the rows wait until it has.

    The write whose lease is gone is refused when it commits: nobody looks at progress then, as that would renew leases.
    """
    gate = tmp_path / "reported"
    fractions: list[float] = []
    refused: list[BaseException] = []
    ended = threading.Event()

    def hear(progress: SparkProgress) -> None:
        fractions.append(progress.fraction)
        gate.touch()

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        while not gate.exists():
            time.sleep(0.02)
        yield from batches

    @harness.processors.handles(number, lease=LeasePolicy(seconds=3600))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with pytest.raises(ConfigurationError, match="no scheduler pools"):
            await run_in_scope(attempt, connect, lambda scope: 1, pool="short")

        def work(scope: Any) -> int:
            words = connect.range(4).mapInArrow(wait, "id long").selectExpr("cast(id as string) as input")
            if attempt.input:
                harness.rows(TAKE, attempt.job_id)
            try:
                return enqueue(words, text.name, url=harness.dsn, fence=scope.fence).rows
            except BaseException as error:
                refused.append(error)
                ended.set()
                raise

        every = 3600.0 if attempt.input else 0.1
        return await run_in_scope(attempt, connect, work, on_progress=hear, every=every)

    async with harness.worker():
        kept = await harness.client.start_chain(number, 0)
        assert await kept.result(WAIT) == 4
        await harness.client.start_chain(number, 1)
        assert await asyncio.to_thread(ended.wait, WAIT)
    (error,) = refused
    assert isinstance(error, FenceLostError)
    assert harness.one("select count(*) from queuert.job where type = 'text'") == 4
    assert fractions
    assert fractions == sorted(fractions)
