"""Streams as jobs, with a real Spark: each micro-batch is written once, wherever the query was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from queuert import migrations
from queuert.errors import SchemaMissingError
from queuert.spark.errors import StagingLostError, WriteConflictError
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.write.stream import JobStreamWriter
from queuert.state.postgres.settings import REQUIRED_REVISION
from tests.spark.children import run_stream
from tests.spark.support import numbers, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES, ROWS = 3, 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of files, one a micro-batch."""
    directory = tmp_path / "source"
    directory.mkdir()
    for number in range(FILES):
        add_file(directory, number)
    return directory


def add_file(directory: Path, number: int) -> None:
    lines = [json.dumps({"n": n}) for n in range(number * ROWS, (number + 1) * ROWS)]
    (directory / f"{number}.json").write_text("\n".join(lines))


def test_each_micro_batch_is_written_once(spark: SparkSession, dsn: str, source: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_stream(spark, dsn, str(source), str(checkpoint), sinkId="orders")
    assert numbers(dsn) == list(range(FILES * ROWS))
    assert query(dsn, "SELECT batch, rows FROM queuert.stream_write WHERE sink = 'orders'") == [(2, ROWS)]
    assert query(dsn, "SELECT write_id, count(*) FROM queuert.job GROUP BY 1 ORDER BY 1") == [
        (f"orders:{batch}", ROWS) for batch in range(FILES)
    ]
    # As if it had been killed after the commit, before Spark noted that.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    add_file(source, FILES)
    run_stream(spark, dsn, str(source), str(checkpoint), sinkId="orders")
    assert numbers(dsn) == list(range((FILES + 1) * ROWS))
    assert query(dsn, "SELECT count(*) FROM queuert.stream_stage") == [0]
    with pytest.raises(Exception, match=r"WriteConflictError: the sink 'orders' must be written by one query"):
        run_stream(spark, dsn, str(source), str(tmp_path / "another"), sinkId="orders")
    assert numbers(dsn) == list(range((FILES + 1) * ROWS))


def writer(dsn: str, **options: str) -> JobStreamWriter:
    given = parse_options(WriteOptions, {"url": dsn, "jobType": "resize", "sinkId": "s", **options})
    return JobStreamWriter(given, StructType([StructField("n", LongType())]))


def rows(*values: int) -> Iterator[Any]:
    return iter([pa.record_batch({"n": pa.array(values, pa.int64())})])


def test_attempts_that_did_not_win_and_batches_that_come_again_add_nothing(dsn: str, in_batch: Any) -> None:
    in_batch(0)
    one = writer(dsn)
    loser, winner = one.write(rows(1, 2)), one.write(rows(1, 2))
    assert loser != winner
    writer(dsn).commit([winner], 0)
    again = writer(dsn).write(rows(1, 2))
    writer(dsn).commit([again], 0)
    assert numbers(dsn) == [1, 2]
    assert query(dsn, "SELECT count(*) FROM queuert.stream_stage") == [0]


def test_staged_rows_that_are_gone_fail_the_batch(dsn: str, in_batch: Any) -> None:
    in_batch(0)
    message = writer(dsn).write(rows(1, 2))
    writer(dsn).abort([message, None], 0)
    assert query(dsn, "SELECT count(*) FROM queuert.stream_stage") == [0]
    with pytest.raises(StagingLostError):
        writer(dsn).commit([message], 0)
    assert query(dsn, "SELECT count(*) FROM queuert.stream_write") == [0]


def test_an_older_schema_is_refused_and_nothing_is_written(dsn: str, in_batch: Any) -> None:
    migrations.downgrade(dsn, revision=f"{int(REQUIRED_REVISION) - 1:04}")
    in_batch(0)
    message = writer(dsn).write(rows(1, 2))
    with pytest.raises(SchemaMissingError, match="queuert migrate up"):
        writer(dsn).commit([message], 0)
    writer(dsn).abort([message], 0)
    assert numbers(dsn) == []
    for table in ("stream_stage", "stream_write"):
        assert query(dsn, f"SELECT count(*) FROM queuert.{table}") == [0]


def test_another_query_cannot_take_a_sink(dsn: str, in_batch: Any) -> None:
    in_batch(5)
    writer(dsn).commit([writer(dsn).write(rows(1))], 5)
    in_batch(0, "another")
    with pytest.raises(WriteConflictError, match="sinkId of its own"):
        writer(dsn).commit([writer(dsn).write(rows(2))], 0)
    assert numbers(dsn) == [1]
