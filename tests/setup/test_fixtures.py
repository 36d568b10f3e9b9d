"""The fixtures that give databases."""

import psycopg


def table_count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from pg_tables where schemaname = 'queuert'").fetchone()
    assert row is not None
    return int(row[0])


def test_a_database_is_migrated(dsn: str) -> None:
    assert table_count(dsn) > 1


def test_a_bare_database_is_not(bare_dsn: str) -> None:
    assert table_count(bare_dsn) == 0


def test_each_test_has_its_own(dsn: str, bare_dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table public.only_here ()")
    with psycopg.connect(bare_dsn) as connection:
        connection.execute("create table public.only_here ()")
