"""Writes the report: one page from the rollups."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from queuert.spark.history.archive import moment
from queuert.spark.history.files import Files
from queuert.spark.history.page import page
from queuert.spark.history.records import Step, last_watermark, manifests
from queuert.spark.history.rollups import FAILURES, HOURLY, read_rollup
from queuert.spark.history.view_models import Archived, Failure, Hour, Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPORT = "report.html"
_FAILURES = 50
_RUNS = 30


def write_report(spark: SparkSession, files: Files, days: int) -> str:
    """Write the page and return its address."""
    files.write(REPORT, page(collect(spark, files, days)))
    return f"{files.root}/{REPORT}"


def collect(spark: SparkSession, files: Files, days: int) -> Shown:
    """Read the contents of the page, of the last ``days`` days before the watermark."""
    mark = last_watermark(files)
    if mark is None:
        return Shown((), (), _archived(files), None, days, False)
    begin = mark.closed_to - timedelta(days=days)
    hours = [_hour(row) for row in _since(read_rollup(spark, files, HOURLY), begin).orderBy("hour", "type").collect()]
    grouped = (
        _since(read_rollup(spark, files, FAILURES), begin)
        .groupBy("type", "error_kind", "error_type")
        .agg(f.sum("failures").alias("failures"), f.sum("final").alias("final"), f.min("sample").alias("sample"))
    )
    worst = grouped.orderBy(f.desc("failures"), "type", "error_kind", "error_type").limit(_FAILURES).collect()
    failures = [Failure(*row) for row in worst]
    return Shown(hours, failures, _archived(files), mark.closed_to, days, mark.lost)


def _since(frame: DataFrame, begin: datetime) -> DataFrame:
    # The date comes first: it is in the path, so that older files are not opened. Times are numbers, which are in UTC.
    micros = int(begin.timestamp()) * 1_000_000
    recent = frame.where((f.col("date") >= f"{begin:%Y-%m-%d}") & (f.unix_micros("hour") >= micros))
    return recent.withColumn("hour", f.unix_micros("hour"))


def _hour(row: Any) -> Hour:
    waits = (row["wait_p50"], row["wait_p95"], row["wait_p99"])
    runs = (row["run_p50"], row["run_p95"], row["run_p99"])
    return Hour(
        type=row["type"],
        hour=moment(row["hour"]),
        started=row["started"],
        finished=row["finished"],
        failed=row["failed"],
        retried=row["retried"],
        lease_losses=row["lease_losses"],
        waits=waits,
        runs=runs,
        attempts_max=row["attempts_max"],
    )


def _archived(files: Files) -> list[Archived]:
    done = [one for one in manifests(files) if one.step is Step.DONE and one.written.chains]
    return [
        Archived(one.run, one.archived.chains, one.archived.jobs, one.archived.events, len(one.excluded))
        for one in done[-_RUNS:]
    ]
