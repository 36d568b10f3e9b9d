"""Executors in processes of their own, to which the package comes as a zip, as with ``spark-submit --py-files``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import psycopg
import pytest

from tests.spark.conftest import ROOT, spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DRIVER = """
    import sys
    from pyspark.sql import SparkSession
    from queuert import JobType
    from queuert.spark import enqueue

    package, dsn = sys.argv[1:]
    builder = SparkSession.builder.master("local-cluster[2,1,640]")
    settings = {
        "executor.memory": "512m", "ui.enabled": "false", "log.level": "OFF", "ui.showConsoleProgress": "false",
        "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config("spark." + name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.addPyFile(package)

    def places(_):
        import queuert

        return [queuert.__file__]

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(places).collect()
    print("executors have it from the zip:", all("queuert.zip" in one for one in found))
    job = JobType("job", input=int, output=int)
    print(enqueue(spark.range(10).selectExpr("id as input"), job, url=dsn).rows, "rows")
    spark.stop()
"""


def test_a_cluster_writes_with_the_package_in_a_zip(dsn: str, tmp_path: Path) -> None:
    package = tmp_path / "queuert.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in (ROOT / "queuert").rglob("*"):
            if path.suffix in (".py", ".sql"):
                archive.write(path, path.relative_to(ROOT))
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(package), dsn]
    environment = {**os.environ, **spark_environment()}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=550, check=False
    )
    assert done.stdout == "executors have it from the zip: True\n10 rows\n", done.stderr
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from queuert.job where status = 'ready'").fetchone()
    assert row == (10,)
