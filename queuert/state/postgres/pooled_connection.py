"""Connections that know more of themselves than psycopg's: what is prepared, who holds them, whether they were left."""

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
"""Seconds after which a connection that is taken from the pool is looked at first: two system calls."""


class ConnectionState(DeallocationHook):
    """What our connections know beside what psycopg's do.

    Attributes:
        prepared: names of the statements that the server knows on this connection.
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
        """Forget what is prepared: after a rollback, even to a savepoint, psycopg deallocates all, ours among it."""
        self.prepared.clear()

    def read(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result that came in binary form."""
        if self._transformer is None:
            self._transformer = Transformer(self)  # type: ignore[arg-type]
        self._transformer.set_pgresult(result)
        try:
            return self._transformer.load_rows(0, result.ntuples, tuple)
        except UNREADABLE:
            return rows_one_by_one(self, result)  # type: ignore[arg-type]
        finally:
            # It may be megabytes of inputs.
            self._transformer.set_pgresult(None)

    @property
    def idle(self) -> bool:
        """No transaction is open."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def server_closed(self) -> bool:
        """Whether the server has hung up while nobody used it: its good-bye is there to be read, without a wait."""
        if time.monotonic() < self.idle_since + _AT_REST:
            return False
        try:
            # What the server said before it hung up, if it did, and the end that comes after.
            self.pgconn.consume_input()
            self.pgconn.consume_input()
        except OperationalError:
            return True
        return self.pgconn.status == ConnStatus.BAD

    def check_not_held(self, what: str) -> None:
        """Raise ProgrammingError while a block is open: it commits or rolls back by itself."""
        if self.held:
            raise ProgrammingError(
                f"{what}() inside a block of the attempt, which commits when it ends and rolls back when it raises; "
                "connection.transaction() makes savepoints"
            )


class AsyncPooledConnection(ConnectionState, AsyncConnection[Any]):
    """psycopg's asynchronous connection, whose transaction a handler cannot end."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. If that fails the error is added to ``refusals``: the pool, which calls this, only logs it."""
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
    """psycopg's synchronous connection, whose transaction a handler cannot end."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, refusals: ConnectFailures | None = None, **kwargs: Any
    ) -> Self:
        """Connect. If that fails the error is added to ``refusals``: the pool, which calls this, only logs it."""
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
