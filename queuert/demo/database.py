"""The demo's database: one connection for queries, and the creation and removal of its schema."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, LiteralString, Self

from queuert import migrations
from queuert.demo import tables
from queuert.demo.settings import SCHEMA, DemoError
from queuert.state.postgres.pool import Connections
from queuert.state.postgres.settings import PostgresSettings

_EXISTS = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
_DROP = "DROP SCHEMA IF EXISTS queuert_demo CASCADE"


class Database:
    """A connection in autocommit, opened by ``with``; errors of psycopg are raised as Queuert's."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections = Connections(PostgresSettings(url, application_name="queuert demo"), 1)

    def __enter__(self) -> Self:
        self._connections.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    def rows(self, statement: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._connections.connection() as connection:
            return connection.execute(statement, parameters).fetchall()

    def row(self, statement: LiteralString, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        """The one row of a query."""
        (row,) = self.rows(statement, parameters)
        return row

    def execute(self, statement: LiteralString, parameters: Sequence[object] = ()) -> None:
        """Run a statement that returns nothing."""
        with self._connections.connection() as connection:
            connection.execute(statement, parameters)

    def require_absent(self) -> None:
        """Check that the demo's schema does not exist.

        Raises:
            DemoError: it exists. A demo was kept, or still runs.
        """
        if self.row(_EXISTS, (SCHEMA,)) != (0,):
            raise DemoError(
                f"schema {SCHEMA} already exists in the database, from a demo that was kept or still runs: "
                f"remove it with DROP SCHEMA {SCHEMA} CASCADE"
            )

    def create(self) -> None:
        """Create the schema, with Queuert's tables and the demo's."""
        migrations.upgrade(self._url, schema=SCHEMA)
        for statement in tables.CREATE:
            self.execute(statement)

    def drop(self) -> None:
        """Remove the schema with all that is in it."""
        self.execute(_DROP)
