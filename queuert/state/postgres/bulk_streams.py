"""Micro-batches of streams: each is committed once, however often it is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from queuert.state.postgres.bulk import STREAM_STAGE, BulkSession
from queuert.state.postgres.bulk_commit import BulkStart, WriteIdConflict, finish, start_staged, with_retries
from queuert.state.postgres.sync_statements import fetch


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
    params = {"sink": sink, "query": query, "batch": batch}
    noted = {**params, "rows": start.rows, "rejected": rejected, "reject_files": list(reject_files)}

    def once() -> LastBatch | None:
        known = None
        with session.transaction() as connection:
            if fetch(connection, session.sql.stream_record_batch, noted):
                started = start_staged(session, connection, STREAM_STAGE, start)
                finish(session, connection, start, started)
            else:
                known = _last(session, connection, sink)
                assert known is not None
                _check_query(known.query, params)
            connection.execute(session.sql.stream_delete_staged, params)
        return known

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
