"""The transaction that makes jobs of staged rows: fence, write id, count, chains, notifications.

Micro-batches of streams are each committed once, however often they are repeated. The number and the ids of the chains
of a write can be read later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import psycopg
from psycopg import Connection
from psycopg.errors import UndefinedTable

from queuert.deduplication import DeduplicationScope
from queuert.errors import (
    ChainNotFoundError,
    JobIdConflictError,
    SchemaMissingError,
    StateUnavailableError,
    UnsupportedConnectionError,
)
from queuert.notify import encoding
from queuert.notify.adapter import Topic
from queuert.state.postgres.bulk import STREAM_STAGE, BulkSession, staged, touch_stage
from queuert.state.postgres.errors import BROKEN, was_deadlock
from queuert.state.postgres.sync_retention import delete_expired
from queuert.state.postgres.sync_statements import add_blockers, fetch
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.sync_store import Store
from queuert.state.types import NewJob

T = TypeVar("T")

_ROUNDS = 5
_FIRST_PAUSE = 0.1
_BLOCKED_AT_ONCE = 5_000
"""Jobs whose blockers are written by one statement."""

_EXPIRED_AT_ONCE = 1_000
_SHOWN = 10
"""The largest number of ids that an error message names."""


class StagedRowsMissing(Exception):
    """The staged rows are not those that the tasks reported."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"{found} rows are staged, and tasks told of {expected}")


class _IdTakenConcurrently(Exception):
    """An id was taken after the staged rows were checked: rows may have been skipped as duplicates of one that starts
    nothing."""


class FenceLost(Exception):
    """The attempt that performs the write has lost the lease of its job."""


class WriteIdConflict(Exception):
    """The id of the write belongs to another write; the message says to which."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that one task staged under its own tag."""

    tag: str
    rows: int


