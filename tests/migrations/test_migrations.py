"""The migrations: from nothing to the newest and back, many at once, online and offline alike."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from queuert import migrations
from queuert.errors import ConfigurationError, MigrationError, StateUnavailableError
from queuert.schema_names import check_schema_name
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob

CATALOG = {
    "columns": """
        SELECT table_name, column_name, data_type, is_nullable, replace(column_default, %(schema)s, 'SCHEMA'),
            collation_name
        FROM information_schema.columns WHERE table_schema = %(schema)s ORDER BY table_name, column_name
    """,
    "indexes": """
        SELECT indexname, replace(indexdef, %(schema)s, 'SCHEMA') FROM pg_indexes
        WHERE schemaname = %(schema)s ORDER BY indexname
    """,
    "constraints": """
        SELECT conname, replace(pg_get_constraintdef(oid), %(schema)s, 'SCHEMA') FROM pg_constraint
        WHERE connamespace = %(schema)s::regnamespace ORDER BY conname
    """,
    "views": """
        SELECT viewname, replace(definition, %(schema)s, 'SCHEMA') FROM pg_views
        WHERE schemaname = %(schema)s ORDER BY viewname
    """,
    "storage": """
        SELECT relname, relkind, ARRAY(SELECT option FROM unnest(reloptions) AS option ORDER BY 1) FROM pg_class
        WHERE relnamespace = %(schema)s::regnamespace ORDER BY relname
    """,
}


def catalog(dsn: str, schema: str = "queuert") -> dict[str, list[Any]]:
    """All that a schema holds, with its name left out: choose one that is no part of the name of anything else."""
    with psycopg.connect(dsn) as connection:
        found = {
            name: connection.execute(query.encode(), {"schema": schema}).fetchall() for name, query in CATALOG.items()
        }
    assert all(found.values())
    return found


def schemas(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_'").fetchall()
    return {row[0] for row in rows} - {"public", "information_schema"}


@pytest.fixture
def holder(bare_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that gets in the way of migrations."""
    with psycopg.connect(bare_dsn) as connection:
        yield connection


def test_from_nothing(bare_dsn: str) -> None:
    before = migrations.status(bare_dsn)
    assert (before.current, before.pending[-1:]) == (None, (before.head,))
    migrations.upgrade(bare_dsn)
    after = migrations.status(bare_dsn)
    assert (after.current, after.head, after.pending) == (before.head, before.head, ())
    store = PostgresState(bare_dsn).sync_store()
    store.open()
    store.close()


def test_again_changes_nothing(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn)
    store = PostgresState(bare_dsn).sync_store()
    store.open()
    store.start_jobs([NewJob("kept", "work", "{}")])
    before = catalog(bare_dsn)
    migrations.upgrade(bare_dsn)
    assert catalog(bare_dsn) == before
    assert [job.id for job in store.get_jobs(["kept"]) if job] == ["kept"]
    store.close()


def test_down_and_up_again(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn)
    before = catalog(bare_dsn)
    migrations.downgrade(bare_dsn, revision="base")
    status = migrations.status(bare_dsn)
    assert (status.current, status.pending[-1]) == (None, status.head)
    with psycopg.connect(bare_dsn) as connection:
        left = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'queuert'::regnamespace"
        ).fetchall()
    assert {row[0] for row in left} <= {"alembic_version", "alembic_version_pkc"}
    migrations.upgrade(bare_dsn)
    assert catalog(bare_dsn) == before


def test_each_revision_down_and_up(bare_dsn: str) -> None:
    """Every step can be taken alone, in both directions, and leads to the same schema."""
    steps = migrations.status(bare_dsn).pending
    seen = {}
    for step in steps:
        migrations.upgrade(bare_dsn, revision=step)
        seen[step] = catalog(bare_dsn)
    for step, before in reversed(list(zip(steps[1:], steps, strict=False))):
        assert migrations.status(bare_dsn).current == step
        migrations.downgrade(bare_dsn, revision=before)
        assert catalog(bare_dsn) == seen[before]


