"""The hot statements cost what their limits say, whatever the backlog and whatever the statistics know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from queuert.ids import new_id, new_token
from queuert.jobs import JobError
from queuert.policies import RetryPolicy
from queuert.state.postgres import claiming, parameters
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, Lease, NewJob, ReapRequest, Renewal
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = pytest.mark.timeout(300)

BACKLOG = 100_000
LIMIT = 10
RUNNING = 20
SQL = Statements("queuert")

ROWS = """
    INSERT INTO queuert.job
        (id, type, chain_id, chain_type, chain_status, status, priority, scheduled_at, input, {more})
    SELECT {name} || n, 'type' || n %% %(types)s, {name} || n, 'type' || n %% %(types)s,
        CASE {status} WHEN 'completed' THEN 'completed' ELSE 'open' END, {status},
        {priority}, {due}, '{{"n": 1}}', {values}
    FROM generate_series(1, %(count)s) AS n
"""


@dataclass(frozen=True)
class Layout:
    """What is in the tables, and what the planner knows of it."""

    types: int
    history: bool
    """100,000 finished jobs, and 50,000 scheduled for the future at the highest priority."""
    statistics: str
    """``none``, ``fresh``, or ``stale``: gathered when there were fifty finished rows."""

    def __str__(self) -> str:
        return f"{self.types} types{' with history' if self.history else ''}, {self.statistics} statistics"

    @property
    def type_names(self) -> list[str]:
        return [f"type{number}" for number in range(self.types)]


LAYOUTS = [
    Layout(types, history, statistics)
    for types, history in ((1, False), (20, True))
    for statistics in ("none", "stale", "fresh")
]


def fill(connection: psycopg.Connection[Any], layout: Layout) -> None:
    """Load the rows of a layout."""
    if layout.statistics == "stale":
        load(connection, "early", layout, 50, status="'completed'", more="finished_at", values="clock_timestamp()")
        connection.execute("ANALYZE")
    load(connection, "ready", layout, BACKLOG)
    lease = "clock_timestamp() - interval '1 minute', gen_random_uuid(), 1, 'gone'"
    more = "lease_expires_at, lease_token, attempt, holder"
    load(connection, "lost", layout, RUNNING, status="'running'", more=more, values=lease)
    held = "clock_timestamp() + interval '1 day', gen_random_uuid(), 1, 'me'"
    load(connection, "held", layout, RUNNING, status="'running'", more=more, values=held)
    load(connection, "due", layout, 5, status="'scheduled'")
    if layout.history:
        load(connection, "done", layout, BACKLOG, status="'completed'", more="finished_at", values="clock_timestamp()")
        future = "clock_timestamp() + interval '1 day'"
        load(connection, "later", layout, BACKLOG // 2, status="'scheduled'", priority="100", due=future)
    load_dependents(connection)
    if layout.statistics == "fresh":
        connection.execute("ANALYZE")


def load(
    connection: psycopg.Connection[Any],
    name: str,
    layout: Layout,
    count: int,
    *,
    status: str = "'ready'",
    priority: str = "n % 5",
    due: str = "clock_timestamp() - n * interval '1 millisecond'",
    more: str = "attempt",
    values: str = "0",
) -> None:
    text = ROWS.format(
        name=f"'{name}'", status=status, priority=priority.replace("%", "%%"), due=due, more=more, values=values
    )
    connection.execute(text.encode(), {"types": layout.types, "count": count})


def load_dependents(connection: psycopg.Connection[Any]) -> None:
    """10,000 jobs wait for chains of their own, and one for the first held job."""
    waiting = {"name": "'wait'", "status": "'blocked'", "priority": "0", "due": "clock_timestamp()"}
    text = ROWS.format(**waiting, more="open_blockers, blocker_count", values="1, 1")
    connection.execute(text.encode(), {"types": 3, "count": 10_000})
    connection.execute(
        """
        INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed)
        SELECT 'wait' || n, CASE n WHEN 1 THEN 'held1' ELSE 'ready' || n END, 0, false
        FROM generate_series(1, 10000) AS n
        """
    )


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def layout(request: pytest.FixtureRequest) -> Layout:
    given: Layout = request.param
    return given


@pytest.fixture(scope="module")
def connection(layout: Layout, template_databases: TemplateDatabases) -> Iterator[psycopg.Connection[Any]]:
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off")
        fill(connection, layout)
        yield connection


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def explained(request: pytest.FixtureRequest, connection: psycopg.Connection[Any]) -> Callable[..., Plan]:
    def run(statement: bytes, values: Mapping[str, Any]) -> Plan:
        return explain(connection, statement, values, request.param)

    return run


def held_jobs(connection: psycopg.Connection[Any], count: int = 10) -> list[ClaimedJob]:
    """Running jobs, as their holder knows them."""
    rows = connection.execute(
        "SELECT id, type, lease_token::text, created_at FROM queuert.job WHERE id LIKE 'held%%' ORDER BY id LIMIT %s",
        [count],
    ).fetchall()
    return [
        ClaimedJob(
            id=id, type=type, chain_id=id, chain_type=type, chain_index=0, priority=0, attempt=1, uncounted=0,
            lease_expirations=0, blocker_count=0, has_dependents=False, input="{}", created_at=created_at,
            scheduled_at=created_at, started_at=created_at, lease_seconds=60.0, token=token,
        )
        for id, type, token, created_at in rows
    ]  # fmt: skip


def check(plan: Plan, *, rows: float, indexes: Sequence[str] = (), blockers: float = 0) -> None:
    """The plan reads at most so many rows of each table, sorts no more than these, and uses these indexes."""
    assert plan.scanned().isdisjoint({"job", "job_blocker"})
    assert plan.rows_of("job") <= rows
    assert plan.rows_of("job_blocker") <= blockers
    assert plan.sorted_rows() <= max(rows, 100)
    assert plan.indexes() >= set(indexes)


@pytest.mark.parametrize(("statement", "limit"), [("claim", 1), ("claim", LIMIT), ("claim_many", LIMIT)])
def test_claim(explained: Callable[..., Plan], layout: Layout, statement: str, limit: int) -> None:
    request = ClaimRequest(dict.fromkeys(layout.type_names, 60.0), limit, "me", new_token())
    plan = explained(getattr(SQL, statement), claiming.claim(request))
    # A look at the head of each type, ready and due; then the locked ones, and their update.
    check(plan, rows=layout.types * limit * 2 + limit * 4, indexes=["job_ready", "job_scheduled"])


@pytest.mark.parametrize("limit", [1, LIMIT])
def test_claim_one_type(explained: Callable[..., Plan], layout: Layout, limit: int) -> None:
    request = ClaimRequest({layout.type_names[0]: 60.0}, limit, "me", new_token(), ready_only=True)
    params = claiming.claim_one_type(request, expansion=1.0, space=claiming.Space(request.max_bytes))
    plan = explained(SQL.claim_one_type, params)
    # The locked ones, and their update.
    check(plan, rows=limit * 3, indexes=["job_ready"])


def test_claim_scans_once_where_only_one_type_has_jobs(explained: Callable[..., Plan], layout: Layout) -> None:
    """One entry of it says so; then the locked ones, and their update. Among 20 types, the last has no job that is
    due."""
    names = layout.type_names[-1:]
    leases = dict.fromkeys([*names, *(f"absent{number}" for number in range(20))], 60.0)
    plan = explained(SQL.claim_many, claiming.claim(ClaimRequest(leases, LIMIT, "me", new_token())))
    check(plan, rows=LIMIT * 2 + 2 if layout.types > 1 else LIMIT * 4 + 2)


def test_claim_that_is_cut_by_bytes(explained: Callable[..., Plan], layout: Layout) -> None:
    """The rows that are locked are read once more by their places, and sorted, and no others."""
    request = ClaimRequest(dict.fromkeys(layout.type_names, 60.0), LIMIT, "me", new_token(), max_bytes=10)
    plan = explained(SQL.claim_rest, claiming.claim(request))
    check(plan, rows=layout.types * LIMIT * 2 + LIMIT * 5, indexes=["job_ready", "job_scheduled"])


def test_claim_of_types_without_jobs(explained: Callable[..., Plan], layout: Layout) -> None:
    request = ClaimRequest({f"absent{number}": 60.0 for number in range(20)}, LIMIT, "me", new_token())
    for statement in (SQL.claim, SQL.claim_many, SQL.claim_rest):
        check(explained(statement, claiming.claim(request)), rows=0)


def test_next_due(explained: Callable[..., Plan], layout: Layout) -> None:
    plan = explained(SQL.next_due, {"types": layout.type_names})
    check(plan, rows=layout.types * 2, indexes=["job_ready", "job_scheduled"])


def test_renew(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    renewals = [Renewal(one.lease, 60.0) for one in held_jobs(connection)]
    check(explained(SQL.renew, parameters.renewals(renewals)), rows=2 * 10, indexes=["job_pkey"])
    logged = [replace(one, progress="{}", logs_progress=True) for one in renewals]
    check(explained(SQL.renew_with_events, parameters.renewals(logged)), rows=2 * 10, indexes=["job_pkey"])


def test_release(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    leases = [one.lease for one in held_jobs(connection)]
    check(explained(SQL.release, parameters.leases(leases)), rows=3 * 10, indexes=["job_pkey"])


def test_release_claim(explained: Callable[..., Plan], layout: Layout) -> None:
    values = {"types": layout.type_names, "token": new_token()}
    check(explained(SQL.release_claim, values), rows=4 * RUNNING, indexes=["job_running"])


def test_count_held(explained: Callable[..., Plan]) -> None:
    check(explained(SQL.count_held, {"holders": ["w1", "w2"]}), rows=4 * RUNNING, indexes=["job_running"])


def test_reap(explained: Callable[..., Plan], layout: Layout) -> None:
    request = ReapRequest(dict.fromkeys(layout.type_names, RetryPolicy()), limit=LIMIT)
    plan = explained(SQL.reap, parameters.reap(request))
    # The running jobs are looked through, twice: the expired ones, and the next to expire.
    check(plan, rows=4 * RUNNING + 2 * LIMIT, indexes=["job_running"])


@pytest.mark.parametrize("awaited", [True, False])
def test_finish(explained: Callable[..., Plan], connection: psycopg.Connection[Any], awaited: bool) -> None:
    jobs = held_jobs(connection)
    following = NewJob(new_id(), "type0", "{}")
    finishes = [Finish(one, FinishKind.COMPLETE, output="1") for one in jobs[1:]]
    finishes.append(Finish(jobs[0], FinishKind.CONTINUE, continuation=following))
    plan = explained(SQL.finish, parameters.finish(finishes, closes_awaited=awaited))
    check(plan, rows=4 * 10, indexes=["job_pkey"])


def test_complete(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    finishes = [Finish(one, FinishKind.COMPLETE, output="1") for one in held_jobs(connection)]
    check(explained(SQL.complete, parameters.complete(finishes)), rows=2 * 10, indexes=["job_pkey"])


@pytest.mark.parametrize("failed", [1, 5, 10])
def test_finish_simple(explained: Callable[..., Plan], connection: psycopg.Connection[Any], failed: int) -> None:
    """Completions and failures, half of which are final."""
    error = JobError("handler", "no", "ValueError", "File x" * 100)
    finishes = [Finish(one, FinishKind.COMPLETE, output="1") for one in held_jobs(connection)[failed:]]
    for number, one in enumerate(held_jobs(connection)[:failed]):
        finishes.append(Finish(one, FinishKind.FAIL if number % 2 else FinishKind.RETRY, error=error, delay=1.0))
    check(explained(SQL.finish_simple, parameters.finish_simple(finishes)), rows=2 * 10, indexes=["job_pkey"])


def test_fail_expired(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT id, lease_token::text FROM queuert.job WHERE id = 'lost1'").fetchone()
    assert row is not None
    check(explained(SQL.fail_expired, parameters.leases([Lease(*row)])), rows=3, indexes=["job_pkey"])


def test_release_dependents(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute(
            "UPDATE queuert.job SET status = 'completed', chain_status = 'completed', lease_expires_at = NULL "
            "WHERE id = 'held1'"
        )
        plan = explained(SQL.release_dependents, {"chains": ["held1"]})
    check(plan, rows=6, blockers=4, indexes=["job_pkey", "job_blocker_chain"])


def test_lock_in_order(explained: Callable[..., Plan]) -> None:
    ids = [f"ready{number}" for number in range(1, 11)]
    plan = explained(SQL.lock_in_order, {"rows": ids, "awaited": ids[:3], "closing": ids[3:5]})
    # With the two that are about to close go the two jobs that wait for them.
    check(plan, rows=2 * 12 + 3, blockers=2, indexes=["job_pkey", "job_blocker_chain"])


def test_held_chains(explained: Callable[..., Plan]) -> None:
    # Each chain, what it waits for, and what waits for it, with a look at the status of these.
    ids = [f"{name}{number}" for name in ("wait", "ready") for number in range(11, 16)]
    plan = explained(SQL.held_chains, {"ids": ids, "with_blockers": True, "with_dependents": True, "timeout": 2})
    check(plan, rows=2 * 20, blockers=10, indexes=["job_pkey", "job_blocker_chain", "job_blocker_pkey"])


def test_held_for_delete(explained: Callable[..., Plan]) -> None:
    plan = explained(SQL.held_for_delete, {"ids": [f"ready{number}" for number in range(11, 21)], "timeout": 2})
    check(plan, rows=2 * 10, indexes=["job_pkey", "job_chain"])


def test_external_references(explained: Callable[..., Plan]) -> None:
    plan = explained(SQL.external_references, {"chains": [f"ready{number}" for number in range(11, 21)]})
    check(plan, rows=10, blockers=10, indexes=["job_pkey", "job_blocker_chain"])


def test_lock_for_attempt(explained: Callable[..., Plan]) -> None:
    check(
        explained(SQL.lock_for_attempt, {"id": "held1", "root": "held2", "idle": "1000"}), rows=2, indexes=["job_pkey"]
    )


def test_lease_states(explained: Callable[..., Plan]) -> None:
    check(explained(SQL.lease_states, {"ids": [f"held{n}" for n in range(1, 11)]}), rows=10, indexes=["job_pkey"])


def test_get_jobs(explained: Callable[..., Plan]) -> None:
    check(explained(SQL.get_jobs, {"ids": [f"ready{n}" for n in range(1, 11)]}), rows=10, indexes=["job_pkey"])


def test_get_chains(explained: Callable[..., Plan]) -> None:
    # Each chain's first row, and a look for its second, twice.
    check(
        explained(SQL.get_chains, {"ids": [f"ready{n}" for n in range(1, 11)], "payloads": True}),
        rows=30,
        indexes=["job_pkey"],
    )


def test_closed_chains(explained: Callable[..., Plan]) -> None:
    # Each chain's first row, and a look for its second, twice.
    check(
        explained(SQL.closed_chains, {"ids": [f"ready{n}" for n in range(1, 11)], "portion": 1000}),
        rows=30,
        indexes=["job_pkey"],
    )


def test_get_chain_states(explained: Callable[..., Plan]) -> None:
    # As test_get_chains, and each chain's last row.
    check(explained(SQL.get_chain_states, {"ids": [f"ready{n}" for n in range(1, 11)]}), rows=40, indexes=["job_pkey"])


def test_get_blockers(explained: Callable[..., Plan]) -> None:
    check(
        explained(SQL.get_blockers, {"id": "wait1", "outputs": True}), rows=3, blockers=1, indexes=["job_blocker_pkey"]
    )


def test_get_blocker_links(explained: Callable[..., Plan]) -> None:
    ids = [f"wait{n}" for n in range(1, 11)]
    plan = explained(SQL.get_blocker_links, {"chains": ids, "limit": 100})
    check(plan, rows=10, blockers=10, indexes=["job_blocker_pkey", "job_pkey"])


def test_get_dependent_links(explained: Callable[..., Plan]) -> None:
    waiting = {"statuses": ["blocked"], "excluding": [], "limit": 1}
    plan = explained(SQL.get_dependent_links, {"chains": [f"ready{n}" for n in range(1, 11)], **waiting})
    # Of the rows of jobs, by their ids: by the index of blocked ones, or of all.
    check(plan, rows=10, blockers=10, indexes=["job_blocker_chain"])


def test_start_and_block(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    jobs = [NewJob(new_id(), "type0", "{}", blockers=("ready1", "ready2")) for _ in range(10)]
    [values] = parameters.start_chunks(jobs)
    check(explained(SQL.start_jobs, values), rows=0)
    with connection.transaction(force_rollback=True):
        connection.execute(SQL.start_jobs, values)
        plan = explained(SQL.add_blockers, parameters.blockers(jobs))
    check(plan, rows=40, indexes=["job_pkey"])


def test_a_seq_scan_is_noticed(explained: Callable[..., Plan]) -> None:
    """The checks themselves: a statement without an index does not pass them."""
    plan = explained(b"SELECT id FROM queuert.job WHERE priority = %(priority)s ORDER BY id", {"priority": 3})
    assert plan.scanned() == {"job"}
    assert plan.rows_of("job") > BACKLOG
    assert plan.sorted_rows() > BACKLOG / 10
