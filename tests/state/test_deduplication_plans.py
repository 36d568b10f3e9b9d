"""The look for what is a duplicate of a new chain costs the same, however long the history of its key is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.ids import new_id
from queuert.state.postgres import PostgresState
from queuert.state.postgres.starting import StartBatch
from queuert.state.postgres.statements import Statements
from queuert.state.types import NewJob
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = pytest.mark.timeout(300)

HISTORY = 20_000
SQL = Statements("queuert")


@pytest.fixture(scope="module", params=["no", "stale", "fresh"])
def connection(
    request: pytest.FixtureRequest, template_databases: TemplateDatabases
) -> Iterator[psycopg.Connection[Any]]:
    """One key that many chains have had, of a day ago and before, closed ones or open ones; and as many open keys."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off")
        load(connection, 1, 1000)
        if request.param == "stale":
            connection.execute("ANALYZE")
        load(connection, 1001, HISTORY)
        if request.param == "fresh":
            connection.execute("ANALYZE")
        yield connection


def load(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    of_types = (("closed", "completed", "completed"), ("open", "ready", "open"), ("many", "ready", "open"))
    for type, status, chain_status in of_types:
        connection.execute(
            """
            INSERT INTO queuert.job
                (id, type, chain_id, chain_type, chain_status, status, input, created_at, deduplication_key)
            SELECT %(type)s || n, %(type)s, %(type)s || n, %(type)s, %(chain_status)s, %(status)s, '1',
                now() - interval '1 day' - n * interval '1 s', %(key)s || CASE WHEN %(many)s THEN n::text ELSE '' END
            FROM generate_series(%(first)s::int, %(last)s) AS n
            """,
            {
                "type": type,
                "chain_status": chain_status,
                "status": status,
                "first": first,
                "last": last,
                "key": "key",
                "many": type == "many",
            },
        )


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("window", [None, 60.0])
@pytest.mark.parametrize("scope", ["open", "any"])
@pytest.mark.parametrize("type", ["open", "closed"])
def test_the_history_is_not_read(
    connection: psycopg.Connection[Any], type: str, scope: str, window: float | None, mode: str
) -> None:
    key = Deduplicate("key", scope=scope, window=window, excluding=[f"{type}1", f"{type}2"])
    plan = look(connection, key, type, mode)
    assert plan.scanned().isdisjoint({"job"})
    # The two that are excluded, the one that is found, and the one that shows that it is the newest.
    assert plan.rows_of("job") <= 4
    assert plan.buffers() < 30


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("scope", ["open", "any"])
@pytest.mark.parametrize("type", ["open", "closed", "many"])
def test_chains_of_other_keys_are_not_read(
    connection: psycopg.Connection[Any], type: str, scope: str, mode: str
) -> None:
    plan = look(connection, Deduplicate("new key", scope=scope), type, mode)
    assert plan.rows_of("job") == 0
    assert plan.buffers() < 10


def look(connection: psycopg.Connection[Any], key: Deduplicate, type: str, mode: str) -> Plan:
    starts = StartBatch([NewJob("new", type, "1", deduplication=key)])
    return explain(connection, SQL.find_duplicates, starts.keys, mode)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("type", ["open", "closed", "many"])
def test_debounce_reads_few_pages(connection: psycopg.Connection[Any], type: str, mode: str) -> None:
    """The statement is inside of a function, so its plan is known by the pages that it reads."""
    key = Deduplicate("key1" if type == "many" else "key", debounce=60.0)
    starts = StartBatch([NewJob("new", type, "1", deduplication=key)])
    [params] = starts.debounces()
    with connection.transaction(force_rollback=True):
        # The first call reads the function itself.
        explain(connection, SQL.debounce, params, mode)
        plan = explain(connection, SQL.debounce, params, mode)
    assert plan.root["Actual Rows"] == (type != "closed")
    assert plan.buffers() < 200


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_new_keys_cost_the_same_while_a_table_fills(dsn: str, mode: str) -> None:
    """A table that has just been filled, of which nothing is known: new keys are looked up by key."""
    batches = [[_keyed(f"{round} {number}") for number in range(1000)] for round in range(4)]
    store = PostgresState(dsn).sync_store()
    store.open()
    try:
        for batch in batches[:3]:
            store.start_jobs(batch)
    finally:
        store.close()
    with psycopg.connect(dsn, autocommit=True) as connection:
        plan = explain(connection, SQL.find_duplicates, StartBatch(batches[3]).keys, mode)
    assert plan.rows_of("job") == 0


def _keyed(key: str) -> NewJob:
    return NewJob(new_id(), "work", "1", deduplication=Deduplicate(key))
