"""Executors in processes of their own, to which the package comes as a zip, as with ``spark-submit --py-files``."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from queuert.testing.databases import TemplateDatabases
from tests.spark.conftest import ROOT
from tests.spark.support import TIMEOUT, module, numbers, query, stages

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(1800)]

ROWS = 4_000
"""At eight kilobytes each, more than is staged at a time, in each of two tasks."""


def test_a_cluster_writes_with_the_package_in_a_zip_though_an_executor_is_killed(
    dsn: str, template_databases: TemplateDatabases, tmp_path: Path
) -> None:
    package = tmp_path / "queuert.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in (ROOT / "queuert").rglob("*"):
            if path.suffix in (".py", ".sql"):
                archive.write(path, path.relative_to(ROOT))
    with template_databases.database() as other:
        with module("tests.spark.cluster_child", str(package), str(ROWS)) as child:
            output, _ = child.communicate(f"{dsn}\n{other}\n", timeout=TIMEOUT)
        assert output == f"executors have it from the zip: True\n10 rows\n{ROWS} rows\n"
        assert query(dsn, "SELECT count(*) FROM queuert.job WHERE status = 'ready'") == [10]
        assert numbers(other) == list(range(ROWS))
        assert stages(other) == []
