"""Events as a stream, with a real Spark: batches, restarts, and drivers that are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from queuert.spark.datasource import register
from queuert.spark.errors import EventsLostError, SparkOptionError, found_in
from queuert.spark.read.schemas import EVENTS_SCHEMA
from tests.spark.read_child import read_child
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


def test_the_table_must_be_named(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    register(spark)
    reader = spark.readStream.format("queuert").option("url", dsn)
    assert reader.option("table", "events").load().schema == EVENTS_SCHEMA
    with pytest.raises(PySparkException) as refused:
        run(spark, dsn, tmp_path, table="jobs")
    assert isinstance(found_in(refused.value), SparkOptionError)


@pytest.mark.fault
def test_a_driver_killed_before_and_after_a_batch_is_written(dsn: str, tmp_path: Path) -> None:
    with connected(dsn) as connection:
        written = [(*add_event(connection, f"j{n}"), f"j{n}") for n in range(18)]
    for hang in ({"before": 1}, {"after": 2}):
        with read_child("stream", url=dsn, folder=str(tmp_path), hang=hang) as child:
            assert child.heard() == {"ready": next(iter(hang))}
            child.kill()
        with connected(dsn) as connection:
            written.append((*add_event(connection, f"more {hang}"), f"more {hang}"))
    with read_child("stream", url=dsn, folder=str(tmp_path), hang={}) as child:
        assert child.heard() == {"done": True}
    found = [tuple(row) for file in tmp_path.glob("batch-*.json") for row in json.loads(file.read_text())]
    assert sorted(found) == sorted(written)
    assert len(found) == len(written) == 20
