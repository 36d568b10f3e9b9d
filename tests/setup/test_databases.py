"""Databases copied from a template."""

import psycopg
import pytest

from queuert.testing.databases import TemplateDatabases, with_database


def make_table(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table things (name text)")
        connection.execute("insert into things values ('first')")


def names(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select name from things order by name")]


def databases_of(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute("select datname from pg_database")}


def test_copies_do_not_see_each_other(postgres_server: str) -> None:
    with (
        TemplateDatabases(postgres_server, make_table) as databases,
        databases.database() as one,
        databases.database() as other,
    ):
        with psycopg.connect(one) as connection:
            connection.execute("insert into things values ('second')")
        assert names(one) == ["first", "second"]
        assert names(other) == ["first"]


def test_leaves_nothing_behind(postgres_server: str) -> None:
    before = databases_of(postgres_server)
    with TemplateDatabases(postgres_server, make_table, prefix="leaves_nothing") as databases:
        with databases.database() as dsn:
            assert names(dsn) == ["first"]
        databases.drop(databases.create_empty())
    assert not {name for name in databases_of(postgres_server) - before if name.startswith("leaves_nothing")}


def test_migrates_once(postgres_server: str) -> None:
    calls: list[str] = []
    with TemplateDatabases(postgres_server, calls.append) as databases:
        for _ in range(3):
            with databases.database():
                pass
    assert len(calls) == 1


def test_migrates_again_on_a_new_day(postgres_server: str) -> None:
    """As a suite does that runs over midnight: a copy has the days of the event log that a migration makes then."""
    calls: list[str] = []

    def make(dsn: str) -> None:
        calls.append(dsn)
        make_table(dsn)

    with TemplateDatabases(postgres_server, make) as databases:
        with databases.database():
            databases._day = "2026-01-01"
        with databases.database() as dsn:
            assert names(dsn) == ["first"]
    assert len(calls) == 2


def test_a_failed_migration_is_reported_and_tried_again(postgres_server: str) -> None:
    calls: list[str] = []

    def fail_once(dsn: str) -> None:
        calls.append(dsn)
        if len(calls) == 1:
            raise RuntimeError("no")

    with TemplateDatabases(postgres_server, fail_once) as databases:
        with pytest.raises(RuntimeError, match="no"):
            databases.create()
        with databases.database():
            pass


def test_drops_a_database_with_a_forgotten_session(postgres_server: str) -> None:
    with TemplateDatabases(postgres_server, make_table) as databases:
        dsn = databases.create()
        forgotten = psycopg.connect(dsn)
        databases.drop(dsn)
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("select 1")
        forgotten.close()


def test_disconnects_when_the_template_cannot_be_dropped(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    databases = TemplateDatabases(postgres_server, make_table)
    with monkeypatch.context() as failing:
        failing.setattr(databases, "_drop_template", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            databases.close()
    assert databases._admin.closed


def test_an_empty_database_has_no_tables(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as connection:
        assert connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone() == (0,)


def test_with_database() -> None:
    assert with_database("postgresql://me@db:1/old?x=y", "new one") == "postgresql://me@db:1/new%20one?x=y"
    assert with_database("host=db dbname=old", "new") == "dbname=new host=db"
