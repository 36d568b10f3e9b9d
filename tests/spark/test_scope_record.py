"""Spark's progress as the job's own: seen from outside while the handler runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert import Attempt, Outcome
from queuert.spark import spark_scope
from tests.spark.scope_support import WAIT
from tests.spark.test_scope_progress import four_tasks, harness
from tests.support.harness import PostgresHarness
from tests.support.job_types import number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["harness"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


async def test_tasks_are_the_progress_of_the_job(harness: PostgresHarness, spark: SparkSession, tmp_path: Path) -> None:
    gate = tmp_path / "go on"

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark, every=0.05):
            return four_tasks(spark, gate)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        async with asyncio.timeout(WAIT):
            while (reported := (await harness.job(chain.id)).progress) is None or not reported.done:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert 0 < reported.done < (reported.total or 0) == 4
        assert reported.fraction == reported.done / 4
        gate.touch()
        assert await chain.result(WAIT) == 4
