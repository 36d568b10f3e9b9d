"""One Spark session for all tests of this directory: it takes seconds to start, and hardly any time to use.

With xdist each process has one: keep the tests of a file together. A test that needs other settings (retries, a
cluster, a driver to be killed) starts a child process, with the settings of ``SPARK_SETTINGS`` changed where it must.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert.spark.java import JavaMissingError, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.harness import PostgresHarness

ROOT = Path(__file__).resolve().parents[2]

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # Few rows never pay for the compilation of what is run on them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.task.killTimeout": "200ms",
    "spark.scheduler.mode": "FAIR",
    "spark.shuffle.compress": "false",
    "spark.broadcast.compress": "false",
}
"""What keeps a session small, quick to start, and off the network."""


@functools.cache
def spark_environment() -> dict[str, str]:
    """What a process that starts Spark needs in its environment: a Java, this Python, and this source tree.

    Skips the test for want of a Java, or fails it where servers are required.
    """
    try:
        java = find_java()
    except JavaMissingError as error:
        if os.environ.get("QUEUERT_REQUIRE_SERVERS") == "1":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    python_path = [str(Path(__file__).parent / "quick"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAVA_HOME": str(java.path),
        # A test's JVM lives for seconds: what makes it quick later would only make it slow to start.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(python_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


LONG = ("test_killed_driver.py", "test_programs.py", "test_cluster.py")
"""Files that are begun with, so that no process waits for another one's long file at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; the others stay in the order that they have.

    Any test with a session may be the one that starts it, whose time that is: none has the limit of others.
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session in this process, started when first asked for. A task that fails is tried once more."""
    pytest.importorskip("pyspark")
    environment = spark_environment()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        from queuert.spark.session import local_session

        warehouse = str(tmp_path_factory.mktemp("spark-warehouse"))
        session = local_session("2,2", settings={**SPARK_SETTINGS, "spark.sql.warehouse.dir": warehouse})
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture
async def harness(dsn: str, spark: SparkSession) -> AsyncIterator[PostgresHarness]:
    """A client and workers; afterwards Spark is idle."""
    from tests.spark.scope_support import idle
    from tests.support.harness import PostgresHarness

    harness = PostgresHarness(dsn)
    try:
        yield harness
    finally:
        await harness.close()
        await idle(spark)


class _TaskContext:
    """In the place of that of a task of a streaming query."""

    def __init__(self, query: str, batch: int) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return self._properties[name]

    def partitionId(self) -> int:  # noqa: N802
        return 0


@pytest.fixture
def in_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that puts what follows into a micro-batch, by its number, of a query, without a session."""
    from pyspark import TaskContext

    def enter(number: int, query: str = "q") -> None:
        monkeypatch.setattr(TaskContext, "get", lambda: _TaskContext(query, number))

    return enter
