"""The look for what stands in for a new chain costs the same, however long the history of its key is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.state.adapter import NewJob
from queuert.state.postgres.standing_in import Starts
from queuert.state.postgres.statements import Statements
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

HISTORY = 20_000
SQL = Statements("queuert")


@pytest.fixture(scope="module", params=["no statistics", "statistics"])
def connection(
    request: pytest.FixtureRequest, template_databases: TemplateDatabases
) -> Iterator[psycopg.Connection[Any]]:
    """One key that many chains have had, of a day ago and before: closed ones, and as many that are still open."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off")
        for status, chain_status, type in (("completed", "completed", "closed"), ("ready", "open", "open")):
            connection.execute(
                """
                INSERT INTO queuert.job
                    (id, type, chain_id, chain_type, chain_status, status, input, created_at, deduplication_key)
                SELECT %(type)s || n, %(type)s, %(type)s || n, %(type)s, %(chain_status)s, %(status)s, '1',
                    now() - interval '1 day' - n * interval '1 s', 'key'
                FROM generate_series(1, %(count)s) AS n
                """,
                {"type": type, "chain_status": chain_status, "status": status, "count": HISTORY},
            )
        if request.param == "statistics":
            connection.execute("ANALYZE")
        yield connection


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


def look(connection: psycopg.Connection[Any], key: Deduplicate, type: str, mode: str) -> Plan:
    starts = Starts([NewJob("new", type, "1", deduplication=key)])
    return explain(connection, SQL.find_duplicates, starts.keys, mode)
