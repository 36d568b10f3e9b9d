"""Sends and waits read the events and steps of one chain, however many others there are, and few of the taken ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert.ids import new_token
from queuert.state.postgres import parameters
from queuert.state.postgres.statements import Statements
from queuert.state.steps import EventWait, NewEvent
from queuert.state.types import Lease
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import explain

CHAINS = 2_000
SQL = Statements("queuert")
WAIT = parameters.event_wait(Lease("chain7", new_token()), "chain7", EventWait(1, "approved", 1, "approved", 60.0))
SEND = parameters.sent_event("chain7", "chain7", NewEvent("new", "approved", "1"))


@pytest.fixture(scope="module", params=["no", "fresh"])
def connection(
    request: pytest.FixtureRequest, template_databases: TemplateDatabases
) -> Iterator[psycopg.Connection[Any]]:
    """Many chains that wait, each with an event that is kept; and one that has taken many."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off")
        connection.execute("SET enable_seqscan = off")
        connection.execute(
            """
            INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, status, input, scheduled_at)
            SELECT 'chain' || n, 'work', 'chain' || n, 'work', 'open', 'scheduled', '1', '2100-01-01'
            FROM generate_series(1, %s::int) AS n
            """,
            [CHAINS],
        )
        connection.execute(
            "INSERT INTO queuert.job_step (job_id, number, name, attempt, event, wake_at)"
            " SELECT id, 1, 'approved', 1, 'approved', '2100-01-01' FROM queuert.job"
        )
        connection.execute(
            "INSERT INTO queuert.sent_event (chain_id, id, name, size, payload)"
            " SELECT id, 'taken' || n, 'approved', 1, NULL::jsonb FROM queuert.job, generate_series(1, 1000) AS n"
            " WHERE id = 'chain7' UNION ALL SELECT id, 'kept', 'approved', 1, '1' FROM queuert.job"
        )
        if request.param == "fresh":
            connection.execute("ANALYZE")
        yield connection


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lock_waiting_job", {"id": "chain7", "token": new_token()}),
        ("record_wait", WAIT),
        ("answer_wait", WAIT),
        ("wait_facts", {"id": "chain7", "most": 1000, "named": 3}),
        ("find_sent_event", {"chain": "chain7", "id": "new"}),
        ("send_event", SEND),
        ("wake_receivers", {"ids": ["chain7", "chain8"]}),
    ],
)
def test_only_the_chain_is_read(
    connection: psycopg.Connection[Any], name: str, values: dict[str, Any], mode: str
) -> None:
    plan = explain(connection, getattr(SQL, name), values, mode)
    assert plan.scanned() == set()
    assert {table: plan.rows_of(table) for table in ("job", "job_step", "sent_event") if plan.rows_of(table) > 6} == {}
    assert plan.buffers() < 100
