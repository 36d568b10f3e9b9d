"""What the fixtures of the pytest plugin do: a server for the session, and an empty store for each test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg
from psycopg import sql

from queuert import migrations
from queuert.state.postgres import PostgresState
from queuert.testing.databases import TemplateDatabases

Prepare = Callable[[str], None]
"""Called with a connection string: brings the tables of the program under test into the database."""

_MAY_CREATE = "select rolcreatedb or rolsuper from pg_roles where rolname = current_user"
_TABLES = "select tablename from pg_tables where schemaname = %s and tablename <> 'alembic_version'"


@contextmanager
def postgres_server(dsn: str | None) -> Iterator[str]:
    """The connection string of a server for tests: the one that is given, or an embedded one that flushes nothing.

    Raises:
        EmbeddedServerError: none is given, and none can be started; the message says how to get one.
    """
    if dsn:
        yield dsn
        return
    from queuert.embedded import EmbeddedPostgres

    with EmbeddedPostgres(durable=False, settings={"autovacuum": "off"}) as server:
        yield server.dsn()


class FreshStores(Protocol):
    """Makes empty stores, one after the other."""

    def fresh(self) -> AbstractContextManager[tuple[str, PostgresState]]:
        """A database, as a connection string, and an empty store in it, for the length of a test."""
        ...


@contextmanager
def fresh_stores(dsn: str, prepare: Prepare) -> Iterator[FreshStores]:
    """Stores on this server: a database of its own for each, or one schema that is emptied, as the role allows."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(_MAY_CREATE).fetchone()
    if row is not None and row[0]:
        with TemplateDatabases(dsn, lambda made: _migrate(made, prepare)) as databases:
            yield _FreshDatabases(databases)
    else:
        schema = f"queuert_test_{secrets.token_hex(4)}"
        prepare(dsn)
        migrations.upgrade(dsn, schema=schema)
        try:
            yield _EmptiedSchema(dsn, schema)
        finally:
            with psycopg.connect(dsn) as connection:
                connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))


def _migrate(dsn: str, prepare: Prepare) -> None:
    migrations.upgrade(dsn)
    prepare(dsn)


class _FreshDatabases:
    def __init__(self, databases: TemplateDatabases) -> None:
        self._databases = databases

    @contextmanager
    def fresh(self) -> Iterator[tuple[str, PostgresState]]:
        with self._databases.database() as dsn:
            yield dsn, PostgresState(dsn)


class _EmptiedSchema:
    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    @contextmanager
    def fresh(self) -> Iterator[tuple[str, PostgresState]]:
        try:
            yield self._dsn, PostgresState(self._dsn, schema=self._schema)
        finally:
            with psycopg.connect(self._dsn) as connection:
                self._empty(connection)

    def _empty(self, connection: psycopg.Connection[Any]) -> None:
        names = [sql.Identifier(self._schema, row[0]) for row in connection.execute(_TABLES, [self._schema])]
        connection.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(names)))
