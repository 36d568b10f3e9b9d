"""Rows to be read, made in SQL, and ways to read them: with Spark, and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from queuert.spark.datasource import QueuertDataSource, register
from queuert.spark.read.batch import TableReader
from queuert.spark.read.stream import EventStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOSED = """
    INSERT INTO queuert.job (id, type, chain_id, chain_type, status, chain_status, input, output, attempt, finished_at,
                             chain_closed_at, completed_tx)
    SELECT id, type, id, type, 'completed', 'completed', jsonb_build_object('n', n), jsonb_build_object('n', n), 1,
        clock_timestamp(), clock_timestamp(), pg_current_xact_id()
    FROM (SELECT %(prefix)s || lpad(n::text, 8, '0') AS id, %(type)s AS type, n
          FROM generate_series(1, %(count)s) AS n) AS new
"""
"""Chains of one job that have completed."""

EVENT = """
    INSERT INTO queuert.job_event (kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at,
                                   started_at, worker, error)
    VALUES (%(kind)s, %(status)s, %(job)s, %(job)s, 0, %(type)s, %(type)s, %(attempt)s, %(due)s, %(started)s,
            %(worker)s, %(error)s)
    RETURNING tx::text, seq
"""

EVENTS = """
    INSERT INTO queuert.job_event
        (kind, status, job_ids, chain_ids, chain_index, type, chain_type, attempt, scheduled_ats, started_ats, worker,
         error)
    VALUES (%(kind)s, %(status)s, %(jobs)s, %(chains)s::text[], (%(chains)s::text[] IS NOT NULL)::int, %(type)s,
            %(type)s, %(attempt)s, array_fill(%(due)s::timestamptz, ARRAY[%(count)s::int]),
            array_fill(%(started)s::timestamptz, ARRAY[%(count)s::int]), %(worker)s, %(error)s)
"""


_BLANK = {
    "status": "ready",
    "type": "resize",
    "attempt": 0,
    "due": None,
    "started": None,
    "worker": None,
    "error": None,
}


@contextmanager
def connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def add_closed(dsn: str, count: int, *, prefix: str = "job-", type: str = "resize") -> None:
    """Add completed chains with the ids ``prefix00000001`` and so on."""
    with connected(dsn) as connection:
        connection.execute(CLOSED, {"prefix": prefix, "type": type, "count": count})


def add_event(connection: psycopg.Connection[Any], job: str, kind: str = "created", **given: Any) -> tuple[int, int]:
    """Add one event on this connection; its place in the log."""
    tx, seq = connection.execute(EVENT, {**_BLANK, "job": job, "kind": kind, **given}).fetchone() or ("", 0)
    return int(tx), seq


def add_events(
    connection: psycopg.Connection[Any],
    jobs: list[str],
    kind: str = "created",
    *,
    chains: list[str] | None = None,
    **given: Any,
) -> None:
    """Add events that share a row, as one statement writes them."""
    here = {"jobs": jobs, "chains": chains, "count": len(jobs), "kind": kind}
    connection.execute(EVENTS, {**_BLANK, **here, **given})


def read(spark: SparkSession, dsn: str, table: str = "jobs", **options: Any) -> DataFrame:
    """A table by the data source."""
    register(spark)
    reader = spark.read.format("queuert").option("url", dsn).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows, with moments in UTC, as Arrow has them."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def table_reader(dsn: str, table: str = "jobs", **options: str) -> TableReader:
    """A reader as Spark makes it."""
    source = QueuertDataSource({"url": dsn, "table": table, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, TableReader)
    return reader


def read_all(reader: TableReader) -> list[dict[str, Any]]:
    """What all tasks of a reader read, without Spark."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def read_plainly(dsn: str, table: str = "jobs", **options: str) -> list[dict[str, Any]]:
    """A table by the reader, without Spark."""
    return read_all(table_reader(dsn, table, **options))


def stream_reader(dsn: str, **options: str) -> EventStreamReader:
    """A reader of the log as Spark makes it."""
    source = QueuertDataSource({"url": dsn, "table": "events", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, EventStreamReader)
    return reader


def read_range(reader: EventStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """What all tasks of one micro-batch read, without Spark."""
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
