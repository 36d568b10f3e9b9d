"""The queue as a DataFrame, beside a plain COPY and Spark's JDBC source: ``python -m benchmarks.spark_read``.

All read the same finished jobs of one table, Spark into a sink that keeps nothing. The ceiling is one COPY in CSV, by
one connection that keeps nothing either, measured again in each round; ratios are of medians, to that. Four columns
(two ids, the type, the input) and all of them. JDBC is left out where its driver cannot be had. Some rounds come first
that do not count, in which the JVM compiles what it runs; what one contestant leaves in its heap is collected before
the next begins.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.servers import POSTGRES_SETTINGS
from benchmarks.spark_write import jdbc_driver, session, tell
from queuert.embedded import EmbeddedPostgres
from queuert.migrations import upgrade
from queuert.spark import register
from queuert.spark.read.columns import JOBS, Kind
from queuert.spark.read.snapshots import snapshot

TARGET = 0.8
WARM_UP = 6
FOUR = ("id", "type", "input", "chain_id")
ALL = tuple(column.name for column in JOBS)
FILL = """
    INSERT INTO queuert.job (id, type, chain_id, chain_type, status, chain_status, input, output, attempt, holder,
                             started_at, finished_at, chain_closed_at, completed_tx)
    SELECT id, 'bill', id, 'bill', 'completed', 'completed', jsonb_build_object('n', n, 'name', 'row ' || n),
        jsonb_build_object('n', n), 1, 'worker', clock_timestamp(), clock_timestamp(), clock_timestamp(),
        pg_current_xact_id()
    FROM (
        -- In order of time, as clients make them: the first twelve digits are milliseconds, fifty jobs in each.
        SELECT n, left(at, 8) || '-' || right(at, 4) || substr(gen_random_uuid()::text, 14) AS id
        FROM generate_series(1, %s) AS n CROSS JOIN LATERAL lpad(to_hex(1767225600000 + n / 50), 12, '0') AS at
    ) AS new
"""


@dataclass
class Bench:
    """What the contestants share."""

    spark: Any
    dsn: str
    jdbc: str | None
    rows: int
    blocks: int
    partitions: int


def copy(bench: Bench, columns: tuple[str, ...]) -> None:
    """The ceiling."""
    _copy(bench, columns, "csv")


def copy_binary(bench: Bench, columns: tuple[str, ...]) -> None:
    """The same in Postgres' binary format, which nobody decodes."""
    _copy(bench, columns, "binary")


def _copy(bench: Bench, columns: tuple[str, ...], format: str) -> None:
    with psycopg.connect(bench.dsn) as connection, connection.cursor() as cursor:
        statement = f"COPY (SELECT {_expressions(columns)} FROM queuert.job) TO STDOUT (FORMAT {format})"
        with cursor.copy(statement.encode()) as copied:
            for _ in copied:
                pass


def settled(bench: Bench, columns: tuple[str, ...]) -> None:
    """What can change no more, in ranges of ids."""
    _ours(bench, columns)


def on_snapshot(bench: Bench, columns: tuple[str, ...]) -> None:
    """Everything, in ranges of blocks on one snapshot."""
    with snapshot(bench.dsn) as name:
        _ours(bench, columns, snapshot=name)


def _ours(bench: Bench, columns: tuple[str, ...], **options: str) -> None:
    register(bench.spark)
    reader = bench.spark.read.format("queuert").option("url", bench.dsn).option("columns", ",".join(columns))
    for name, value in options.items():
        reader = reader.option(name, value)
    _consume(reader.option("numPartitions", bench.partitions).load())


