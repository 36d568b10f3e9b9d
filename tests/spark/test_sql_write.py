"""Jobs by INSERT, in Spark's SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuert.spark import register
from tests.spark.support import numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_an_insert_into_a_view(spark: SparkSession, dsn: str) -> None:
    """The view says what columns there are, and the options; the write is one, however often it is repeated."""
    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW new_jobs (n INT) USING queuert "
        f"OPTIONS (jobType 'resize', writeId 'by SQL', url '{dsn}')"
    )
    for _ in range(2):
        spark.sql("INSERT INTO new_jobs SELECT id FROM range(3)")
    assert numbers(dsn) == [0, 1, 2]
