"""Micro-batches of streams: each is committed once, however often it comes."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.state.postgres.bulk import STREAM_STAGE, BulkSession
from queuert.state.postgres.bulk_commit import BulkStart, WriteTaken, finish, in_rounds, start_staged
from queuert.state.postgres.sync_steps import fetch


def commit_batch(session: BulkSession, start: BulkStart, *, sink: str, query: str, batch: int) -> bool:
    """Make jobs of the staged rows of a micro-batch, unless it, or a later one, was committed for the sink before.

    Returns whether it was done now. What is staged for the sink up to this batch is removed in any case.

    Raises:
        WriteTaken: another query has written to this sink.
        And all that ``commit_write`` raises; nothing was written then.
    """
    asked = {"sink": sink, "query": query, "batch": batch, "rows": start.rows}

    def once() -> bool:
        with session.transaction() as connection:
            fresh = bool(fetch(connection, session.sql.stream_note_batch, asked))
            if not fresh:
                _check_query(fetch(connection, session.sql.stream_find, asked)[0][0], asked)
            else:
                started = start_staged(session, connection, STREAM_STAGE, start)
                finish(session, connection, start, started)
            connection.execute(session.sql.stream_forget_staged, asked)
        return fresh

    return in_rounds(session, STREAM_STAGE, start, once)


def _check_query(known: str, asked: dict[str, object]) -> None:
    if known != asked["query"]:
        raise WriteTaken(
            f"the sink {asked['sink']!r} was written by query {known}, and this is {asked['query']}: its batches are "
            "numbered anew, and would be taken for those that were committed. Give it a sinkId of its own"
        )


def forget_staged(session: BulkSession, *, sink: str, batch: int, tags: Sequence[str]) -> None:
    """Remove what attempts, by their tags, have staged of a micro-batch that has failed: it will be staged anew.

    Nothing else of the sink: another query may have come under its name by mistake, and is refused.
    """
    with session.transaction() as connection:
        connection.execute(session.sql.stream_forget_attempts, {"sink": sink, "batch": batch, "tags": list(tags)})
