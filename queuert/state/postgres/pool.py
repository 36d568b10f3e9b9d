"""A pool of connections to Postgres, for sync and async code, and the limit on each wait for the server's answer."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, BaseConnection, Connection, Cursor, Error, errors
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from queuert.errors import ClosedError
from queuert.state.postgres.bounds import Bounds
from queuert.state.postgres.errors import mapped, mapped_errors
from queuert.state.postgres.protocol import (
    AsyncPooledConnection,
    ConnectFailures,
    PooledConnection,
    close_if_in_pipeline,
)
from queuert.state.postgres.settings import PostgresSettings

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


_WATCHDOG_IDLE = 60.0
"""Seconds without anything to watch after which the watchdog's thread ends."""


class Watchdog:
    """Cuts connections whose users have waited for an answer for longer than ``seconds``, or a twentieth more.

    A connection whose peer has vanished without a word (a black-holed network, a frozen server) can keep its user
    waiting for ever: neither cancelling the query nor TCP's own timers help while packets are still acknowledged.
    Shutting the socket down does: the waiting call fails at once, whatever its mode and even if the event loop is
    blocked. The thread is not told of a wait, which would cost each statement a switch to it and back. It looks now and
    then.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._pause = seconds / 20
        self._deadlines: dict[BaseConnection[Any], float] = {}
        """When each connection that is waited for is cut (monotonic). All waits last equally long, so the first expires
        first."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, connection: BaseConnection[Any]) -> None:
        """Cut ``connection`` unless :meth:`end` is called in time; what waits then fails with an OperationalError."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="queuert-watchdog", daemon=True)
                self._thread.start()
            self._deadlines[connection] = time.monotonic() + self.seconds

    def end(self, connection: BaseConnection[Any]) -> None:
        """It was in time, or was cut."""
        with self._lock:
            self._deadlines.pop(connection, None)

    @contextmanager
    def limit(self, connection: BaseConnection[Any]) -> Iterator[None]:
        """Cut ``connection`` unless the block ends in time."""
        self.begin(connection)
        try:
            yield
        finally:
            self.end(connection)

    def restart(self, connection: BaseConnection[Any]) -> None:
        """Let a wait's time begin now: what its user has done so far was no waiting for the server."""
        with self._lock:
            if self._deadlines.pop(connection, None) is not None:
                self._deadlines[connection] = time.monotonic() + self.seconds

    def _watch(self) -> None:
        ends_at = time.monotonic() + _WATCHDOG_IDLE
        while True:
            late: list[BaseConnection[Any]] = []
            with self._lock:
                now = time.monotonic()
                while self._deadlines and next(iter(self._deadlines.values())) <= now:
                    late.append(next(iter(self._deadlines)))
                    del self._deadlines[late[-1]]
                if self._deadlines or late:
                    ends_at = now + _WATCHDOG_IDLE
                elif now >= ends_at:
                    self._thread = None
                    return
                pause = next(iter(self._deadlines.values()), now + self._pause) - now
            while late:
                cut(late.pop())
            time.sleep(pause)


