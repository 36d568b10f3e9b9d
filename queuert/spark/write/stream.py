"""The stream writer: each micro-batch is committed once, across restarts of the query from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from queuert.spark.errors import SparkOptionError
from queuert.spark.options import WriteOptions
from queuert.spark.write.batch import bulk_start, committed, job_type_of, refuse_bad_rows, winners
from queuert.spark.write.checking import RowChecker
from queuert.spark.write.columns import find_columns
from queuert.spark.write.rejects import remove_others
from queuert.spark.write.staging import Staging, settings_of
from queuert.state.postgres.bulk import STREAM_STAGE, bulk_session
from queuert.state.postgres.bulk_streams import commit_batch, forget_staged


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one stream. Spark makes a new one for each commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.write_id is not None:
            raise SparkOptionError("writeId: a stream has one for each micro-batch; name the sink by sinkId")
        job_type = job_type_of(options)
        self._options = options
        self._columns = find_columns(schema, job_type)
        self._checker = RowChecker(self._columns, options.job_type, job_type)
        self._rejects = None if options.rejects == "fail" else options.rejects

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a partition of a micro-batch."""
        context = TaskContext.get()
        assert context is not None
        query = str(context.getLocalProperty("sql.streaming.queryId"))
        batch = int(str(context.getLocalProperty("streaming.sql.batchId")))
        sink = self._options.sink_id or query
        constants: dict[str, str | int] = {"sink": sink, "batch": batch}
        staging = Staging(
            connection=self._options,
            stage=STREAM_STAGE,
            checker=self._checker,
            rejects=self._rejects,
            write_id=write_id_of(sink, batch),
            constants=constants,
            touched=False,
        )
        staged = staging.run(iterator)
        staged.query, staged.sink = query, sink
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make jobs of the rows of a micro-batch, in one transaction, unless that was done before."""
        parts = winners(messages)
        if not parts:
            return
        sink, query = parts[0].sink, parts[0].query
        assert sink is not None and query is not None
        refuse_bad_rows(self._options, parts)
        start = bulk_start(self._options, self._columns, write_id_of(sink, batchId), parts)
        fresh = committed(
            self._options, lambda session: commit_batch(session, start, sink=sink, query=query, batch=batchId)
        )
        if self._rejects is not None and fresh:
            files = {part.reject_file for part in parts if part.reject_file is not None}
            remove_others(self._rejects, write_id_of(sink, batchId), files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what is staged of a micro-batch that has failed."""
        parts = winners(messages)
        if parts and parts[0].sink is not None:
            with bulk_session(settings_of(self._options)) as session:
                forget_staged(session, sink=parts[0].sink, batch=batchId)


def write_id_of(sink: str, batch: int) -> str:
    """What the jobs of a micro-batch carry as their write's id."""
    return f"{sink}:{batch}"
