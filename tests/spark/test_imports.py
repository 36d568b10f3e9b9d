"""What Spark finds the source by cannot raise, and the package needs no Spark to be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.spark]


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


@pytest.mark.quick
def test_the_package_is_imported_without_spark() -> None:
    program = "import sys, queuert.spark; print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
