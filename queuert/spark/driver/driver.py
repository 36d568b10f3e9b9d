"""Starts a chain for each row of a DataFrame, and returns the results as another DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from queuert.client import Chain, Client, NewChain
from queuert.deduplication import Deduplicate
from queuert.job_types import JobType
from queuert.run_at import at
from queuert.spark.driver.result_frames import results
from queuert.spark.driver.waiting import OnWait, wait_all
from queuert.spark.write.columns import Columns, find_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import TypeForm

R = TypeVar("R")

_ROWS = 10_000


def request(
    df: DataFrame,
    job_type: JobType[Any, Any],
    *,
    client: Client,
    output: TypeForm[Any] | None = None,
    timeout: float | None = None,
    on_progress: OnWait | None = None,
) -> DataFrame:
    """Start a chain for each row, wait for all of them, and return the results as a DataFrame.

    The rows pass through the driver and are started all or none, so it is meant for up to some hundred thousand rows.
    Failed chains are rows too, with their error.

    Args:
        df: the columns are those of the data source ``queuert``: the fields of the input, or one column ``input`` that
            has it as JSON text or as a struct, and settings of the job such as ``id`` and ``priority``. With an ``id``
            for each row, results can be joined by ``chain_id``.
        job_type: the type of the first job of each chain.
        client: the client that starts them.
        output: the type of the outputs, as in :func:`~queuert.spark.results`.
        timeout: seconds to wait for all of them; None waits for ever.
        on_progress: as in :func:`~queuert.spark.wait_all`.

    Raises:
        WaitTimeoutError: some were still open after ``timeout`` seconds; ``open_ids`` names them. They keep running.
        SparkColumnError: a column is unknown, or of a type that jobs cannot have; nothing was started.

    It also raises the errors of :meth:`~queuert.Client.start_chains`; then nothing was started.

    Example::

        answers = request(pages, fetch, client=client, output=Page, on_progress=ProgressLine())
        answers.where("status = 'failed'").select("input", "error").show()
    """
    chains = start_rows(df, job_type, client=client)
    wait_all(client, chains, timeout=timeout, on_progress=on_progress)
    return results(df.sparkSession, client, chains, output=output)


def start_rows(df: DataFrame, job_type: JobType[Any, R], *, client: Client) -> list[Chain[R]]:
    """Start a chain for each row, all or none, and return their handles in the order of the rows.

    Arguments and errors are those of :func:`request`.
    """
    columns = find_columns(df.schema, job_type)
    return client.start_chains([_chain(job_type, columns, row) for row in _rows(df)])


def _rows(df: DataFrame) -> Iterator[dict[str, Any]]:
    # By Arrow, since the timestamps of collected rows are local times without a zone.
    for batch in df.toArrow().to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist(maps_as_pydicts="strict")


def _chain(job_type: JobType[Any, R], columns: Columns, row: Mapping[str, Any]) -> NewChain[R]:
    given: Any = {name: row[name] for name in columns.fields} if columns.fields else row["input"]
    schedule_at, key = row.get("schedule_at"), row.get("deduplication_key")
    return NewChain(
        job_type,
        job_type.decode_input(given) if columns.is_text else given,
        id=row.get("id"),
        priority=row.get("priority") or 0,
        run_at=None if schedule_at is None else at(schedule_at),
        deduplication=None if key is None else Deduplicate(key),
        limit_key=row.get("limit_key"),
        blockers=row.get("blocked_by") or (),
    )
