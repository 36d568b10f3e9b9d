"""The connections of the pool, with state that psycopg's do not have: prepared statements, idle time, use by blocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from psycopg import AsyncConnection, Connection, Error, OperationalError, ProgrammingError
from psycopg.pq import ConnStatus, TransactionStatus

from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.psycopg_internals import DeallocationHook, Transformer
from queuert.state.postgres.rows import UNREADABLE, rows_one_by_one

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGconn, PGresult

    from queuert.state.postgres.pool import ConnectFailures

_AT_REST = 0.1
"""Seconds of rest after which a connection is checked when it is taken from the pool. A check is two system calls."""


class ConnectionState(DeallocationHook):
    """The state of a connection of the pool.

    Attributes:
        prepared: names of the statements that are prepared on this connection.
        plans_once: the server was told to make one plan of each statement.
        held: a block's transaction is open, which the handler may not end.
        outsiders: calls of a client have written on this connection within the open block.
        rests_since: when its last user gave it back (monotonic).
        bounds: how long the server lets a transaction of ours stand still.
    """

    pgconn: PGconn
    prepared: set[bytes]
    planner_configured: bool
    held: bool
    used_by_client: bool
    idle_since: float
    bounds: Bounds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = set()
        self.planner_configured = False
        self.held = False
        self.used_by_client = False
        self.idle_since = 0.0
        self.bounds = Bounds()
        self._transformer: abc.Transformer | None = None

    def on_deallocate_all(self) -> None:
        """Clear the prepared names: after a rollback, even to a savepoint, psycopg deallocates all statements, ours
        too."""
        self.prepared.clear()

    def read(self, result: PGresult) -> list[tuple[Any, ...]]:
        """Return the rows of a result in binary form."""
        if self._transformer is None:
            self._transformer = Transformer(self)  # type: ignore[arg-type]
        self._transformer.set_pgresult(result)
        try:
            return self._transformer.load_rows(0, result.ntuples, tuple)
        except UNREADABLE:
            return rows_one_by_one(self, result)  # type: ignore[arg-type]
        finally:
            # The result may hold megabytes of inputs.
            self._transformer.set_pgresult(None)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def server_closed(self) -> bool:
        """Whether the server has closed the connection while it was idle. Reads what has arrived, without waiting."""
        if time.monotonic() < self.idle_since + _AT_REST:
            return False
        try:
            # Reads the last message of the server, if there is one, and the end of the stream after it.
            self.pgconn.consume_input()
            self.pgconn.consume_input()
        except OperationalError:
            return True
        return self.pgconn.status == ConnStatus.BAD

    def check_not_held(self, what: str) -> None:
        """Raise ProgrammingError while a block is open, because the block itself commits or rolls back."""
        if self.held:
            raise ProgrammingError(
                f"{what}() must not be called inside a block of the attempt, which commits when it ends and rolls back "
                "when it raises: use connection.transaction(), which makes savepoints"
            )


class AsyncPooledConnection(ConnectionState, AsyncConnection[Any]):
    """An async psycopg connection whose transaction a handler cannot end while a block is open."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. The error of a failed attempt is added to ``refusals``, since the pool, which calls this, only logs
        it."""
        try:
            return await super().connect(conninfo, **kwargs)
        except Error as error:
            if refusals is not None:
                refusals.add(error)
            raise

    async def commit(self) -> None:
        self.check_not_held("commit")
        await super().commit()

    async def rollback(self) -> None:
        self.check_not_held("rollback")
        await super().rollback()


class PooledConnection(ConnectionState, Connection[Any]):
    """A sync psycopg connection whose transaction a handler cannot end while a block is open."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. The error of a failed attempt is added to ``refusals``, since the pool, which calls this, only logs
        it."""
        try:
            return super().connect(conninfo, **kwargs)
        except Error as error:
            if refusals is not None:
                refusals.add(error)
            raise

    def commit(self) -> None:
        self.check_not_held("commit")
        super().commit()

    def rollback(self) -> None:
        self.check_not_held("rollback")
        super().rollback()
