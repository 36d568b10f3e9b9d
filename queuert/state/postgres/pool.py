"""A pool of connections to Postgres, for sync and async code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar

from psycopg import AsyncConnection, AsyncCursor, BaseConnection, Connection, Cursor, Error, errors
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from queuert.errors import ClosedError
from queuert.state._asyncio import finish_despite_cancel
from queuert.state.postgres.answer_timeout import Watchdog, cut
from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.errors import mapped, mapped_errors
from queuert.state.postgres.pooled_connection import AsyncPooledConnection, PooledConnection
from queuert.state.postgres.protocol import close_if_in_pipeline
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.types import PoolUse

_GENERIC_PLAN_SETTINGS = b"""
    SELECT set_config('queuert.jit', current_setting('jit'), false), set_config('jit', 'off', false),
        set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
        CASE WHEN version() LIKE '%%linux%%' AND current_setting('client_connection_check_interval') = '0'
            THEN set_config('client_connection_check_interval', '5s', false) END
    WHERE pg_backend_pid() = %s
"""
"""Our statements have one good plan, whatever their values. Left to itself Postgres makes a new one each time, since it
takes a limit that it does not know for a tenth of the table: a millisecond a claim, more than the claim itself. And it
goes by an index, however small the table: what is planned while the table is empty, as a night's vacuum leaves it, is
kept until the next analyze, when there may be a million jobs. Nor is it compiled (JIT), which takes a hundred
milliseconds at each execution: before version 18 a table that can only be scanned, as that of one row, makes a plan
look as dear as if it were worth it, and so does a long backlog. What the session had instead is kept, for handlers.

A statement that waits for somebody's lock, and whose client has given up or died, ends within seconds: each new try
would leave one more session that waits. Servers on other systems than Linux may not be able to look, and refuse that.

A pooler gives out a number of its own in place of the session's: its sessions are others' as well, and are left alone.
"""


class _Base:
    def __init__(self, settings: PostgresSettings, size: int) -> None:
        self._settings = settings
        self._watchdog = Watchdog(settings.answer_timeout)
        self._bounds = Bounds.of(settings.answer_timeout)
        self._in_use: dict[BaseConnection[Any], Any] = {}
        """With the pool that each was taken from: the store may have been closed, and opened again, since."""
        self._refusals = ConnectFailures()
        self._pool_arguments: dict[str, Any] = {
            "conninfo": settings.dsn,
            "kwargs": {**settings.connection_arguments(), "refusals": self._refusals},
            "min_size": 1,
            "max_size": max(1, size),
            "timeout": settings.answer_timeout,
            # Giving up at once is harmless, as whoever waits begins anew; going on would double the pauses for ever.
            "reconnect_timeout": 0.0,
            "open": False,
            "name": settings.application_name,
        }

    def _use(self, pool: Any) -> PoolUse | None:
        """What a pool of psycopg's is doing; None while there is none."""
        if pool is None:
            return None
        stats = pool.get_stats()
        idle = stats["pool_available"]
        return PoolUse(in_use=stats["pool_size"] - idle, idle=idle, waiting=stats["requests_waiting"])

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared: behind a pooler they may not."""
        return self._settings.prepare_threshold is not None

    def _is_new(self, connection: AsyncPooledConnection | PooledConnection) -> bool:
        """Whether it is yet to be told to plan once. Without prepared statements there is nothing to be kept."""
        if connection.planner_configured or not self.prepares:
            return False
        connection.planner_configured = True
        return True

    def _wait(self) -> Wait:
        """A wait for a connection that begins now."""
        return Wait(self._settings.answer_timeout, self._refusals)

    def cut_in_use(self) -> None:
        """End the connections that are in use: whoever waits on one fails at once. From any thread."""
        for connection in list(self._in_use):
            cut(connection)

    def watched(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Limit waiting on a bare connection; errors pass as they are."""
        return self._watchdog.limit(connection)

    def restart_timeout(self, connection: BaseConnection[Any]) -> None:
        """What went before on this connection was the caller's own work: the limit on waiting begins now."""
        self._watchdog.reset_after_fork(connection)

    @contextmanager
    def _limited(self, connection: BaseConnection[Any]) -> Iterator[None]:
        with self._watchdog.limit(connection):
            try:
                yield
            except Error as error:
                raise _reported(connection, error) from error


