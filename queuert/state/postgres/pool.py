"""A pool of connections to Postgres, for sync and async code, and the limit on each wait for the server's answer."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import AsyncCursor, BaseConnection, Cursor, Error, errors
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from queuert.errors import ClosedError, StateUnavailableError
from queuert.migrations import forget_login
from queuert.state.postgres.bounds import Bounds, milliseconds
from queuert.state.postgres.errors import mapped, mapped_errors
from queuert.state.postgres.other_drivers import AnyConnection, AsyncAnyConnection
from queuert.state.postgres.protocol import (
    AsyncPooledConnection,
    ConnectFailures,
    PooledConnection,
    begin_with_level,
    close_if_in_pipeline,
)
from queuert.state.postgres.psycopg_internals import (
    end_own_wait,
    forget_ended_tasks,
    forget_ended_waits,
    forget_own_wait,
    remember_waits,
    waiting_calls,
)
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.types import PoolUse

_SESSION_SETTINGS = b"""
    CASE WHEN version() LIKE '%%linux%%' AND current_setting('client_connection_check_interval') = '0'
        THEN set_config('client_connection_check_interval', '5s', false) END,
    CASE WHEN version() LIKE '%%linux%%' AND current_setting('tcp_user_timeout') = '0'
        THEN set_config('tcp_user_timeout', %s, false) END,
    set_config('queuert.transaction_timeout', coalesce(current_setting('transaction_timeout', true), ''), false),
    CASE current_setting('transaction_timeout', true) WHEN '0'
        THEN set_config('transaction_timeout', %s, false) END,
    set_config('default_transaction_isolation', 'read committed', false), set_config('array_nulls', 'on', false)"""
"""What bounds the sessions of our connections. The server checks every five seconds whether the client of a waiting
statement is still there. Otherwise each retry would leave one more session that waits for the lock. And it ends a
session that cannot send its answer, because the client reads nothing, after the time that a transaction may be idle:
the answer to a claim comes before its commit, and may be larger than the buffers between the two. Only servers on Linux
support these settings everywhere. A transaction as a whole is bounded because its client may stop in the middle of a
message, where to the server it is not idle: since Postgres 17. Its original value is kept for handlers.

Our statements take locks and then look again, which needs the isolation level of which each statement sees what was
committed before it; and lists that they are given may have elements that are NULL. Transactions of handlers begin
with the level that the server gives.
"""

_LEVEL_BEFORE = b"SELECT current_setting('default_transaction_isolation'),"
"""What the transactions of handlers get, as they would on any other connection."""

_PLANNER_SETTINGS = b"""
    set_config('queuert.jit', current_setting('jit'), false), set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false)"""
"""The planner settings of connections with prepared statements; without these there is no plan to be kept. Each of our
statements has one good plan, whatever its values. By default Postgres plans it anew each time, since it takes an
unknown limit for a tenth of the table: that costs a millisecond a claim, more than the claim itself. Sequential scans
are off because a plan that is made while the table is empty, as after a nightly vacuum, is kept until the next analyze,
when there may be a million jobs. JIT compilation is off because it takes a hundred milliseconds at each execution:
before version 18 a table that can only be scanned makes a plan look expensive enough, and so does a long backlog. The
original value of ``jit`` is kept for handlers.
"""

_IF_OWN = b"""
    WHERE pg_backend_pid() = %s"""
"""A pooler reports another process id than the session's. Its sessions are shared with other clients, so they are not
changed."""


class _PoolName(str):
    """The name of a pool of ours, by which its log records are known from those of other pools."""

    failures: ConnectFailures


_CONNECT_RECORD = "error connecting in"
_OUTAGE_RECORDS = (_CONNECT_RECORD, "reconnection attempt in", "discarding broken", "discarding closed")
_POOL_LOGGER = logging.getLogger("psycopg.pool")


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a record of psycopg's pools is logged.

    Of what an outage repeats, a pool of ours logs the first failure to connect after a success; the rest, at DEBUG.

    It tries to connect several times a second while calls wait. What fails is said by the errors of these calls, which
    have the reason, and by the events of workers. But where a pool cannot grow, calls succeed, late.
    """
    if record.levelno != logging.WARNING or not str(record.msg).startswith(_OUTAGE_RECORDS):
        return True
    subjects = record.args if isinstance(record.args, tuple) else ()
    if not any(isinstance(one, _PoolName | AsyncPooledConnection | PooledConnection) for one in subjects):
        return True
    if str(record.msg).startswith(_CONNECT_RECORD):
        names = [one for one in subjects if isinstance(one, _PoolName)]
        if names and names[0].failures.is_first():
            return True
    return _POOL_LOGGER.isEnabledFor(logging.DEBUG)


