"""The batch writer: tasks stage rows, and the driver makes jobs of all of them in one commit, or of none."""

from __future__ import annotations

import importlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from queuert.errors import StateError, StateUnavailableError
from queuert.job_types import JobType, JobTypes
from queuert.spark.errors import (
    BadRowsError,
    FenceLostError,
    SparkOptionError,
    StagingLostError,
    WriteConflictError,
    shown_offenders,
)
from queuert.spark.options import WriteOptions
from queuert.spark.write.columns import Columns, find_columns
from queuert.spark.write.rejects import Rejects, check_rejects, prefix_of, remove_others, warn_of_left
from queuert.spark.write.staging import SHOWN, Staged, Staging, settings_of
from queuert.spark.write.validation import RowChecker
from queuert.state.postgres.bulk import BulkSession, bulk_session, drop_stage, make_stage, sweep_staging
from queuert.state.postgres.bulk_commit import (
    BulkResult,
    BulkStart,
    FenceLost,
    Part,
    StagedRowsMissing,
    WriteIdConflict,
    commit_write,
    find_write,
    is_broken,
)
from queuert.state.postgres.sync_statements import fetch

T = TypeVar("T")

_COMMITS = 3

_log = logging.getLogger("queuert.spark")


def job_type_of(options: WriteOptions) -> JobType[Any, Any] | None:
    """Return the declared job type, if the options name it.

    Raises:
        SparkOptionError: it does not exist.
    """
    if options.job_types is None:
        return None
    found = _imported(options.job_types)
    if isinstance(found, JobType):
        found = JobTypes(found) if not found.continuations else {found.name: found}
    if not isinstance(found, JobTypes | dict):
        raise SparkOptionError(f"jobTypes must name a JobTypes or a JobType, got {options.job_types}")
    job_type = found.get(options.job_type)
    if job_type is None:
        raise SparkOptionError(f"jobType must be one of {options.job_types}, got {options.job_type!r}")
    return job_type


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SparkOptionError(f"jobTypes must name a module that driver and executors can import: {error}") from None


def bulk_start(options: WriteOptions, columns: Columns, write_id: str, parts: Sequence[Staged]) -> BulkStart:
    """Return what to start from the staged rows."""
    fence = options.parsed_fence
    return BulkStart(
        type=options.job_type,
        write_id=write_id,
        parts=[Part(part.tag, part.rows) for part in parts],
        fence=None if fence is None else (fence.job_id, fence.attempt, fence.token),
        trace_context=options.trace_context,
        notify=options.notify,
        has_ids="id" in columns.settings,
        has_keys="deduplication_key" in columns.settings,
        has_blockers="blocked_by" in columns.settings,
        skip_existing=options.on_conflict == "nothing",
        scope=options.deduplication_scope,
        window=options.deduplication_window,
    )


