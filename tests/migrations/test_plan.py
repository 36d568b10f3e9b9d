"""What an upgrade would do is known before: statements, locks, sizes, times. Indexes are built beside writes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert import migrations
from queuert.cli import main
from queuert.errors import MigrationError
from queuert.migration_plan import MigrationStep, plan_upgrade
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob

_STRONG = ("ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
_LOCKS = """
    SELECT relname, mode, relation FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    WHERE pid = pg_backend_pid() AND relnamespace = 'queuert'::regnamespace AND mode = ANY (%s)
        AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = relation)
"""
_INDEX = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('queuert.job_key_order')"


def _start(dsn: str, count: int) -> None:
    """Jobs, written as no version would: a store refuses a schema that is too old."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, input, limit_key)"
            " SELECT n::text, 'work', n::text, 'work', 'open', '1', 'key' FROM generate_series(1, %s) AS n",
            [count],
        )


@pytest.fixture
def old(bare_dsn: str) -> str:
    """A database of revision 0020 with jobs."""
    migrations.upgrade(bare_dsn, revision="0020")
    _start(bare_dsn, 2_000)
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute("ANALYZE queuert.job")
    return bare_dsn


@pytest.fixture
def holder(bare_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that gets in the way."""
    with psycopg.connect(bare_dsn) as connection:
        yield connection


def _valid(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(_INDEX).fetchall()


def test_statements_with_their_locks_and_sizes(old: str) -> None:
    plan = plan_upgrade(old, revision="0021")
    assert (plan.current, plan.head, plan.online) == ("0020", "0021", True)
    [index] = [step for step in plan.steps if "CREATE INDEX" in step.statement]
    assert (index.revision, index.table, index.lock, index.blocks) == (
        "0021",
        "job",
        "SHARE UPDATE EXCLUSIVE",
        "nothing",
    )
    assert not index.in_transaction
    assert index.rows == 2_000
    assert index.bytes
    assert index.seconds is not None
    [columns] = [step for step in plan.steps if step.statement.strip().startswith("ALTER TABLE")]
    assert (columns.table, columns.lock, columns.in_transaction) == ("type_limit", "ACCESS EXCLUSIVE", True)
    assert "blocks nothing" in str(plan)
    assert plan_upgrade(old, revision="0020").steps == ()


def test_what_a_plan_cannot_know_is_said(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a block of code locks; and where a statement has more lines than are printed."""
    migrations.upgrade(bare_dsn, revision="0029")
    plan = plan_upgrade(bare_dsn, revision="0030")
    [code] = [step for step in plan.steps if step.statement.startswith("DO ")]
    assert (code.blocks, code.table, code.is_code, code.online) == ("unknown", None, True, True)
    assert main(["migrate", "plan", "--url", bare_dsn, "--revision", "0030"]) == 0
    printed = capsys.readouterr().out
    assert (
        "  DO $migration$ ...\n    a block of code: what it locks and how long it takes cannot be read from its text\n"
    ) in printed
    assert "jobs go on meanwhile; not counting 1 block of code\n" in printed
    assert printed.endswith("... stands for the other lines of a statement: queuert migrate sql prints them\n")


def test_an_upgrade_says_before_what_takes_long(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(old, autocommit=True) as connection:
        connection.execute("UPDATE pg_class SET reltuples = 5e7 WHERE oid = 'queuert.job'::regclass")
    assert main(["migrate", "up", "--url", old, "--revision", "0021"]) == 0
    [index] = re.findall(r"^revision 0021: .*\n(?: .*\n)+", capsys.readouterr().err, re.MULTILINE)
    assert "CREATE INDEX CONCURRENTLY" in index
    assert "about 50,000,000 rows" in index
    assert "blocks nothing; takes about 100 s, in no transaction" in index
    assert _valid(old) == [(True,)]


def test_a_table_that_was_never_analyzed(bare_dsn: str) -> None:
    """Its rows are unknown, not none: the time of an index is estimated by its size."""
    migrations.upgrade(bare_dsn, revision="0020")
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE queuert.job SET (autovacuum_enabled = off)")
    empty = _index_of_0021(bare_dsn)
    assert empty.rows == 0
    _start(bare_dsn, 20_000)
    index = _index_of_0021(bare_dsn)
    assert index.rows is None
    assert re.search(r"locks job \(SHARE UPDATE EXCLUSIVE\), rows unknown \(never analyzed\), \d+\.\d MB", str(index))
    assert index.bytes
    assert index.seconds == round(index.bytes / 100 * 2e-6 + index.bytes / 100_000_000 * 2, 1) > 0


def _index_of_0021(dsn: str) -> MigrationStep:
    [index] = [step for step in plan_upgrade(dsn, revision="0021").steps if "CREATE INDEX" in step.statement]
    return index


def test_a_new_schema_needs_no_plan(bare_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All that it creates is new: nobody waits for it, and the first command of a new user says nothing of locks."""
    plan = plan_upgrade(bare_dsn)
    assert plan.online
    assert re.fullmatch(
        rf"there is no schema: \d+ statements create it at revision {plan.head}; nobody waits", str(plan)
    )
    assert main(["migrate", "up", "--url", bare_dsn]) == 0
    assert capsys.readouterr().err == ""


def test_it_changes_nothing(bare_dsn: str) -> None:
    assert plan_upgrade(bare_dsn).current is None
    assert migrations.status(bare_dsn).current is None


def test_the_locks_are_those_that_each_statement_takes(bare_dsn: str) -> None:
    """Of every revision, statement by statement, on the tables that the revisions before it made."""
    migrations.upgrade(bare_dsn, revision="0001")
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        for revision in migrations.status(bare_dsn).pending:
            plan = plan_upgrade(bare_dsn, revision=revision)
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL search_path TO queuert")
                there = {row[0] for row in connection.execute("SELECT oid FROM pg_class")}
                for step in plan.steps:
                    taken = _taken(connection, step, there)
                    assert (step.table, step.lock) == (None, None) or taken <= {(step.table, step.lock)}, step
                    assert step.table is not None or not taken, step
            migrations.upgrade(bare_dsn, revision=revision)


def _taken(connection: psycopg.Connection[Any], step: MigrationStep, there: set[int]) -> set[tuple[str, str]]:
    """Run the statement, and return the strong locks of relations that it took, beside those held before."""
    before = set(connection.execute(_LOCKS, [list(_STRONG)]).fetchall())
    # In this transaction an index is built as if it was not beside writes.
    connection.execute(step.statement.replace("CONCURRENTLY", "").encode())
    taken = set(connection.execute(_LOCKS, [list(_STRONG)]).fetchall()) - before
    modes = {
        (name, re.sub("(?<=[a-z])(?=[A-Z])", " ", mode.removesuffix("Lock")).upper())
        for name, mode, relation in taken
        if relation in there
    }
    return modes if step.in_transaction else {(name, "SHARE UPDATE EXCLUSIVE") for name, _ in modes}


def test_an_index_is_built_beside_writes(old: str, holder: psycopg.Connection[Any]) -> None:
    """While it waits for a transaction that began before, jobs are started, and it is valid in the end."""
    holder.execute("UPDATE queuert.job SET priority = 2 WHERE id = '2'")
    migrator = threading.Thread(target=migrations.upgrade, args=(old,), kwargs={"lock_timeout": 60.0})
    migrator.start()
    try:
        with psycopg.connect(old, autocommit=True) as connection:
            while not connection.execute(_INDEX).fetchone():
                connection.execute("SELECT pg_sleep(0.01)")
            connection.execute("SET lock_timeout = '5s'")
            connection.execute("UPDATE queuert.job SET priority = 1 WHERE id = '1'")
        assert _valid(old) == [(False,)]
    finally:
        holder.rollback()
        migrator.join()
    assert _valid(old) == [(True,)]
    assert migrations.status(old).pending == ()


def test_an_interrupted_index_is_built_anew(old: str, holder: psycopg.Connection[Any]) -> None:
    """An upgrade that gave up leaves an invalid index, which the next one replaces."""
    holder.execute("UPDATE queuert.job SET priority = 2 WHERE id = '2'")
    with pytest.raises(MigrationError, match="lock"):
        migrations.upgrade(old, lock_timeout=0.2)
    assert _valid(old) == [(False,)]
    assert migrations.status(old).current == "0020"
    holder.rollback()
    migrations.upgrade(old)
    assert _valid(old) == [(True,)]
    store = PostgresState(old).sync_store()
    store.open()
    store.start_jobs([NewJob("new", "work", "{}")])
    store.close()


def test_an_upgrade_behind_the_index_goes_on(old: str, holder: psycopg.Connection[Any]) -> None:
    """One that could not change the table after it keeps the index, and needs no second build."""
    holder.execute("LOCK TABLE queuert.type_limit")
    blocked = threading.Event()

    def release() -> None:
        with psycopg.connect(old, autocommit=True) as connection:
            while not connection.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
            ).fetchone():
                connection.execute("SELECT pg_sleep(0.01)")
        blocked.set()

    waiting = threading.Thread(target=release)
    waiting.start()
    holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    with pytest.raises(MigrationError, match="lock"):
        migrations.upgrade(old, lock_timeout=0.5)
    waiting.join()
    assert blocked.is_set()
    holder.rollback()
    migrations.upgrade(old)
    assert migrations.status(old).pending == ()


def test_waiting_for_a_table_is_repeated(
    old: str, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade that meets a lock gives way, and goes on when the lock is gone, within its time."""
    holder.execute("LOCK TABLE queuert.type_limit IN ACCESS SHARE MODE")
    pauses: list[float] = []
    sleep, upgrading = time.sleep, threading.current_thread()

    def pause(seconds: float) -> None:
        if threading.current_thread() is upgrading:
            pauses.append(seconds)
            holder.rollback()
        else:
            sleep(seconds)

    monkeypatch.setattr(migrations, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(time, "sleep", pause)
    migrations.upgrade(old, lock_timeout=30.0)
    assert pauses
    assert migrations.status(old).pending == ()
