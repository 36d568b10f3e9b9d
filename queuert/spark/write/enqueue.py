"""``enqueue`` writes a DataFrame as jobs, in one call."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter

from queuert.errors import StateUnavailableError
from queuert.job_types import JobType
from queuert.observability.tracing import NO_SENDING, Send, Sending, Tracing, TracingMiddleware
from queuert.spark.datasource import QueuertDataSource, declaring, register
from queuert.spark.errors import SparkOptionError, found_in
from queuert.spark.options import ConnectionOptions, WriteOptions, option_texts, parse_options
from queuert.spark.write.batch import job_type_of
from queuert.spark.write.columns import find_columns
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.bulk import bulk_session
from queuert.state.postgres.bulk import sweep_staging as sweep
from queuert.state.postgres.bulk_commit import find_write


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write.

    Attributes:
        write_id: the idempotency key of the write, stored in each job.
        rows: number of valid rows of the DataFrame.
        started: number of chains that were started. For each other row a chain existed: of the same id with
            ``on_conflict="nothing"``, or of the same deduplication key.
        rejected: number of rows that were written to the path of ``rejects``.
    """

    write_id: str
    rows: int
    started: int
    rejected: int


def enqueue(
    df: DataFrame,
    job_type: str | JobType[Any, Any],
    *,
    write_id: str | None = None,
    partitions: int | None = None,
    tracing: TracingMiddleware | None = None,
    **options: Any,
) -> WriteResult:
    """Start a chain for each row of a DataFrame: all of them, or none.

    It works in any thread. A second call with the same ``write_id`` writes nothing and returns the result of the first:
    a program that repeats itself after a crash should pass one that names the data, such as ``orders-2026-05``.

    Args:
        df: columns as ``docs/spark.md`` says: the fields of the input (or one column ``input``), and settings of jobs.
        job_type: the name of the job type; or the job type itself, whose model then checks each row.
        write_id: the idempotency key; a new UUID by default.
        partitions: the largest number of tasks that load at once. Twice the cores of the database are enough.
        tracing: traces the write: all its jobs link to one span, a child of the current one.
        options: options of the data source, in Python's spelling: ``url=...``, ``on_conflict="nothing"``.

    Raises:
        SparkOptionError: an option is unknown or not valid.
        SparkColumnError: a column is unknown or of a type that jobs cannot have.
        BadRowsError: rows are not valid jobs; nothing was written.
        JobIdConflictError: ids exist already; nothing was written.
        ChainNotFoundError: a chain in ``blocked_by`` does not exist; nothing was written.
        FenceLostError: the attempt of the fence has lost its lease; nothing was written.
        StagingLostError: staged rows were lost; nothing was written. Write again.
        StateUnavailableError: the database could not be reached. Write again under the same ``write_id``. If the write
            may have been committed, the message says so, and its ``write_id``.

    Example::

        enqueue(orders, "bill", write_id="orders-2026-05", url="postgresql://db/app")
    """
    declared = None if isinstance(job_type, str) else job_type
    source = QueuertDataSource if declared is None else declaring(declared)
    own = {"jobType": job_type if isinstance(job_type, str) else job_type.name, "writeId": write_id}
    given = option_texts([*own.items(), *options.items()])
    given.setdefault("writeId", str(uuid.uuid4()))
    checked = parse_options(WriteOptions, given)
    if declared is not None and checked.job_types is not None:
        raise SparkOptionError("jobTypes must not be set together with a job type: leave out the option")
    find_columns(df.schema, declared or job_type_of(checked))
    session = df.sparkSession
    register(session)
    if declared is not None:
        session.dataSource.register(source)
    rows = df if partitions is None else df.coalesce(partitions)
    with _sending(tracing, checked) as sending:
        if sending is not None and (context := sending.context(checked.job_type, "")) is not None:
            given["traceContext"] = context
        _save(rows.write.format(source.name()).options(**given))
        result = _result(checked)
        if sending is not None:
            sending.counted(result.started)
    return result


def _sending(tracing: TracingMiddleware | None, options: WriteOptions) -> AbstractContextManager[Sending | None]:
    if tracing is None or options.trace_context is not None:
        return NO_SENDING
    return Tracing([tracing]).sending(Send((options.job_type,), None))


def _save(writer: DataFrameWriter) -> None:
    try:
        writer.mode("append").save()
    except Exception as error:
        found = found_in(error)
        if found is None:
            raise
        raise found from error


def _result(options: WriteOptions) -> WriteResult:
    assert options.write_id is not None
    try:
        with bulk_session(settings_of(options)) as session:
            found = find_write(session, options.write_id, options.job_type)
    except StateUnavailableError as error:
        raise StateUnavailableError(
            f"{error}: the write was committed, and its result cannot be read: enqueue again with "
            f"write_id={options.write_id!r}, which writes nothing twice"
        ) from error.__cause__
    assert found is not None
    return WriteResult(options.write_id, found.rows, found.started, found.rejected)


def sweep_staging(*, older_than: float | None = None, **options: Any) -> list[str]:
    """Drop what writes have staged and drivers that died have left; every write does it too.

    Args:
        older_than: what nothing has touched for so many seconds; by default, for the ``stagingTtl`` of its own write.
            With less than that, a slow write that goes on fails with ``StagingLostError``.
        options: options of the connection: ``url``, ``url_env`` or ``service``, ``schema`` and timeouts.

    Returns:
        The names of the staging tables that were dropped.

    Raises:
        SparkOptionError: an option is unknown or not valid.
        StateUnavailableError: the database cannot be reached.
    """
    given = option_texts(options.items())
    with bulk_session(settings_of(parse_options(ConnectionOptions, given))) as session:
        return sweep(session, older_than=older_than)