def _reported(connection: BaseConnection[Any], error: Error) -> Exception:
    """The contract's error for one of the driver's, after which the connection may be of no more use."""
    if isinstance(error, errors.ReadOnlySqlTransaction | errors.FeatureNotSupported):
        # A primary that became a standby: the pool must look for the new one. Or a column has changed its type since a
        # statement was prepared ("cached plan must not change result type"), which only a new session gets over.
        connection.pgconn.finish()
    return mapped(error)


class AsyncConnections(_Base):
    """A pool of asynchronous connections in autocommit."""

    def __init__(self, settings: PostgresSettings, size: int) -> None:
        super().__init__(settings, size)
        self._pool: AsyncConnectionPool[AsyncPooledConnection] | None = None

    @property
    def use(self) -> PoolUse | None:
        """What the pool is doing; None while it is not open."""
        return self._use(self._pool)

    async def open(self) -> None:
        """Connect once for a clear error, then fill the pool. Idempotent."""
        if self._pool is not None:
            return
        with mapped_errors():
            first = await AsyncConnection.connect(self._settings.dsn, **self._settings.connection_arguments())
            await first.close()
            pool = AsyncConnectionPool(connection_class=AsyncPooledConnection, **self._pool_arguments)
            await pool.open()
        self._pool = pool

    async def aclose(self) -> None:
        """Close all connections; those in use are cut. Idempotent."""
        pool, self._pool = self._pool, None
        self.cut_in_use()
        if pool is not None:
            await pool.close(timeout=1.0)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncPooledConnection]:
        """A connection for some statements: driver errors are mapped, and waiting is limited."""
        # One block for what raw_connection() and limited() do together: each start and claim comes through here.
        connection = await self._taken()
        try:
            wait = self._watchdog.begin(connection)
            try:
                if self._is_new(connection):
                    await connection.execute(_GENERIC_PLAN_SETTINGS, [connection.info.backend_pid])
                yield connection
            except Error as error:
                raise _reported(connection, error) from error
            finally:
                self._watchdog.end(wait)
        finally:
            await self._give_back(connection)

    @asynccontextmanager
    async def raw_connection(self) -> AsyncIterator[AsyncPooledConnection]:
        """A connection on which foreign code will run as well: its errors pass as they are."""
        connection = await self._taken()
        try:
            yield connection
        finally:
            await self._give_back(connection)

    async def _taken(self) -> AsyncPooledConnection:
        if self._pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        pool = self._pool
        try:
            connection = await self._acquire_live(pool)
        except Error as error:
            raise mapped(error) from error
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

    async def _acquire_live(self, pool: AsyncConnectionPool[AsyncPooledConnection]) -> AsyncPooledConnection:
        wait = self._wait()
        while True:
            try:
                connection = await pool.getconn(wait.piece)
            except PoolTimeout as timeout:
                wait.check_deadline(timeout, len(self._in_use))
                continue
            if not connection.server_closed:
                return connection
            wait.saw_dead_connection()
            await pool.putconn(connection)

    async def _give_back(self, connection: AsyncPooledConnection) -> None:
        pool = self._in_use.pop(connection)
        # What a handler set for itself is not for the next one.
        connection.row_factory, connection.cursor_factory = tuple_row, AsyncCursor
        connection.idle_since = time.monotonic()
        close_if_in_pipeline(connection.pgconn)
        # Where the pool is closed, it closes the connection. Who is cancelled while it waits for its turn there would
        # leave the connection with nobody, and the pool one short for ever.
        await finish_despite_cancel(asyncio.ensure_future(pool.putconn(connection)))

    @contextmanager
    def limited(self, connection: AsyncPooledConnection) -> Iterator[None]:
        """Map errors and limit waiting for our own statements on a bare connection."""
        with self._limited(connection):
            yield


