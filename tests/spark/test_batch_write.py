"""Whole DataFrames as jobs, with a real Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pydantic import BaseModel, Field

from queuert import Client, Deduplicate, JobType, JobTypes, NewChain, PostgresState
from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.spark import WriteResult, enqueue, register
from queuert.spark.errors import (
    BadRowsError,
    FenceLostError,
    SparkColumnError,
    SparkOptionError,
    WriteConflictError,
)
from tests.spark.support import locked, numbers, query, stages, wait_for_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Resize(BaseModel):
    n: int = Field(ge=0)
    name: str = "unnamed"


resize = JobType("resize", input=Resize, output=None)
other: JobType[Any, None] = JobType("other", input=Any, output=None)
job_types = JobTypes(resize, other)


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), job_types) as client:
        yield client


def test_each_row_is_a_chain_in_the_order_of_the_rows(spark: SparkSession, dsn: str) -> None:
    df = spark.range(0, 1000, numPartitions=3).selectExpr("id AS n", "concat('row ', id) AS name")
    result = enqueue(df, resize, url=dsn, write_id="first")
    assert result == WriteResult("first", 1000, 1000, 0)
    [row] = query(
        dsn,
        "SELECT array_agg((input->>'n')::int ORDER BY created_at) = array_agg(n), count(DISTINCT id), min(type),"
        " max(status), min(chain_status), min(write_id), max(created_at) <= clock_timestamp()"
        " FROM queuert.job, generate_series(0, 999) AS n WHERE n = (input->>'n')::int",
    )
    assert row == (True, 1000, "resize", "ready", "open", "first", True)
    assert query(dsn, "SELECT kind, status, count(*) FROM queuert.event GROUP BY 1, 2") == [("created", "ready", 1000)]
    assert stages(dsn) == []
    assert query(dsn, "SELECT count(*) FROM queuert.job WHERE input->>'name' = 'row ' || (input->>'n')") == [1000]


def test_settings_of_jobs_are_columns(spark: SparkSession, dsn: str, client: Client) -> None:
    awaited = client.start_chain(resize, Resize(n=0)).id
    later = datetime.now(UTC) + timedelta(days=1)
    df = spark.createDataFrame(
        [("a\t'\\", 5, later, [awaited, awaited], '{"n": 1}'), (None, None, None, None, '{"n":\n2}')],
        "id string, priority int, schedule_at timestamp, blocked_by array<string>, input string",
    )
    assert enqueue(df, "resize", url=dsn, trace_context="00-trace").started == 2
    first, second = query(
        dsn,
        "SELECT id, priority, scheduled_at, status, open_blockers, blocker_count, trace_context FROM queuert.job"
        " WHERE id <> %s ORDER BY created_at",
        awaited,
    )
    assert first == ("a\t'\\", 5, later, "blocked", 1, 1, "00-trace")
    assert second[1] == 0
    assert second[3:] == ("ready", 0, 0, "00-trace")
    client.cancel_chains([awaited])
    assert query(dsn, "SELECT status FROM queuert.job WHERE id = %s", first[0]) == ["scheduled"]


def test_a_chain_to_wait_for_that_does_not_exist_fails_the_write(spark: SparkSession, dsn: str) -> None:
    df = spark.sql("SELECT 1 AS n, array('missing') AS blocked_by")
    with pytest.raises(ChainNotFoundError, match="missing"):
        enqueue(df, "resize", url=dsn)
    assert numbers(dsn) == []
    assert stages(dsn) == []


def test_a_deduplication_key_starts_one_chain(spark: SparkSession, dsn: str, client: Client) -> None:
    client.start_chains([NewChain(resize, Resize(n=99), deduplication=Deduplicate("k9"))])
    df = spark.range(0, 20, numPartitions=2).selectExpr("id AS n", "concat('k', id % 10) AS deduplication_key")
    result = enqueue(df, "resize", url=dsn)
    assert (result.rows, result.started) == (20, 9)
    assert numbers(dsn) == [*range(9), 99]
    assert enqueue(df, "resize", url=dsn).started == 0
    assert client.start_chain(resize, Resize(n=1), deduplication=Deduplicate("k3")).deduplicated


def test_chains_of_before_the_deduplication_window_do_not_count(spark: SparkSession, dsn: str, client: Client) -> None:
    client.start_chains([NewChain(resize, Resize(n=n), deduplication=Deduplicate(f"k{n}")) for n in (0, 1)])
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE queuert.job SET created_at = created_at - interval '1 h' WHERE input->>'n' = '0'")
    df = spark.range(2).selectExpr("10 + id AS n", "concat('k', id) AS deduplication_key")
    assert enqueue(df, "resize", url=dsn, deduplication_window=1800.0).started == 1
    assert numbers(dsn) == [0, 1, 10]


def test_ids_that_exist_fail_the_write_or_are_passed_over(spark: SparkSession, dsn: str) -> None:
    df = spark.range(10).selectExpr("id AS n", "concat('job ', id) AS id")
    enqueue(df.where("n < 3"), "resize", url=dsn)
    with pytest.raises(JobIdConflictError, match="job "):
        enqueue(df, "resize", url=dsn)
    assert numbers(dsn) == [0, 1, 2]
    assert enqueue(df, "resize", url=dsn, on_conflict="nothing").started == 7
    assert numbers(dsn) == list(range(10))
    assert query(dsn, "SELECT count(*) FROM queuert.event") == [10]


def test_the_same_write_id_writes_once(spark: SparkSession, dsn: str) -> None:
    df = spark.range(100).toDF("n")
    first = enqueue(df, "resize", url=dsn, write_id="daily")
    assert enqueue(df, "resize", url=dsn, write_id="daily") == first
    assert numbers(dsn) == list(range(100))
    with pytest.raises(WriteConflictError, match="resize"):
        enqueue(df, "other", url=dsn, write_id="daily")


def test_bad_rows_fail_the_write_and_are_counted(spark: SparkSession, dsn: str) -> None:
    df = spark.range(0, 100, numPartitions=2).selectExpr("IF(id % 10 = 7, -id, id) AS n", "concat('i', id) AS id")
    with pytest.raises(BadRowsError, match=r"10 of 100 rows .*partition 0, row 7 \(id 'i7'\): input\.n: .*greater"):
        enqueue(df, resize, url=dsn)
    assert numbers(dsn) == []
    assert stages(dsn) == []


def test_bad_rows_go_to_a_path_and_the_others_are_written(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    df = spark.range(0, 100, numPartitions=2).selectExpr("IF(id % 10 = 7, -id, id) AS n")
    rejects = str(tmp_path / "rejects")
    result = enqueue(df, resize, url=dsn, rejects=rejects, write_id="w")
    assert (result.rows, result.rejected) == (90, 10)
    assert numbers(dsn) == [n for n in range(100) if n % 10 != 7]
    back = spark.read.parquet(rejects)
    assert sorted(row.n for row in back.collect()) == sorted(-n for n in range(7, 100, 10))
    assert {row.rejected_because.partition(":")[0] for row in back.collect()} == {"input.n"}
    assert enqueue(df, resize, url=dsn, rejects=rejects, write_id="w") == result
    assert spark.read.parquet(rejects).count() == 10


def test_nothing_invalid_reaches_a_job(spark: SparkSession, dsn: str) -> None:
    df = spark.sql("SELECT explode(array('1', '{', 'NaN', '\"\\\\u0000\"', cast(unhex('22ff22') AS string))) AS input")
    with pytest.raises(BadRowsError, match=r"4 of 5 .*Unicode"):
        enqueue(df, "other", url=dsn)
    assert query(dsn, "SELECT count(*) FROM queuert.job") == [0]


def test_options_and_columns_are_checked_before_anything_is_done(spark: SparkSession, dsn: str) -> None:
    df = spark.range(1).toDF("n")
    broken: list[tuple[type[Exception], dict[str, Any]]] = [
        (SparkOptionError, {"wirteId": "x"}),
        (SparkOptionError, {"fence": "no"}),
        (SparkOptionError, {"on_conflict": "replace"}),
        (SparkOptionError, {"job_types": "no.such.module:name"}),
        (SparkOptionError, {"job_types": "tests.spark.support:resize", "service": "x"}),
    ]
    for error, options in broken:
        with pytest.raises(error):
            enqueue(df, "resize", url=dsn, **options)
    with pytest.raises(SparkColumnError, match="namme"):
        enqueue(df.selectExpr("n", "'x' AS namme"), resize, url=dsn)
    with pytest.raises(SparkColumnError, match="time zone"):
        enqueue(spark.sql("SELECT timestamp_ntz'2026-01-01' AS at"), "other", url=dsn)
    with pytest.raises(Exception, match="append"):
        df.write.format("queuert").option("jobType", "resize").option("url", dsn).mode("overwrite").save()


def test_the_plain_interface_of_spark_does_the_same(spark: SparkSession, dsn: str) -> None:
    register(spark)
    writer = spark.range(10).toDF("n").write.format("queuert").option("URL", dsn).option("jobtype", "resize")
    writer.option("jobTypes", "tests.spark.support:job_types").mode("append").save()
    assert numbers(dsn) == list(range(10))


def test_any_thread_can_write(spark: SparkSession, dsn: str) -> None:
    failed: list[BaseException] = []

    def write(start: int) -> None:
        try:
            enqueue(spark.range(start, start + 5).toDF("n"), "resize", url=dsn)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert numbers(dsn) == list(range(10))


def test_a_write_is_refused_when_its_attempt_has_lost_its_job(spark: SparkSession, dsn: str, client: Client) -> None:
    job = client.start_chain(resize, Resize(n=1000)).id
    token = "0e0c1dca-4fd8-4a2c-9a5e-3f1c8a2d9b77"
    lease = (
        f"UPDATE queuert.job SET status = 'running', attempt = 1, lease_token = '{token}',"
        f" lease_expires_at = clock_timestamp() + interval '1 hour' WHERE id = '{job}' RETURNING id"
    )
    query(dsn, lease)
    df = spark.range(3).toDF("n")
    enqueue(df, "resize", url=dsn, fence=f"{job}:1/{token}")
    assert numbers(dsn) == [0, 1, 2, 1000]
    query(dsn, f"UPDATE queuert.job SET attempt = 2 WHERE id = '{job}' RETURNING id")
    with pytest.raises(FenceLostError, match="attempt 1"):
        enqueue(df, "resize", url=dsn, fence=f"{job}:1/{token}")
    assert numbers(dsn) == [0, 1, 2, 1000]
    assert stages(dsn) == []


def test_workers_are_woken_once_with_the_commit(spark: SparkSession, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("LISTEN queuert_jobs")
        enqueue(spark.range(0, 100, numPartitions=4).toDF("n"), "resize", url=dsn)
        enqueue(spark.range(1).toDF("n"), "other", url=dsn, notify=False)
        connection.execute("NOTIFY queuert_jobs, 'end'")
        heard = [notification.payload for notification in connection.notifies(timeout=30, stop_after=2)]
    assert heard == ["resize", "end"]


def test_an_empty_dataframe_is_an_empty_write(spark: SparkSession, dsn: str) -> None:
    assert enqueue(spark.range(0).toDF("n"), resize, url=dsn).rows == 0


def test_two_runs_of_one_write_at_once_write_once(spark: SparkSession, dsn: str) -> None:
    results: list[WriteResult] = []
    df = spark.range(50).toDF("n")
    threads = [
        threading.Thread(target=lambda: results.append(enqueue(df, "resize", url=dsn, write_id="one", lock_timeout=60)))
        for _ in range(2)
    ]
    with locked(dsn, "bulk_write"):
        for thread in threads:
            thread.start()
        wait_for_query(
            dsn,
            "SELECT 1 FROM pg_stat_activity WHERE application_name = 'queuert spark commit'"
            " AND wait_event_type = 'Lock' AND datname = current_database() HAVING count(*) = 2",
        )
    for thread in threads:
        thread.join()
    assert [result.rows for result in results] == [50, 50]
    assert numbers(dsn) == list(range(50))
