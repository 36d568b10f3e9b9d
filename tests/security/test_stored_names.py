"""Names that a row of the database holds: whoever writes the row must not write a statement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation

from queuert import PostgresState, migrations
from queuert.errors import StateError
from queuert.state.async_store import AsyncStore
from queuert.state.postgres import bulk
from queuert.state.postgres.bulk import BulkSettings, bulk_session
from queuert.state.postgres.roles import Role
from queuert.state.types import NewJob
from queuert.testing.conformance import Mode, Stores
from tests.security.conftest import LoginOf

HEX = "0123456789abcdef" * 2
HOSTILE = [
    'x"; delete from queuert.job; select 1 as "y',
    "job",
    'job"',
    "job; drop table queuert.job",
    "job -- ",
    "job_event_default",
    "stream_stage",
    "../../etc/passwd",
    "bulk_stage_",
    f"bulk_stage_{HEX}0",
    f"bulk_stage_{HEX[1:]}",
    f"bulk_stage_{HEX.upper()}",
    f"bulk_stage_{HEX}\n",
    f"\nbulk_stage_{HEX}",
    f'bulk_stage_{HEX}"; delete from queuert.job; --',
    f"bulk_stage_{HEX[1:]}\u0661",
    "%s",
    "{schema}",
    "",
    "\u202ebulk",
    "x" * 5_000,
]
PLANTED = "INSERT INTO queuert.bulk_stage (name, write_id, touched_at) VALUES (%s, 'w', now() - interval '9 days')"


def without_the_constraint(dsn: str) -> psycopg.Connection[Any]:
    """A connection of the owner's to a database in which any name can be planted, as before revision 0009."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("ALTER TABLE queuert.bulk_stage DROP CONSTRAINT IF EXISTS bulk_stage_name_is_made")
    return connection


@pytest.fixture(params=list(Mode), ids=str)
async def store(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncStore]:
    stores = Stores(PostgresState(dsn), request.param)
    store = await stores.open()
    await store.start_jobs([NewJob("kept", "work", "{}")])
    yield store
    await stores.aclose()


async def test_a_hostile_name_is_not_run_and_stops_no_cleanup_of_a_worker(dsn: str, store: AsyncStore) -> None:
    with bulk_session(BulkSettings(dsn, "queuert")) as session:
        dead = [bulk.make_stage(session, "dead") for _ in range(2)]
    with without_the_constraint(dsn) as owner:
        for name in HOSTILE:
            owner.execute(PLANTED, [name])
        owner.execute("UPDATE queuert.bulk_stage SET touched_at = now() - interval '10 days' WHERE name = %s", dead[:1])
        owner.execute("UPDATE queuert.bulk_stage SET touched_at = now() - interval '8 days' WHERE name = %s", dead[1:])
        done = await store.clean_staging()
        assert set(done.dropped) == set(dead)
        assert owner.execute("SELECT count(*) FROM queuert.job").fetchone() == (1,)
        assert owner.execute("SELECT to_regclass('queuert.stream_stage') IS NOT NULL").fetchone() == (True,)
        assert owner.execute("SELECT name FROM queuert.bulk_stage").fetchall() == []


def test_a_hostile_name_is_not_run_and_stops_no_cleanup_of_a_write(dsn: str) -> None:
    with bulk_session(BulkSettings(dsn, "queuert")) as session, without_the_constraint(dsn) as owner:
        dead = bulk.make_stage(session, "dead")
        for name in HOSTILE:
            owner.execute(PLANTED, [name])
        assert bulk.sweep_staging(session, older_than=0.0) == [dead]
        assert owner.execute("SELECT to_regclass('queuert.job') IS NOT NULL").fetchone() == (True,)
        assert owner.execute("SELECT name FROM queuert.bulk_stage").fetchall() == []


@pytest.mark.parametrize("maintenance", ["worker", "write"])
async def test_a_name_under_which_there_is_no_plain_table_stops_no_cleanup(
    dsn: str, store: AsyncStore, maintenance: str
) -> None:
    """Whoever may create in the schema can make a view of the name, or one that hangs on the table."""
    view, used = f"bulk_stage_{'a' * 32}", f"bulk_stage_{'b' * 32}"
    with (
        bulk_session(BulkSettings(dsn, "queuert")) as session,
        psycopg.connect(dsn, autocommit=True) as owner,
    ):
        owner.execute(f"CREATE VIEW queuert.{view} AS SELECT 1 AS n".encode())
        owner.execute(f"CREATE TABLE queuert.{used} (n int)".encode())
        owner.execute(f"CREATE VIEW queuert.hangs_on AS SELECT * FROM queuert.{used}".encode())
        for name in (view, used):
            owner.execute(PLANTED, [name])
        dead = bulk.make_stage(session, "dead")
        owner.execute("UPDATE queuert.bulk_stage SET touched_at = now() - interval '8 days' WHERE name = %s", [dead])
        if maintenance == "worker":
            assert (await store.clean_staging()).dropped == (dead,)
        else:
            assert bulk.sweep_staging(session, older_than=60.0) == [dead]
        assert owner.execute("SELECT count(*) FROM queuert.bulk_stage").fetchone() == (2,)


def test_the_database_refuses_a_hostile_name_of_a_writer(login: LoginOf) -> None:
    with psycopg.connect(login(Role.WRITER), autocommit=True) as writer:
        for name in HOSTILE:
            with pytest.raises(CheckViolation):
                writer.execute(PLANTED, [name])
        writer.execute(PLANTED, [f"bulk_stage_{HEX}"])


@pytest.mark.parametrize("name", [*HOSTILE, f"bulk_stage_{HEX}\x00", "bulk_stage_\ud800"], ids=ascii)
def test_no_statement_is_made_with_a_hostile_name(name: str) -> None:
    if name == bulk.STREAM_STAGE:
        with pytest.raises(StateError, match="staging table"):
            bulk.checked_stage(name)
        return
    with pytest.raises(StateError, match="staging table"):
        bulk.staged(b"DROP TABLE {stage}", name)


def test_a_name_that_is_made_here_is_quoted() -> None:
    assert bulk.staged(b"DROP TABLE {stage}", f"bulk_stage_{HEX}") == f'DROP TABLE "bulk_stage_{HEX}"'.encode()


def test_hostile_rows_that_are_there_go_with_the_migration(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn, revision="0008")
    with psycopg.connect(bare_dsn, autocommit=True) as owner:
        for name in (*HOSTILE, f"bulk_stage_{HEX}"):
            owner.execute(PLANTED, [name])
        migrations.upgrade(bare_dsn)
        assert owner.execute("SELECT name FROM queuert.bulk_stage").fetchall() == [(f"bulk_stage_{HEX}",)]
        valid = owner.execute("SELECT convalidated FROM pg_constraint WHERE conname = 'bulk_stage_name_is_made'")
        assert valid.fetchone() == (True,)


def test_going_back_drops_no_table_that_a_hostile_row_names(bare_dsn: str) -> None:
    migrations.upgrade(bare_dsn, revision="0008")
    with psycopg.connect(bare_dsn, autocommit=True) as owner:
        owner.execute("CREATE TABLE queuert.mine (n int)")
        owner.execute(PLANTED, ["mine"])
        owner.execute(PLANTED, ["job"])
        migrations.downgrade(bare_dsn, revision="0004")
        for table in ("mine", "job"):
            assert owner.execute("SELECT to_regclass('queuert.' || %s) IS NOT NULL", [table]).fetchone() == (True,)