def test_whoever_may_start_chains_in_sql_still_may(bare_dsn: str) -> None:
    """A revision that replaces the function keeps its grants: producers do not wait for those of `migrate roles`."""
    migrations.upgrade(bare_dsn, revision="0022")
    role = f"app_{secrets.token_hex(4)}"
    name = sql.Identifier(role)
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {}").format(name))
        try:
            connection.execute(sql.SQL("GRANT EXECUTE ON FUNCTION queuert.start_chain TO {}").format(name))
            migrations.upgrade(bare_dsn)
            for whom, expected in ((role, True), ("pg_monitor", False)):
                [(may,)] = connection.execute(
                    "SELECT has_function_privilege(%s, 'queuert.start_chain'::regproc, 'EXECUTE')", [whom]
                ).fetchall()
                assert may is expected
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {name}; DROP ROLE {name}").format(name=name))


@pytest.mark.quick
def test_eight_at_once(bare_dsn: str) -> None:
    """Eight migrators that begin together all end well, and one of them did the work."""
    together = threading.Barrier(8)

    def migrate(_: int) -> None:
        together.wait(30)
        migrations.upgrade(bare_dsn)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(migrate, range(8)))
    assert migrations.status(bare_dsn).pending == ()
    with psycopg.connect(bare_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM queuert.alembic_version").fetchone() == (1,)


@pytest.mark.timeout(150)
def test_two_processes_at_once(bare_dsn: str) -> None:
    script = "import os, sys; from queuert import migrations; sys.stdin.read(); migrations.upgrade(os.environ['DSN'])"
    command, environment = [sys.executable, "-c", script], {**os.environ, "DSN": bare_dsn}
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path.cwd(), env=environment) for _ in range(2)]
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(120) for process in running] == [0, 0]
    assert migrations.status(bare_dsn).pending == ()


def test_two_schemas(bare_dsn: str) -> None:
    """Each schema has its own revision; one can go while the other stays."""
    migrations.upgrade(bare_dsn, schema="first_of_two")
    assert migrations.status(bare_dsn, schema="second_of_two").current is None
    migrations.upgrade(bare_dsn, schema="second_of_two")
    assert catalog(bare_dsn, "first_of_two") == catalog(bare_dsn, "second_of_two")
    assert schemas(bare_dsn) == {"first_of_two", "second_of_two"}
    migrations.downgrade(bare_dsn, schema="first_of_two", revision="base")
    assert migrations.status(bare_dsn, schema="first_of_two").current is None
    assert migrations.status(bare_dsn, schema="second_of_two").pending == ()


def test_schemas_are_migrated_side_by_side(bare_dsn: str) -> None:
    """The lock is the schema's: a migrator of another one is not waited for."""
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s, hashtext('one'))", [migrations._LOCK_CLASS])
        migrations.upgrade(bare_dsn, schema="two", lock_timeout=0.2)
        with pytest.raises(MigrationError, match="another migrator"):
            migrations.upgrade(bare_dsn, schema="one", lock_timeout=0.2)
    assert schemas(bare_dsn) == {"two"}


def test_events_that_share_a_row_are_reported_apart_when_it_is_undone(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn)
    store = PostgresState(bare_dsn).sync_store()
    store.open()
    store.start_jobs([NewJob(f"{number}", "work", "1") for number in range(100)])
    store.start_jobs([NewJob("alone", "work", "1")])
    store.close()
    events = "SELECT job_id, chain_id, kind, tx::text, seq, happened_at, scheduled_at FROM queuert.{} ORDER BY tx, seq"
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) < 10 FROM queuert.job_event").fetchone() == (True,)
        before = connection.execute(events.format("event").encode()).fetchall()
        migrations.downgrade(bare_dsn, revision="0007")
        assert connection.execute(events.format("job_event").encode()).fetchall() == before
        # What comes now is behind it, as it is after the next upgrade.
        numbers = [connection.execute("SELECT nextval('queuert.job_event_seq')").fetchone()]
        migrations.upgrade(bare_dsn)
        assert connection.execute(events.format("event").encode()).fetchall() == before
        numbers += [connection.execute("SELECT 64 * nextval('queuert.job_event_seq')").fetchone()]
    assert len(before) == 101
    assert all(number and number[0] > before[-1][4] for number in numbers)


