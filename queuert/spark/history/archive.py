"""Writes a run of the archive: closed chains, their jobs and their events, as Parquet by the day on which they closed.

The files of a run are in directories of its own (``date=2026-01-31/run=...``), so that a run which is repeated replaces
what it wrote itself, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as f

from queuert.spark.errors import ArchiveCountError, EventsLostError, found_in
from queuert.spark.history.records import Counts, Manifest
from queuert.spark.history.source import Place
from queuert.spark.read.schemas import CHAINS_SCHEMA, EVENTS_SCHEMA, JOBS_SCHEMA
from queuert.state.postgres.history import ArchivedChain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ARCHIVE = "archive"
STAGED = "archive/_staged"
SCHEMAS = {"chains": CHAINS_SCHEMA, "jobs": JOBS_SCHEMA, "events": EVENTS_SCHEMA}
TABLES = tuple(SCHEMAS)
_CHAIN = {"chains": "id", "jobs": "chain_id", "events": "chain_id"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIER = timedelta(minutes=1)
"""How much earlier than its chain an event may be: chains of one statement are dated one after the other."""
_TRIES = 3
"""The largest number of reads of the log if retention drops a partition meanwhile."""


def write_run(place: Place, run: Manifest) -> tuple[Counts, list[str]]:
    """Write the rows of a run and count them. Returns the counts, and the chains that changed while they were read.

    Raises:
        ArchiveCountError: the rows that were read back are not those that were written.
    """
    remove_run(place, run)
    chains = place.read("chains", to_tx=run.to_tx, closed_to=run.cut.isoformat(), types=run.types)
    _write(place, run, "chains", chains.withColumn("date", f.date_format("closed_at", "yyyy-MM-dd")))
    if written(place, run, "chains").isEmpty():
        return Counts(), []
    jobs = place.read("jobs", to_tx=run.to_tx, created_to=run.cut.isoformat())
    _write(place, run, "jobs", _of_chains(place, run, jobs))
    if run.with_events:
        _write_events(place, run)
    return count_tables(place, run, written), _torn(place, run)


def _write_events(place: Place, run: Manifest) -> None:
    """Write the events. Their days may differ from those of the chains: they begin with the first start."""
    first = written(place, run, "chains").agg(f.min(f.unix_micros("created_at")).alias("first")).first()
    assert first is not None
    bounds = {
        "happened_from": (moment(first["first"]) - _EARLIER).isoformat(),
        "happened_to": (run.cut + timedelta(days=1)).isoformat(),
    }
    for left in reversed(range(_TRIES)):
        try:
            events = place.read("events", to_tx=run.to_tx, **bounds)
            # An earlier chain may have had the same id.
            own = f.col("happened_at") >= f.col("began") - f.expr(f"INTERVAL {_EARLIER.seconds} SECONDS")
            _write(place, run, "events", _of_chains(place, run, events, own))
            break
        except Exception as error:
            if not left or not isinstance(found_in(error), EventsLostError):
                raise
            place.step("archive.again", "retention took a day of the log while it was read: reading what is left")


def _of_chains(place: Place, run: Manifest, frame: DataFrame, condition: Column | None = None) -> DataFrame:
    """Return the rows of the chains of a run, with the chains' date. A condition may use ``began``, when each began."""
    chains = written(place, run, "chains")
    keys = chains.select(f.col("id").alias("chain_id"), "date", f.col("created_at").alias("began"))
    joined = frame.join(keys, "chain_id")
    chosen = joined if condition is None else joined.where(condition)
    return chosen.select(*frame.columns, "date").coalesce(place.partitions)


def _write(place: Place, run: Manifest, table: str, frame: DataFrame) -> None:
    """Write a table of a run, and check that it has as many rows as were written."""
    count = Observation()
    counted = frame.withColumn("run", f.lit(run.run)).observe(count, f.count(f.lit(1)).alias("rows"))
    writer: Any = counted.write.partitionBy("date", "run").mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").parquet(place.path(f"{ARCHIVE}/{table}"))
    rows: int = count.get["rows"]
    check_count(table, rows, written(place, run, table).count())
    place.step(f"archive.{table}", f"{rows:,} {table} written and counted")


