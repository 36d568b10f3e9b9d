"""Spark's tasks are a job's progress."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuert import Attempt, Outcome
from queuert.observability.events import SparkProgressed, SparkUnreachable
from queuert.spark.handlers import scope as scope_module
from queuert.spark.handlers.progress import CAP, SparkProgress, TaskCounts
from queuert.spark.handlers.scope import spark_scope
from tests.spark.scope_support import WAIT
from tests.support.harness import PostgresHarness
from tests.support.job_types import number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
async def harness(dsn: str) -> AsyncIterator[PostgresHarness]:
    """A client and workers."""
    harness = PostgresHarness(dsn)
    try:
        yield harness
    finally:
        await harness.close()


def four_tasks(spark: SparkSession, gate: Path) -> int:
    """Four tasks for two slots: two that take a moment, and two that wait for a file.

    They end one after the other: Spark writes down one change of a harness in a tenth of a second, and others later.
    """

    def waiting(index: int, rows: Iterable[int]) -> Iterable[int]:
        time.sleep(0.3 * (index + 1))
        while index > 1 and not gate.exists():
            time.sleep(0.02)
        return rows

    return int(spark.sparkContext.parallelize(range(4), 4).mapPartitionsWithIndex(waiting).count())


def gated_tasks(spark: SparkSession, gate: Path, tasks: int) -> int:
    """Tasks that wait for a file: whoever makes it when there is progress knows that Spark has noted their job."""

    def waiting(rows: Iterable[int]) -> Iterable[int]:
        while not gate.exists():
            time.sleep(0.02)
        return rows

    return int(spark.sparkContext.parallelize(range(20), tasks).mapPartitions(waiting).count())


async def test_progress_grows_and_ends(
    harness: PostgresHarness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long Spark takes to note the end of its last job.
    monkeypatch.setattr(scope_module, "_LAST_LOOKS", round(WAIT / scope_module._BETWEEN_LAST_LOOKS))
    monkeypatch.setattr(scope_module, "_TIMEOUT", WAIT)
    seen: list[SparkProgress] = []
    gate = tmp_path / "go on"

    def hear(progress: SparkProgress) -> None:
        seen.append(progress)
        if progress.done:
            gate.touch()

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark, on_progress=hear, every=0.05, observability=harness.log) as scope:
            rows = four_tasks(spark, gate) + spark.range(100, numPartitions=3).distinct().count()
        assert scope.progress == seen[-1]
        return rows

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 104
    assert any(0 < one.done < one.known == 4 for one in seen)
    fractions = [one.fraction for one in seen]
    assert fractions == sorted(fractions)
    last = seen[-1]
    assert (last.done, last.active, last.fraction) == (last.known, 0, CAP)
    reported = harness.log.of(SparkProgressed, job_id=chain.id, attempt=1)
    assert [(one.done, one.known, one.active, one.fraction) for one in reported] == [
        (one.done, one.known, one.active, one.fraction) for one in seen
    ]


async def test_two_handlers_have_each_their_own_progress(
    harness: PostgresHarness, spark: SparkSession, tmp_path: Path
) -> None:
    known: dict[int, int] = {}
    both = threading.Barrier(2)

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        gate = tmp_path / str(attempt.input)
        with spark_scope(attempt, spark, on_progress=lambda _: gate.touch(), every=0.05) as scope:
            both.wait(WAIT)
            gated_tasks(spark, gate, attempt.input)
        known[attempt.input] = scope.progress.known
        return 1

    async with harness.worker(concurrency=2):
        chains = [await harness.client.start_chain(number, tasks) for tasks in (3, 5)]
        await harness.client.wait(chains, timeout=WAIT)
    assert known == {3: 3, 5: 5}


async def test_a_callback_that_raises_is_reported_and_disturbs_nothing(
    harness: PostgresHarness, spark: SparkSession, tmp_path: Path
) -> None:
    gate = tmp_path / "go on"

    def raises(_: SparkProgress) -> None:
        gate.touch()
        raise ValueError("from a callback")

    @harness.processors.handles(number)
    def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with spark_scope(attempt, spark, on_progress=raises, every=0.05, observability=harness.log):
            return gated_tasks(spark, gate, 2)

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        assert await chain.result(WAIT) == 20
    reported = harness.log.of(SparkUnreachable, job_id=chain.id)
    assert {(one.operation, "from a callback" in one.error) for one in reported} == {("progress", True)}


def test_the_share_never_falls_and_never_says_that_all_is_done() -> None:
    progress, shares = SparkProgress(), []
    for done, known in ((0, 0), (2, 4), (4, 4), (4, 40), (39, 40)):
        progress = progress.advanced(TaskCounts(done, known))
        shares.append(progress.fraction)
    assert shares == [0.0, 0.5, CAP, CAP, CAP]
    assert (progress.done, progress.known) == (39, 40)
