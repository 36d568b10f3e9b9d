"""Databases whose logins have the rights of one role each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from queuert.ids import new_id
from queuert.state.postgres.roles import Role, grant_roles
from queuert.testing.databases import TemplateDatabases
from tests.support.addresses import as_user, password_of

LoginOf = Callable[..., str]


class Logins:
    """Roles of one module's own, and logins that have some of them. They belong to the whole server: names are new."""

    def __init__(self, admin: str) -> None:
        self._admin = admin
        mark = new_id().replace("-", "")[-12:]
        self.names = {role: f"q{mark}_{role}" for role in Role}
        self._made: list[str] = []

    def grant(self, dsn: str) -> None:
        """Make the roles, and grant them what a migrated database has for them."""
        grant_roles(dsn, names=self.names)

    def login(self, dsn: str, *roles: Role) -> str:
        """The connection string of a new login with these roles."""
        user = f"{self.names[Role.WORKER]}_login{len(self._made)}"
        self._made.append(user)
        with psycopg.connect(dsn, autocommit=True) as connection:
            made = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(user), password_of(dsn))
            connection.execute(made)
            for role in roles:
                given = sql.Identifier(self.names[role])
                connection.execute(sql.SQL("GRANT {} TO {}").format(given, sql.Identifier(user)))
        return as_user(dsn, user)

    def drop(self) -> None:
        """Drop all of them; the databases that they had rights in are gone."""
        with psycopg.connect(self._admin, autocommit=True) as connection:
            for name in (*self._made, *self.names.values()):
                connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def logins(postgres_server: str) -> Iterator[Logins]:
    """The roles of a module's databases."""
    logins = Logins(postgres_server)
    yield logins
    logins.drop()


@pytest.fixture
def granted(template_databases: TemplateDatabases, logins: Logins) -> Iterator[str]:
    """The owner's connection string of a migrated database in which the roles have their grants."""
    with template_databases.database() as dsn:
        logins.grant(dsn)
        yield dsn


@pytest.fixture
def login(granted: str, logins: Logins) -> LoginOf:
    """A function that makes a login with the roles that it is given."""
    return lambda *roles: logins.login(granted, *roles)
