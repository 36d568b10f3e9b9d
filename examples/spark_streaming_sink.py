"""A stream as jobs: each micro-batch once, though the query is started again from its checkpoint.

Needs ``queuert[spark]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... python -m examples.spark_streaming_sink``.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.spark import local_session, register

index_picture: JobType[dict[str, str], None] = JobType("index_picture", input=dict[str, str], output=None)


def run(spark: SparkSession, folder: Path) -> None:
    """Write what is new in a folder, and stop."""
    pictures = spark.readStream.schema("url string").json(str(folder / "new"))
    sink = pictures.writeStream.format("queuert").option("urlEnv", "QUEUERT_URL").option("jobType", "index_picture")
    sink = sink.option("sinkId", "pictures").option("checkpointLocation", str(folder / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()


def add(folder: Path, name: str, count: int) -> None:
    lines = [json.dumps({"url": f"https://example.org/{name}/{number}"}) for number in range(count)]
    (folder / "new" / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    spark = local_session(2, settings={"spark.log.level": "OFF"})
    register(spark)
    client = Client(PostgresState(os.environ["QUEUERT_URL"]), JobTypes(index_picture))
    with tempfile.TemporaryDirectory() as name, client:
        folder = Path(name)
        (folder / "new").mkdir()
        for added in ("monday", "tuesday"):
            add(folder, added, 3)
            run(spark, folder)
            run(spark, folder)  # as after a crash: nothing comes twice
            print(f"after {added}: {sum(one.count for one in client.count_jobs())} jobs")
    spark.stop()


if __name__ == "__main__":
    main()
