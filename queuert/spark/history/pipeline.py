"""The functions that programs and ``queuert history`` call."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from queuert.errors import QueuertError
from queuert.job_types import checked_type_name
from queuert.policies import as_given
from queuert.spark.errors import SparkOptionError
from queuert.spark.history.files import HadoopFiles
from queuert.spark.history.purge import resume_runs, start_run
from queuert.spark.history.report import write_report
from queuert.spark.history.results import ArchiveResult, OnProgress, Progress, RollupResult, quiet
from queuert.spark.history.rollups import roll_up
from queuert.spark.history.source import Place, opened, own_session
from queuert.spark.read.options import MOST_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_DAYS = 3_650
_MOST_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """The result of a whole run.

    Attributes:
        rollup: the hours that were rolled up.
        archives: a result for each run of the archive that was completed: those that earlier processes began, and this.
        report: the address of the report.
    """

    rollup: RollupResult
    archives: Sequence[ArchiveResult]
    report: str


def run_history(
    spark: SparkSession,
    url: str | None,
    output: str,
    *,
    older_than: timedelta | float | None = None,
    types: Sequence[str] | None = None,
    events: bool = True,
    days: int = 14,
    current_hour: bool = False,
    partitions: int = 4,
    batch: int = 1_000,
    on_progress: OnProgress = quiet,
    **connection: Any,
) -> HistoryResult:
    """Roll up new events, archive and delete chains that closed long ago, and write the report.

    Call it every night, or every hour. Completed work is not repeated; the next run continues one that died at any
    step.

    Args:
        spark: a classic session. Its settings are not changed.
        url: the URL of the Postgres database; None for that of ``QUEUERT_URL``, or of an option.
        output: a directory, or a URL that the session can write to, for this database and schema alone.
        older_than: archive chains that closed so long ago, in seconds or as a timedelta; None archives nothing, and
            continues no run.
        types: archive only chains whose first job is of these types.
        events: archive the events of the chains as well.
        days: how many days the report shows, with today.
        current_hour: also roll up the hour that has not ended; it is rolled up again when it has.
        partitions: the number of parts in which tables are read.
        batch: the number of chains to delete in one transaction.
        on_progress: called after each step, in this thread.
        **connection: options of the data source: ``schema``, ``service``, ``url_env``, timeouts in seconds.

    Raises:
        SparkOptionError: an option is unknown or not valid. Nothing was written.
        HistoryOutputError: the output belongs to another database. Nothing was written.
        HistoryBusyError: another run writes to the output. Nothing was written.
        SchemaMissingError: the schema is older than this version: run ``queuert migrate up``.
        EventsLostError: retention dropped events while they were read. Run again.
        ArchiveCountError: the storage does not have what was written to it. Nothing was deleted.
        StateUnavailableError: the database cannot be reached. Run again.

    Example::

        run_history(spark, "postgresql://db/app", "s3a://lake/queue", older_than=timedelta(days=30))
    """
    age = None if older_than is None else _age(older_than)
    _check(types=types, days=days, partitions=partitions, batch=batch)
    with opened(spark, output, {"url": url, **connection}, partitions, on_progress) as place:
        rollup = roll_up(place, current_hour=current_hour)
        archives = [] if age is None else _archive(place, age, types, events, batch)
        path = write_report(place.spark, place.files, days)
        place.step("report.written", f"report: {path}")
    return HistoryResult(rollup, archives, path)


def run_rollup(
    spark: SparkSession,
    url: str | None,
    output: str,
    *,
    current_hour: bool = False,
    partitions: int = 4,
    on_progress: OnProgress = quiet,
    **connection: Any,
) -> RollupResult:
    """Roll up the hours that have ended and are not written yet, or have changed since: see :func:`run_history`."""
    _check(partitions=partitions)
    with opened(spark, output, {"url": url, **connection}, partitions, on_progress) as place:
        return roll_up(place, current_hour=current_hour)


def run_archive(
    spark: SparkSession,
    url: str | None,
    output: str,
    *,
    older_than: timedelta | float,
    types: Sequence[str] | None = None,
    events: bool = True,
    partitions: int = 4,
    batch: int = 1_000,
    on_progress: OnProgress = quiet,
    **connection: Any,
) -> list[ArchiveResult]:
    """Continue runs that died, then archive and delete chains that closed long ago: see :func:`run_history`."""
    age = _age(older_than)
    _check(types=types, partitions=partitions, batch=batch)
    with opened(spark, output, {"url": url, **connection}, partitions, on_progress) as place:
        return _archive(place, age, types, events, batch)


def run_report(spark: SparkSession, output: str, *, days: int = 14, on_progress: OnProgress = quiet) -> str:
    """Write the report from the rollups, without the database, and return its address.

    Raises:
        SparkOptionError: an option is not valid.
    """
    _check(days=days)
    own = own_session(spark)
    path = write_report(own, HadoopFiles(own, output), days)
    on_progress(Progress("report.written", f"report: {path}"))
    return path


def _archive(
    place: Place, age: timedelta, types: Sequence[str] | None, events: bool, batch: int
) -> list[ArchiveResult]:
    results = resume_runs(place)
    cut = place.facts.now - age
    unread = place.unread_since()
    if unread is not None and unread < cut:
        cut = unread.astimezone(UTC)
        text = f"webhooks have read what happened before {cut:%Y-%m-%d %H:%M:%S}Z: what closed later stays"
        place.step("archive.unread", text)
    chosen = None if types is None else tuple(types)
    suffix = uuid.uuid4().hex[:8]
    done = start_run(place, cut, suffix, types=chosen, with_events=events, batch=batch)
    return [*results, done]


def _age(older_than: timedelta | float) -> timedelta:
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else float(older_than)
    if not (math.isfinite(seconds) and 0 <= seconds <= _MOST_DAYS * 86_400):
        raise SparkOptionError(
            f"older_than must be between 0 seconds and {_MOST_DAYS} days, got {as_given(older_than)}"
        )
    return timedelta(seconds=seconds)


def _check(*, types: Sequence[str] | None = None, days: int = 1, partitions: int = 1, batch: int = 1) -> None:
    bounds = {"days": (days, _MOST_DAYS), "partitions": (partitions, MOST_PARTITIONS), "batch": (batch, _MOST_BATCH)}
    for name, (value, most) in bounds.items():
        if not 1 <= value <= most:
            raise SparkOptionError(f"{name} must be between 1 and {most}, got {value}")
    if types is not None and (isinstance(types, str) or not types):
        raise SparkOptionError("types must be a list of names, or None for all")
    try:
        for name in types or ():
            checked_type_name(name)
    except (QueuertError, ValueError) as error:
        raise SparkOptionError(f"types: {error}") from None
