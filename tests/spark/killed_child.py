"""A driver with several pieces of work, each in a thread and a database of its own, that all get stuck, to be killed.

Each comes as a line on standard input, ``[name, arguments]`` as JSON; the names are the keys of ``WORK``, with anything
behind a colon. What gets stuck in the driver, and not in the database, says so in a line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from queuert.spark import enqueue, register
from queuert.spark.history import Progress, run_archive
from tests.spark.children import run_stream, session


def write(spark: SparkSession, name: str, dsn: str) -> None:
    """Rows as jobs, until a lock holds up the commit."""
    enqueue(spark.range(200).toDF("n"), "resize", url=dsn, write_id="once", lock_timeout=0)


def stream(spark: SparkSession, name: str, dsn: str, source: str, checkpoint: str) -> None:
    """A stream as jobs, until a lock holds up the commit of a micro-batch."""
    run_stream(spark, dsn, source, checkpoint, lockTimeout="0")


def read(spark: SparkSession, name: str, dsn: str, folder: str, before: int = -1, after: int = -1) -> None:
    """Events as files, until before or after that of one batch."""
    register(spark)
    read_stream(spark, dsn, folder, lambda batch, written: hang(name) if batch == (before, after)[written] else None)


def read_stream(spark: SparkSession, dsn: str, folder: str, at: Callable[[int, bool], None]) -> None:
    """Read events to where the log ends, a file for each batch; a batch that is repeated writes its file anew."""

    def written(frame: DataFrame, batch: int) -> None:
        at(batch, False)
        rows = [[row["tx"], row["seq"], row["job_id"]] for row in frame.collect()]
        (Path(folder) / f"batch-{batch}.json").write_text(json.dumps(rows))
        at(batch, True)

    reader = spark.readStream.format("queuert").option("url", dsn).option("table", "events")
    reader = reader.option("maxRowsPerBatch", 4).option("numPartitions", 2)
    writer = reader.load().writeStream.foreachBatch(written).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


def archive(spark: SparkSession, name: str, dsn: str, output: str, step: str) -> None:
    """Closed chains as files, until it tells of a step."""

    def reported(progress: Progress) -> None:
        if progress.step == step:
            hang(name)

    run_archive(spark, dsn, output, older_than=0, partitions=1, batch=5, on_progress=reported)


def hang(name: str) -> None:
    """Tell the parent, and stay."""
    print(name, flush=True)
    while True:
        time.sleep(60)


WORK: dict[str, Callable[..., None]] = {"write": write, "stream": stream, "read": read, "archive": archive}


def run(spark: SparkSession, name: str, arguments: dict[str, Any]) -> None:
    """Do a piece of work, which does not come to its end."""
    WORK[name.partition(":")[0]](spark, name, **arguments)
    raise AssertionError(f"{name} did not get stuck")


def fail(arguments: threading.ExceptHookArgs) -> None:
    """End at once when a piece fails, so that nobody waits for it."""
    sys.__excepthook__(arguments.exc_type, arguments.exc_value or arguments.exc_type(), arguments.exc_traceback)
    os._exit(1)


def main() -> None:
    spark = session("local[4]")
    threading.excepthook = fail
    for line in sys.stdin:
        name, arguments = json.loads(line)
        threading.Thread(target=run, args=(spark, name, arguments)).start()


if __name__ == "__main__":
    main()
