"""The stream writer: each micro-batch is committed once, also across restarts of the query from its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from queuert.errors import StateError
from queuert.job_types import JobType
from queuert.spark.errors import SparkOptionError
from queuert.spark.options import WriteOptions
from queuert.spark.write.batch import bulk_start, committed, job_type_of, refuse_bad_rows, winners
from queuert.spark.write.columns import find_columns
from queuert.spark.write.rejects import (
    Rejects,
    check_rejects,
    prefix_of,
    remove_files,
    remove_others,
    warn_of_left,
)
from queuert.spark.write.staging import Staged, Staging, settings_of
from queuert.spark.write.validation import RowChecker
from queuert.state.postgres.bulk import STREAM_STAGE, BulkSession, bulk_session, ttl_seconds
from queuert.state.postgres.bulk_commit import BulkStart, commit_batch, forget_staged, last_batch, settled_batch

_log = logging.getLogger("queuert.spark")


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
        constants: dict[str, str | int] = {
            "sink": sink,
            "batch": batch,
            "staging_ttl": ttl_seconds(self._options.staging_ttl),
        }
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
        tries = 0

        def once(session: BulkSession) -> tuple[str, list[str] | None]:
            nonlocal tries
            tries += 1
            return self._commit(session, start, parts, sink, query, batchId)

        prefix, files = committed(self._options, once)
        if self._path is None:
            return
        if files is not None:
            remove_others(self._path, prefix, files)
        elif tries == 1:
            remove_files(self._path, reject_files(parts))
        else:
            # Any try but the last may have committed them.
            warn_of_left("it is not known whether the micro-batch was committed with them")

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
        """Delete the staged rows of a micro-batch that has failed, and its rejects if they certainly do not count.

        The commit may have succeeded, and only its answer was lost.
        """
        parts = winners(messages)
        if not parts or parts[0].sink is None:
            return
        files = [] if self._path is None else reject_files(parts)
        try:
            left = self._forget(parts, batchId, files)
        except StateError as error:
            _log.warning("what a failed micro-batch has staged is left to the next sweep: %s", error)
            left = None
        if self._path is None or not files:
            return
        if left is None:
            warn_of_left("it is not known whether the micro-batch was committed with them")
        else:
            remove_files(self._path, left)

    def _forget(self, parts: Sequence[Staged], batch: int, files: Sequence[str]) -> list[str] | None:
        """Delete the staged rows of a micro-batch. Returns those of the files that do not count; None if that is not
        known, since only the last micro-batch's files are recorded, and it is a later one."""
        sink, query = parts[0].sink, parts[0].query
        assert sink is not None and query is not None
        with bulk_session(settings_of(self._options)) as session:
            forget_staged(session, sink=sink, batch=batch, tags=[part.tag for part in parts])
            if not files:
                return []
            known = settled_batch(session, sink=sink, query=query, batch=batch)
            prefix = prefix_of(session, "stream", sink, batch)
        if known is None or known.query != query:
            return list(files)
        if known.batch > batch:
            return None
        counting = _counting(known.reject_files, prefix)
        return [name for name in files if name not in counting]


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
