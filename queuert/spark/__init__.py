"""Reads and writes jobs with Spark, and runs Spark in handlers. Only this package and the demo import pyspark: install
it with ``queuert[spark]``.

Importing the package is cheap and needs neither pyspark nor pyarrow: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from queuert.optional_packages import needing_extras

if TYPE_CHECKING:
    from queuert.spark.datasource import QueuertDataSource as QueuertDataSource
    from queuert.spark.datasource import register as register
    from queuert.spark.driver.driver import request as request
    from queuert.spark.driver.driver import start_rows as start_rows
    from queuert.spark.driver.output_schema import spark_type as spark_type
    from queuert.spark.driver.result_frames import results as results
    from queuert.spark.driver.waiting import ProgressLine as ProgressLine
    from queuert.spark.driver.waiting import WaitProgress as WaitProgress
    from queuert.spark.driver.waiting import chains_of_write as chains_of_write
    from queuert.spark.driver.waiting import wait_all as wait_all
    from queuert.spark.driver.waiting import wait_write as wait_write
    from queuert.spark.handlers.progress import SparkProgress as SparkProgress
    from queuert.spark.handlers.scope import SparkScope as SparkScope
    from queuert.spark.handlers.scope import run_in_scope as run_in_scope
    from queuert.spark.handlers.scope import spark_scope as spark_scope
    from queuert.spark.read.schemas import with_variants as with_variants
    from queuert.spark.read.snapshots import snapshot as snapshot
    from queuert.spark.session import configure as configure
    from queuert.spark.session import local_session as local_session
    from queuert.spark.write.enqueue import WriteResult as WriteResult
    from queuert.spark.write.enqueue import enqueue as enqueue
    from queuert.spark.write.enqueue import sweep_staging as sweep_staging

_HOME = {
    "configure": "session",
    "local_session": "session",
    "snapshot": "read.snapshots",
    "with_variants": "read.schemas",
    "QueuertDataSource": "datasource",
    "register": "datasource",
    "WriteResult": "write.enqueue",
    "enqueue": "write.enqueue",
    "sweep_staging": "write.enqueue",
    "ProgressLine": "driver.waiting",
    "SparkProgress": "handlers.progress",
    "SparkScope": "handlers.scope",
    "WaitProgress": "driver.waiting",
    "chains_of_write": "driver.waiting",
    "request": "driver.driver",
    "results": "driver.result_frames",
    "run_in_scope": "handlers.scope",
    "spark_scope": "handlers.scope",
    "spark_type": "driver.output_schema",
    "start_rows": "driver.driver",
    "wait_all": "driver.waiting",
    "wait_write": "driver.waiting",
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
