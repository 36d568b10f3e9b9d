"""Micro-batches of streams: each is committed once, however often it comes."""

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
        query: the query that wrote it.
        batch: its number.
        reject_files: where its rejected rows are; those of an earlier one if a version that notes none committed it.
    """

    query: str
    batch: int
    reject_files: tuple[str, ...]


def last_batch(session: BulkSession, sink: str) -> LastBatch | None:
    """The last micro-batch that was committed for a sink; None if there was none."""
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
    """Make jobs of the staged rows of a micro-batch, unless it, or a later one, was committed for the sink before.

    Returns None if it was done now, and noted with it where its rejected rows are; else the sink's last micro-batch.
    What is staged for the sink up to this batch is removed in any case.

    Raises:
        WriteIdConflict: another query has written to this sink.
        And all that ``commit_write`` raises; nothing was written then.
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
            connection.execute(session.sql.stream_forget_staged, params)
        return known

    return with_retries(session, STREAM_STAGE, start, once)


def _check_query(known: str, params: dict[str, object]) -> None:
    if known != params["query"]:
        raise WriteIdConflict(
            f"the sink {params['sink']!r} was written by query {known}, and this is {params['query']}: its batches are "
            "numbered anew, and would be taken for those that were committed. Give it a sinkId of its own"
        )


def forget_staged(session: BulkSession, *, sink: str, batch: int, tags: Sequence[str]) -> None:
    """Remove what attempts, by their tags, have staged of a micro-batch that has failed: it will be staged anew.

    Nothing else of the sink: another query may have come under its name by mistake, and is refused.
    """
    with session.transaction() as connection:
        connection.execute(session.sql.stream_forget_attempts, {"sink": sink, "batch": batch, "tags": list(tags)})
