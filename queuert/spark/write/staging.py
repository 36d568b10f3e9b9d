"""The work of a task: checks its rows, loads the valid ones into the staging table, and reports to the driver.

Rows are loaded some megabytes at a time, each time in a transaction of its own: one transaction for the whole task,
which may wait hours for its source, would delay vacuum and all readers of the event log.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from queuert.spark.arrow import pc
from queuert.spark.errors import StagingLostError
from queuert.spark.gc_tuning import spare_the_loaded
from queuert.spark.options import ConnectionOptions
from queuert.spark.write.copy_text import copy_text
from queuert.spark.write.rejects import RejectFile, Rejects
from queuert.spark.write.validation import Checked, RowChecker
from queuert.state.postgres.bulk import BulkSession, BulkSettings, bulk_session, copy_rows, touch_stage

FLUSH_BYTES = 8 * 1024 * 1024
_SLICE_ROWS = 500
_SLICE_BYTES = 64 * 1024 * 1024
SHOWN = 5
"""The number of bad rows that a task describes."""


def settings_of(options: ConnectionOptions) -> BulkSettings:
    """Return the connection of the options, resolved in this process."""
    dsn, schema = options.address()
    return BulkSettings(dsn, schema, options.statement_timeout, options.lock_timeout, options.connection_check_interval)


@dataclass
class Staged(WriterCommitMessage):
    """The report of a task to the driver.

    Attributes:
        tag: the tag of its staged rows.
        partition: the number of its partition.
        rows: number of staged rows.
        seen: number of all rows.
        bad: number of rows that are not valid jobs.
        offenders: descriptions of the first of them.
        reject_file: the file of its rejected rows.
        query: the id of the stream's query.
        sink: the name of the stream's sink.
    """

    tag: str
    partition: int
    rows: int
    bad: int
    offenders: list[str]
    reject_file: str | None = None
    query: str | None = None
    sink: str | None = None
    seen: int = 0


@dataclass
class Staging:
    """How the tasks of one write stage their rows.

    Attributes:
        connection: the options of the connection, resolved by each task, whose environment may differ from the
            driver's.
        stage: the staging table.
        checker: checks the rows.
        rejects: the destination of bad rows; None if they fail the write.
        constants: columns besides the tag with one value in all rows.
        touched: whether the staging table belongs to the write, which must record that it is in use.
    """

    connection: ConnectionOptions
    stage: str
    checker: RowChecker
    rejects: Rejects | None
    constants: dict[str, str | int]
    touched: bool = True

    def run(self, batches: Iterable[Any]) -> Staged:
        """Stage the rows of one partition."""
        spare_the_loaded()
        return _Task(self).run(batches)


class _Task:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        context = TaskContext.get()
        self._partition = 0 if context is None else context.partitionId()
        self._tag = str(uuid.uuid4())
        self._rows = self._seen = self._bad = 0
        self._offenders: list[str] = []
        self._rejects: RejectFile | None = None
        self._columns = ("tag", "place", *staging.constants, *staging.checker.names)

    def run(self, batches: Iterable[Any]) -> Staged:
        with bulk_session(settings_of(self._staging.connection), application_name="queuert spark task") as session:
            self._touch(session)
            with self._rejecting(session):
                self._load(session, batches)
        file = None if self._rejects is None else self._rejects.name
        return Staged(
            self._tag, self._partition, self._rows, self._bad, self._offenders, reject_file=file, seen=self._seen
        )

    @contextmanager
    def _rejecting(self, session: BulkSession) -> Iterator[None]:
        """Open a file for rejected rows for the block; it becomes visible if this attempt succeeds and the write is not
        over."""
        if self._staging.rejects is None:
            yield
            return
        self._rejects = RejectFile(self._staging.rejects, session, self._tag)
        try:
            yield
            if self._rejects.name is not None:
                self._touch(session)
                self._rejects.finish()
                self._touch(session)  # the driver may have aborted the write and removed the files that it saw
        except BaseException:
            self._rejects.discard()
            raise

    def _load(self, session: BulkSession, batches: Iterable[Any]) -> None:
        pending: list[memoryview] = []
        for chunk in self._chunks(batches):
            pending.append(chunk)
            if sum(map(len, pending)) >= FLUSH_BYTES:
                self._flush(session, pending)
                pending = []
        if pending:
            self._flush(session, pending)

    def _touch(self, session: BulkSession) -> None:
        if self._staging.touched and not touch_stage(session, self._staging.stage):
            raise StagingLostError(
                "the staging table was dropped: the write was aborted, or had not been used for stagingTtl: write again"
            )

    def _flush(self, session: BulkSession, pending: list[memoryview]) -> None:
        copy_rows(session, self._staging.stage, self._columns, pending)
        self._touch(session)

    def _chunks(self, batches: Iterable[Any]) -> Iterator[memoryview]:
        for whole in batches:
            for batch in _slices(whole):
                checked = self._staging.checker.check(batch)
                self._note_bad(batch, checked)
                if len(checked.good) and not (self._bad and self._rejects is None):
                    yield self._text(checked)
                self._seen += batch.num_rows

    def _text(self, checked: Checked) -> memoryview:
        rows = len(checked.good)
        # Rejected rows take no place: the commit counts the places of all parts from the numbers of their staged rows.
        places = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows), start=self._rows - 1)
        constants = [pa.repeat(str(value), rows) for value in (self._tag, *self._staging.constants.values())]
        self._rows += rows
        return copy_text([constants[0], places, *constants[1:], *checked.columns])

    def _note_bad(self, batch: Any, checked: Checked) -> None:
        if not checked.bad:
            return
        self._bad += len(checked.bad)
        for row in sorted(checked.bad)[: SHOWN - len(self._offenders)]:
            self._offenders.append(
                f"partition {self._partition}, row {self._seen + row}{_id_of(batch, row)}: {checked.bad[row]}"
            )
        if self._rejects is not None:
            self._rejects.add(batch, checked.bad)


def _id_of(batch: Any, row: int) -> str:
    """Return the id of a row for an error message, if it has one that can be shown."""
    if "id" not in batch.schema.names:
        return ""
    try:
        id = batch.column("id")[row].as_py()
    except UnicodeDecodeError:
        return ""
    return f" (id {id[:80]!r})" if isinstance(id, str) else ""


def _slices(batch: Any) -> Iterator[Any]:
    """Split a batch into parts that fit into one Arrow text (two gigabytes); nearly all fit whole."""
    if batch.nbytes <= _SLICE_BYTES:
        yield batch
        return
    for start in range(0, batch.num_rows, _SLICE_ROWS):
        yield batch.slice(start, _SLICE_ROWS)
