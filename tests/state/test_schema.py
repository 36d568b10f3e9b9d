"""The tables refuse impossible rows, renewals are cheap, schemas keep apart, and the SQL files are what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from queuert import migrations
from queuert.errors import ConfigurationError
from queuert.ids import new_token
from queuert.state.postgres import PostgresState, parameters
from queuert.state.postgres.statements import Statements, texts
from queuert.state.types import ClaimRequest, NewJob, Renewal

_STAGED = re.compile(rb"\{(stage|columns)\}")
"""What a bulk write puts in when it knows its own table."""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


ROOT = {"id": "a", "chain_id": "a", "type": "t", "chain_type": "t", "chain_status": "open", "input": "1"}


def insert(connection: psycopg.Connection[Any], **values: object) -> None:
    row = {**ROOT, **values}
    columns = sql.SQL(", ").join(map(sql.Identifier, row))
    places = sql.SQL(", ").join(sql.Placeholder() * len(row))
    connection.execute(sql.SQL("INSERT INTO queuert.job ({}) VALUES ({})").format(columns, places), [*row.values()])


@pytest.mark.parametrize(
    ("wrong", "constraint"),
    [
        ({"status": "dreaming"}, "job_status_known"),
        ({"status": "running"}, "job_lease_while_running"),
        ({"lease_expires_at": "2026-01-01", "lease_token": new_token()}, "job_lease_while_running"),
        ({"status": "running", "lease_expires_at": "2026-01-01"}, "job_lease_while_running"),
        ({"chain_id": "b"}, "job_root_is_chain"),
        ({"chain_index": 1, "chain_status": None}, "job_root_is_chain"),
        ({"chain_status": None}, "job_chain_status_on_root"),
        ({"chain_id": "b", "chain_index": 1}, "job_chain_status_on_root"),
        ({"chain_status": "ajar"}, "job_chain_status_is_its_own"),
        ({"status": "continued", "continued_by": "b", "chain_status": "ajar"}, "job_chain_status_known"),
        ({"status": "failed"}, "job_chain_status_is_its_own"),
        ({"open_blockers": -1}, "job_open_blockers_not_negative"),
    ],
)
def test_impossible_rows_are_refused(
    connection: psycopg.Connection[Any], wrong: dict[str, object], constraint: str
) -> None:
    """By the schema itself, or by what the tests' databases have besides."""
    with pytest.raises(errors.CheckViolation) as caught:
        insert(connection, **wrong)
    assert caught.value.diag.constraint_name == constraint
    insert(connection)


@pytest.mark.parametrize("column", ["id", "chain_id", "type", "chain_type", "input", "status"])
def test_rows_without_an_essential_are_refused(connection: psycopg.Connection[Any], column: str) -> None:
    with pytest.raises(errors.NotNullViolation):
        insert(connection, **{column: None})


def test_a_chain_has_one_job_of_each_index(connection: psycopg.Connection[Any]) -> None:
    insert(connection)
    later = {"chain_index": 1, "chain_status": None, "status": "ready"}
    insert(connection, id="b", **later)
    with pytest.raises(errors.UniqueViolation):
        insert(connection, id="c", **later)


@pytest.mark.parametrize("status", ["blocked", "scheduled", "ready", "running"])
def test_a_chain_has_one_open_job(connection: psycopg.Connection[Any], status: str) -> None:
    """A chain has at most one job that is to run, and each that went on names the one after it, whoever writes them."""
    lease = {"lease_expires_at": "2026-01-01", "lease_token": new_token()} if status == "running" else {}
    insert(connection, status="continued", continued_by="b")
    insert(connection, id="b", chain_index=1, chain_status=None)
    with pytest.raises(errors.UniqueViolation) as caught:
        insert(connection, id="c", chain_index=2, chain_status=None, status=status, **lease)
    assert caught.value.diag.constraint_name == "job_open_tail"
    with pytest.raises(errors.CheckViolation) as refused:
        connection.execute("UPDATE queuert.job SET status = 'continued' WHERE id = 'b'")
    assert refused.value.diag.constraint_name == "job_continued_by_one"
    connection.execute("UPDATE queuert.job SET status = 'continued', continued_by = 'c' WHERE id = 'b'")
    insert(connection, id="c", chain_index=2, chain_status=None, status=status, **lease)