def check_count(table: str, wrote: int, found: int) -> None:
    """Check that as many rows were read back as were written.

    Raises:
        ArchiveCountError: the numbers differ.
    """
    if wrote != found:
        raise ArchiveCountError(f"{wrote:,} rows of {table} were written, {found:,} are there")


def remove_run(place: Place, run: Manifest) -> None:
    """Remove the files that a run has written so far. They do not count before they have been counted."""
    for table in TABLES:
        place.files.remove(f"{ARCHIVE}/{table}/date=*/run={run.run}")


def written(place: Place, run: Manifest, table: str) -> DataFrame:
    """Return a table of a run as it was written, with the columns ``date`` and ``run``."""
    return _parquet(place, table, f"{ARCHIVE}/{table}", run)


def staged(place: Place, run: Manifest, table: str) -> DataFrame:
    """Return a table of a run as it is staged."""
    return _parquet(place, table, f"{STAGED}/{run.run}/{table}", run)


def _parquet(place: Place, table: str, base: str, run: Manifest) -> DataFrame:
    schema = f"{SCHEMAS[table].toDDL()}, date string, run string"
    days = [name for name in place.files.names(base) if name.startswith("date=")]
    paths = [f"{base}/{day}/run={run.run}" for day in days if f"run={run.run}" in place.files.names(f"{base}/{day}")]
    if not paths:
        return place.spark.createDataFrame([], schema)
    return place.spark.read.schema(schema).option("basePath", place.path(base)).parquet(*map(place.path, paths))


def count_tables(place: Place, run: Manifest, read: Callable[[Place, Manifest, str], DataFrame]) -> Counts:
    """Count the rows of a run that ``read`` returns: :func:`written` or :func:`staged`."""
    days = read(place, run, "chains").groupBy("date").agg(f.count("*").alias("rows")).orderBy("date").collect()
    dates: dict[str, int] = {row["date"]: row["rows"] for row in days}
    jobs, events = (read(place, run, table).count() for table in ("jobs", "events"))
    return Counts(chains=sum(dates.values()), jobs=jobs, events=events, dates=dates)


def _close_if_interrupted(place: Place, run: Manifest) -> DataFrame:
    """Return the chains of a run, with the numbers of their archived jobs."""
    jobs = written(place, run, "jobs").groupBy("chain_id").agg(f.count("*").alias("jobs"))
    chains = written(place, run, "chains")
    return chains.join(jobs, chains["id"] == jobs["chain_id"], "left").withColumn("jobs", f.coalesce("jobs", f.lit(0)))


def _torn(place: Place, run: Manifest) -> list[str]:
    rows = _close_if_interrupted(place, run).where("jobs <> length").select("id").orderBy("id").collect()
    return [row["id"] for row in rows]


def archived_chains(place: Place, run: Manifest) -> Iterator[list[ArchivedChain]]:
    """Yield the chains that may be deleted, the oldest first, in batches."""
    # As numbers, since Spark returns timestamps in the time zone of this machine.
    moments = [f.unix_micros(name).alias(name) for name in ("created_at", "closed_at", "expires_at")]
    rows = (
        _close_if_interrupted(place, run)
        .where("jobs = length")
        .select("id", *moments, "jobs")
        .orderBy("created_at", "id")
    )
    batch: list[ArchivedChain] = []
    for id, created, closed, expires, jobs in rows.toLocalIterator(prefetchPartitions=True):
        end = None if expires is None else moment(expires)
        batch.append(ArchivedChain(id, moment(created), moment(closed), end, jobs))
        if len(batch) == run.batch:
            yield batch
            batch = []
    if batch:
        yield batch


def moment(micros: int) -> datetime:
    """Return the time that is so many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def without(place: Place, frame: DataFrame, table: str, chains: list[str]) -> DataFrame:
    """Return the rows of all chains except these."""
    if not chains:
        return frame
    excluded = place.spark.createDataFrame([(id,) for id in chains], "excluded string")
    return frame.join(excluded, frame[_CHAIN[table]] == excluded["excluded"], "left_anti").coalesce(place.partitions)
