"""Rollups: statistics of the jobs of each type in each hour (UTC), from the event log.

Percentiles cannot be combined, so a day is always rolled up as a whole, from all its events. Days are replaced in the
output one by one; the watermark is written last, so that a run that died is repeated with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from queuert.spark.history.files import Files
from queuert.spark.history.records import Watermark, add_watermark, last_watermark
from queuert.spark.history.results import RollupResult
from queuert.spark.history.source import Place
from queuert.spark.read.sql import FINISHES
from queuert.state.postgres.history import HistoryFacts, event_dates

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOURLY = "rollups/hourly"
FAILURES = "rollups/failures"
_SAMPLE = 200
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SCHEMAS = {
    HOURLY: (
        "type string, hour timestamp, created bigint, started bigint, released bigint, finished bigint, "
        "completed bigint, continued bigint, retried bigint, failed bigint, cancelled bigint, interrupted bigint, "
        "waiting bigint, snoozed bigint, lease_losses bigint, reaped bigint, per_second double, wait_p50 double, "
        "wait_p95 double, wait_p99 double, run_p50 double, run_p95 double, run_p99 double, attempts_avg double, "
        "attempts_max int, date string"
    ),
    FAILURES: (
        "type string, hour timestamp, error_kind string, error_type string, failures bigint, final bigint, "
        "sample string, date string"
    ),
}
"""The columns of the rollups in Spark. Waits and runs are in seconds; the date is in UTC and part of the path."""

_READ = (
    "kind", "status", "type", "attempt", "happened_at", "scheduled_at", "started_at", "worker", "error",
)  # fmt: skip


def roll_up(place: Place, *, current_hour: bool = False) -> RollupResult:
    """Write the days with new events, with all their hours that have ended; with ``current_hour`` also the present
    hour.

    The watermark excludes an hour that has not ended: it is written again when it has.
    """
    before = last_watermark(place.files)
    facts = place.facts
    closed_to = facts.now.replace(minute=0, second=0, microsecond=0)
    until = facts.now if current_hour else closed_to
    lost = before is not None and facts.dropped >= before.tx
    dates = event_dates(place.session, before.tx if before is not None else 0, facts.tx, until)
    if before is not None and _went_back(before, facts):
        # Events that were rolled up may be lost, and new events may have transaction numbers below the watermark.
        place.step("rollup.anew", "the log goes on from an earlier transaction since a failover: all its days anew")
        dates += _days(facts.first_day, facts.now.date())
    if before is not None and closed_to > before.closed_to:
        # Hours that had not ended at the last run were not written.
        dates += _days(before.closed_to.date(), (closed_to - timedelta(microseconds=1)).date())
    if current_hour:
        # Also without new events, since the last run may have left it out.
        dates += _days(closed_to.date(), facts.now.date())
    # Retention may have dropped a part of older days: what is written of them already is better.
    dates = sorted({one for one in dates if one >= facts.first_day})
    if before is not None and not dates and closed_to <= before.closed_to:
        place.step("rollup.nothing", "nothing to roll up")
        return RollupResult((), before.closed_to, 0, lost)
    place.step(
        "rollup.planned",
        f"{len(dates)} {'day' if len(dates) == 1 else 'days'} to roll up, all hours before {until:%Y-%m-%d %H:%M}Z",
    )
    rows = _write(place, dates, until) if dates else 0
    place.step("rollup.written", f"{rows:,} rows of types and hours")
    written = [one.isoformat() for one in dates]
    add_watermark(
        place.files,
        Watermark(
            tx=facts.tx, timeline=facts.timeline, closed_to=closed_to, dates=tuple(written), rows=rows, lost=lost
        ),
    )
    return RollupResult(written, closed_to, rows, lost)


def _went_back(before: Watermark, facts: HistoryFacts) -> bool:
    """Whether the log may lack events that the watermark includes, because a standby was promoted."""
    return before.tx > facts.tx or before.timeline not in (None, facts.timeline)


def _write(place: Place, dates: list[date], until: datetime) -> int:
    spans = [
        place.read(
            "events",
            columns=_READ,
            to_tx=place.facts.tx,
            happened_from=_midnight(first).isoformat(),
            happened_to=min(_midnight(last + timedelta(days=1)), until).isoformat(),
        )
        for first, last in spans_of(dates)
    ]
    events = reduce(lambda one, other: one.unionAll(other), spans).withColumns(_marks()).persist()
    try:
        for table, frame in ((HOURLY, hourly(events)), (FAILURES, failures(events))):
            dated = frame.withColumn("date", f.date_format("hour", "yyyy-MM-dd"))
            writer = dated.repartition("date").sortWithinPartitions("date", "type", "hour").write.partitionBy("date")
            writer.mode("overwrite").option("partitionOverwriteMode", "dynamic").parquet(place.path(table))
    finally:
        events.unpersist()
    return read_rollup(place.spark, place.files, HOURLY, [one.isoformat() for one in dates]).count()


def spans_of(dates: Iterable[date]) -> list[tuple[date, date]]:
    """Return sorted days as spans without gaps, each by its first and its last day."""
    spans: list[tuple[date, date]] = []
    for one in dates:
        if spans and one == spans[-1][1] + timedelta(days=1):
            spans[-1] = (spans[-1][0], one)
        else:
            spans.append((one, one))
    return spans


def _seconds(end: str, start: str) -> Column:
    return (f.unix_micros(end) - f.unix_micros(start)) / 1_000_000


def _ended() -> Column:
    return f.col("kind").isin(*FINISHES) & f.col("worker").isNotNull()


def _marks() -> dict[str, Column]:
    # For an expired lease it is unknown how long the attempt ran.
    ran = _ended() & (f.col("kind") != "lease_expired")
    job_ended = f.col("kind").isin("completed", "continued", "failed", "cancelled") | (
        (f.col("kind") == "lease_expired") & (f.col("status") == "failed")
    )
    return {
        "hour": f.date_trunc("hour", "happened_at"),
        "wait": f.when(f.col("kind") == "started", _seconds("started_at", "scheduled_at")),
        "run": f.when(ran, _seconds("happened_at", "started_at")),
        "tries": f.when(job_ended & (f.col("attempt") > 0), f.col("attempt")),
    }


def hourly(events: DataFrame) -> DataFrame:
    """Return a row for each type and hour: see ``docs/spark.md`` for the columns."""
    lost = f.col("kind") == "lease_expired"
    counts = {name: f.col("kind") == name for name in ("created", "started", "released")}
    counts["finished"] = _ended()
    counts |= {name: f.col("kind") == name for name in ("completed", "continued", "retried")}
    counts["failed"] = (f.col("kind") == "failed") | (lost & (f.col("status") == "failed"))
    counts |= {name: f.col("kind") == name for name in ("cancelled", "interrupted", "waiting", "snoozed")}
    counts["lease_losses"] = lost
    counts["reaped"] = lost & (f.col("status") != "failed")
    shares = f.array(*map(f.lit, _PERCENTILES.values()))
    grouped = events.groupBy("type", "hour").agg(
        *(f.count_if(condition).alias(name) for name, condition in counts.items()),
        f.percentile("wait", shares).alias("wait"),
        f.percentile("run", shares).alias("run"),
        f.avg("tries").alias("attempts_avg"),
        f.max("tries").alias("attempts_max"),
    )
    percentiles = {
        f"{name}_{share}": f.col(name)[at] for name in ("wait", "run") for at, share in enumerate(_PERCENTILES)
    }
    per_second = (f.col("finished") / f.lit(3600)).alias("per_second")
    return grouped.withColumns(percentiles).select(
        "type", "hour", *counts, per_second, *percentiles, "attempts_avg", "attempts_max"
    )


def failures(events: DataFrame) -> DataFrame:
    """Return a row for each type, hour and error of failed attempts, with their number and one message."""
    parsed = f.from_json("error", StructType([StructField(name, StringType()) for name in ("kind", "type", "message")]))
    failed = events.where(f.col("kind").isin("retried", "failed", "lease_expired")).withColumn("reported", parsed)
    return failed.groupBy(
        "type",
        "hour",
        f.coalesce(f.col("reported.kind"), f.lit("unknown")).alias("error_kind"),
        f.col("reported.type").alias("error_type"),
    ).agg(
        f.count(f.lit(1)).alias("failures"),
        f.count_if(f.col("status") == "failed").alias("final"),
        f.min(f.substring("reported.message", 1, _SAMPLE)).alias("sample"),
    )


def read_rollup(spark: SparkSession, files: Files, table: str, dates: Iterable[str] | None = None) -> DataFrame:
    """Return a written rollup, or some days of it; empty if there is none."""
    schema = SCHEMAS[table]
    if not files.names(table):
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).parquet(f"{files.root}/{table}")
    return frame if dates is None else frame.where(f.col("date").isin(*dates))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=at) for at in range((last - first).days + 1)]
