"""Connections, statements and transactions for all groups of operations. ``sync_base.py`` is generated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege

from queuert.errors import SchemaMissingError
from queuert.notify import encoding
from queuert.notify.adapter import Topic
from queuert.state.postgres import parameters
from queuert.state.postgres.adoption import moved_risks
from queuert.state.postgres.async_statements import begin_callers_transaction, fetch
from queuert.state.postgres.bounds import async_bounded
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.external_connections import Database, OwnDatabase, address, async_callers_connection
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.pool import AsyncConnections
from queuert.state.postgres.protocol import NamedStatement
from queuert.state.postgres.psycopg_internals import is_two_phase
from queuert.state.postgres.rows import Row
from queuert.state.postgres.settings import REQUIRED_REVISION, PostgresSettings, connection_warnings
from queuert.state.postgres.statements import Statements
from queuert.state.types import PoolUse, StoreWarning


class AsyncPostgresBase:
    """The connections of a store, and the ways to run statements on them."""

    def __init__(self, settings: PostgresSettings, statements: Statements, connections: int) -> None:
        self._settings = settings
        self._address = settings.address
        self._sql = statements
        self._connections = AsyncConnections(settings, connections)
        self._database = OwnDatabase()
        self.risks: tuple[StoreWarning, ...] = ()
        """Of the TLS settings, and of a database that was moved; known once the store is open."""

    @property
    def pool_use(self) -> PoolUse | None:
        """What the pool of connections is doing; None while the store is not open."""
        return self._connections.use

    async def open(self) -> None:
        """Connect and check the schema."""
        await self._connections.open()
        try:
            async with self._connections.connection() as connection:
                [(revision,)] = await fetch(connection, self._sql.schema_revision) or [("",)]
                if revision < REQUIRED_REVISION:
                    raise SchemaMissingError(f"schema {self._settings.schema!r} is out of date: run queuert migrate up")
                self._database.address = address(connection)
                self.risks = connection_warnings(connection.pgconn) + await self._moved(connection)
        except BaseException:
            await self._connections.aclose()
            raise

    async def _moved(self, connection: AsyncConnection[Any]) -> tuple[StoreWarning, ...]:
        """Return the warning for a database that was moved from another cluster; none if the role may not read the
        owner."""
        try:
            return moved_risks(await fetch(connection, self._sql.log_owner))
        except InsufficientPrivilege:
            return ()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    async def _fetch(self, statement: bytes | NamedStatement, values: parameters.Parameters | None = None) -> list[Row]:
        async with self._connections.connection() as connection:
            return await fetch(connection, statement, values)

    async def _read(self, callers: Any, statement: bytes, values: parameters.Parameters) -> list[Row]:
        """Run a statement that only reads, in the caller's transaction if there is one."""
        if callers is None:
            return await self._fetch(statement, values)
        async with self._callers_connection(callers) as connection:
            with mapped_errors(self._settings.schema):
                return await fetch(connection, statement, values)

    @asynccontextmanager
    async def _transaction(
        self, callers: Any = None, *, lock: float | None = None
    ) -> AsyncIterator[AsyncAnyConnection]:
        """Open a transaction, or a savepoint in the transaction of the caller's connection.

        ``lock`` is the lock timeout in seconds of a transaction of the store's own.
        """
        if callers is None:
            async with self._connections.connection() as own, async_bounded(own, lock=lock):
                yield own
            return
        async with self._callers_connection(callers) as connection:
            with mapped_errors(self._settings.schema):
                await begin_callers_transaction(connection)
                async with async_bounded(connection):
                    yield connection

    @asynccontextmanager
    async def _callers_connection(self, given: Any) -> AsyncIterator[AsyncAnyConnection]:
        """Yield the connection of what a caller passed, if it is one to this store's database.

        Raises:
            UnsupportedConnectionError: it is one to another database, or none that can be written on.
        """
        async with async_callers_connection(given) as connection:
            with mapped_errors(self._settings.schema):
                if not self._database.is_known(connection):
                    await self._compare_databases(connection)
            yield connection

    async def _compare_databases(self, connection: AsyncAnyConnection) -> None:
        """Ask the server of a caller's connection which database it is, and that of the store if they differ."""
        [row] = await fetch(connection, self._sql.database)
        theirs = Database(*row)
        if not self._database.is_same(theirs):
            # The store's own server may have changed since it was last asked.
            [row] = await self._fetch(self._sql.database)
            self._database.row = Database(*row)
        if not self._database.is_same(theirs):
            raise self._database.refused(theirs)
        self._database.add(connection)

    async def _notification(self, connection: AsyncAnyConnection, notifications: Mapping[Topic, Sequence[str]]) -> None:
        """Send notifications when the caller's transaction on this connection commits.

        None in a transaction of two phases: a server refuses to prepare one that notifies. Whoever waits for the
        notification polls as well.
        """
        if is_two_phase(connection):
            return
        for topic, keys in notifications.items():
            if keys:
                texts = encoding.encode(frozenset(keys))
                await fetch(connection, self._sql.notify, {"channel": self._channel(topic), "payloads": texts})

    def _channel(self, topic: Topic) -> str:
        return f"{self._settings.schema}_{topic.value}"
