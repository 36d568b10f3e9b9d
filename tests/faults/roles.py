"""A role of a test's own for its clients and workers: its settings do not affect the test's own connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.addresses import as_user, password_of


class Role:
    """A role with all rights in one database, and its settings there."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._database = str(conninfo_to_dict(dsn)["dbname"])
        self.name = f"role_of_{self._database}"
        self._execute("create role {role} login superuser password {password}")

    @property
    def address(self) -> str:
        """Return the address of the database for this role."""
        return as_user(self._dsn, self.name)

    def set(self, setting: LiteralString, value: LiteralString) -> None:
        """Set something for all new sessions of the role, and end the open ones."""
        self._execute(f"alter role {{role}} in database {{database}} set {setting} = {value}")
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", [self.name]
            )

    def reset(self) -> None:
        """Reset all settings, for new sessions."""
        self._execute("alter role {role} in database {database} reset all")

    def drop(self) -> None:
        """Remove the role but keep its tables: a worker that runs over midnight creates a partition of the event
        log."""
        self.reset()
        self._execute("reassign owned by {role} to current_user")
        self._execute("drop role {role}")

    def _execute(self, command: LiteralString) -> None:
        names = {
            "role": sql.Identifier(self.name),
            "database": sql.Identifier(self._database),
            "password": password_of(self._dsn),
        }
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(command).format(**names))


@contextmanager
def role_in(dsn: str) -> Iterator[Role]:
    """Yield a role of a database."""
    role = Role(dsn)
    try:
        yield role
    finally:
        role.drop()
