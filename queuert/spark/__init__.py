"""Spark beside the queue. Only this package and the demo import pyspark: install it with ``queuert[spark]``.

Importing the package is cheap and needs neither pyspark nor pyarrow: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuert.spark.datasource import QueuertDataSource as QueuertDataSource
    from queuert.spark.datasource import register as register
    from queuert.spark.driver import request as request
    from queuert.spark.driver import start_rows as start_rows
    from queuert.spark.enqueueing import WriteResult as WriteResult
    from queuert.spark.enqueueing import enqueue as enqueue
    from queuert.spark.enqueueing import sweep_staging as sweep_staging
    from queuert.spark.output_schema import spark_type as spark_type
    from queuert.spark.reading_schemas import with_variants as with_variants
    from queuert.spark.result_frames import results as results
    from queuert.spark.scope import SparkScope as SparkScope
    from queuert.spark.scope import run_in_scope as run_in_scope
    from queuert.spark.scope import spark_scope as spark_scope
    from queuert.spark.session import configure as configure
    from queuert.spark.session import local_session as local_session
    from queuert.spark.snapshots import snapshot as snapshot
    from queuert.spark.task_progress import SparkProgress as SparkProgress
    from queuert.spark.waiting import ProgressLine as ProgressLine
    from queuert.spark.waiting import WaitProgress as WaitProgress
    from queuert.spark.waiting import chains_of_write as chains_of_write
    from queuert.spark.waiting import wait_all as wait_all
    from queuert.spark.waiting import wait_write as wait_write

_HOME = {
    "configure": "session",
    "local_session": "session",
    "snapshot": "snapshots",
    "with_variants": "reading_schemas",
    "QueuertDataSource": "datasource",
    "register": "datasource",
    "WriteResult": "enqueueing",
    "enqueue": "enqueueing",
    "sweep_staging": "enqueueing",
    "ProgressLine": "waiting",
    "SparkProgress": "task_progress",
    "SparkScope": "scope",
    "WaitProgress": "waiting",
    "chains_of_write": "waiting",
    "request": "driver",
    "results": "result_frames",
    "run_in_scope": "scope",
    "spark_scope": "scope",
    "spark_type": "output_schema",
    "start_rows": "driver",
    "wait_all": "waiting",
    "wait_write": "waiting",
}

__all__ = [
    "ProgressLine",
    "QueuertDataSource",
    "SparkProgress",
    "SparkScope",
    "WaitProgress",
    "WriteResult",
    "chains_of_write",
    "configure",
    "enqueue",
    "local_session",
    "register",
    "request",
    "results",
    "run_in_scope",
    "snapshot",
    "spark_scope",
    "spark_type",
    "start_rows",
    "sweep_staging",
    "wait_all",
    "wait_write",
    "with_variants",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
