# Generated from queuert/state/postgres/async_transaction.py, do not edit: see scripts/unasync.py
"""A transaction that holds one job for its handler. ``sync_transaction.py`` is generated from this module."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from queuert.errors import LeaseLostError, StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.state.adapter import ClaimedJob, Finish, FinishResult, Lease
from queuert.state.checks import check_endings
from queuert.state.pauses import sync_pauses
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.connections import Connections
from queuert.state.postgres.failures import BROKEN, mapped
from queuert.state.postgres.finishing import are_plain, completed
from queuert.state.postgres.rows import LeaseState
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_steps import fetch, finish_and_release
from queuert.state.postgres.watchdog import cut

_SWALLOWED = (
    "a statement inside the block failed, and its error was swallowed: all of the block was rolled back. "
    "Use a savepoint (connection.transaction()) around what may fail"
)


class PostgresTransaction:
    """The caller's writes and the job's ending in one transaction, fenced by the lease from first to last.

    The job's row is locked at the beginning, so that the reaper passes over it and a cancel waits. A connection that
    idles inside for longer than the lease is ended by the server: a frozen worker must not hold its job for ever.
    """

    def __init__(self, connections: Connections, sql: Statements, job: ClaimedJob) -> None:
        self._connections = connections
        self._sql = sql
        self._job = job
        self._stack = ExitStack()
        self._connection: Connection[Any] | None = None
        self._transaction: Any = None
        self._written = False

    @property
    def connection(self) -> Connection[Any]:
        """psycopg's connection, inside the transaction."""
        if self._connection is None:
            raise RuntimeError("the transaction has not begun")
        return self._connection

    @property
    def holds(self) -> bool:
        """The job's row is locked."""
        return True

    def cut(self) -> None:
        """End the transaction's connection, from any thread."""
        cut(self.connection)

    def finish(self, finish: Finish) -> FinishResult:
        """Write the ending inside the transaction."""
        check_endings([finish])
        with self._connections.limited(self.connection):
            results = self._finish(self.connection, finish)
        if finish.job.lease not in results:
            # Held by our lock since the beginning: only the caller's own SQL can have taken it.
            raise LeaseLostError(finish.job.id, AbortReason.TAKEN_BY_ANOTHER_WORKER)
        self._written = True
        return results[finish.job.lease]

    def _finish(self, connection: Connection[Any], finish: Finish) -> dict[Lease, FinishResult]:
        """The job's row is locked, so most completions need no other: nobody can have begun to wait for their chain.

        Nobody but the caller in this very transaction, which the lean statement finds out.
        """
        if are_plain([finish]):
            found = fetch(connection, self._sql.complete, parameters.complete([finish]))
            if found:
                return completed([finish], found)
        return finish_and_release(connection, self._sql, [finish])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._connection = stack.enter_context(self._connections.bare_connection())
            with self._connections.limited(self._connection):
                self._transaction = self._connection.transaction()
                self._transaction.__enter__()
                stack.push(self._transaction.__exit__)
                self._hold(self._connection)
            self._stack = stack.pop_all()
        return self

    def _hold(self, connection: Connection[Any]) -> None:
        lease = self._job.lease
        idle = str(max(1000, round(self._job.lease_seconds * 1000)))
        asked = {"id": lease.job_id, "root": self._job.chain_id, "idle": idle}
        found = {row[0]: row for row in fetch(connection, self._sql.hold, asked)}
        row = found.get(lease.job_id)
        if row is None or row[1] != lease.token or not row[2]:
            raise LeaseLostError(lease.job_id, self._reason(connection))

    def _reason(self, connection: Connection[Any]) -> AbortReason:
        found = fetch(connection, self._sql.lease_states, {"ids": [self._job.id]})
        state = rows.lease_states([self._job.lease], found)[0]
        return AbortReason.ALREADY_COMPLETED if isinstance(state, LeaseState) else state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._connections.watched(self.connection):
                if error is None and self.connection.info.transaction_status is TransactionStatus.INERROR:
                    # COMMIT would be answered by a silent ROLLBACK.
                    self._stack.__exit__(StateError, StateError(_SWALLOWED), None)
                    raise StateError(_SWALLOWED)
                self._stack.__exit__(kind, error, trace)
        except BROKEN as failure:
            if error is not None:
                # The rollback failed because the connection is gone, which rolls back as well.
                return
            if not self._written:
                raise mapped(failure) from failure
            self._resolve(failure)

    def _resolve(self, failure: psycopg.Error) -> None:
        """The answer to COMMIT was lost: look whether it was done.

        The token left in the row tells: it is kept by the ending, and only by the ending.
        """
        for _ in sync_pauses():
            try:
                with self._connections.connection() as connection:
                    found = fetch(connection, self._sql.lease_states, {"ids": [self._job.id]})
            except StateUnavailableError:
                continue
            state = rows.lease_states([self._job.lease], found)[0]
            if state is LeaseState.ENDED:
                return
            raise StateUnavailableError("the connection broke during the commit, which was not done") from failure
        raise StateUnavailableError("the connection broke during the commit: its outcome is unknown") from failure
