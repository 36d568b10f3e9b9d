"""Rollups of the hour that is not over: there when asked for, and made again when it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert.spark.history import run_report, run_rollup
from tests.spark.history_support import LOG, run
from tests.spark.read_support import add_event, connected
from tests.spark.support import query
from tests.spark.test_history_rollup import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def test_the_current_hour_is_there_when_requested_for(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    run(dsn, LOG, count=30)
    with connected(dsn) as connection:
        now = datetime.now(UTC)
        add_event(connection, "now", "started", type="now", due=now, started=now)
    through = run_rollup(spark, dsn, str(tmp_path), partitions=1).through
    check(dsn, tmp_path, through)
    # The watermark has passed the event by, and it is found all the same; twice is once.
    for _ in range(2):
        through = run_rollup(spark, dsn, str(tmp_path), partitions=1, current_hour=True).through
        assert through.minute == 0
        check(dsn, tmp_path, datetime.now(UTC) + timedelta(hours=1))
    page = Path(run_report(spark, str(tmp_path), days=1).removeprefix("file:")).read_text("utf-8")
    assert ">now<" in page
    # Unless it has ended while this test ran.
    [happened] = query(dsn, "SELECT happened_at FROM queuert.event WHERE job_id = 'now'")
    assert ("the hour that is not over" in page) is (happened >= through)
