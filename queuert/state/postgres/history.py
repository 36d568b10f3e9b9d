"""What the archive needs of the database: how far to read, a lock for each run, the deletion of archived chains.

This module does not depend on Spark or on files. Each transaction is short, so that vacuum is not delayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
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
from queuert.state.types import was_lock_timeout


class ArchiveMismatchError(StateError):
    """A chain has other jobs than were archived. Nothing of its batch was deleted; compare the archive with the
    table."""


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """The state of the database at the beginning of a run.

    Attributes:
        tx: all transactions below it have ended.
        dropped: the newest transaction of which retention has dropped events.
        now: the time of the server's clock, UTC.
        first_day: the first day (UTC) of which no events were dropped for their age.
        system: the identifier of the cluster.
        database: the name of the database.
        timeline: the timeline of the cluster.
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
    """A chain as it was archived. ``jobs`` is the number of its archived jobs."""

    id: str
    created_at: datetime
    closed_at: datetime
    expires_at: datetime | None
    jobs: int


def history_facts(session: BulkSession) -> HistoryFacts:
    """Return the state of the database.

    Raises:
        DatabaseMovedError: its transaction numbers belong to another cluster: run ``queuert migrate adopt``.
    """
    with session.transaction() as connection:
        ((tx, dropped, now, first_day, system, database, timeline, owner),) = fetch(
            connection, session.sql.history_facts
        )
    check_owner(owner, system)
    return HistoryFacts(int(tx), int(dropped), now, first_day, system, database, timeline)


def event_dates(session: BulkSession, from_tx: int, to_tx: int, before: datetime) -> list[date]:
    """Return the days (UTC) of the events of these transactions that happened before a time, in order."""
    with session.transaction() as connection:
        params = {"from_tx": str(from_tx), "to_tx": str(to_tx), "before": before}
        return [day for (day,) in fetch(connection, session.sql.history_dates, params)]


class HistoryLock:
    """The exclusive right to write to one output, while the transaction is open."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        """Check that the lock is still held.

        Raises:
            StateUnavailableError: the connection was lost, and the lock with it. Run again.
        """
        try:
            fetch(self._connection, b"SELECT 1")
        except errors.Error as error:
            raise StateUnavailableError(
                f"the lock of this run was lost with its connection: {error}; run again"
            ) from error


@contextmanager
def history_lock(session: BulkSession, name: str) -> Iterator[HistoryLock | None]:
    """Lock an output for the block. Yields None if another run has locked it.

    The lock belongs to a transaction, so that it works through a pooler. That transaction is idle, and holds neither a
    snapshot nor a transaction id: vacuum and readers of the log do not wait for it.
    """
    with session.transaction() as connection:
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
        ((held,),) = fetch(connection, session.sql.history_lock, {"name": name})
        yield HistoryLock(connection) if held else None


def delete_archived(
    session: BulkSession,
    chains: Sequence[ArchivedChain],
    *,
    closed_before: datetime | None = None,
    wait: bool = False,
) -> list[str] | None:
    """Delete chains that have not changed since they were archived, with all their jobs, in one transaction. Returns
    those that were deleted.

    Chains are kept that were retried, that closed again or have another end, that are blockers of unfinished jobs, and
    that closed, or became stale, at ``closed_before`` or later. Rows that other transactions have locked are skipped.
    With ``wait`` the call waits for them, and returns None if that took too long or was a deadlock.

    Raises:
        ArchiveMismatchError: a chain has other jobs than were archived; nothing was deleted.
    """
    try:
        return _delete(session, chains, closed_before, wait)
    except StateUnavailableError as error:
        if wait and (was_lock_timeout(error) or was_deadlock(error)):
            return None
        raise


def _delete(
    session: BulkSession, chains: Sequence[ArchivedChain], closed_before: datetime | None, wait: bool
) -> list[str]:
    to_delete = [PruneCandidate(one.id, one.closed_at, one.expires_at) for one in chains]
    with session.transaction() as connection:
        jobs = prune(connection, session.sql, to_delete, closed_before=closed_before, wait=wait)
        deleted = Counter(job.chain_id for job in jobs)
        for chain in chains:
            if deleted.get(chain.id, chain.jobs) != chain.jobs:
                raise ArchiveMismatchError(
                    f"chain {chain.id!r} has {deleted[chain.id]} jobs, of which {chain.jobs} are archived: not deleted"
                )
    return retention.gone(to_delete, jobs)


def kept_chains(
    session: BulkSession, chains: Sequence[ArchivedChain], closed_before: datetime | None = None
) -> dict[str, str]:
    """Return which of the chains still exist, and why: ``changed``, ``waited_for``, ``unread`` (it closed, or became
    stale, at ``closed_before`` or later) or ``busy`` (another transaction has locked it)."""
    params = {
        "ids": [one.id for one in chains],
        "created": [one.created_at for one in chains],
        "closed": [one.closed_at for one in chains],
        "expires": [one.expires_at for one in chains],
        "closed_before": closed_before,
    }
    with session.transaction() as connection:
        return dict(fetch(connection, session.sql.history_retained, params))
