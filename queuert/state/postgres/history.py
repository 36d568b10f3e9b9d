"""What a history needs of the database: how far it may read, one run at a time, and the end of what was archived.

Nothing here knows of Spark or of files. Each transaction is short, so that vacuum is not held up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from psycopg import Connection, errors

from queuert.errors import StateError, StateUnavailableError
from queuert.state.postgres import retention
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.errors import was_deadlock
from queuert.state.postgres.event_log import check_owner
from queuert.state.postgres.retention import PruneCandidate
from queuert.state.postgres.sync_retention import prune
from queuert.state.postgres.sync_statements import fetch


class ArchiveMismatchError(StateError):
    """A chain has other jobs than were archived. Nothing of its batch was deleted; look at the archive."""


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """How the database stands when a run begins.

    Attributes:
        tx: all transactions below it are over.
        dropped: the newest of which retention has taken events.
        now: the moment, by the server's clock, UTC.
        first_day: from this day on (UTC) no events have been taken for their age.
        system: the identifier of the cluster.
        database: its name.
        timeline: which history of the cluster.
    """

    tx: int
    dropped: int
    now: datetime
    first_day: date
    system: str
    database: str
    timeline: int


@dataclass(frozen=True, slots=True)
class ArchivedChain:
    """A chain as it was archived. ``jobs`` is the number of its jobs that were."""

    id: str
    created_at: datetime
    closed_at: datetime
    expires_at: datetime | None
    jobs: int


def history_facts(session: BulkSession) -> HistoryFacts:
    """How the database stands.

    Raises:
        DatabaseMovedError: its numbers are those of another cluster.
    """
    with session.transaction() as connection:
        ((tx, dropped, now, first_day, system, database, timeline, owner),) = fetch(
            connection, session.sql.history_facts
        )
    check_owner(owner, system)
    return HistoryFacts(int(tx), int(dropped), now.astimezone(UTC), first_day, system, database, timeline)


def event_dates(session: BulkSession, from_tx: int, to_tx: int, before: datetime) -> list[date]:
    """The days (UTC) of the events of these transactions that happened before a moment, in order."""
    with session.transaction() as connection:
        params = {"from_tx": str(from_tx), "to_tx": str(to_tx), "before": before}
        return [row[0] for row in fetch(connection, session.sql.history_dates, params)]


class HistoryLock:
    """The right to write to one output, for as long as the transaction is open."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        """Make sure that it is still held.

        Raises:
            StateUnavailableError: the connection is gone, and with it the lock. Run again.
        """
        try:
            fetch(self._connection, b"SELECT 1")
        except errors.Error as error:
            raise StateUnavailableError(f"the lock of this run is lost with its connection: {error}") from error


@contextmanager
def history_lock(session: BulkSession, name: str) -> Iterator[HistoryLock | None]:
    """Hold the lock of an output for the block; None where another run has it.

    It is a lock of a transaction, so that it works through a pooler. That is idle then, and holds neither a snapshot
    nor a transaction id: vacuum and readers of the log do not wait for it.
    """
    with session.transaction() as connection:
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
        ((held,),) = fetch(connection, session.sql.history_lock, {"name": name})
        yield HistoryLock(connection) if held else None


def delete_archived(session: BulkSession, chains: Sequence[ArchivedChain], *, wait: bool = False) -> list[str] | None:
    """Delete chains that are as they were archived, with all their jobs; those that went, in one transaction.

    Others stay: those that were retried, that closed anew or got another end, and those that a job which has not ended
    waits for. Rows that others hold are passed over; with ``wait`` they are waited for, and None is returned if that
    took too long or was a deadlock.

    Raises:
        ArchiveMismatchError: a chain has other jobs than were archived; none was deleted.
    """
    try:
        return _delete(session, chains, wait)
    except StateUnavailableError as error:
        if wait and (isinstance(error.__cause__, errors.LockNotAvailable) or was_deadlock(error)):
            return None
        raise


def _delete(session: BulkSession, chains: Sequence[ArchivedChain], wait: bool) -> list[str]:
    to_delete = [PruneCandidate(one.id, one.closed_at, one.expires_at) for one in chains]
    with session.transaction() as connection:
        rows = prune(connection, session.sql, to_delete, wait=wait)
        deleted = Counter(row[1] for row in rows)
        for chain in chains:
            if deleted.get(chain.id, chain.jobs) != chain.jobs:
                raise ArchiveMismatchError(
                    f"chain {chain.id!r} has {deleted[chain.id]} jobs, of which {chain.jobs} are archived: not deleted"
                )
    return retention.gone(to_delete, rows)


def kept_chains(session: BulkSession, chains: Sequence[ArchivedChain]) -> dict[str, str]:
    """Those of the chains that are there still, and why: ``changed``, ``waited_for`` or ``busy`` (others hold it)."""
    params = {
        "ids": [one.id for one in chains],
        "created": [one.created_at for one in chains],
        "closed": [one.closed_at for one in chains],
        "expires": [one.expires_at for one in chains],
    }
    with session.transaction() as connection:
        return dict(fetch(connection, session.sql.history_retained, params))
