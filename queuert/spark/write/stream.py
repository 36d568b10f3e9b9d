"""The stream writer: each micro-batch is committed once, also across restarts of the query from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from queuert.job_types import JobType
from queuert.spark.errors import SparkOptionError
from queuert.spark.options import WriteOptions
from queuert.spark.write.batch import bulk_start, committed, job_type_of, refuse_bad_rows, winners
from queuert.spark.write.columns import find_columns
from queuert.spark.write.rejects import Rejects, check_rejects, prefix_of, remove_files, remove_others
from queuert.spark.write.staging import Staged, Staging, settings_of
from queuert.spark.write.validation import RowChecker
from queuert.state.postgres.bulk import STREAM_STAGE, BulkSession, bulk_session
from queuert.state.postgres.bulk_commit import BulkStart, commit_batch, forget_staged, last_batch


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one stream. Spark makes a new one for each commit."""

    def __init__(self, options: WriteOptions, schema: StructType, declared: JobType[Any, Any] | None = None) -> None:
        if options.write_id is not None:
            raise SparkOptionError(
                "writeId must not be set for a stream, whose micro-batches have ids of their own: name the sink "
                "by sinkId"
            )
        job_type = declared or job_type_of(options)
        self._options = options
        self._columns = find_columns(schema, job_type)
        self._checker = RowChecker(self._columns, options.job_type, job_type)
        self._path = None if options.rejects == "fail" else options.rejects
        if self._path is not None:
            check_rejects(self._path, schema)

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
            rejects=self._rejects(sink, batch),
            constants=constants,
            touched=False,
        )
        staged = staging.run(iterator)
        staged.query, staged.sink = query, sink
        return staged

    def _rejects(self, sink: str, batch: int) -> Rejects | None:
        if self._path is None:
            return None
        return Rejects(self._path, ("stream", sink, batch), partial(_is_committed, sink=sink, batch=batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make jobs of the rows of a micro-batch in one transaction, unless that was done before."""
        parts = winners(messages)
        if not parts:
            return
        sink, query = parts[0].sink, parts[0].query
        assert sink is not None and query is not None
        refuse_bad_rows(self._options, parts)
        start = bulk_start(self._options, self._columns, write_id_of(sink, batchId), parts)
        prefix, files = committed(
            self._options, lambda session: self._commit(session, start, parts, sink, query, batchId)
        )
        if self._path is None:
            return
        if files is None:
            remove_files(self._path, reject_files(parts))
        else:
            remove_others(self._path, prefix, files)

    def _commit(
        self, session: BulkSession, start: BulkStart, parts: Sequence[Staged], sink: str, query: str, batch: int
    ) -> tuple[str, list[str] | None]:
        """Commit a micro-batch, and record the files of its rejected rows.

        Returns the prefix of its file names, and the files that count; None for these if they are unknown, since an
        earlier version committed the batch, or a later batch is committed.
        """
        session.check_schema()
        prefix = "" if self._path is None else prefix_of(session, "stream", sink, batch)
        rejected, files = sum(part.bad for part in parts), reject_files(parts)
        known = commit_batch(session, start, sink=sink, query=query, batch=batch, rejected=rejected, reject_files=files)
        if known is None:
            return prefix, files
        return prefix, _counting(known.reject_files, prefix) or None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the staged rows of a micro-batch that has failed."""
        parts = winners(messages)
        if not parts or parts[0].sink is None:
            return
        sink = parts[0].sink
        with bulk_session(settings_of(self._options)) as session:
            forget_staged(session, sink=sink, batch=batchId, tags=[part.tag for part in parts])
            files = reject_files(parts)
            if not files or self._path is None:
                return
            # The commit may have succeeded, and only its answer was lost.
            known, prefix = last_batch(session, sink), prefix_of(session, "stream", sink, batchId)
        counting = [] if known is None else _counting(known.reject_files, prefix)
        remove_files(self._path, [name for name in files if name not in counting])


def reject_files(parts: Sequence[Staged]) -> list[str]:
    """Return the files of the rows that the tasks rejected."""
    return [part.reject_file for part in parts if part.reject_file is not None]


def _counting(noted: Iterable[str], prefix: str) -> list[str]:
    """Return the recorded files with this prefix, which are those of the micro-batch."""
    return [name for name in noted if name.startswith(prefix)]


def _is_committed(session: BulkSession, *, sink: str, batch: int) -> bool:
    known = last_batch(session, sink)
    return known is not None and known.batch >= batch


def write_id_of(sink: str, batch: int) -> str:
    """Return the write id of the jobs of a micro-batch."""
    return f"{sink}:{batch}"
