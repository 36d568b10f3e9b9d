"""What a task does: check its rows, load the valid ones into the staging table, and tell the driver what it did.

Rows are loaded some megabytes at a time, each in a transaction of its own: one that was open as long as the task, which
may wait hours for what it reads, would hold up vacuum and whoever reads the event log.
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
"""How many bad rows a task tells of."""


def settings_of(options: ConnectionOptions) -> BulkSettings:
    """The connection that options ask for, resolved in this process."""
    dsn, schema = options.address()
    return BulkSettings(dsn, schema, options.statement_timeout, options.lock_timeout, options.connection_check_interval)


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        tag: under which its rows are staged.
        partition: its number.
        rows: those that are staged.
        seen: all that came.
        bad: those that are no valid jobs.
        offenders: the first of them, and what is wrong.
        reject_file: where they were set aside.
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
    """Where and how the tasks of one write stage their rows.

    Attributes:
        connection: where the database is, resolved by each task: its environment may differ from the driver's.
        stage: the staging table.
        checker: of the rows.
        rejects: where bad rows go; None: they fail the write.
        constants: columns that have one value in all rows, beside the tag.
        touched: whether the staging table is the write's own, and is to be kept from the sweep.
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
        """Rejected rows have a file for the block, which is seen if this attempt succeeds while somebody wants it."""
        if self._staging.rejects is None:
            yield
            return
        self._rejects = RejectFile(self._staging.rejects, session, self._tag)
        try:
            yield
            if self._rejects.name is not None:
                self._touch(session)
                self._rejects.finish()
                self._touch(session)  # the driver may have given up, and have removed what it saw
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
            raise StagingLostError("the staging table is gone: the write was given up, or swept as one that is left")

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
        places = pc.add(pc.cast(checked.good, pa.int64()), self._seen)
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
    """The id of a row that is to be named in an error, if it has one that can be shown."""
    if "id" not in batch.schema.names:
        return ""
    try:
        id = batch.column("id")[row].as_py()
    except UnicodeDecodeError:
        return ""
    return f" (id {id[:80]!r})" if isinstance(id, str) else ""


def _slices(batch: Any) -> Iterator[Any]:
    """A batch in parts that fit into one text of Arrow (two gigabytes), as nearly all do whole."""
    if batch.nbytes <= _SLICE_BYTES:
        yield batch
        return
    for start in range(0, batch.num_rows, _SLICE_ROWS):
        yield batch.slice(start, _SLICE_ROWS)
