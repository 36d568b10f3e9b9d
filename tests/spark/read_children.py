"""Drivers that read, in processes of their own: ``python -m tests.spark.read_children NAME {arguments as JSON}``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from queuert.spark.session import local_session
from tests.spark.conftest import SPARK_SETTINGS


def say(**said: Any) -> None:
    """One line for the parent."""
    print(json.dumps(said), flush=True)


def stream(url: str, folder: str, hang: dict[str, int]) -> None:
    """Read events to where the log ends, a file for each batch; hang before or after that file of one batch.

    A batch that is repeated writes its file anew, as a sink does that knows batches.
    """
    spark = local_session(2, settings=SPARK_SETTINGS)

    def write(frame: DataFrame, batch: int) -> None:
        if hang.get("before") == batch:
            wait_to_be_killed("before")
        rows = [[row["tx"], row["seq"], row["job_id"]] for row in frame.collect()]
        (Path(folder) / f"batch-{batch}.json").write_text(json.dumps(rows))
        if hang.get("after") == batch:
            wait_to_be_killed("after")

    reader = spark.readStream.format("queuert").option("url", url).option("table", "events")
    reader = reader.option("maxRowsPerBatch", 4).option("numPartitions", 2)
    writer = reader.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    query.awaitTermination()
    say(done=True)


def wait_to_be_killed(where: str) -> None:
    """Tell the parent, and stay."""
    say(ready=where)
    while True:
        time.sleep(60)


def session(url: str) -> None:
    """What a session is like, and what it reads of one job, in whatever time zone this process is."""
    spark = local_session(1, settings={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.driver.memory": "512m"})
    frame = spark.read.format("queuert").option("url", url).option("columns", "id,created_at,input").load()
    [row] = frame.toArrow().to_pylist()
    jvm: Any = spark._jvm
    naive = frame.collect()[0]["created_at"]
    assert isinstance(naive, datetime)
    say(
        java=jvm.java.lang.System.getProperty("java.version"),
        java_home=jvm.java.lang.System.getProperty("java.home"),
        settings={name: spark.conf.get(name) for name in SEEN},
        mode=spark.sparkContext.getConf().get("spark.scheduler.mode"),
        moment=row["created_at"].isoformat(),
        local=naive.isoformat(),
        day=str(frame.selectExpr("to_date(created_at)").collect()[0][0]),
        udf=frame.rdd.map(lambda one: len(one["input"])).sum(),
    )


SEEN = ("spark.python.task.killTimeout", "spark.sql.python.filterPushdown.enabled", "spark.driver.host")

CHILDREN: dict[str, Callable[..., None]] = {"stream": stream, "session": session}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](**json.loads(sys.argv[2]))