def test_blockers_are_jobs_that_exist_once_each(connection: psycopg.Connection[Any]) -> None:
    insert(connection)
    insert(connection, id="b", chain_id="b")
    add = "INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed) VALUES (%s, %s, %s, false)"
    connection.execute(add, ["b", "a", 0])
    with pytest.raises(errors.UniqueViolation):
        connection.execute(add, ["b", "a", 1])
    with pytest.raises(errors.ForeignKeyViolation):
        connection.execute(add, ["b", "nobody", 1])
    with pytest.raises(errors.ForeignKeyViolation):
        connection.execute("DELETE FROM queuert.job WHERE id = 'a'")
    connection.execute("DELETE FROM queuert.job WHERE id = 'b'")
    assert connection.execute("SELECT count(*) FROM queuert.job_blocker").fetchone() == (0,)


def test_renewals_are_heap_only(dsn: str, connection: psycopg.Connection[Any]) -> None:
    """No index is written to by a renewal, and the new version fits on the page of its row."""
    store = PostgresState(dsn).sync_store()
    store.open()
    try:
        store.start_jobs([NewJob(f"job{number}", "work", "{}") for number in range(200)])
        claimed = store.claim(ClaimRequest({"work": 60.0}, 5, "me", new_token()))
    finally:
        store.close()
    renewals = parameters.renewals([Renewal(job.lease, 60.0) for job in claimed])
    for _ in range(20):
        with connection.transaction():
            before = updates(connection)
            assert len(connection.execute(Statements("queuert").renew, renewals).fetchall()) == 5
            after = updates(connection)
        assert [new - old for old, new in zip(before, after, strict=True)] == [5, 5]


def updates(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Updates of jobs by this session that were not reported yet, and how many of them were heap-only."""
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'job'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0], row[1]


def test_schemas_keep_apart(bare_dsn: str) -> None:
    """Two schemas of one database do not see each other's jobs, even with the same ids."""
    stores = []
    for schema in ("one", "two"):
        migrations.upgrade(bare_dsn, schema=schema)
        stores.append(PostgresState(bare_dsn, schema=schema).sync_store())
    first, second = stores
    first.open()
    second.open()
    try:
        first.start_jobs([NewJob("same", "work", "1", id_chosen=True)])
        assert second.get_jobs(["same"]) == [None]
        assert second.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token())) == []
        second.start_jobs([NewJob("same", "work", "2", id_chosen=True)])
        [job] = first.claim(ClaimRequest({"work": 60.0}, 5, "me", new_token()))
        assert job.input == "1"
        [other] = second.get_jobs(["same"])
        assert other is not None
        assert (other.status, other.input) == ("ready", 2)
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("schema", ["", "Queuert", "a b", 'a"b', "a;b", "1a", "a" * 41, "{schema}", "ä"])
def test_hostile_schema_names_are_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresState("host=nowhere", schema=schema)
    with pytest.raises(ConfigurationError):
        Statements(schema)


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text).strip()


@pytest.mark.parametrize("name", sorted(texts()))
def test_each_text_is_one_statement(name: str) -> None:
    text = without_comments(texts()[name])
    assert re.match(r"(WITH|SELECT|INSERT|UPDATE|DELETE|EXPLAIN|COPY|CREATE|DROP)\b", text)
    assert ";" not in text
    bound: bytes = getattr(Statements("some_schema"), name)
    assert re.search(rb"[{}]", _STAGED.sub(b"", re.sub(rb"\{\d+\}", b"", bound))) is None


@pytest.mark.parametrize("name", sorted(texts()))
def test_the_server_understands_each_statement(name: str, connection: psycopg.Connection[Any]) -> None:
    """Each is planned by the server with all its parameters null, whatever the search path."""
    statement: bytes = getattr(Statements("queuert"), name)
    if _STAGED.search(statement):
        pytest.skip("it is about a table that a bulk write makes, and is understood there")
    names: list[bytes] = list(dict.fromkeys(re.findall(rb"%\((\w+)\)s", statement)))
    numbered = re.sub(rb"%\((\w+)\)s", lambda found: b"$%d" % (names.index(found[1]) + 1), statement)
    connection.execute("SET search_path TO pg_catalog")
    planned = re.sub(rb"EXPLAIN \(FORMAT JSON\) ", b"", numbered)
    connection.execute(b"PREPARE understood AS " + planned)
