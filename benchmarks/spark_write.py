"""A DataFrame into the queue, beside a plain COPY and Spark's other ways: ``python -m benchmarks.spark_write``.

All write the same rows into the same tables with their indexes, on a durable Postgres of its own. The ceiling is one
COPY, by one connection, of text that lies ready, which is measured again in each round; ratios are of medians, to that.
With the event log on, the ceiling copies the events as well. JDBC is left out where its driver cannot be had
(``apt-get download libpostgresql-jdbc-java``).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from pydantic import BaseModel

from benchmarks.environments import CACHE
from benchmarks.servers import POSTGRES_SETTINGS
from queuert import JobType
from queuert.embedded import EmbeddedPostgres
from queuert.migrations import upgrade
from queuert.spark import enqueue
from queuert.spark.java import find_java

TARGET = 0.9
TABLES = "job, job_event, job_blocker, bulk_write, bulk_stage, stream_stage"
COLUMNS = ("id", "type", "chain_id", "chain_type", "chain_status", "status", "input", "write_id")
JOBS = (
    "id", "'bill' AS type", "id AS chain_id", "'bill' AS chain_type", "'open' AS chain_status", "'ready' AS status",
    "to_json(struct(n, name)) AS input", "'w' AS write_id",
)  # fmt: skip
COPY_JOBS = f"COPY queuert.job ({', '.join(COLUMNS)}) FROM STDIN"
EVENT_COLUMNS = "kind, status, job_id, chain_id, chain_index, type, chain_type, attempt, scheduled_at"
COPY_EVENTS = f"COPY queuert.job_event ({EVENT_COLUMNS}) FROM STDIN"
INSERT = f"INSERT INTO queuert.job ({', '.join(COLUMNS)}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
BATCH = 1_000


class Bill(BaseModel):
    n: int
    name: str


bill = JobType("bill", input=Bill, output=None)


@dataclass
class Bench:
    """What the contestants share."""

    dsn: str
    jdbc: str | None
    rows: Any
    jobs: Any
    copied: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)

    def clear(self, level: str) -> None:
        """Empty the tables, and say what goes to the event log."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {', '.join(f'queuert.{name}' for name in TABLES.split(', '))}".encode())
            connection.execute("UPDATE queuert.event_log SET level = %s", (level,))
            connection.execute("CHECKPOINT")

    def count(self) -> int:
        """How many jobs there are."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("SELECT count(*) FROM queuert.job").fetchone()
        return 0 if row is None else int(row[0])

    def copy(self, *texts: tuple[str, list[bytes]]) -> None:
        """Plain COPY, in one transaction."""
        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            for statement, chunks in texts:
                with cursor.copy(statement.encode()) as copy:
                    for chunk in chunks:
                        copy.write(chunk)


def copy(bench: Bench) -> None:
    """The ceiling without events."""
    bench.copy((COPY_JOBS, bench.copied))


def copy_with_events(bench: Bench) -> None:
    """The ceiling with events."""
    bench.copy((COPY_JOBS, bench.copied), (COPY_EVENTS, bench.events))


def ours(bench: Bench) -> None:
    """All or nothing, safe to repeat, in the order of the rows."""
    enqueue(bench.rows, "bill", url=bench.dsn)


def ours_checked(bench: Bench) -> None:
    """The same, with each row checked by the model of the job type."""
    enqueue(bench.rows, bill, url=bench.dsn)


def jdbc(bench: Bench) -> None:
    """Spark's JDBC source, tuned. Neither atomic nor safe to repeat."""
    _jdbc(bench, "&reWriteBatchedInserts=true", 10_000)


def jdbc_untuned(bench: Bench) -> None:
    """Spark's JDBC source, as it comes."""
    _jdbc(bench, "", BATCH)


def _jdbc(bench: Bench, more: str, batch: int) -> None:
    with psycopg.connect(bench.dsn) as connection:
        info = connection.info
        url = f"jdbc:postgresql://{info.host}:{info.port}/{info.dbname}?user={info.user}&stringtype=unspecified{more}"
    writer = bench.jobs.write.format("jdbc").option("url", url).option("dbtable", "queuert.job")
    writer.option("driver", "org.postgresql.Driver").option("batchsize", batch).mode("append").save()


def executemany(bench: Bench) -> None:
    """foreachPartition with psycopg's executemany, a thousand rows at a time."""
    bench.jobs.foreachPartition(_inserting(bench.dsn))


def _inserting(dsn: str) -> Callable[[Iterable[Any]], None]:
    def insert(rows: Iterable[Any]) -> None:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            for batch in _batches(rows):
                cursor.executemany(INSERT.encode(), batch)

    return insert


