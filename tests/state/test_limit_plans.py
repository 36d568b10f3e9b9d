"""Claims under limits, pauses and schedules cost what they visit, whatever the backlog and the statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from queuert.ids import new_token
from queuert.limits import Limits, Rate
from queuert.state.postgres import claiming
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimRequest
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = pytest.mark.timeout(300)

BUSY = 100_000
KEYS = 1_000
VISITED = 500
LIMIT = 10
SQL = Statements("queuert")

ROWS = """
    INSERT INTO queuert.job
        (id, type, chain_id, chain_type, chain_status, status, priority, scheduled_at, input, limit_key, {more})
    SELECT {name} || n, 'work', {name} || n, 'work',
        CASE {status} WHEN 'completed' THEN 'completed' ELSE 'open' END, {status}, n %% 5,
        clock_timestamp() - n * interval '1 ms', '1', {key}, {values}
    FROM generate_series(1, %(count)s) AS n
"""
HELD = {
    "status": "'running'",
    "more": "lease_expires_at, lease_token, attempt",
    "values": "clock_timestamp() + interval '1 h', gen_random_uuid(), 1",
}

CLAIM = ClaimRequest({"work": 60.0, "free": 60.0}, LIMIT, "me", new_token())
KEYED = replace(CLAIM, limits={"work": Limits(concurrency=10_000, per_key=1, rate=Rate(10, per=3600))})


def load(
    connection: psycopg.Connection[Any],
    name: str,
    count: int,
    *,
    key: str,
    status: str = "'ready'",
    more: str = "attempt",
    values: str = "0",
) -> None:
    text = ROWS.format(name=f"'{name}'", key=key, status=status, more=more, values=values)
    connection.execute(text.encode(), {"count": count})


def fill(connection: psycopg.Connection[Any], statistics: str) -> None:
    """A key with a huge backlog and no free slot, 1,000 others, half of them with a slot, and jobs of no key."""
    if statistics == "stale":
        load(connection, "early", 50, key="NULL", status="'completed'")
        connection.execute("ANALYZE")
    load(connection, "busy", BUSY, key="'key0500-busy'")
    load(connection, "of", KEYS * 3, key="'key' || to_char(n % 1000, 'FM0000')".replace("%", "%%"))
    load(connection, "keyless", BUSY // 10, key="NULL")
    load(connection, "later", 50, key="'key0001'", status="'scheduled'")
    load(connection, "held", 1, key="'key0500-busy'", **HELD)
    load(connection, "holds", KEYS // 2, key="'key' || to_char(n * 2, 'FM0000')", **HELD)
    connection.execute(
        "INSERT INTO queuert.limit_start SELECT clock_timestamp() - n * interval '1 minute', 'work',"
        " 'key' || to_char(n % 1000, 'FM0000') FROM generate_series(1, 20000) AS n"
    )
    if statistics == "fresh":
        connection.execute("ANALYZE")


@pytest.fixture(scope="module", params=["none", "stale", "fresh"])
def connection(
    request: pytest.FixtureRequest, template_databases: TemplateDatabases
) -> Iterator[psycopg.Connection[Any]]:
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off")
        fill(connection, request.param)
        yield connection


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def explained(request: pytest.FixtureRequest, connection: psycopg.Connection[Any]) -> Callable[..., Plan]:
    def run(statement: bytes, values: Mapping[str, Any]) -> Plan:
        return explain(connection, statement, values, request.param)

    return run


def check(plan: Plan, *, rows: float, starts: float = 0) -> None:
    assert plan.scanned().isdisjoint({"job", "limit_start"})
    assert plan.rows_of("job") <= rows
    assert plan.rows_of("limit_start") <= starts
    assert plan.sorted_rows() <= max(rows, 100)
    # A job that changes takes three blocks in each of its indexes, more where other tests left aborted changes.
    assert plan.blocks() <= 20 * max(rows, 200)


def admitted(connection: psycopg.Connection[Any], request: ClaimRequest, cursor: str) -> claiming.Admission:
    values = claiming.select_admissible(request, LIMIT, {"work": cursor}, [])
    return claiming.admission(connection.execute(SQL.select_admissible, values).fetchall())


@pytest.mark.parametrize("cursor", ["", "key0300", "zzz"])
def test_select_admissible_by_key(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any], cursor: str
) -> None:
    """A look at each key that is visited, up to 500 of them; the jobs of saturated ones are not read."""
    plan = explained(SQL.select_admissible, claiming.select_admissible(KEYED, LIMIT, {"work": cursor}, []))
    # Each key: its entry, the first one again, its head, its starts. All that run; the best of some keys, and of none.
    check(plan, rows=VISITED * 3 + KEYS // 2 + LIMIT * LIMIT + 3 * LIMIT, starts=VISITED * 10 + 10)
    assert plan.indexes() >= {"job_limit_ready", "job_limit_free", "limit_start_of_key"}
    found = admitted(connection, KEYED, cursor)
    assert len(found.ids) == LIMIT
    assert not any(id.startswith("busy") for id in found.ids)


def test_the_walk_comes_round(connection: psycopg.Connection[Any]) -> None:
    """Walks that go on where the last one ended visit all keys within three claims."""
    cursors = [""]
    for _ in range(3):
        cursors.append(admitted(connection, KEYED, cursors[-1]).cursors["work"])
    assert cursors == ["", "key0499", "key0998", "key0498"]


def test_select_admissible_by_type(explained: Callable[..., Plan]) -> None:
    """A concurrency costs the running jobs that it counts, and the jobs it lets through."""
    request = replace(CLAIM, limits={"work": Limits(concurrency=20_000)})
    check(explained(SQL.select_admissible, claiming.select_admissible(request, LIMIT, {}, [])), rows=600 + LIMIT)


def test_select_admissible_beside_unlimited_types(explained: Callable[..., Plan]) -> None:
    request = ClaimRequest({"work": 60.0, "free": 60.0}, LIMIT, "me", new_token(), {"free": Limits(concurrency=1)})
    check(explained(SQL.select_admissible, claiming.select_admissible(request, LIMIT, {}, [])), rows=3 * LIMIT)


def test_promote_due(explained: Callable[..., Plan]) -> None:
    check(explained(SQL.promote_due, claiming.promote(KEYED)), rows=3 * 50)


def test_claim_admitted(explained: Callable[..., Plan]) -> None:
    ids = [f"of{number}" for number in range(1, 11)]
    check(explained(SQL.claim_admitted, claiming.claim_admitted(KEYED, ids)), rows=3 * LIMIT)


@pytest.mark.parametrize("cursor", ["", "key0300", "key0500-busy", "zzz"])
@pytest.mark.parametrize("first_rank", [None, 1])
def test_claim_fair(explained: Callable[..., Plan], cursor: str, first_rank: int | None) -> None:
    """An entry of each key that is visited, as many as jobs are wanted; the best of the other type; what is claimed."""
    request = replace(CLAIM, limits={"work": Limits(fair=True)}, after_rank=first_rank)
    plan = explained(SQL.claim_fair, claiming.claim_fair(request, {"work": cursor}))
    # Worse ranks: two more of each key. 50 scheduled jobs become ready.
    check(plan, rows=5 * (LIMIT + 1) + 4 * LIMIT + 3 * 50)
    assert "job_limit_ready" in plan.indexes()


@pytest.mark.parametrize("cursor", ["", "key0300", "key0500-busy", "zzz"])
def test_claim_next_key(explained: Callable[..., Plan], cursor: str) -> None:
    """The entry of the next key, and what is claimed."""
    request = replace(CLAIM, leases={"work": 60.0}, limits={"work": Limits(fair=True)}, limit=1)
    plan = explained(SQL.claim_next_key, claiming.claim_next_key(request, {"work": cursor}))
    # 50 scheduled jobs become ready.
    check(plan, rows=4 + 3 * 50)
    assert plan.indexes() & {"job_limit_ready", "job_limit_free"}


@pytest.mark.parametrize("cursor", ["", "key0300", "key0500-busy", "zzz"])
def test_claim_next_keys(explained: Callable[..., Plan], cursor: str) -> None:
    """An entry of each key that is visited, as many as jobs are wanted and one more, and what is claimed."""
    request = replace(CLAIM, leases={"work": 60.0}, limits={"work": Limits(fair=True)})
    plan = explained(SQL.claim_next_keys, claiming.claim_next_keys(request, {"work": cursor}))
    # 50 scheduled jobs become ready.
    check(plan, rows=LIMIT + 1 + 3 * LIMIT + 3 * 50)
    assert "job_limit_ready" in plan.indexes()


def test_claim_fair_of_few_keys(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    """Where there are fewer keys than jobs wanted, at most two more for each job are read."""
    with connection.transaction(force_rollback=True):
        load(connection, "few", 3_000, key="'key' || n %% 3")
        connection.execute("UPDATE queuert.job SET type = 'few' WHERE id LIKE 'few%'")
        request = replace(CLAIM, leases={"few": 60.0}, limits={"few": Limits(fair=True)})
        check(explained(SQL.claim_fair, claiming.claim_fair(request, {})), rows=3 * LIMIT + 4 * LIMIT)


def test_select_admissible_in_order(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    """The first open chain of each key that is visited, whatever waits behind it."""
    ordered = replace(CLAIM, limits={"work": Limits(ordered=True, fair=True)})
    plan = explained(SQL.select_admissible, claiming.select_admissible(ordered, LIMIT, {"work": ""}, []))
    # Each key: its entry, the one before, the chain that goes first, and one that has begun. All that run.
    check(plan, rows=VISITED * 4 + KEYS // 2 + LIMIT * LIMIT + 3 * LIMIT)
    assert "job_key_order" in plan.indexes()
    values = claiming.select_admissible(ordered, LIMIT, {"work": ""}, [])
    found = claiming.admission(connection.execute(SQL.select_admissible, values).fetchall())
    assert len(found.ids) == LIMIT
    assert not any(id.startswith("busy") for id in found.ids)


def test_prune_rate_window(explained: Callable[..., Plan]) -> None:
    check(explained(SQL.prune_rate_window, claiming.forget(KEYED)), rows=0, starts=3 * 200)


def test_claims_return_the_same_columns() -> None:
    """Rows of all claims are decoded by one function."""
    claims = (SQL.claim, SQL.claim_admitted, SQL.claim_fair, SQL.claim_next_key, SQL.claim_next_keys)
    columns = [one.rsplit(b"SELECT id, type", 1)[1].split(b"FROM")[0].replace(b",", b" ").split() for one in claims]
    # What each says besides comes last.
    shared = columns[0].index(b"packed") + 1
    assert all(one[:shared] == columns[0][:shared] for one in columns)
    assert columns[2] == columns[3] == columns[4]


def test_pauses_cost_nothing(explained: Callable[..., Plan], connection: psycopg.Connection[Any]) -> None:
    """With types paused, the claim and the next due time are read from the same indexes, and the paused not at all."""
    with connection.transaction(force_rollback=True):
        connection.execute(SQL.pause_job_types, {"types": [f"type{n}" for n in range(100)], "reason": None, "by": None})
        check(explained(SQL.claim, claiming.claim(CLAIM)), rows=2 * LIMIT + 4 * LIMIT)
        check(explained(SQL.next_due, {"types": ["work", "type1"]}), rows=2)
        connection.execute(SQL.pause_job_types, {"types": ["work"], "reason": None, "by": None})
        check(explained(SQL.claim, claiming.claim(CLAIM)), rows=0)
        check(explained(SQL.select_admissible, claiming.select_admissible(KEYED, LIMIT, {}, [])), rows=0)
        check(explained(SQL.next_due, {"types": ["work"]}), rows=0)


@pytest.mark.parametrize("id", ["busy1000", "busy100000", "held1", "later1"])
def test_wait_facts(explained: Callable[..., Plan], id: str) -> None:
    """The job, all that run, the starts of its key, and the jobs before it: up to 1,000 of them here."""
    plan = explained(SQL.wait_facts, {"id": id, "most": 1_000, "named": 3})
    check(plan, rows=1 + KEYS // 2 + 1 + 1_000 + LIMIT + 3, starts=30)