@pytest.mark.parametrize("schema", ["queuert", "other_1"])
def test_offline_is_as_online(bare_dsn: str, schema: str) -> None:
    """The SQL for hand and psql makes the same schema, at the same revision, that the command makes."""
    migrations.upgrade(bare_dsn, schema=schema)
    online = catalog(bare_dsn, schema)
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
        connection.execute(migrations.sql(schema=schema).encode())
    assert catalog(bare_dsn, schema) == online
    assert migrations.status(bare_dsn, schema=schema).pending == ()


def test_stamp(bare_dsn: str) -> None:
    """A schema that was made by hand, without a revision, is recorded as it is."""
    migrations.upgrade(bare_dsn)
    before = catalog(bare_dsn)
    with psycopg.connect(bare_dsn) as connection:
        connection.execute("DELETE FROM queuert.alembic_version")
    assert migrations.status(bare_dsn).current is None
    migrations.stamp(bare_dsn)
    assert migrations.status(bare_dsn).pending == ()
    migrations.upgrade(bare_dsn)
    assert catalog(bare_dsn) == before


def test_another_migrator_in_the_way(bare_dsn: str, holder: psycopg.Connection[Any]) -> None:
    holder.execute("SELECT pg_advisory_lock(%s, hashtext('queuert'))", [migrations._LOCK_CLASS])
    calls: list[Callable[[], None]] = [
        lambda: migrations.upgrade(bare_dsn, lock_timeout=0.1),
        lambda: migrations.downgrade(bare_dsn, revision="base", lock_timeout=0.1),
        lambda: migrations.stamp(bare_dsn, lock_timeout=0.1),
    ]
    for call in calls:
        with pytest.raises(MigrationError, match="another migrator"):
            call()
    holder.execute("SELECT pg_advisory_unlock_all()")
    migrations.upgrade(bare_dsn, lock_timeout=0.1)


@pytest.mark.parametrize("lock_timeout", [0.2, 0.0001, 0.0])
def test_a_long_transaction_in_the_way(bare_dsn: str, holder: psycopg.Connection[Any], lock_timeout: float) -> None:
    """A table that somebody uses is waited for, but not for ever, however small the limit; nothing is half done."""
    # The newest revision that has a table: a function is dropped whoever uses it.
    migrations.upgrade(bare_dsn, revision="0014")
    before = catalog(bare_dsn)
    # And the newest revision's table: each revision is a transaction, and the first to be undone is to be held up.
    holder.execute(
        "SELECT count(*) FROM queuert.bulk_stage, queuert.event_log, queuert.job, queuert.job_event, "
        "queuert.lease_extension, queuert.type_limit, queuert.metric_event_log, queuert.activity"
    )
    with pytest.raises(MigrationError, match="lock"):
        migrations.downgrade(bare_dsn, revision="base", lock_timeout=lock_timeout)
    assert catalog(bare_dsn) == before
    assert migrations.status(bare_dsn).current == "0014"
    holder.rollback()
    migrations.downgrade(bare_dsn, revision="base", lock_timeout=10)