def cut(connection: BaseConnection[Any]) -> None:
    """Shut a connection's socket down, from any thread; its user finds it broken."""
    # A duplicate, so that closing it here leaves the descriptor to libpq. A connection that broke meanwhile has none.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


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

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared: behind a pooler they may not."""
        return self._settings.prepare_threshold is not None

    def cut_in_use(self) -> None:
        """End the connections that are in use: whoever waits on one fails at once. From any thread."""
        for connection in list(self._in_use):
            cut(connection)

    def watched(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Limit waiting on a bare connection; errors pass as they are."""
        return self._watchdog.limit(connection)

    def restart_timeout(self, connection: BaseConnection[Any]) -> None:
        """What went before on this connection was the caller's own work: the limit on waiting begins now."""
        self._watchdog.restart(connection)

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
        connection = await self._take()
        try:
            self._watchdog.begin(connection)
            try:
                # Without prepared statements there is no plan to be kept.
                if self.prepares and not connection.planner_configured:
                    connection.planner_configured = True
                    await connection.execute(_GENERIC_PLAN_SETTINGS, [connection.info.backend_pid])
                yield connection
            except Error as error:
                raise _reported(connection, error) from error
            finally:
                self._watchdog.end(connection)
        finally:
            await self._give_back(connection)

    @asynccontextmanager
    async def raw_connection(self) -> AsyncIterator[AsyncPooledConnection]:
        """A connection on which foreign code will run as well: its errors pass as they are."""
        connection = await self._take()
        try:
            yield connection
        finally:
            await self._give_back(connection)

    async def _take(self) -> AsyncPooledConnection:
        pool = self._pool
        if pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        wait = PoolWait(self._settings.answer_timeout, self._refusals)
        try:
            while True:
                try:
                    connection = await pool.getconn(wait.piece)
                except PoolTimeout as timeout:
                    wait.check_deadline(timeout, len(self._in_use))
                    continue
                if not connection.server_closed:
                    break
                wait.saw_dead_connection()
                await pool.putconn(connection)
        except Error as error:
            raise mapped(error) from error
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

    async def _give_back(self, connection: AsyncPooledConnection) -> None:
        pool = self._in_use.pop(connection)
        # What a handler set for itself is not for the next one.
        connection.row_factory, connection.cursor_factory = tuple_row, AsyncCursor
        connection.idle_since = time.monotonic()
        close_if_in_pipeline(connection.pgconn)
        # Where the pool is closed, it closes the connection. Who is cancelled while it waits for its turn there would
        # leave the connection with nobody, and the pool one short for ever.
        returned = asyncio.ensure_future(pool.putconn(connection))
        try:
            await asyncio.shield(returned)
        except asyncio.CancelledError:
            if not returned.done():
                await asyncio.wait([returned])
            raise

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
        connection = self._take()
        try:
            self._watchdog.begin(connection)
            try:
                # Without prepared statements there is no plan to be kept.
                if self.prepares and not connection.planner_configured:
                    connection.planner_configured = True
                    connection.execute(_GENERIC_PLAN_SETTINGS, [connection.info.backend_pid])
                yield connection
            except Error as error:
                raise _reported(connection, error) from error
            finally:
                self._watchdog.end(connection)
        finally:
            self._give_back(connection)

    @contextmanager
    def raw_connection(self) -> Iterator[PooledConnection]:
        """A connection on which foreign code will run as well: its errors pass as they are."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> PooledConnection:
        pool = self._pool
        if pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        wait = PoolWait(self._settings.answer_timeout, self._refusals)
        try:
            while True:
                try:
                    connection = pool.getconn(wait.piece)
                except PoolTimeout as timeout:
                    wait.check_deadline(timeout, len(self._in_use))
                    continue
                if not connection.server_closed:
                    break
                wait.saw_dead_connection()
                pool.putconn(connection)
        except Error as error:
            raise mapped(error) from error
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

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


class PoolWait:
    """One wait for a connection, a piece at a time.

    At each piece the pool tries anew to connect, if it had given up: nobody else reminds it after an outage.

    Attributes:
        piece: seconds to wait now.
    """

    __slots__ = ("_longest", "_refusals", "_refused_before", "_refused_when_left", "_until", "piece")

    def __init__(self, longest: float, refusals: ConnectFailures) -> None:
        self.piece = min(_RECONNECT_EVERY, longest)
        self._longest = longest
        self._until = time.monotonic() + longest
        self._refusals = refusals
        self._refused_before, _ = refusals.reported
        self._refused_when_left: int | None = None

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
        self.piece = max(0.0, min(_RECONNECT_EVERY, self._until - time.monotonic()))


T = TypeVar("T")

ROUNDS = 3
"""How often it is tried. The other party has gone on meanwhile, so once more is nearly always enough."""

AsyncWork: TypeAlias = Callable[[AsyncConnection[Any]], Awaitable[T]]
Work: TypeAlias = Callable[[Connection[Any]], T]