def winners(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the results of the tasks, in the order of the partitions."""
    return sorted((one for one in messages if isinstance(one, Staged)), key=lambda one: one.partition)


def refuse_bad_rows(options: WriteOptions, parts: Sequence[Staged]) -> None:
    """Fail the write if there are bad rows and the option ``rejects`` is not set.

    Raises:
        BadRowsError: there are bad rows.
    """
    bad = sum(part.bad for part in parts)
    if bad and options.rejects == "fail":
        offenders = [offender for part in parts for offender in part.offenders][:SHOWN]
        rows = sum(part.seen for part in parts)
        raise BadRowsError(shown_offenders(bad, rows, offenders))


@contextmanager
def reported() -> Iterator[None]:
    """Raise errors of the commit as the errors that users know."""
    try:
        yield
    except StagedRowsMissing as error:
        raise StagingLostError(f"{error}: nothing was written: write again") from None
    except FenceLost as error:
        raise FenceLostError(f"{error}: the write was refused") from None
    except WriteIdConflict as error:
        raise WriteConflictError(str(error)) from None


def committed(options: WriteOptions, commit: Callable[[BulkSession], T], *, in_doubt: str = "") -> T:
    """Commit on a new connection; repeat it if the connection broke: the repetition finds out whether it was
    committed. If it cannot, the message of the error ends with ``in_doubt``."""
    may_be_committed = False
    for left in reversed(range(_COMMITS)):
        is_sent = False
        try:
            with bulk_session(settings_of(options), application_name="queuert spark commit") as session, reported():
                is_sent = True
                return commit(session)
        except StateUnavailableError as error:
            may_be_committed = may_be_committed or (is_sent and is_broken(error))
            if left and is_broken(error):
                continue
            if may_be_committed and in_doubt:
                raise StateUnavailableError(f"{error}: {in_doubt}") from error.__cause__
            raise
    raise AssertionError("the last round returns or raises")


class JobBatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. It is made on the driver before any task begins, and sent to the tasks and to the
    commit."""

    def __init__(self, options: WriteOptions, schema: StructType, declared: JobType[Any, Any] | None = None) -> None:
        job_type = declared or job_type_of(options)
        self._options = options
        self._columns = find_columns(schema, job_type)
        self._path = None if options.rejects == "fail" else options.rejects
        if self._path is not None:
            check_rejects(self._path, schema)
        self._write_id = str(uuid.uuid4()) if options.write_id is None else options.write_id
        self._checker = RowChecker(self._columns, options.job_type, job_type)
        self._prefix = ""
        self._known: BulkResult | None = None
        self._staging = self._begin()

    def _begin(self) -> Staging | None:
        """Create the staging table; None if the write was committed before and there is nothing to stage."""
        with bulk_session(settings_of(self._options)) as session, reported():
            session.check_schema()
            if self._path is not None:
                self._prefix = prefix_of(session, *self._write)
            self._known = find_write(session, self._write_id, self._options.job_type)
            if self._known is not None:
                return None
            sweep_staging(session)
            stage = make_stage(session, self._write_id, staging_ttl=self._options.staging_ttl)
        return Staging(self._options, stage, self._checker, self._rejects(stage), {})

    @property
    def _write(self) -> tuple[str, str]:
        return "batch", self._write_id

    def _rejects(self, stage: str) -> Rejects | None:
        if self._path is None:
            return None
        # The table's name is unique to this driver, and so are the names of its files, which contain it.
        is_committed = partial(_is_committed, write_id=self._write_id)
        return Rejects(self._path, self._write, is_committed, run=_run_of(stage))

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a partition; rows that another attempt has staged do not count."""
        if self._staging is None:
            for _ in iterator:
                pass
            return Staged("", 0, 0, 0, [])
        return self._staging.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make jobs of all rows in one transaction. A failed cleanup afterwards does not fail the write."""
        result = self._known
        if self._staging is not None:
            parts = winners(messages)
            refuse_bad_rows(self._options, parts)
            result = self._commit(parts)
            self._drop(self._staging.stage)
        if self._path is not None and result is not None:
            remove_others(self._path, self._prefix, result.reject_files)

    def _commit(self, parts: Sequence[Staged]) -> BulkResult:
        assert self._staging is not None
        files = [part.reject_file for part in parts if part.reject_file is not None]
        start = bulk_start(self._options, self._columns, self._write_id, parts)
        stage, rejected = self._staging.stage, sum(part.bad for part in parts)
        return committed(
            self._options,
            lambda session: commit_write(session, stage, start, rejected=rejected, reject_files=files),
            in_doubt=f"the write may have been committed: write again with writeId {self._write_id}, which writes "
            "nothing twice",
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows. Tasks may still run: they find the table missing, and do not create it again.

        Files of rejects are removed only if it is certain that they do not count: no commit can be in progress, since
        it would lock the table, and the result of the write can be read. Files of other drivers are kept.
        """
        if self._staging is None:
            return
        stage = self._staging.stage
        dropped, counting = self._drop(stage)
        if self._path is None:
            return
        if dropped:
            remove_others(self._path, f"{self._prefix}{_run_of(stage)}", counting)
        else:
            warn_of_left("it is not known whether the write was committed")

    def _drop(self, stage: str) -> tuple[bool, list[str]]:
        """Drop the staging table. Returns whether it was dropped, and the files of the write if it was committed by
        then.

        What cannot be dropped now is left to maintenance.
        """
        try:
            with bulk_session(settings_of(self._options)) as session:
                if not drop_stage(session, stage):
                    return False, []
                return True, [name for row in _found(session, self._write_id) for name in row[-1]]
        except StateError as error:
            _log.warning("the staging table %s is left to the next sweep: %s", stage, error)
            return False, []


def _found(session: BulkSession, write_id: str) -> list[Any]:
    with session.transaction() as connection:
        return fetch(connection, session.sql.bulk_find_write, {"write_id": write_id})


def _is_committed(session: BulkSession, *, write_id: str) -> bool:
    return bool(_found(session, write_id))


def _run_of(stage: str) -> str:
    return f"{stage.rpartition('_')[2]}-"