def test_a_refused_wait_leaves_no_connection_open(bare_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses a setting."""
    made: list[psycopg.Connection[Any]] = []
    connect = migrations.connect_to

    def note(dsn: str, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        made.append(connect(dsn, autocommit=autocommit))
        return made[-1]

    monkeypatch.setattr(migrations, "connect_to", note)
    monkeypatch.setattr(migrations, "_IDLE_MILLISECONDS", "many")
    with pytest.raises(MigrationError, match="idle_in_transaction_session_timeout"):
        migrations.upgrade(bare_dsn, lock_timeout=3e6)
    assert [connection.closed for connection in made] == [True, True]


def test_the_lock_is_given_back(bare_dsn: str, holder: psycopg.Connection[Any]) -> None:
    """After success and after failure, no session and no lock is left."""
    migrations.upgrade(bare_dsn)
    with pytest.raises(MigrationError):
        migrations.upgrade(bare_dsn, revision="nonsense")
    # The server ends a session some moments after its client has left: it is asked twenty seconds long, or more.
    requested = "SELECT pg_try_advisory_lock(%s, hashtext('queuert')) FROM pg_sleep(0.002)"
    tries = (holder.execute(requested, [migrations._LOCK_CLASS]).fetchone() for _ in range(10_000))
    assert (True,) in tries


@pytest.mark.parametrize(
    "schema", ["", "Upper", "has space", 'quo"te', "semi;colon", "1digit", "a" * 41, "täg", "x'; --", "a\n", "pg-x"]
)
def test_hostile_schema_names(schema: str) -> None:
    """They are refused before a connection is made: there is none to be had here."""
    nowhere = "host=127.0.0.1 port=1"
    calls: list[Callable[[], object]] = [
        lambda: migrations.upgrade(nowhere, schema=schema),
        lambda: migrations.downgrade(nowhere, schema=schema, revision="base"),
        lambda: migrations.stamp(nowhere, schema=schema),
        lambda: migrations.status(nowhere, schema=schema),
        lambda: migrations.sql(schema=schema),
        lambda: check_schema_name(schema),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="schema must be"):
            call()


@pytest.mark.parametrize("schema", ["queuert", "a", "_x", "a" * 40, "select", "a1_2"])
def test_plain_schema_names(schema: str) -> None:
    assert check_schema_name(schema) == schema


@pytest.mark.parametrize("schema", ["select", "a" * 40])
def test_strange_but_plain_schema_names_work(bare_dsn: str, schema: str) -> None:
    migrations.upgrade(bare_dsn, schema=schema)
    store = PostgresState(bare_dsn, schema=schema).sync_store()
    store.open()
    store.start_jobs([NewJob("a", "work", "{}")])
    assert [(one.type, one.count) for one in store.count_jobs()] == [("work", 1)]
    store.close()


def test_unknown_revisions(bare_dsn: str) -> None:
    """Asked for, or found in a database that a newer version has migrated: a MigrationError that names it."""
    for call in (migrations.upgrade, migrations.stamp, migrations.downgrade):
        with pytest.raises(MigrationError, match="nonsense"):
            call(bare_dsn, revision="nonsense")
    with pytest.raises(MigrationError, match="nonsense"):
        migrations.sql(revision="nonsense")
    migrations.upgrade(bare_dsn)
    with psycopg.connect(bare_dsn) as connection:
        connection.execute("UPDATE queuert.alembic_version SET version_num = '9999'")
    with pytest.raises(MigrationError, match="9999"):
        migrations.upgrade(bare_dsn)
    with pytest.raises(MigrationError, match="9999"):
        migrations.status(bare_dsn)


def test_no_database() -> None:
    nowhere = "host=127.0.0.1 port=1"
    for call in (migrations.upgrade, migrations.stamp, migrations.status):
        with pytest.raises(StateUnavailableError, match="connect"):
            call(nowhere)


def test_not_allowed(bare_dsn: str) -> None:
    """Where the role may not create, the error says so."""
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE queuert_powerless LOGIN")
        try:
            with pytest.raises(MigrationError, match="permission denied"):
                migrations.upgrade(make_conninfo(bare_dsn, options="-c role=queuert_powerless"))
        finally:
            connection.execute("DROP ROLE queuert_powerless")
    assert schemas(bare_dsn) == set()


def test_scripts_are_found() -> None:
    """In a source tree they are beside the package; an installed one holds them inside."""
    place = migrations.script_location()
    assert (place / "env.py").is_file()
    assert list((place / "versions").glob("0001_*.py"))


def test_scripts_inside_the_package_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "queuert"
    monkeypatch.setattr(migrations, "__file__", str(package / "migrations.py"))
    assert migrations.script_location() == tmp_path / "alembic"
    (package / "_migrations").mkdir(parents=True)
    (package / "_migrations" / "env.py").touch()
    assert migrations.script_location() == package / "_migrations"


def test_one_line_of_revisions() -> None:
    """Each revision follows one other, and none is written twice."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(migrations.script_location()))
    assert len(scripts.get_heads()) == 1
    assert len(scripts.get_bases()) == 1
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert len(revisions) == len(list((migrations.script_location() / "versions").glob("[0-9]*.py")))
