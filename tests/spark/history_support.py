"""A history made in SQL, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuert.spark.history import ArchiveResult, Progress, run_archive
from tests.spark.read_support import connected
from tests.spark.support import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUT = '"a\\\\b, \\"c\\""'

# Every third chain has two jobs. They closed an hour apart, the first an hour ago, so that several days are touched.
CLOSED = """
    INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_index, status, chain_status, input, output, attempt,
                             created_at, finished_at, chain_closed_at, completed_tx, continued_by)
    SELECT prefix || n || CASE WHEN i = 1 THEN '-next' ELSE '' END, 'resize', prefix || n, 'resize', i,
        CASE WHEN i = 0 AND mod(n, 3) = 0 THEN 'continued' ELSE 'completed' END, CASE WHEN i = 0 THEN 'completed' END,
        jsonb_build_object('n', n), %(output)s, 1, closed - interval '1 minute', closed,
        CASE WHEN i = 0 THEN closed END, pg_current_xact_id(),
        CASE WHEN i = 0 AND mod(n, 3) = 0 THEN prefix || n || '-next' END
    FROM (SELECT %(prefix)s AS prefix, n, i, now() - n * interval '1 hour' AS closed
          FROM generate_series(1, %(count)s) AS n, generate_series(0, 1) AS i
          WHERE i = 0 OR mod(n, 3) = 0) AS new
"""

EVENTS_OF_JOBS = """
    INSERT INTO queuert.job_event (happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt,
                                   scheduled_at, started_at, worker)
    SELECT finished_at, status, status, id, chain_id, chain_index, type, chain_type, 1, created_at, created_at, 'w'
    FROM queuert.job WHERE finished_at IS NOT NULL
"""

# Two types over three days: claims with waits of any length, and finishes of every kind.
LOG = """
    INSERT INTO queuert.job_event (happened_at, kind, status, job_id, chain_id, chain_index, type, chain_type, attempt,
                                   scheduled_at, started_at, worker, error)
    SELECT at + CASE WHEN kind = 'started' THEN interval '0' ELSE run END, kind, status, 'j' || n, 'j' || n, 0, type,
        type, 1 + mod(n, 4), at - wait, at, CASE WHEN mod(n, 11) = 0 AND kind = 'cancelled' THEN NULL ELSE 'w' END,
        CASE WHEN kind IN ('retried', 'failed', 'lease_expired') THEN
            jsonb_build_object('kind', CASE kind WHEN 'lease_expired' THEN kind ELSE 'handler' END,
                               'message', 'no ' || mod(n, 2),
                               'type', CASE WHEN mod(n, 2) = 0 THEN 'builtins.ValueError' END) END
    FROM (
        SELECT n, now() - interval '1 hour' - n * interval '7 minutes' AS at,
            (mod(n * n, 97)) * interval '0.0731 seconds' AS wait, (mod(n * 31, 89)) * interval '0.219 seconds' AS run,
            CASE WHEN mod(n, 3) = 0 THEN 'resize' ELSE 'send' END AS type, finish.kind, finish.status
        FROM generate_series(1, %(count)s) AS n
        CROSS JOIN LATERAL (
            SELECT 'started' AS kind, 'running' AS status
            UNION ALL
            SELECT (ARRAY['completed', 'continued', 'retried', 'failed', 'cancelled', 'interrupted', 'waiting',
                          'lease_expired', 'lease_expired'])[1 + mod(n, 9)],
                (ARRAY['completed', 'continued', 'ready', 'failed', 'cancelled', 'ready', 'ready', 'ready',
                       'failed'])[1 + mod(n, 9)]
        ) AS finish
    ) AS new
"""


def run(dsn: str, text: str, **values: Any) -> None:
    """Run a statement in a transaction of its own."""
    with connected(dsn) as connection:
        connection.execute(text.encode(), values or None)


def add_chains(dsn: str, count: int, prefix: str = "c") -> None:
    """Add closed chains ``c1``, ``c2``, ... the first of which closed an hour ago, and each other an hour earlier."""
    run(dsn, CLOSED, prefix=prefix, count=count, output=OUTPUT)


def archive_all(spark: SparkSession, dsn: str, output: Path, **options: Any) -> ArchiveResult:
    """Archive what has closed; what the last run did."""
    return run_archive(spark, dsn, str(output), **{"older_than": 0, "partitions": 1, **options})[-1]


def waits(dsn: str, chain: str) -> None:
    """Let a job ``waits`` have a chain as a blocker, and another one that is not there yet."""
    run(dsn, "INSERT INTO queuert.job (id, type, chain_id, chain_type, status, chain_status, input, blocker_count,"
             " open_blockers) VALUES ('waits', 'resize', 'waits', 'resize', 'blocked', 'open', '1', 2, 1)")  # fmt: skip
    run(dsn, "INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed) VALUES"
             " ('waits', %(chain)s, 0, true)", chain=chain)  # fmt: skip


def archived(output: Path, table: str = "chains", column: str = "id") -> list[str]:
    """What anybody finds in the archive, with what is there twice: the files, without Spark."""
    return _values((output / "archive" / table).glob("date=*/run=*/*.parquet"), column)


def staged(output: Path) -> list[str]:
    """The jobs that lie beside the archive."""
    return _values((output / "archive/_staged").glob("*/jobs/date=*/run=*/*.parquet"), "id")


def _values(paths: Iterable[Path], column: str) -> list[str]:
    import pyarrow.parquet

    return sorted(
        value for path in paths for value in pyarrow.parquet.ParquetFile(path).read([column]).column(0).to_pylist()
    )


def left(dsn: str) -> list[str]:
    """The jobs that are in the database."""
    return query(dsn, "SELECT id FROM queuert.job ORDER BY id")


def steps(output: Path) -> list[str]:
    """The steps that runs of the archive have noted."""
    return sorted(path.name for path in (output / "archive/_runs").glob("*/*.json"))


def at_step(name: str, action: Callable[[], None]) -> Callable[[Progress], None]:
    """Do something when a run tells of a step, the first time."""
    seen: list[str] = []

    def reported(progress: Progress) -> None:
        if progress.step == name and not seen:
            seen.append(name)
            action()

    return reported