def _batches(rows: Iterable[Any]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    for row in rows:
        batch.append(tuple(row))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


CONTESTANTS: list[tuple[str, Callable[[Bench], None], str, str]] = [
    ("plain COPY", copy, "off", "plain COPY"),
    ("queuert", ours, "off", "plain COPY"),
    ("queuert, checked by the model", ours_checked, "off", "plain COPY"),
    ("JDBC, tuned", jdbc, "off", "plain COPY"),
    ("JDBC", jdbc_untuned, "off", "plain COPY"),
    ("foreachPartition, executemany", executemany, "off", "plain COPY"),
    ("plain COPY, with events", copy_with_events, "all", "plain COPY, with events"),
    ("queuert, with events", ours, "all", "plain COPY, with events"),
]
"""Name, what it does, the level of the event log, and whose ratio is shown."""


def measure(bench: Bench, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round, one after the other."""
    taken: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, run, level, _ in CONTESTANTS:
            if bench.jdbc is None and "JDBC" in name:
                continue
            bench.clear(level)
            began = time.perf_counter()
            run(bench)
            seconds = time.perf_counter() - began
            assert bench.count() == rows, f"{name} wrote {bench.count()} rows"
            tell(turn, name, rows, seconds)
            if turn:
                taken.setdefault(name, []).append(seconds)
    return taken


def tell(turn: int, name: str, rows: int, seconds: float) -> None:
    """A line of progress: what took how long in which round. Those up to 0 warm up, and do not count."""
    when = f"round {turn}" if turn > 0 else "warm-up"
    print(f"{when}: {name:36}{seconds:>8.2f} s{rows / seconds:>12,.0f} rows/s", file=sys.stderr, flush=True)


def report(taken: dict[str, list[float]], rows: int) -> None:
    """Print the medians, and their ratios to the ceiling."""
    print(f"{'':32}{'rows/s':>12}{'to COPY':>10}")
    for name, _, _, ceiling in CONTESTANTS:
        if name in taken:
            seconds, least = statistics.median(taken[name]), statistics.median(taken[ceiling])
            print(f"{name:32}{rows / seconds:>12,.0f}{least / seconds:>10.2f}")
    print(f"target: queuert at least {TARGET:g} of one plain COPY into the same tables")


def jdbc_driver() -> str | None:
    """The JAR of Postgres' JDBC driver, fetched once; None where it cannot be had."""
    folder = CACHE / "jdbc"
    found = sorted(folder.rglob("postgresql*.jar"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(
                ["apt-get", "download", "libpostgresql-jdbc-java"], cwd=folder, check=True, capture_output=True
            )
            for package in folder.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            print("JDBC is left out: its driver cannot be had", file=sys.stderr)
            return None
        found = sorted(folder.rglob("postgresql*.jar"))
    return str(found[0].resolve()) if found else None


def session(jar: str | None) -> Any:
    """A session ``local[2]``."""
    import os

    from pyspark.sql import SparkSession

    os.environ.update(JAVA_HOME=str(find_java().path), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.memory", "3g").config("spark.driver.host", "127.0.0.1")
    if jar is not None:
        builder = builder.config("spark.driver.extraClassPath", jar)
    return builder.getOrCreate()


def prepared(spark: Any, dsn: str, jar: str | None, rows: int, partitions: int) -> Bench:
    """The rows, cached, and the text for COPY."""
    ids = spark.range(0, rows, numPartitions=partitions).selectExpr(
        "uuid() AS id", "id AS n", "concat('row ', id) AS name"
    )
    ids.cache().count()
    bench = Bench(dsn, jar, ids.select("n", "name"), ids.selectExpr(*JOBS))
    for batch in bench.jobs.toArrow().to_batches(max_chunksize=10_000):
        columns = [column.to_pylist() for column in batch.columns]
        lines = ["\t".join(row) for row in zip(*columns, strict=True)]
        bench.copied.append(("\n".join(lines) + "\n").encode())
        events = [f"created\tready\t{id}\t{id}\t0\tbill\tbill\t0\t2026-01-01 00:00:00+00" for id in columns[0]]
        bench.events.append(("\n".join(events) + "\n").encode())
    return bench


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    jar = jdbc_driver()
    spark = session(jar)
    try:
        with EmbeddedPostgres(durable=True, settings=POSTGRES_SETTINGS) as server:
            upgrade(server.dsn())
            began = time.perf_counter()
            bench = prepared(spark, server.dsn(), jar, options.rows, options.partitions)
            tell(0, "making the rows", options.rows, time.perf_counter() - began)
            report(measure(bench, options.rows, options.rounds), options.rows)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
