"""A driver that is killed while it archives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert.spark.history import run_archive
from tests.spark.conftest import spark_environment
from tests.spark.history_support import add_chains, archived, left
from tests.spark.support import wait_for_no_clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def test_killed_while_deleting(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """When some are deleted and others are not, the next run goes on: all are in the archive, each once."""
    add_chains(dsn, 12)
    jobs = left(dsn)
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "history_child.py"), dsn, str(tmp_path), "archive.deleting"],
        env={**os.environ, **spark_environment()}, start_new_session=True, capture_output=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    # The first five chains, of which two have a second job.
    assert len(left(dsn)) == len(jobs) - 7
    wait_for_no_clients(dsn)
    results = run_archive(spark, dsn, str(tmp_path), older_than=0, partitions=1)
    assert [(one.resumed, one.chains, one.jobs) for one in results] == [(True, 12, 16), (False, 0, 0)]
    assert (archived(tmp_path, "jobs"), left(dsn)) == (jobs, [])
