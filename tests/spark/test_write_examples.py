"""The examples of writing are run as a reader would run them; what Spark finds the source by cannot raise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT, spark_environment
from tests.spark.support import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PRINTS = {
    "spark_batch_sink": """\
1 of 3 rows are no valid jobs: partition 1, row 1 (id 'order 3'): input.amount: Input should be greater than 0
2 of 3 rows are jobs
2 of 3 rows are jobs
order 3 is not: input.amount: Input should be greater than 0
""",
    "spark_streaming_sink": """\
after monday: 3 jobs
after tuesday: 6 jobs
""",
}


@pytest.mark.parametrize("name", PRINTS)
def test_prints_what_it_promises(dsn: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env={**os.environ, **spark_environment(), "QUEUERT_URL": dsn},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTS[name]


@pytest.mark.parametrize(
    ("before", "names"),
    [
        ("", "['DefaultSource']"),
        ("sys.modules['pyspark'] = None;", "[]"),
        ("sys.modules['pydantic'] = None;", "[]"),
    ],
    ids=["all is there", "no pyspark", "no pydantic"],
)
def test_the_module_that_spark_looks_into_never_raises(before: str, names: str) -> None:
    program = f"import sys; {before} import pyspark_queuert; print(pyspark_queuert.__all__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == names


def test_the_package_is_imported_without_spark() -> None:
    program = "import sys, queuert.spark; print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
