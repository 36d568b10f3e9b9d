"""Spark writes to and reads from a database whose settings are all unusual."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from queuert.spark import enqueue
from tests.spark.read_support import read
from tests.spark.support import numbers, query
from tests.support.unusual_settings import make_unusual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_rows_become_jobs_and_jobs_become_rows(spark: SparkSession, dsn: str) -> None:
    url = make_unusual(dsn)
    before = datetime.now(UTC)
    rows = spark.sql(
        "SELECT id AS n, IF(id % 2 = 0, NULL, concat('k', id)) AS limit_key, "
        "timestamp'2030-05-06 07:08:09' AS schedule_at FROM range(7)"
    )
    assert enqueue(rows, "resize", url=url, write_id="once").rows == 7
    assert numbers(url) == list(range(7))
    assert query(url, "SELECT count(*) FROM queuert.job WHERE limit_key IS NULL") == [4]
    found = read(spark, url, "events").select("scheduled_at", "happened_at").collect()
    assert len(found) == 7
    # Spark's session is in UTC, and collects times in the zone of the machine.
    assert {row["scheduled_at"].astimezone(UTC) for row in found} == {datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)}
    assert all(abs(row["happened_at"].astimezone(UTC) - before) < timedelta(minutes=10) for row in found)
