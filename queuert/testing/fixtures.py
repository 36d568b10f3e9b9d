"""The implementation of the pytest plugin's fixtures: a server for the session, and an empty store for each test."""

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
"""A function of the test suite that gets a connection string and creates the tables of the program under test."""

_MAY_CREATE = "select rolcreatedb or rolsuper from pg_roles where rolname = current_user"
_SETTINGS = "select to_jsonb(event_log)::text from {} as event_log"
_RESTORE = "insert into {0} select * from jsonb_populate_record(null::{0}, %s::jsonb)"
"""The event log has one row, with its settings. The migration makes it, and without it no event is written."""

_TABLES = "select tablename from pg_tables where schemaname = %s and tablename <> 'alembic_version'"


@contextmanager
def postgres_server(dsn: str | None) -> Iterator[str]:
    """Yield the connection string of a server for tests: the given one, or an embedded server that does not flush to
    disk.

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
    """Creates empty stores, one after the other."""

    def fresh(self) -> AbstractContextManager[tuple[str, PostgresState]]:
        """Yield the connection string of a database, and an empty store in it; both end with the block."""
        ...


@contextmanager
def fresh_stores(dsn: str, prepare: Prepare) -> Iterator[FreshStores]:
    """Create stores on this server: in a database of its own for each, or in one schema that is emptied, as the role
    allows."""
    with migrations.forgetting_login(), psycopg.connect(dsn) as connection:
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
            with migrations.forgetting_login(), psycopg.connect(dsn) as connection:
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
        with migrations.forgetting_login(), psycopg.connect(dsn) as connection:
            query = sql.SQL(_SETTINGS).format(sql.Identifier(schema, "event_log"))
            [(self._settings,)] = connection.execute(query).fetchall()

    @contextmanager
    def fresh(self) -> Iterator[tuple[str, PostgresState]]:
        try:
            yield self._dsn, PostgresState(self._dsn, schema=self._schema)
        finally:
            with migrations.forgetting_login(), psycopg.connect(self._dsn) as connection:
                self._empty(connection)

    def _empty(self, connection: psycopg.Connection[Any]) -> None:
        names = [sql.Identifier(self._schema, row[0]) for row in connection.execute(_TABLES, [self._schema])]
        connection.execute(sql.SQL("truncate {}").format(sql.SQL(", ").join(names)))
        connection.execute(sql.SQL(_RESTORE).format(sql.Identifier(self._schema, "event_log")), [self._settings])
