"""Spark beside the queue. Only this package and the demo import pyspark: install it with ``queuert[spark]``.

Importing the package is cheap and needs neither pyspark nor pyarrow: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from queuert.extras import needing_extras

if TYPE_CHECKING:
    from queuert.spark.datasource import QueuertDataSource as QueuertDataSource
    from queuert.spark.datasource import register as register
    from queuert.spark.read.schemas import with_variants as with_variants
    from queuert.spark.read.snapshots import snapshot as snapshot
    from queuert.spark.requests.driver import request as request
    from queuert.spark.requests.driver import start_rows as start_rows
    from queuert.spark.requests.output_schema import spark_type as spark_type
    from queuert.spark.requests.result_frames import results as results
    from queuert.spark.requests.waiting import ProgressLine as ProgressLine
    from queuert.spark.requests.waiting import WaitProgress as WaitProgress
    from queuert.spark.requests.waiting import chains_of_write as chains_of_write
    from queuert.spark.requests.waiting import wait_all as wait_all
    from queuert.spark.requests.waiting import wait_write as wait_write
    from queuert.spark.scope.progress import SparkProgress as SparkProgress
    from queuert.spark.scope.scope import SparkScope as SparkScope
    from queuert.spark.scope.scope import run_in_scope as run_in_scope
    from queuert.spark.scope.scope import spark_scope as spark_scope
    from queuert.spark.session import configure as configure
    from queuert.spark.session import local_session as local_session
    from queuert.spark.write.enqueueing import WriteResult as WriteResult
    from queuert.spark.write.enqueueing import enqueue as enqueue
    from queuert.spark.write.enqueueing import sweep_staging as sweep_staging

_HOME = {
    "configure": "session",
    "local_session": "session",
    "snapshot": "read.snapshots",
    "with_variants": "read.schemas",
    "QueuertDataSource": "datasource",
    "register": "datasource",
    "WriteResult": "write.enqueueing",
    "enqueue": "write.enqueueing",
    "sweep_staging": "write.enqueueing",
    "ProgressLine": "requests.waiting",
    "SparkProgress": "scope.progress",
    "SparkScope": "scope.scope",
    "WaitProgress": "requests.waiting",
    "chains_of_write": "requests.waiting",
    "request": "requests.driver",
    "results": "requests.result_frames",
    "run_in_scope": "scope.scope",
    "spark_scope": "scope.scope",
    "spark_type": "requests.output_schema",
    "start_rows": "requests.driver",
    "wait_all": "requests.waiting",
    "wait_write": "requests.waiting",
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
    with needing_extras():
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
