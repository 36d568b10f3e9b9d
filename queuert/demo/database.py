"""The demo's database: one connection for looking at it, and the making and removal of what the demo needs in it."""

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
    """A connection in autocommit, opened by ``with``; the errors of the driver come as Queuert's."""

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
        """See that there is no schema of the demo's name.

        Raises:
            DemoError: there is one. It may hold what somebody kept, or belong to a demo that runs now.
        """
        if self.row(_EXISTS, (SCHEMA,)) != (0,):
            raise DemoError(
                f"the database has a schema {SCHEMA} already, of a demo that was kept, or runs now: "
                f"remove it with DROP SCHEMA {SCHEMA} CASCADE"
            )

    def create(self) -> None:
        """Make the schema, with Queuert's tables and the demo's."""
        migrations.upgrade(self._url, schema=SCHEMA)
        for statement in tables.CREATE:
            self.execute(statement)

    def drop(self) -> None:
        """Remove the schema with all that is in it."""
        self.execute(_DROP)