@dataclass(frozen=True, slots=True)
class BulkStart:
    """What to start from the staged rows.

    Attributes:
        type: the job type.
        write_id: the id of the bulk write, stored in each job.
        parts: the rows of the successful tasks, in the order of the DataFrame.
        fence: job id, attempt and token of the attempt whose lease must be valid, if there is one.
        has_ids: whether the rows have chosen ids, which may exist already.
        has_keys: whether rows may have deduplication keys.
        has_blockers: whether rows may wait for chains.
        skip_existing: whether rows are skipped if their id exists, or if a row before them has it.
        scope: which chains with the key of a row make it a duplicate.
        window: only chains started within so many seconds count; None for all.
    """

    type: str
    write_id: str
    parts: Sequence[Part]
    fence: tuple[str, int, str] | None = None
    trace_context: str | None = None
    notify: bool = True
    has_ids: bool = False
    has_keys: bool = False
    has_blockers: bool = False
    skip_existing: bool = False
    scope: DeduplicationScope = DeduplicationScope.OPEN
    window: float | None = None

    @property
    def rows(self) -> int:
        """The number of staged rows."""
        return sum(part.rows for part in self.parts)

    def parameters(self) -> dict[str, Any]:
        """The parameters of all statements."""
        ends = list(accumulate(part.rows for part in self.parts))
        return {
            "type": self.type,
            "write_id": self.write_id,
            "trace_context": self.trace_context,
            "tags": [part.tag for part in self.parts],
            "firsts": [end - part.rows for end, part in zip(ends, self.parts, strict=True)],
            "only_open": self.scope is DeduplicationScope.OPEN,
            "window": self.window,
        }


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a bulk write.

    Attributes:
        rows: number of valid rows.
        started: number of chains that were started; for each other row a chain existed.
        rejected: number of rejected rows.
        reject_files: the files of the rejected rows.
        repeated: whether the write had been committed before, so that nothing was written now.
    """

    rows: int
    started: int
    rejected: int = 0
    reject_files: tuple[str, ...] = ()
    repeated: bool = False


def find_write(session: BulkSession, write_id: str, type: str) -> BulkResult | None:
    """Return the result of the bulk write of this id, if it was committed.

    Raises:
        WriteIdConflict: the write was of another job type.
    """
    with session.transaction() as connection:
        return _written(session, connection, write_id, type)


def _written(session: BulkSession, connection: Connection[Any], write_id: str, type: str) -> BulkResult | None:
    for known, rows, started, rejected, files in fetch(connection, session.sql.bulk_find_write, {"write_id": write_id}):
        if known != type:
            raise WriteIdConflict(
                f"the write {write_id!r} must be of one job type, and was committed with job type {known!r}"
            )
        return BulkResult(rows, started, rejected, tuple(files), repeated=True)
    return None


def commit_write(
    session: BulkSession, stage: str, start: BulkStart, *, rejected: int = 0, reject_files: Sequence[str] = ()
) -> BulkResult:
    """Make jobs of the rows in the staging table of a bulk write, unless a write of this id was committed before.

    Raises:
        WriteIdConflict: the earlier write was of another job type.
        StagedRowsMissing: staged rows are missing; nothing was written.
        FenceLost: the attempt has lost its lease; nothing was written.
        JobIdConflictError: ids exist already, or are repeated; nothing was written.
        ChainNotFoundError: a blocker of a row does not exist; nothing was written.
        StateUnavailableError: the database could not be reached in several rounds, and it may be unknown whether the
            last one was committed: repeat the write under the same id.
    """
    noted = {"rows": start.rows, "rejected": rejected, "reject_files": list(reject_files)}

    def once() -> BulkResult:
        with session.transaction() as connection:
            if not fetch(connection, session.sql.bulk_record_write, {**start.parameters(), **noted}):
                found = _written(session, connection, start.write_id, start.type)
                assert found is not None
                return found
            started, _ = start_staged(session, connection, stage, start)
            connection.execute(session.sql.bulk_record_started, {"started": started, "write_id": start.write_id})
            finish(session, connection, start, started)
        return BulkResult(start.rows, started, rejected, tuple(reject_files))

    try:
        return with_retries(session, stage, start, once)
    except SchemaMissingError as error:
        if isinstance(error.__cause__, UndefinedTable) and not touch_stage(session, stage):
            raise StagedRowsMissing(0, start.rows) from None
        raise


def with_retries(session: BulkSession, stage: str, start: BulkStart, once: Callable[[], T]) -> T:
    """Run a transaction; repeat it after deadlocks, and once after deleting expired chains that have ids of its
    rows."""
    if start.skip_existing:
        _delete_expired_conflicts(session, stage, start)
    for left in reversed(range(_ROUNDS)):
        try:
            return once()
        except JobIdConflictError as error:
            if not _delete_expired_conflicts(session, stage, start):
                raise _conflict(session, stage, start) or error from None
            if not left:
                raise
        except _IdTakenConcurrently:
            if not left:
                raise StateUnavailableError("other transactions keep taking ids of this write: write again") from None
        except StateUnavailableError as error:
            if not left or not was_deadlock(error):
                raise
            time.sleep(_FIRST_PAUSE * 2 ** (_ROUNDS - left))
    raise AssertionError("the last round returns or raises")


def _delete_expired_conflicts(session: BulkSession, stage: str, start: BulkStart) -> bool:
    """Delete expired chains that have ids of staged rows. Returns whether there were any."""
    if not start.has_ids:
        return False
    gone = False
    while ids := _conflicts(session, stage, start, limit=_EXPIRED_AT_ONCE, expired=True):
        with session.transaction() as connection:
            if not delete_expired(connection, session.sql, ids):
                break
        gone = True
    return gone


def _conflict(session: BulkSession, stage: str, start: BulkStart) -> JobIdConflictError | None:
    """Return the error for conflicting ids of staged rows; None if there is no conflict any more."""
    existing = dict.fromkeys(_conflicts(session, stage, start, limit=_SHOWN))
    with session.transaction() as connection:
        params = {**start.parameters(), "limit": _SHOWN}
        repeated = [id for (id,) in fetch(connection, staged(session.sql.bulk_repeated, stage), params)]
    return JobIdConflictError(existing, repeated=repeated) if existing or repeated else None


def _conflicts(session: BulkSession, stage: str, start: BulkStart, *, limit: int, expired: bool = False) -> list[str]:
    params = {"tags": [part.tag for part in start.parts], "limit": limit, "expired": expired}
    with session.transaction() as connection:
        return [id for (id,) in fetch(connection, staged(session.sql.bulk_conflicts, stage), params)]


def start_staged(session: BulkSession, connection: Connection[Any], stage: str, start: BulkStart) -> tuple[int, int]:
    """Make jobs of the staged rows inside the connection's transaction.

    Returns the number of chains that were started, and of the staged rows that must be left.
    """
    values = start.parameters()
    sql = session.sql
    [(found,)] = fetch(connection, staged(sql.bulk_count_staged, stage), values)
    if found != start.rows:
        raise StagedRowsMissing(found, start.rows)
    left = start.rows - _drop_unwanted(session, connection, stage, start, values)
    awaited = _lock_awaited(session, connection, stage, values) if start.has_blockers else False
    insert, recorded = sql.bulk_start, sql.bulk_start_recorded
    if start.skip_existing:
        insert, recorded = sql.bulk_start_skip_existing, sql.bulk_start_recorded_skip_existing
    [(level,)] = fetch(connection, sql.bulk_event_level, values)
    if level == "all":
        [(started,)] = fetch(connection, staged(recorded, stage), values)
    else:
        started = connection.execute(staged(insert, stage), values).rowcount
    if start.has_keys and started < left:
        raise _IdTakenConcurrently
    if awaited:
        waiting = fetch(connection, staged(sql.bulk_jobs_with_blockers, stage), values)
        for first in range(0, len(waiting), _BLOCKED_AT_ONCE):
            some = waiting[first : first + _BLOCKED_AT_ONCE]
            add_blockers(connection, sql, [NewJob(id, start.type, "null", blockers=tuple(ids)) for id, ids in some])
    return int(started), left


def _drop_unwanted(
    session: BulkSession, connection: Connection[Any], stage: str, start: BulkStart, values: dict[str, Any]
) -> int:
    """Delete the staged rows that start nothing; return how many.

    Rows are first skipped for their ids: a row that starts nothing makes no other row a duplicate and has no blockers.
    """
    sql, passes_over = session.sql, start.skip_existing and start.has_ids
    if start.has_keys:
        connection.execute(staged(sql.bulk_lock_keys, stage), values)
    steps = (
        (passes_over, sql.bulk_drop_repeated),
        (passes_over and (start.has_keys or start.has_blockers), sql.bulk_drop_existing),
        (start.has_keys, sql.bulk_drop_duplicates),
    )
    return sum(connection.execute(staged(step, stage), values).rowcount for wanted, step in steps if wanted)


def _lock_awaited(session: BulkSession, connection: Connection[Any], stage: str, values: dict[str, Any]) -> bool:
    """Lock the blockers of the rows, as the start of a client does. Returns whether there are any."""
    awaited = [id for (id,) in fetch(connection, staged(session.sql.bulk_blockers, stage), values)]
    if not awaited:
        return False
    params: dict[str, list[str]] = {"rows": awaited, "awaited": awaited, "closing": []}
    found = {id for (id,) in fetch(connection, session.sql.lock_in_order, params)}
    missing = sorted(set(awaited) - found)
    if missing:
        raise ChainNotFoundError(missing[0])
    return True


def finish(session: BulkSession, connection: Connection[Any], start: BulkStart, started: int) -> None:
    """Send the notifications and lock the fence. This comes last, so that the fence is locked only for a moment."""
    if start.notify and started:
        texts = encoding.encode(frozenset({start.type}))
        channel = f"{session.settings.schema}_{Topic.JOBS.value}"
        connection.execute(session.sql.notify, {"channel": channel, "payloads": texts})
    lock_fence(session, connection, start)


def lock_fence(session: BulkSession, connection: Connection[Any], start: BulkStart) -> None:
    """Lock the fence's job, so that its attempt keeps it until the transaction ends.

    Raises:
        FenceLost: the attempt has lost the lease.
    """
    if start.fence is None:
        return
    job_id, attempt, token = start.fence
    if not fetch(connection, session.sql.bulk_lock_fence, {"job_id": job_id, "attempt": attempt, "token": token}):
        raise FenceLost(f"attempt {attempt} has lost the lease of job {job_id!r}")


def is_broken(error: BaseException) -> bool:
    """Whether the connection was lost, so that the result of a commit is unknown."""
    cause = error.__cause__
    return isinstance(error, StateUnavailableError) and isinstance(cause, BROKEN) and _ended(cause)


def _ended(cause: BaseException | None) -> bool:
    state = getattr(cause, "sqlstate", None)
    return state is None or str(state).startswith(("08", "57P")) or not isinstance(cause, psycopg.Error)


_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class BulkCounts:
    """The number of chains of a bulk write by status."""

    total: int
    completed: int
    failed: int
    cancelled: int

    @property
    def open(self) -> int:
        """The number of chains that have not closed."""
        return self.total - self.completed - self.failed - self.cancelled


def count_write(store: Store, write_id: str) -> BulkCounts:
    """Count the existing chains that the write started, by status.

    Raises:
        UnsupportedConnectionError: the store is not on Postgres, so it has no bulk writes.
    """
    postgres = _postgres(store)
    ((total, completed, failed, cancelled),) = postgres._fetch(postgres._sql.bulk_count, {"write_id": write_id})
    return BulkCounts(total, completed, failed, cancelled)


def chain_ids_of_write(store: Store, write_id: str) -> Iterator[str]:
    """Yield the ids of the chains that the write started, in order, reading page by page.

    Raises:
        UnsupportedConnectionError: the store is not on Postgres.
    """
    postgres, after = _postgres(store), ""
    while True:
        values = {"write_id": write_id, "after": after, "limit": _PAGE}
        page = [id for (id,) in postgres._fetch(postgres._sql.bulk_chain_ids, values)]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]


def _postgres(store: Store) -> PostgresStore:
    if not isinstance(store, PostgresStore):
        raise UnsupportedConnectionError(f"bulk writes need a Postgres store, got {type(store).__name__}")
    return store


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last micro-batch of a sink.

    Attributes:
        query: the id of the streaming query that wrote it.
        batch: the number of the batch.
        reject_files: the files of its rejected rows; those of an earlier batch if an older version committed this one.
    """

    query: str
    batch: int
    reject_files: tuple[str, ...]