class Connections(_Base):
    """A pool of synchronous connections in autocommit."""

    def __init__(self, settings: PostgresSettings, size: int) -> None:
        super().__init__(settings, size)
        self._pool: ConnectionPool[PooledConnection] | None = None

    @property
    def use(self) -> PoolUse | None:
        """What the pool is doing; None while it is not open."""
        return self._use(self._pool)

    def open(self) -> None:
        """Connect once for a clear error, then fill the pool. Idempotent."""
        if self._pool is not None:
            return
        with mapped_errors():
            Connection.connect(self._settings.dsn, **self._settings.connection_arguments()).close()
            pool = ConnectionPool(connection_class=PooledConnection, **self._pool_arguments)
            pool.open()
        self._pool = pool

    def close(self) -> None:
        """Close all connections; those in use are cut. Idempotent."""
        pool, self._pool = self._pool, None
        self.cut_in_use()
        if pool is not None:
            pool.close(timeout=1.0)

    @contextmanager
    def connection(self) -> Iterator[PooledConnection]:
        """A connection for some statements: driver errors are mapped, and waiting is limited."""
        connection = self._taken()
        try:
            wait = self._watchdog.begin(connection)
            try:
                if self._is_new(connection):
                    connection.execute(_GENERIC_PLAN_SETTINGS, [connection.info.backend_pid])
                yield connection
            except Error as error:
                raise _reported(connection, error) from error
            finally:
                self._watchdog.end(wait)
        finally:
            self._give_back(connection)

    @contextmanager
    def raw_connection(self) -> Iterator[PooledConnection]:
        """A connection on which foreign code will run as well: its errors pass as they are."""
        connection = self._taken()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _taken(self) -> PooledConnection:
        if self._pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        pool = self._pool
        try:
            connection = self._acquire_live(pool)
        except Error as error:
            raise mapped(error) from error
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

    def _acquire_live(self, pool: ConnectionPool[PooledConnection]) -> PooledConnection:
        wait = self._wait()
        while True:
            try:
                connection = pool.getconn(wait.piece)
            except PoolTimeout as timeout:
                wait.check_deadline(timeout, len(self._in_use))
                continue
            if not connection.server_closed:
                return connection
            wait.saw_dead_connection()
            pool.putconn(connection)

    def _give_back(self, connection: PooledConnection) -> None:
        pool = self._in_use.pop(connection)
        connection.row_factory, connection.cursor_factory = tuple_row, Cursor
        connection.idle_since = time.monotonic()
        close_if_in_pipeline(connection.pgconn)
        # Where the pool is closed, it closes the connection.
        pool.putconn(connection)

    @contextmanager
    def limited(self, connection: PooledConnection) -> Iterator[None]:
        """Map errors and limit waiting for our own statements on a bare connection."""
        with self._limited(connection):
            yield


_RECONNECT_EVERY = 0.5
"""Seconds between two tries to connect while somebody waits for a connection: so late is a worker after an outage."""


class ConnectFailures:
    """The tries to connect of one pool that have failed. Added to from any thread.

    Attributes:
        told: how many they were, and what the last one's error said.
    """

    def __init__(self) -> None:
        self.reported: tuple[int, str] = 0, ""
        self._lock = threading.Lock()

    def add(self, error: Error) -> None:
        """One more try has failed. The error itself is not kept: its frames hold the pool."""
        with self._lock:
            self.reported = self.reported[0] + 1, str(error)


class Wait:
    """One wait for a connection, a piece at a time.

    At each piece the pool tries anew to connect, if it had given up: nobody else reminds it after an outage.
    """

    def __init__(self, longest: float, refusals: ConnectFailures) -> None:
        self._longest = longest
        self._until = time.monotonic() + longest
        self._refusals = refusals
        self._refused_before, _ = refusals.reported
        self._refused_when_left: int | None = None

    @property
    def piece(self) -> float:
        """Seconds to wait now."""
        return max(0.0, min(_RECONNECT_EVERY, self._until - time.monotonic()))

    def saw_dead_connection(self) -> None:
        """The pool gave a connection that the server has left."""
        if self._refused_when_left is None:
            self._refused_when_left, _ = self._refusals.reported

    def check_deadline(self, timeout: PoolTimeout, in_use: int) -> None:
        """A piece is over, with so many of the pool's connections in use. Raise if that was the last one.

        Where the server has hung up, and then refused, and no connection is left that may become free, nobody waits to
        the end: an outage is told when it begins.
        """
        refused, last = self._refusals.reported
        left = self._refused_when_left
        if left is not None and refused > left and not in_use:
            raise PoolTimeout(f"the server has hung up, and refuses to connect: {last}") from timeout
        if time.monotonic() >= self._until:
            why = f"tries to connect fail: {last}" if refused > self._refused_before else "none became free"
            raise PoolTimeout(f"no connection within {self._longest:g} s: {why}") from timeout


T = TypeVar("T")

ROUNDS = 3
"""How often it is tried. The other party has gone on meanwhile, so once more is nearly always enough."""

AsyncWork: TypeAlias = Callable[[AsyncConnection[Any]], Awaitable[T]]
Work: TypeAlias = Callable[[Connection[Any]], T]
