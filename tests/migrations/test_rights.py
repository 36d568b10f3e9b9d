"""Migrations need the schema, and no right that they do not use."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from queuert import Client, JobType, JobTypes, PostgresState, migrations
from queuert.cli import main
from queuert.errors import MigrationError, RightMissingError
from queuert.ids import new_id
from queuert.notify.in_process import InProcessNotify
from tests.support.addresses import as_user, password_of

number = JobType("number", input=int, output=int)


@pytest.fixture
def user(bare_dsn: str) -> Iterator[str]:
    """The address of a login that may connect to an empty database, and nothing else."""
    name = f"queuert_owner_{new_id().replace('-', '')[-12:]}"
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL("create role {} login password {}").format(sql.Identifier(name), password_of(bare_dsn))
        )
        yield as_user(bare_dsn, name)
        connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def owner(bare_dsn: str, user: str) -> str:
    """The address of a login that owns an empty schema, and may make no other."""
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(user)["user"])  # type: ignore[arg-type]
        connection.execute(sql.SQL("create schema queuert authorization {}").format(name))
    with psycopg.connect(user) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("create schema if not exists queuert")
    return user


def test_the_owner_of_the_schema_migrates(owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Up, again, down, and up again; then jobs are started."""
    assert main(["migrate", "up", "--revision", "0020", "--url", owner]) == 0
    for _ in range(2):
        assert main(["migrate", "up", "--url", owner]) == 0
    assert main(["migrate", "down", "--revision", "base", "--yes", "--url", owner]) == 0
    assert main(["migrate", "up", "--url", owner]) == 0
    assert capsys.readouterr().err == ""
    with Client(PostgresState(owner), JobTypes(number), notify=InProcessNotify()) as client:
        assert client.start_chain(number, 1).id
        client.maintain_event_log()


@pytest.mark.quick
def test_the_owner_of_the_schema_runs_the_printed_sql(owner: str) -> None:
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(migrations.sql().encode())
    assert migrations.status(owner).pending == ()
    migrations.stamp(owner)


def test_who_may_not_make_the_schema_reads_what_to_do(bare_dsn: str, user: str) -> None:
    for call in (migrations.upgrade, migrations.stamp):
        with pytest.raises(MigrationError, match=r"permission denied for database .*CREATE ON DATABASE.*AUTHORIZATION"):
            call(user)
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        [(database,)] = connection.execute("select current_database()").fetchall()
        name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(user)["user"])  # type: ignore[arg-type]
        connection.execute(sql.SQL("grant create on database {} to {}").format(sql.Identifier(database), name))
    migrations.upgrade(user)
    assert migrations.status(user).pending == ()


def test_who_owns_nothing_changes_nothing(bare_dsn: str, user: str) -> None:
    migrations.upgrade(bare_dsn, revision="0020")
    for call in (migrations.upgrade, migrations.status):
        with pytest.raises((MigrationError, RightMissingError), match="permission denied"):
            call(user)
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute("grant usage on schema queuert to public; grant select on queuert.alembic_version to public")
    with pytest.raises(MigrationError, match=r"must be owner of .*run it as the owner of the schema"):
        migrations.upgrade(user)
    assert migrations.status(user).current == "0020"