_POOL_LOGGER.addFilter(_is_shown)

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
        self._cut: WeakSet[BaseConnection[Any]] = WeakSet()
        self._lock = threading.RLock()
        """Reentrant: while a thread starts, the garbage collector may close coroutines, and these end their waits."""
        self._thread: threading.Thread | None = None

    def has_cut(self, connection: BaseConnection[Any]) -> bool:
        """Whether the connection is broken because no answer came in time."""
        return connection in self._cut

    def begin(self, connection: BaseConnection[Any]) -> None:
        """Cut ``connection`` unless :meth:`end` is called in time; what waits then fails with an OperationalError."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="queuert-watchdog", daemon=True)
                self._thread.start()
            self._deadlines[connection] = time.monotonic() + self.seconds

    def end(self, connection: BaseConnection[Any]) -> None:
        """End the wait, in time or after the connection was shut down."""
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
                    self._cut.add(late[-1])
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
    """Shut down a connection's socket, from any thread; the call that uses it fails."""
    # A connection that broke meanwhile has no socket.
    with suppress(OSError, psycopg.Error):
        # Without a duplicate: a process that can open no file more must be able to do this.
        borrowed = socket.socket(fileno=connection.pgconn.socket)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()  # The descriptor is libpq's.


class _Base:
    def __init__(self, settings: PostgresSettings, size: int) -> None:
        self._settings = settings
        self._watchdog = Watchdog(settings.answer_timeout)
        self._bounds = Bounds.of(settings.answer_timeout)
        self._in_use: dict[BaseConnection[Any], Any] = {}
        """The connections in use, each with the pool that it was taken from: the store may have been closed and
        reopened since."""
        self._failures = ConnectFailures()
        name = _PoolName(settings.application_name)
        name.failures = self._failures
        chosen = [_SESSION_SETTINGS, _PLANNER_SETTINGS] if self.prepares else [_SESSION_SETTINGS]
        self._settings_query = _LEVEL_BEFORE + b",".join(chosen) + _IF_OWN
        self._pool_arguments: dict[str, Any] = {
            "conninfo": settings.dsn,
            "kwargs": {**self._connection_arguments(), "refusals": self._failures},
            "min_size": 1,
            "max_size": max(1, size),
            "timeout": settings.answer_timeout,
            # The pool may give up at once, since it is started again while calls wait. Otherwise its pauses would
            # double for ever.
            "reconnect_timeout": 0.0,
            "open": False,
            "name": name,
        }

    def _connection_arguments(self) -> dict[str, Any]:
        return {**self._settings.connection_arguments(), "password": self._settings.password}

    def _first_arguments(self) -> dict[str, Any]:
        return {"conninfo": self._settings.dsn, **self._connection_arguments()}

    def _use(self, pool: Any) -> PoolUse | None:
        """What a pool of psycopg's is doing; None while there is none."""
        if pool is None:
            return None
        stats = pool.get_stats()
        idle = stats["pool_available"]
        return PoolUse(in_use=stats["pool_size"] - idle, idle=idle, waiting=waiting_calls(pool))

    def _settings_values(self, connection: BaseConnection[Any]) -> tuple[str, str, int]:
        return milliseconds(self._bounds.idle), milliseconds(self._bounds.whole), connection.info.backend_pid

    @staticmethod
    def _note_settings(connection: AsyncPooledConnection | PooledConnection, before: Sequence[Any] | None) -> None:
        """Note what the session had before; behind a pooler nothing was changed."""
        if before is not None:
            connection.begin_for_handlers = begin_with_level(before[0])
        connection.configured = True

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared. Behind some poolers they may not."""
        return self._settings.prepare_threshold is not None

    def cut_in_use(self) -> None:
        """Shut down the connections in use, from any thread: calls that wait on them fail at once."""
        for connection in list(self._in_use):
            cut(connection)

    def watched(self, connection: BaseConnection[Any]) -> AbstractContextManager[None]:
        """Limit the waiting on a raw connection; errors of psycopg are not mapped."""
        return self._watchdog.limit(connection)

    def restart_timeout(self, connection: BaseConnection[Any]) -> None:
        """Restart the answer timeout of a connection: until now its caller was busy, and did not wait for the
        server."""
        self._watchdog.restart(connection)

    @contextmanager
    def _limited(self, connection: BaseConnection[Any]) -> Iterator[None]:
        with self._watchdog.limit(connection):
            try:
                yield
            except Error as error:
                raise self._mapped(connection, error) from error

    def _mapped(self, connection: BaseConnection[Any], error: Error) -> Exception:
        """Return the mapped error. Closes the connection if it is of no more use."""
        if isinstance(error, errors.ReadOnlySqlTransaction | errors.FeatureNotSupported):
            # If a primary became a standby, the pool must find the new primary. If the type of a column changed since
            # a statement was prepared ("cached plan must not change result type"), only a new session can run it.
            connection.pgconn.finish()
        if self._watchdog.has_cut(connection):
            forget_login(error)
            # psycopg says that the server has closed the connection, which we did.
            return StateUnavailableError(
                f"the server sent no answer within {self._watchdog.seconds:g} s (answer_timeout): it cannot be "
                "reached, or is overloaded, or another transaction holds a lock that the statement waited for"
            )
        return mapped(error, self._settings.schema)


class AsyncBorrowed:
    """A connection that is borrowed for an ``async with`` block.

    Not a generator: each start and claim passes here, and a generator in the traceback of an error leads back to its
    caller, where contextlib keeps the error; then a lost connection waits for the garbage collector.
    """

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections

    async def __aenter__(self) -> AsyncPooledConnection:
        connections = self._connections
        self._connection = connection = await connections._take()
        try:
            connections._watchdog.begin(connection)
            if not connection.configured:
                await connections._configure(connection)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connections, connection = self._connections, self._connection
        try:
            if isinstance(error, Error):
                raise connections._mapped(connection, error) from error
        finally:
            connections._watchdog.end(connection)
            await connections._release(connection)


class AsyncConnections(_Base):
    """A pool of async connections in autocommit mode."""

    def __init__(self, settings: PostgresSettings, size: int) -> None:
        super().__init__(settings, size)
        self._pool: AsyncConnectionPool[AsyncPooledConnection] | None = None

    @property
    def use(self) -> PoolUse | None:
        """What the pool is doing; None while it is not open."""
        return self._use(self._pool)

    async def open(self) -> None:
        """Connect once, so that errors are clear, then fill the pool. Idempotent."""
        if self._pool is not None:
            return
        with mapped_errors(self._settings.schema):
            first = await AsyncPooledConnection.connect(**self._first_arguments())
            await first.close()
            pool = AsyncConnectionPool(
                connection_class=AsyncPooledConnection,
                reconnect_failed=AsyncReconnects().after_failure,
                **self._pool_arguments,
            )
            await pool.open()
        self._pool = pool

    async def aclose(self) -> None:
        """Close all connections; those in use are shut down. Idempotent."""
        pool, self._pool = self._pool, None
        self.cut_in_use()
        if pool is not None:
            forget_ended_tasks(pool)
            await pool.close(timeout=1.0)

    def connection(self) -> AsyncBorrowed:
        """Borrow a connection for statements of the store: errors of psycopg are mapped, and waiting is limited."""
        return AsyncBorrowed(self)

    async def _configure(self, connection: AsyncPooledConnection) -> None:
        cursor = await connection.execute(self._settings_query, self._settings_values(connection))
        self._note_settings(connection, await cursor.fetchone())

    @asynccontextmanager
    async def raw_connection(self) -> AsyncIterator[AsyncPooledConnection]:
        """Borrow a connection on which user code will run as well: errors of psycopg are not mapped."""
        connection = await self._take()
        try:
            if not connection.configured:
                with self._limited(connection):
                    await self._configure(connection)
            yield connection
        finally:
            await self._release(connection)

    async def _take(self) -> AsyncPooledConnection:
        pool = self._pool
        if pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        wait = PoolWait(self._settings.answer_timeout, self._failures)
        try:
            while True:
                try:
                    connection = await pool.getconn(wait.next_timeout)
                except PoolTimeout as timeout:
                    forget_ended_waits(pool)
                    wait.check(timeout, len(self._in_use))
                    continue
                if not connection.server_closed:
                    break
                wait.saw_dead_connection()
                await pool.putconn(connection)
        except asyncio.CancelledError:
            forget_ended_waits(pool)
            raise
        except PoolClosed:
            raise ClosedError("the store was closed while the call waited for a connection") from None
        except Error as error:
            raise mapped(error, self._settings.schema) from error
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

    async def _release(self, connection: AsyncPooledConnection) -> None:
        pool = self._in_use.pop(connection)
        # Settings of a handler must not affect the next user.
        connection.row_factory, connection.cursor_factory = tuple_row, AsyncCursor
        connection.idle_since = time.monotonic()
        close_if_in_pipeline(connection.pgconn)
        # If the pool is closed, it closes the connection. A cancellation during this wait must not lose the connection:
        # the pool would be one short for ever.
        returned = asyncio.ensure_future(pool.putconn(connection))
        try:
            await asyncio.shield(returned)
        except asyncio.CancelledError:
            if not returned.done():
                await asyncio.wait([returned])
            raise

    @contextmanager
    def limited(self, connection: AsyncPooledConnection) -> Iterator[None]:
        """Map errors and limit waiting for statements of the store on a raw connection."""
        with self._limited(connection):
            yield


class Borrowed:
    """The same for a ``with`` block."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> PooledConnection:
        connections = self._connections
        self._connection = connection = connections._take()
        try:
            connections._watchdog.begin(connection)
            if not connection.configured:
                connections._configure(connection)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connections, connection = self._connections, self._connection
        try:
            if isinstance(error, Error):
                raise connections._mapped(connection, error) from error
        finally:
            connections._watchdog.end(connection)
            connections._release(connection)


