"""Events as a stream, with a real Spark: batches and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from queuert.spark.datasource import register
from queuert.spark.errors import EventsLostError, SparkOptionError, found_in
from queuert.spark.read.schemas import EVENTS_SCHEMA
from tests.spark.read_support import add_event, connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def run(spark: SparkSession, dsn: str, folder: Path, **options: Any) -> list[list[str]]:
    """The jobs of each batch of one run, from the checkpoint of the folder to where the log ends."""
    register(spark)
    batches: list[list[str]] = []
    reader = spark.readStream.format("queuert").option("url", dsn).option("table", "events")
    for name, value in options.items():
        reader = reader.option(name, value)
    frame = reader.load()
    writer = frame.writeStream.foreachBatch(lambda rows, _: batches.append([row["job_id"] for row in rows.collect()]))
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def test_batches_and_restarts(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    with connected(dsn) as connection:
        for n in range(5):
            add_event(connection, f"a{n}")
        assert run(spark, dsn, tmp_path, maxRowsPerBatch=2) == [["a0", "a1"], ["a2", "a3"], ["a4"]]
        assert run(spark, dsn, tmp_path, maxRowsPerBatch=2) == []
        add_event(connection, "b")
        add_event(connection, "p", type="publish")
        assert run(spark, dsn, tmp_path, types="publish", columns="job_id") == [["p"]]
        # Spark begins a query with a batch, if only an empty one.
        assert run(spark, dsn, tmp_path / "other", startingOffsets="latest") == [[]]
        add_event(connection, "gone")
        connection.execute(
            """WITH gone AS (DELETE FROM queuert.job_event RETURNING tx)
               UPDATE queuert.event_log SET dropped_tx = (SELECT tx FROM gone ORDER BY tx DESC LIMIT 1)"""
        )
        add_event(connection, "c")
        with pytest.raises(PySparkException) as lost:
            run(spark, dsn, tmp_path)
        assert isinstance(found_in(lost.value), EventsLostError)
        assert run(spark, dsn, tmp_path, failOnDataLoss=False) == [["c"]]


@pytest.mark.quick
def test_the_table_must_be_named(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    register(spark)
    reader = spark.readStream.format("queuert").option("url", dsn)
    assert reader.option("table", "events").load().schema == EVENTS_SCHEMA
    with pytest.raises(PySparkException) as refused:
        run(spark, dsn, tmp_path, table="jobs")
    assert isinstance(found_in(refused.value), SparkOptionError)