def jdbc(bench: Bench, columns: tuple[str, ...]) -> None:
    """Spark's JDBC source, tuned: as many ranges of blocks, ten thousand rows a fetch. Not one moment."""
    starts = [bench.blocks * at // bench.partitions for at in range(bench.partitions)]
    ranges = [
        f"ctid >= '({start},0)'" + ("" if end is None else f" AND ctid < '({end},0)'")
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    reader = bench.spark.read.jdbc
    table = f"(SELECT ctid, {_expressions(columns)} FROM queuert.job) AS job"
    properties = {"driver": "org.postgresql.Driver", "fetchsize": "10000"}
    frame = reader(_jdbc_url(bench), table, predicates=ranges, properties=properties)
    _consume(frame.select(*columns))


def jdbc_untuned(bench: Bench, columns: tuple[str, ...]) -> None:
    """Spark's JDBC source, as it comes: one part, all rows at once in memory."""
    table = f"(SELECT {_expressions(columns)} FROM queuert.job) AS job"
    _consume(bench.spark.read.jdbc(_jdbc_url(bench), table, properties={"driver": "org.postgresql.Driver"}))


def _expressions(columns: tuple[str, ...]) -> str:
    # JDBC has no type for numbers of transactions.
    known = {column.name: column for column in JOBS}
    return ", ".join(
        f"{known[name].expression}::text::bigint AS {name}" if known[name].kind is Kind.LONG
        else f"{known[name].expression} AS {name}"
        for name in columns
    )  # fmt: skip


def _jdbc_url(bench: Bench) -> str:
    with psycopg.connect(bench.dsn) as connection:
        info = connection.info
        return f"jdbc:postgresql://{info.host}:{info.port}/{info.dbname}?user={info.user}&password={info.password}"


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


CONTESTANTS: list[tuple[str, Callable[[Bench, tuple[str, ...]], None]]] = [
    ("plain COPY", copy),
    ("plain COPY, binary", copy_binary),
    ("queuert, on a snapshot", on_snapshot),
    ("queuert, settled", settled),
    ("JDBC, tuned", jdbc),
    ("JDBC", jdbc_untuned),
]


def measure(bench: Bench, rounds: int) -> dict[tuple[str, int], list[float]]:
    """Seconds of each contestant for each set of columns in each round, one after the other."""
    taken: dict[tuple[str, int], list[float]] = {}
    for turn in range(1 - WARM_UP, rounds + 1):
        for columns in (FOUR, ALL):
            for name, run in CONTESTANTS:
                if bench.jdbc is None and "JDBC" in name:
                    continue
                bench.spark._jvm.System.gc()
                began = time.perf_counter()
                run(bench, columns)
                seconds = time.perf_counter() - began
                tell(turn, f"{name}, {len(columns)} columns", bench.rows, seconds)
                if turn > 0:
                    taken.setdefault((name, len(columns)), []).append(seconds)
    return taken


def report(taken: dict[tuple[str, int], list[float]], rows: int) -> None:
    """Print the medians, and their ratios to the ceiling."""
    print(f"{'':24}{'columns':>9}{'rows/s':>12}{'to COPY':>10}")
    for (name, columns), seconds in sorted(taken.items(), key=lambda one: one[0][1]):
        median, least = statistics.median(seconds), statistics.median(taken[CONTESTANTS[0][0], columns])
        print(f"{name:24}{columns:>9}{rows / median:>12,.0f}{least / median:>10.2f}")
    print(f"target: queuert at least {TARGET:g} of one plain COPY of the same columns")


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    jar = jdbc_driver()
    spark = session(jar)
    with ExitStack() as stack:
        stack.callback(spark.stop)
        server = stack.enter_context(EmbeddedPostgres(durable=True, settings=POSTGRES_SETTINGS))
        upgrade(server.dsn())
        began = time.perf_counter()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(FILL, (options.rows,))
            connection.execute("VACUUM (ANALYZE, FREEZE) queuert.job")
            row = connection.execute("SELECT pg_relation_size('queuert.job') / 8192").fetchone()
        blocks = 0 if row is None else int(row[0])
        tell(0, "making the rows", options.rows, time.perf_counter() - began)
        bench = Bench(spark, server.dsn(), jar, options.rows, blocks, options.partitions)
        report(measure(bench, options.rounds), options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
