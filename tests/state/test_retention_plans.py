"""Pruning chains costs what is looked at, and what is kept by count; not what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from queuert.policies import Keep, Retention
from queuert.state.postgres import retention
from queuert.state.postgres.retention import PruneCandidate, PruneCursor
from queuert.state.postgres.statements import Statements
from queuert.state.types import PruneRequest
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = [pytest.mark.timeout(300)]

JOBS = 200_000
LIMIT = 100
SQL = Statements("queuert")

# Half of them are completed, some have expired, some will expire; they were started second by second.
FILL = """
    INSERT INTO queuert.job (
        id, type, chain_id, chain_type, chain_index, chain_status, status, created_at, scheduled_at, chain_closed_at,
        expires_at, input
    )
    SELECT 'job' || n, type, 'job' || n, type, 0, status, status, started.at, started.at, started.at,
        CASE WHEN n % 1000 = 2 THEN now() - interval '1 hour' WHEN n % 1000 = 4 THEN now() + interval '1 hour' END, '1'
    FROM generate_series(1, {jobs}) AS n
    CROSS JOIN LATERAL (
        SELECT 'type' || n / 2 % 4 AS type, CASE n % 4 WHEN 1 THEN 'failed' WHEN 3 THEN 'cancelled' ELSE 'completed' END
            AS status
    ) AS made
    CROSS JOIN LATERAL (SELECT now() - ({jobs} - n) * interval '1 second' AS at) AS started
"""
# Each of many chains has waited for the one before it.
BLOCKERS = """
    INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT 'job' || n, 'job' || n - 1, 0, true FROM generate_series(3, 60000) AS n
"""


@pytest.fixture(scope="module")
def connection(template_databases: TemplateDatabases) -> Iterator[psycopg.Connection[Any]]:
    """A database with many closed chains."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL.replace("{jobs}", str(JOBS)).encode())
        connection.execute(BLOCKERS.encode())
        connection.execute("VACUUM ANALYZE queuert.job, queuert.job_blocker")
        connection.execute("SET jit = off")
        yield connection


@contextmanager
def without_statistics(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let the planner know nothing of what is in the tables."""
    with connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text LIKE 'queuert.job%'")
        connection.execute("DELETE FROM pg_statistic_ext_data")
        yield


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["fresh statistics", "no statistics"])
def explained(request: pytest.FixtureRequest, connection: psycopg.Connection[Any], mode: str) -> Callable[..., Plan]:
    def run(statement: bytes, values: Mapping[str, Any]) -> Plan:
        if request.param == "fresh statistics":
            return explain(connection, statement, values, mode)
        with without_statistics(connection):
            return explain(connection, statement, values, mode)

    return run


def test_a_look_at_expired_chains(explained: Callable[..., Plan]) -> None:
    plan = explained(SQL.find_expired, retention.expired(None, LIMIT))
    assert plan.indexes() == {"job_expiring"}
    assert plan.rows_of("job") <= LIMIT
    plan = explained(SQL.find_expired, retention.expired(PruneCursor("job", "2001-01-01T00:00:00+00:00"), LIMIT))
    assert plan.rows_of("job") <= LIMIT


POLICIES = {
    "by age": (Retention(completed=Keep(age=3_600)), 1, 0),
    "by count": (Retention(completed=Keep(count=500)), 1, 500),
    "by both": (Retention(completed=Keep(age=3_600, count=500), failed=Keep(age=60)), 2, 500),
    "none": (Retention(Keep(count=0), Keep(count=0), Keep(count=0)), 3, 0),
    "nothing that old": (Retention(completed=Keep(age=10 * 365 * 86_400)), 1, 0),
}


@pytest.mark.parametrize("case", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("types", [1, 4])
def test_a_look_at_what_is_not_kept(
    explained: Callable[..., Plan], case: tuple[Retention, int, int], types: int
) -> None:
    """A page of each stretch, and the entries that are counted."""
    policy, retention_ranges, counted = case
    request = PruneRequest({f"type{number}": policy for number in range(types)})
    _, values = retention.beyond_retention(request, None, LIMIT)
    plan = explained(SQL.find_beyond_retention, values)
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= types * (retention_ranges * LIMIT + counted + retention_ranges)
    assert "chain_listing" in plan.indexes()


def test_a_look_from_the_middle(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT created_at FROM queuert.job WHERE id = 'job100000'").fetchone()
    assert row is not None
    request = PruneRequest({f"type{number}": Retention(completed=Keep(age=1.0)) for number in range(4)})
    _, values = retention.beyond_retention(request, PruneCursor("job", row[0].isoformat(), "type0", "completed"), LIMIT)
    plan = explained(SQL.find_beyond_retention, values)
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= 4 * LIMIT


@pytest.mark.parametrize("first", [2, 100_000])
def test_chains_go(explained: Callable[..., Plan], connection: psycopg.Connection[Any], first: int) -> None:
    """Locking and deleting read their rows one by one, those that name them and their entries."""
    rows = connection.execute(
        "SELECT id, chain_closed_at, expires_at FROM queuert.job WHERE id = ANY (%s)",
        [[f"job{first + number}" for number in range(LIMIT)]],
    ).fetchall()
    to_delete = [PruneCandidate(*row) for row in rows]
    plan = explained(SQL.lock_prunable, retention.ids(to_delete))
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= 2 * LIMIT + 2
    locked = [(one.id,) for one in to_delete]
    plan = explained(SQL.prune, retention.pruned(to_delete, locked))
    assert plan.scanned() <= {"event_log", "event_level"}
    assert plan.rows_of("job") <= 4 * LIMIT
    assert plan.rows_of("job_blocker") <= 5 * LIMIT


def test_chains_become_stale(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    rows = connection.execute(
        "SELECT id, chain_closed_at FROM queuert.job WHERE id = ANY (%s)",
        [[f"job{100 + number}" for number in range(LIMIT)]],
    ).fetchall()
    plan = explained(SQL.mark_stale, retention.marked([PruneCandidate(*row) for row in rows]))
    assert plan.scanned() <= {"event_log", "event_level"}
    assert plan.rows_of("job") <= 3 * LIMIT


def test_a_ttl_is_updated(explained: Callable[..., Plan]) -> None:
    ids = [f"job{number}" for number in range(1, LIMIT)]
    plan = explained(SQL.update_result_ttl, {"ids": ids, "seconds": 60.0})
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= 2 * LIMIT


def test_nothing_is_written_to_the_index_without_a_ttl(connection: psycopg.Connection[Any]) -> None:
    """Chains without an end of their own have no entry among those that expire."""
    row = connection.execute("SELECT pg_relation_size('queuert.job_expiring')").fetchone()
    assert row is not None
    assert row[0] <= 10 * 8192