class Connections(_Base):
    """A pool of sync connections in autocommit mode."""

    def __init__(self, settings: PostgresSettings, size: int) -> None:
        super().__init__(settings, size)
        self._pool: ConnectionPool[PooledConnection] | None = None

    @property
    def use(self) -> PoolUse | None:
        """What the pool is doing; None while it is not open."""
        return self._use(self._pool)

    def open(self) -> None:
        """Connect once, so that errors are clear, then fill the pool. Idempotent."""
        if self._pool is not None:
            return
        with mapped_errors(self._settings.schema):
            PooledConnection.connect(**self._first_arguments()).close()
            pool = ConnectionPool(
                connection_class=PooledConnection, reconnect_failed=Reconnects().after_failure, **self._pool_arguments
            )
            remember_waits(pool)
            pool.open()
        self._pool = pool

    def close(self) -> None:
        """Close all connections; those in use are shut down. Idempotent."""
        pool, self._pool = self._pool, None
        self.cut_in_use()
        if pool is not None:
            pool.close(timeout=1.0)

    def connection(self) -> Borrowed:
        """Borrow a connection for statements of the store: errors of psycopg are mapped, and waiting is limited."""
        return Borrowed(self)

    def _configure(self, connection: PooledConnection) -> None:
        cursor = connection.execute(self._settings_query, self._settings_values(connection))
        self._note_settings(connection, cursor.fetchone())

    @contextmanager
    def raw_connection(self) -> Iterator[PooledConnection]:
        """Borrow a connection on which user code will run as well: errors of psycopg are not mapped."""
        connection = self._take()
        try:
            if not connection.configured:
                with self._limited(connection):
                    self._configure(connection)
            yield connection
        finally:
            self._release(connection)

    def _take(self) -> PooledConnection:
        pool = self._pool
        if pool is None:
            raise ClosedError("the store is not open: it was closed, or never opened")
        wait = PoolWait(self._settings.answer_timeout, self._failures)
        forget_own_wait(pool)
        try:
            while True:
                try:
                    connection = pool.getconn(wait.next_timeout)
                except PoolTimeout as timeout:
                    forget_ended_waits(pool)
                    wait.check(timeout, len(self._in_use))
                    continue
                if not connection.server_closed:
                    break
                wait.saw_dead_connection()
                pool.putconn(connection)
        except PoolClosed:
            raise ClosedError("the store was closed while the call waited for a connection") from None
        except Error as error:
            raise mapped(error, self._settings.schema) from error
        except BaseException:
            end_own_wait(pool)
            raise
        self._in_use[connection] = pool
        connection.bounds = self._bounds
        return connection

    def _release(self, connection: PooledConnection) -> None:
        pool = self._in_use.pop(connection)
        connection.row_factory, connection.cursor_factory = tuple_row, Cursor
        connection.idle_since = time.monotonic()
        close_if_in_pipeline(connection.pgconn)
        # If the pool is closed, it closes the connection.
        pool.putconn(connection)

    @contextmanager
    def limited(self, connection: PooledConnection) -> Iterator[None]:
        """Map errors and limit waiting for statements of the store on a raw connection."""
        with self._limited(connection):
            yield