def last_batch(session: BulkSession, sink: str) -> LastBatch | None:
    """Return the last micro-batch that was committed for a sink; None if there was none."""
    with session.transaction() as connection:
        return _last(session, connection, sink)


def settled_batch(session: BulkSession, *, sink: str, query: str, batch: int) -> LastBatch | None:
    """Return the last micro-batch that was committed for a sink, after waiting for a commit that is under way.

    A driver whose connection broke does not know whether the server has carried out its COMMIT. If it has not, it holds
    the row of the sink until then.

    Raises:
        StateUnavailableError: the commit did not end within the lock timeout, or the database cannot be reached.
    """
    noted = {"sink": sink, "query": query, "batch": batch, "rows": 0, "rejected": 0, "reject_files": list[str]()}
    with session.transaction() as connection:
        # Also waits for the first commit of a sink, which has no row yet that could be locked.
        with connection.transaction(force_rollback=True):
            fetch(connection, session.sql.stream_record_batch, noted)
        return _last(session, connection, sink)


def _last(session: BulkSession, connection: Connection[Any], sink: str) -> LastBatch | None:
    for query, batch, files in fetch(connection, session.sql.stream_find, {"sink": sink}):
        return LastBatch(query, batch, tuple(files))
    return None


def commit_batch(
    session: BulkSession,
    start: BulkStart,
    *,
    sink: str,
    query: str,
    batch: int,
    rejected: int = 0,
    reject_files: Sequence[str] = (),
) -> LastBatch | None:
    """Make jobs of the staged rows of a micro-batch, unless this or a later batch was committed for the sink before.

    Returns None if it was committed now, together with the names of the files of its rejected rows; otherwise the last
    micro-batch of the sink. The staged rows of the sink up to this batch are deleted in any case.

    Raises:
        WriteIdConflict: another query has written to this sink.
        Also the errors of ``commit_write``; nothing was written then.
    """
    params = {"sink": sink, "query": query, "batch": batch, "tags": [part.tag for part in start.parts]}
    noted = {**params, "rows": start.rows, "rejected": rejected, "reject_files": list(reject_files)}

    def once() -> LastBatch | None:
        with session.transaction() as connection:
            if not fetch(connection, session.sql.stream_record_batch, noted):
                known = _last(session, connection, sink)
                assert known is not None
                _check_query(known.query, params)
                connection.execute(session.sql.stream_delete_staged, params)
                return known
            started, left = start_staged(session, connection, STREAM_STAGE, start)
            # The table is shared, so no lock on it keeps sweeps away.
            [(found,)] = fetch(connection, session.sql.stream_delete_staged, params)
            if found != left:
                raise StagedRowsMissing(start.rows - left + found, start.rows)
            finish(session, connection, start, started)
        return None

    return with_retries(session, STREAM_STAGE, start, once)


def _check_query(known: str, params: dict[str, object]) -> None:
    if known != params["query"]:
        raise WriteIdConflict(
            f"the sink {params['sink']!r} must be written by one query, {known}, got {params['query']}: its "
            "batches are "
            "numbered anew, and would count as committed already. Give it a sinkId of its own"
        )


def forget_staged(session: BulkSession, *, sink: str, batch: int, tags: Sequence[str]) -> None:
    """Delete what the attempts with these tags have staged of a micro-batch that has failed: it will be staged anew.

    Other rows of the sink are kept: another query may use its name by mistake, and is refused.
    """
    with session.transaction() as connection:
        connection.execute(session.sql.stream_delete_attempts, {"sink": sink, "batch": batch, "tags": list(tags)})
