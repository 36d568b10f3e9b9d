"""A driver with executors in processes of their own, to which the package comes as a zip.

``python -m tests.spark.cluster_child PACKAGE URL ROWS URL``: a small write into the first database, and into the second
one such that an executor is killed when its task has staged some megabytes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from queuert import JobType
from queuert.spark import enqueue
from tests.spark.children import session, wide_rows
from tests.spark.support import wait_for_staged_rows

job = JobType("job", input=int, output=int)


def places(_: Iterable[int]) -> list[str]:
    """Where a task has the package from."""
    import queuert

    return [queuert.__file__]


def kill_executor(dsn: str) -> None:
    """Kill the JVM of the task that this is called in: the parent of its process's parent."""
    wait_for_staged_rows(dsn)
    os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


def main(package: str, rows: str) -> None:
    first, second = sys.stdin.read().split()  # Others can see arguments.
    spark = session("local-cluster[2,1,640]", **{"spark.executor.memory": "512m"})
    spark.sparkContext.addPyFile(package)
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(places).collect()
    print("executors have it from the zip:", all("queuert.zip" in one for one in found))
    print(enqueue(spark.range(10).selectExpr("id as input"), job, url=first).rows, "rows")
    frame = wide_rows(spark, int(rows), 2, then=partial(kill_executor, second))
    print(enqueue(frame, "resize", url=second).rows, "rows", flush=True)
    os._exit(0)  # it is killed with all that it has started; leaving them would take longer


if __name__ == "__main__":
    main(*sys.argv[1:])