_RECONNECT_EVERY = 0.5
"""Seconds between two attempts to connect while calls wait for a connection; a worker resumes at most so late."""


class AsyncReconnects:
    """Lets a pool connect again while calls wait for a connection.

    A pool of psycopg's that has given up tries again only when the next call comes, but those that wait come only once,
    to keep their places. This refers to no pool, so that one that nobody has closed is not kept.
    """

    def __init__(self) -> None:
        self._pauses = False

    async def after_failure(self, pool: AsyncConnectionPool[AsyncPooledConnection]) -> None:
        """Start the next attempt after a pause, unless nobody waits any more. Called by a task of the pool."""
        # A pool that lost all its connections calls this for each. One pause is enough: what fails meanwhile, fails
        # before the look at who waits.
        if self._pauses:
            return
        self._pauses = True
        try:
            await asyncio.sleep(_RECONNECT_EVERY)
        finally:
            self._pauses = False
        if waiting_calls(pool):
            await pool.check()


class Reconnects:
    """The same for threads."""

    def __init__(self) -> None:
        self._pauses = threading.Lock()

    def after_failure(self, pool: ConnectionPool[PooledConnection]) -> None:
        """Start the next attempt after a pause, unless nobody waits any more. Called by a thread of the pool."""
        if not self._pauses.acquire(blocking=False):
            return
        try:
            time.sleep(_RECONNECT_EVERY)
        finally:
            self._pauses.release()
        if waiting_calls(pool):
            pool.check()


