# Generated from queuert/state/postgres/async_base.py, do not edit: see scripts/unasync.py
"""Connections, statements and transactions for all groups of operations. ``sync_base.py`` is generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import Connection
from psycopg.errors import InsufficientPrivilege

from queuert.errors import SchemaMissingError
from queuert.notify import encoding
from queuert.notify.adapter import Topic
from queuert.state.postgres import parameters
from queuert.state.postgres.adoption import moved_risks
from queuert.state.postgres.bounds import sync_bounded
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.external_connections import Database, OwnDatabase, address, sync_callers_connection
from queuert.state.postgres.other_drivers import AnyConnection
from queuert.state.postgres.pool import Connections
from queuert.state.postgres.protocol import NamedStatement
from queuert.state.postgres.psycopg_internals import is_two_phase
from queuert.state.postgres.rows import Row
from queuert.state.postgres.settings import REQUIRED_REVISION, PostgresSettings, connection_warnings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_statements import begin_callers_transaction, fetch
from queuert.state.types import PoolUse, StoreWarning


class PostgresBase:
    """The connections of a store, and the ways to run statements on them."""

    def __init__(self, settings: PostgresSettings, statements: Statements, connections: int) -> None:
        self._settings = settings
        self._address = settings.address
        self._sql = statements
        self._connections = Connections(settings, connections)
        self._database = OwnDatabase()
        self.risks: tuple[StoreWarning, ...] = ()
        """Of the TLS settings, and of a database that was moved; known once the store is open."""

    @property
    def pool_use(self) -> PoolUse | None:
        """What the pool of connections is doing; None while the store is not open."""
        return self._connections.use

    def open(self) -> None:
        """Connect and check the schema."""
        self._connections.open()
        try:
            with self._connections.connection() as connection:
                [(revision,)] = fetch(connection, self._sql.schema_revision) or [("",)]
                if revision < REQUIRED_REVISION:
                    raise SchemaMissingError(f"schema {self._settings.schema!r} is out of date: run queuert migrate up")
                self._database.address = address(connection)
                self.risks = connection_warnings(connection.pgconn) + self._moved(connection)
        except BaseException:
            self._connections.close()
            raise

    def _moved(self, connection: Connection[Any]) -> tuple[StoreWarning, ...]:
        """Return the warning for a database that was moved from another cluster; none if the role may not read the
        owner."""
        try:
            return moved_risks(fetch(connection, self._sql.log_owner))
        except InsufficientPrivilege:
            return ()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _fetch(self, statement: bytes | NamedStatement, values: parameters.Parameters | None = None) -> list[Row]:
        with self._connections.connection() as connection:
            return fetch(connection, statement, values)

    def _read(self, callers: Any, statement: bytes, values: parameters.Parameters) -> list[Row]:
        """Run a statement that only reads, in the caller's transaction if there is one."""
        if callers is None:
            return self._fetch(statement, values)
        with self._callers_connection(callers) as connection:
            with mapped_errors(self._settings.schema):
                return fetch(connection, statement, values)

    @contextmanager
    def _transaction(self, callers: Any = None, *, lock: float | None = None) -> Iterator[AnyConnection]:
        """Open a transaction, or a savepoint in the transaction of the caller's connection.

        ``lock`` is the lock timeout in seconds of a transaction of the store's own.
        """
        if callers is None:
            with self._connections.connection() as own, sync_bounded(own, lock=lock):
                yield own
            return
        with self._callers_connection(callers) as connection:
            with mapped_errors(self._settings.schema):
                begin_callers_transaction(connection)
                with sync_bounded(connection):
                    yield connection

    @contextmanager
    def _callers_connection(self, given: Any) -> Iterator[AnyConnection]:
        """Yield the connection of what a caller passed, if it is one to this store's database.

        Raises:
            UnsupportedConnectionError: it is one to another database, or none that can be written on.
        """
        with sync_callers_connection(given) as connection:
            with mapped_errors(self._settings.schema):
                if not self._database.is_known(connection):
                    self._compare_databases(connection)
            yield connection

    def _compare_databases(self, connection: AnyConnection) -> None:
        """Ask the server of a caller's connection which database it is, and that of the store if they differ."""
        [row] = fetch(connection, self._sql.database)
        theirs = Database(*row)
        if not self._database.is_same(theirs):
            # The store's own server may have changed since it was last asked.
            [row] = self._fetch(self._sql.database)
            self._database.row = Database(*row)
        if not self._database.is_same(theirs):
            raise self._database.refused(theirs)
        self._database.add(connection)

    def _notification(self, connection: AnyConnection, notifications: Mapping[Topic, Sequence[str]]) -> None:
        """Send notifications when the caller's transaction on this connection commits.

        None in a transaction of two phases: a server refuses to prepare one that notifies. Whoever waits for the
        notification polls as well.
        """
        if is_two_phase(connection):
            return
        for topic, keys in notifications.items():
            if keys:
                texts = encoding.encode(frozenset(keys))
                fetch(connection, self._sql.notify, {"channel": self._channel(topic), "payloads": texts})

    def _channel(self, topic: Topic) -> str:
        return f"{self._settings.schema}_{topic.value}"
