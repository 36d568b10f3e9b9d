"""What drivers do that tests start as processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from queuert.spark import register
from tests.spark.conftest import SPARK_SETTINGS


def session(master: str, **settings: str) -> SparkSession:
    builder: Any = SparkSession.builder.master(master)
    for name, value in {**SPARK_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def wide_rows(spark: SparkSession, rows: int, partitions: int, then: Callable[[], None]) -> Any:
    """Numbers with kilobytes beside each; the first attempt of the first partition does something before its end."""

    def wide(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        context = TaskContext.get()
        assert context is not None
        for number in numbers:
            yield number, "x" * 8_000
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            then()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    spread = spark.sparkContext.parallelize(range(rows), partitions).mapPartitions(wide)
    return spark.createDataFrame(spread, "n long, pad string")


def run_stream(spark: SparkSession, dsn: str, source: str, checkpoint: str, **options: str) -> None:
    """Write all files of a directory, one a micro-batch."""
    register(spark)
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(source)
    writer = rows.writeStream.format("queuert").options(url=dsn, jobType="resize", **options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