class PoolWait:
    """One wait of a call for a connection.

    A call waits once, for all its time, and so keeps its place among the others. Only a call that has taken a dead
    connection looks every now and then, until it has seen that the pool could not connect: then an outage has begun.
    """

    __slots__ = ("_deadline", "_failures", "_failures_at_dead_connection", "_failures_before", "_looks", "_timeout")

    def __init__(self, timeout: float, failures: ConnectFailures) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._failures = failures
        self._failures_before, _ = failures.snapshot
        self._failures_at_dead_connection: int | None = None
        self._looks = False

    @property
    def next_timeout(self) -> float:
        """Seconds to wait now."""
        left = max(0.0, self._deadline - time.monotonic())
        return min(_RECONNECT_EVERY, left) if self._looks else left

    def saw_dead_connection(self) -> None:
        """Record that the pool returned a connection that the server had closed."""
        if self._failures_at_dead_connection is None:
            self._failures_at_dead_connection, _ = self._failures.snapshot
            self._looks = True

    def check(self, timeout: PoolTimeout, in_use: int) -> None:
        """Raise if the whole wait has ended; ``in_use`` is the number of connections in use.

        If the server has closed a connection and refuses new ones, and no connection is in use that may become free,
        this raises at once: callers learn of an outage when it begins.
        """
        failures, last = self._failures.snapshot
        at_dead_connection = self._failures_at_dead_connection
        if at_dead_connection is not None and failures > at_dead_connection:
            if not in_use:
                raise PoolTimeout(f"the server closed its connections and refuses new ones: {last}") from timeout
            self._looks = False
        if time.monotonic() >= self._deadline:
            why = f"tries to connect fail: {last}" if failures > self._failures_before else "none became free"
            raise PoolTimeout(f"no connection within {self._timeout:g} s: {why}") from timeout


T = TypeVar("T")

ROUNDS = 3
"""The largest number of attempts after deadlocks. The other transaction proceeds meanwhile, so one retry is nearly
always enough."""

AsyncWork: TypeAlias = Callable[[AsyncAnyConnection], Awaitable[T]]
Work: TypeAlias = Callable[[AnyConnection], T]
