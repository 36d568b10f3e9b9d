"""What the driver does with Spark: files to chains in one commit, their answers as a DataFrame, and the history.

The executors read the files and load the rows; the driver commits all of them at once, or none. Then it waits for what
the workers make of them, as any caller would, sums up the answers with Spark, and has the event log rolled up.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from queuert.client import Client
from queuert.demo import tables
from queuert.demo.database import Database
from queuert.demo.files import files_frame, find_paths, library, spark_session
from queuert.demo.job_types import Indexed, ReportOrder, job_types, measure, report
from queuert.demo.settings import SCHEMA
from queuert.state.postgres import PostgresState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = 2


def run(url: str, limit: int | None, report_path: str, page: Path, pause: Callable[[int], float]) -> int:
    """Carry it all out; returns how many files there are when every chain has closed and the history is written.

    Args:
        url: of the database.
        limit: at most so many files; None for all.
        report_path: where the report goes that a job writes.
        page: where the history goes, as HTML.
        pause: of a job, in seconds, by the number of files.
    """
    from queuert.spark import ProgressLine, chains_of_write, enqueue, wait_all

    state = PostgresState(url, schema=SCHEMA, application_name="queuert demo driver")
    with spark_session() as spark, Client(state, job_types) as client, Database(url) as database:
        files = files_frame(spark, library(), find_paths(library(), limit))
        total = files.count()
        if total == 0:
            return 0
        database.execute(tables.ADD_PLAN, (total, f"Spark {spark.version}"))
        written = enqueue(_inputs(files, pause(total)), measure, url=url, schema=SCHEMA)
        chains = list(chains_of_write(client, written.write_id))
        last = client.start_chain(report, ReportOrder(path=report_path), blockers=chains)
        wait_all(client, [*chains, last.id], on_progress=ProgressLine())
        _keep_answers(spark, client, chains, database)
        _write_history(spark, url, page)
    return total


def _inputs(files: DataFrame, pause: float) -> DataFrame:
    """The columns are the fields of the job's input."""
    from pyspark.sql import functions as f

    return files.withColumn("pause", f.lit(pause))


def _keep_answers(spark: SparkSession, client: Client, chains: list[str], database: Database) -> None:
    """Sum up what the chains came to, as the driver got it; the proof compares it with what the workers wrote."""
    from pyspark.sql import functions as f

    from queuert.spark import results

    answers = results(spark, client, chains, output=Indexed)
    summed = answers.agg(f.count("*"), f.sum("output.lines"), f.sum("output.symbols")).head()
    assert summed is not None
    database.execute(tables.ADD_ANSWERS, tuple(summed))


def _write_history(spark: SparkSession, url: str, page: Path) -> None:
    """Roll up what happened, and keep the page alone: the rest of the output is gone with the run."""
    from queuert.spark.history import run_history

    folder = Path(tempfile.mkdtemp(prefix="history-"))
    done = run_history(spark, url, str(folder), days=1, current_hour=True, partitions=_PARTITIONS, schema=SCHEMA)
    beside = page.with_name(f"{page.name}.new")
    shutil.copyfile(urlsplit(done.report).path, beside)
    beside.replace(page)
