"""Tables of the queue as DataFrames, with a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.errors import AnalysisException, PySparkException

from queuert.spark.errors import SnapshotGoneError, SparkOptionError, found_in
from queuert.spark.read.schemas import (
    ATTEMPTS_SCHEMA,
    CHAINS_SCHEMA,
    EVENTS_SCHEMA,
    JOBS_SCHEMA,
    WORKERS_SCHEMA,
    with_variants,
)
from queuert.spark.read.snapshots import snapshot
from tests.spark.read_support import add_closed, add_event, connected, read, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

SCHEMAS = {
    "jobs": JOBS_SCHEMA,
    "chains": CHAINS_SCHEMA,
    "attempts": ATTEMPTS_SCHEMA,
    "events": EVENTS_SCHEMA,
    "workers": WORKERS_SCHEMA,
}
NEW_YEAR = datetime(2026, 1, 1, 0, 30, 0, 123_456, UTC)


def test_all_tables_have_their_schemas(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 3)
    with connected(dsn) as connection:
        add_event(connection, "a", "started", attempt=1, started=NEW_YEAR, worker="w")
    counts = {}
    for table, schema in SCHEMAS.items():
        frame = read(spark, dsn, table)
        assert frame.schema == schema
        counts[table] = len(rows(frame))
    assert counts == {"jobs": 3, "chains": 3, "attempts": 1, "events": 1, "workers": 0}


def test_one_frame_used_twice_with_different_filters(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 10)
    jobs = read(spark, dsn, columns="id,input")
    third, fourth = jobs.where("id = 'job-00000003'"), jobs.where("id = 'job-00000004'")
    assert third.count() == 1
    assert jobs.count() == 10
    assert sorted(row["id"] for row in third.union(fourth).collect()) == ["job-00000003", "job-00000004"]
    assert third.join(jobs, "id").count() == 1
    jobs.createOrReplaceTempView("jobs_read_twice")
    assert spark.sql("SELECT count(*) FROM jobs_read_twice a JOIN jobs_read_twice b USING (id)").first()[0] == 10  # type: ignore[index]
    assert len(jobs.limit(2).collect()) == 2


def test_moments_in_sessions_of_other_zones(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute("UPDATE queuert.job SET created_at = %s, scheduled_at = 'infinity'", (NEW_YEAR,))
    jobs = read(spark, dsn, createdFrom="2026-01-01T00:30:00.123456Z", createdTo="2026-01-01T09:30:00.123457+09:00")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        [row] = rows(jobs.selectExpr("created_at", "unix_micros(created_at) AS micros", "to_date(created_at) AS day",
                                     "scheduled_at"))  # fmt: skip
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert row["created_at"] == NEW_YEAR
    assert row["micros"] == int(NEW_YEAR.timestamp()) * 1_000_000 + 123_456
    assert row["day"] == date(2026, 1, 1)
    assert row["scheduled_at"] is None
    assert rows(jobs.selectExpr("to_date(created_at) AS day"))[0]["day"] == date(2026, 1, 1)


@pytest.mark.quick
def test_json_is_text_and_becomes_variants_on_demand(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 1)
    value = {"a": 'quote " newline \n back \\ 🐢', "big": 12345678901234567890123, "e": "", "n": None}
    with connected(dsn) as connection:
        connection.execute("UPDATE queuert.job SET input = %s", (json.dumps(value),))
    jobs = read(spark, dsn)
    [row] = rows(jobs.select("input"))
    assert json.loads(row["input"]) == value
    parsed = with_variants(jobs)
    assert parsed.schema["input"].dataType.simpleString() == "variant"
    chosen = parsed.selectExpr(
        "variant_get(input, '$.a', 'string') AS a", "variant_get(output, '$.n', 'int') AS n", "error"
    )
    assert chosen.selectExpr("a", "n", "error IS NULL AS no_error").first().asDict() == {  # type: ignore[union-attr]
        "a": value["a"], "n": 1, "no_error": True}  # fmt: skip
    assert with_variants(jobs, "output").schema["input"].dataType.simpleString() == "string"


def test_a_snapshot_in_many_parts_and_frames(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 1_000)
    with snapshot(dsn) as name:
        add_closed(dsn, 10, prefix="later-")
        jobs = read(spark, dsn, snapshot=name, numPartitions=3)
        assert jobs.rdd.getNumPartitions() == 3
        assert jobs.count() == 1_000
        assert read(spark, dsn, "chains", snapshot=name).select("id").distinct().count() == 1_000
    assert read(spark, dsn).count() == 1_010
    with pytest.raises(PySparkException) as gone:
        jobs.count()
    assert isinstance(found_in(gone.value), SnapshotGoneError)


def test_a_schema_of_the_users_own_chooses_columns(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 1)
    reader = spark.read.format("queuert").option("url", dsn)
    assert reader.schema("status string, id string").load().collect() == [("completed", "job-00000001")]
    with pytest.raises(PySparkException) as refused:
        reader.schema("id string, attempt string").load().collect()
    assert "attempt is int, not string" in str(found_in(refused.value))


def test_a_view_in_sql(spark: SparkSession, dsn: str) -> None:
    add_closed(dsn, 4)
    read(spark, dsn)  # registers
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW closed_chains USING queuert "
        f"OPTIONS (table 'chains', url '{dsn}', columns 'id,status')"
    )
    assert spark.sql("SELECT status, count(*) FROM closed_chains GROUP BY status").collect() == [("completed", 4)]


def test_plans_tell_no_password(spark: SparkSession, dsn: str) -> None:
    jobs = read(spark, "postgresql://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(PySparkException) as refused:
        jobs.collect()
    assert "hunter2" not in str(refused.value)
    add_closed(dsn, 1)
    password = str(conninfo_to_dict(dsn)["password"])
    frame = read(spark, dsn)
    assert frame.count() == 1
    java: Any = frame._jdf
    plan = java.queryExecution().toString()
    assert password not in plan
    assert password not in java.queryExecution().debug().toString()


def test_options_that_are_refused(spark: SparkSession, dsn: str) -> None:
    with pytest.raises(AnalysisException) as unknown:
        read(spark, dsn, "job")
    assert isinstance(found_in(unknown.value), SparkOptionError)
    with pytest.raises(PySparkException) as refused:
        read(spark, dsn, typos="a").count()
    assert "unknown option 'typos'" in str(found_in(refused.value))
