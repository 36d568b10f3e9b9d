"""The examples of handlers that run Spark and of drivers, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT, spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

PRINTS = {
    "spark_job_step": """\
the total is 5050
was cancelled: nobody wants it any more
Spark jobs that run: 0
""",
    "spark_requests": """\
France completed Paris 5
Japan completed Tokyo 5
Atlantis failed there is no Atlantis\x20
Peru completed Lima 4
""",
}


@pytest.mark.parametrize("name", PRINTS)
def test_example(name: str, dsn: str) -> None:
    environment = {**os.environ, **spark_environment(), "QUEUERT_URL": dsn}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr
    if name == "spark_requests":
        assert "4 of 4 chains closed, 1 failed" in done.stderr
