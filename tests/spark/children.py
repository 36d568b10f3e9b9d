"""Drivers that tests start as processes of their own, to kill them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from queuert.spark import enqueue, register
from tests.spark.conftest import SPARK_SETTINGS
from tests.spark.support import wait_for_staged_rows


def session(master: str, **settings: str) -> SparkSession:
    builder: Any = SparkSession.builder.master(master)
    for name, value in {**SPARK_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def write(dsn: str, rows: int, write_id: str) -> None:
    spark = session("local[2]")
    enqueue(spark.range(rows).toDF("n"), "resize", url=dsn, write_id=write_id, lock_timeout=0)


def write_while_executors_die(dsn: str, rows: int) -> None:
    """An executor is killed when its task has staged some megabytes."""
    spark = session("local-cluster[2,1,1024]", **{"spark.executor.memory": "512m"})
    enqueue(wide_rows(spark, rows, 2, then=partial(_kill_executor, dsn)), "resize", url=dsn)


def _kill_executor(dsn: str) -> None:
    wait_for_staged_rows(dsn)
    os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


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


def stream(dsn: str, source: str, checkpoint: str) -> None:
    spark = session("local[2]")
    run_stream(spark, dsn, source, checkpoint, lockTimeout="0")


def run_stream(spark: SparkSession, dsn: str, source: str, checkpoint: str, **options: str) -> None:
    """Write all files of a directory, one a micro-batch."""
    register(spark)
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(source)
    writer = rows.writeStream.format("queuert").options(url=dsn, jobType="resize", **options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    globals()[sys.argv[1]](**json.loads(sys.argv[2]))
