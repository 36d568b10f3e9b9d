"""A job that started a hundred thousand chains and waits for them: each that closes costs the same, first or last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
import pytest

from queuert.ids import new_token
from queuert.jobs import JobStatus
from queuert.state.postgres import PostgresState, parameters
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, FinishResult, NewJob
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = pytest.mark.timeout(600)

CHILDREN = 100_000
CLOSED_BEFORE = 500
SQL = Statements("queuert")

# What a release costs that looks at all blockers of the job each time.
LOOKS_AT_ALL = b"""
    UPDATE queuert.job SET status = 'ready'
    WHERE id IN (SELECT job_id FROM queuert.job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]))
        AND (SELECT count(*) FILTER (WHERE NOT closed) FROM queuert.job_blocker WHERE job_id = job.id) = 0
"""


@pytest.fixture(scope="module", params=["no statistics", "statistics"])
def fan(request: pytest.FixtureRequest, template_databases: TemplateDatabases) -> Iterator[str]:
    """A database in which job ``parent`` waits for the chains that it started, a few of which have closed."""
    with template_databases.database() as dsn:
        store = PostgresState(dsn, answer_timeout=300.0).sync_store()
        assert isinstance(store, PostgresStore)
        store.open()
        try:
            [result] = start_children(store)
            assert (result.written, result.due_types) == (True, ("child",))
            close(store, CLOSED_BEFORE)
            if request.param == "statistics":
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute("ANALYZE")
        finally:
            store.close()
        yield dsn


def start_children(store: PostgresStore) -> list[FinishResult]:
    store.start_jobs([NewJob("parent", "parent", "1", id_chosen=True)])
    [parent] = store.claim(ask("parent", 1))
    children = tuple(NewJob(f"child{number}", "child", str(number), id_chosen=True) for number in range(CHILDREN))
    ids = tuple(child.id for child in children)
    return store.finish([Finish(parent, FinishKind.WAIT, starts=children, blockers=ids)])


def ask(type: str, limit: int) -> ClaimRequest:
    return ClaimRequest({type: 600.0}, limit, "me", new_token())


def close(store: PostgresStore, count: int) -> None:
    """Close children one by one, each in a transaction of its own."""
    for child in store.claim(ask("child", count)):
        [result] = store.finish([complete(child)])
        assert (result.written, result.due_types) == (True, ())


def complete(child: ClaimedJob) -> Finish:
    return Finish(child, FinishKind.COMPLETE, output="1")


@pytest.fixture
def store(fan: str) -> Iterator[PostgresStore]:
    store = PostgresState(fan).sync_store()
    assert isinstance(store, PostgresStore)
    store.open()
    yield store
    store.close()


@pytest.fixture
def connection(fan: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(fan, autocommit=True) as connection:
        connection.execute("SET jit = off")
        yield connection


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def explained(request: pytest.FixtureRequest, connection: psycopg.Connection[Any]) -> Callable[..., Plan]:
    def run(statement: bytes, values: Mapping[str, Any]) -> Plan:
        return explain(connection, statement, values, request.param)

    return run


def parent_of(connection: psycopg.Connection[Any]) -> tuple[Any, ...]:
    query = "SELECT status, open_blockers, blocker_count FROM queuert.job WHERE id = 'parent'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def test_all_children_are_waited_for(connection: psycopg.Connection[Any]) -> None:
    assert parent_of(connection) == (JobStatus.BLOCKED, CHILDREN - CLOSED_BEFORE, CHILDREN)
    row = connection.execute("SELECT count(*), count(DISTINCT position), max(position) FROM queuert.job_blocker")
    assert row.fetchone() == (CHILDREN, CHILDREN, CHILDREN - 1)


def test_each_release_touches_a_handful(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any], store: PostgresStore
) -> None:
    """After five hundred that closed one by one, the release by the next reads its entry and the parent, no more."""
    [child] = store.claim(ask("child", 1))
    try:
        plan = released_by(explained, connection, [child.id], SQL.release_dependents)
        assert plan.scanned().isdisjoint({"job", "job_blocker"})
        assert plan.rows_of("job_blocker") <= 4
        assert plan.rows_of("job") <= 6
        assert plan.buffers() < 100
    finally:
        store.release([child.lease])


def test_a_hundred_in_one_call_touch_a_hundred_entries(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any]
) -> None:
    plan = released_by(explained, connection, [f"child{CHILDREN - n}" for n in range(1, 101)], SQL.release_dependents)
    assert plan.scanned().isdisjoint({"job", "job_blocker"})
    assert plan.rows_of("job_blocker") <= 400
    assert plan.rows_of("job") <= 600


def released_by(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any], chains: list[str], statement: bytes
) -> Plan:
    with connection.transaction(force_rollback=True):
        connection.execute(
            "UPDATE queuert.job SET status = 'completed', chain_status = 'completed', lease_expires_at = NULL "
            "WHERE id = ANY (%s)",
            [chains],
        )
        return explained(statement, {"chains": chains})


def test_a_release_that_looks_at_all_is_noticed(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any]
) -> None:
    plan = released_by(explained, connection, [f"child{CHILDREN - 1}"], LOOKS_AT_ALL)
    assert plan.rows_of("job_blocker") > CHILDREN
    assert plan.buffers() > 300


def test_the_rest_of_a_completion_touches_a_handful(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any], store: PostgresStore
) -> None:
    [child] = store.claim(ask("child", 1))
    try:
        finish = [complete(child)]
        for plan in (
            explained(SQL.lock_in_order, {"rows": [child.id], "awaited": [], "closing": [child.id]}),
            explained(SQL.finish, parameters.finish(finish, closes_awaited=True)),
        ):
            assert plan.scanned().isdisjoint({"job", "job_blocker"})
            assert plan.rows_of("job") <= 6
            assert plan.buffers() < 100
    finally:
        store.release([child.lease])


def test_the_last_one_releases_the_parent(connection: psycopg.Connection[Any], store: PostgresStore) -> None:
    """As if all others had closed: the last child makes the parent due, and its result says so."""
    [child] = store.claim(ask("child", 1))
    with connection.transaction(force_rollback=True):
        connection.execute("UPDATE queuert.job_blocker SET closed = true WHERE blocker_chain_id <> %s", [child.id])
        connection.execute("UPDATE queuert.job SET open_blockers = 1 WHERE id = 'parent'")
        connection.execute(
            "UPDATE queuert.job SET status = 'completed', chain_status = 'completed', lease_expires_at = NULL "
            "WHERE id = %s",
            [child.id],
        )
        released = connection.execute(SQL.release_dependents, {"chains": [child.id]}).fetchall()
        assert released == [("parent", JobStatus.READY)]
        assert parent_of(connection) == (JobStatus.READY, 0, CHILDREN)
    store.release([child.lease])
