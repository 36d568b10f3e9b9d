"""Lists by attributes cost what they show, whatever the planner knows; starts and deletions touch what they must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queuert.jobs import ChainStatus
from queuert.state.paging import ChainFilter, PageRequest, Position
from queuert.state.postgres import listing, management, parameters
from queuert.state.postgres.rows import DeletedJob
from queuert.state.postgres.statements import Statements
from queuert.state.types import NewJob
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain

pytestmark = pytest.mark.timeout(300)

CHAINS = 100_000
LIMIT = 50
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SQL = Statements("queuert")

# Every chain has all=1, a user of its own hundred, and one of two sides; every thousandth is rare.
FILL = """
    INSERT INTO queuert.job (
        id, type, chain_id, chain_type, chain_status, status, created_at, scheduled_at, input, attributes
    )
    SELECT 'job' || n, 'type' || n % 5, 'job' || n, 'type' || n % 5, 'open', 'ready', at, at, '1', attributes
    FROM generate_series(1, {chains}) AS n
    CROSS JOIN LATERAL (
        SELECT %(first)s + n * interval '1 second' AS at,
            jsonb_build_object('all', '1', 'user', (n / 100)::text, 'side', (n % 2)::text)
                || CASE WHEN n % 1000 = 0 THEN '{"rare": ["yes", "x"]}'::jsonb ELSE '{}'::jsonb END AS attributes
    ) AS made
"""
ENTRIES = """
    INSERT INTO queuert.chain_attribute (name, value, created_at, chain_id)
    SELECT name, value, created_at, id
    FROM queuert.job
    CROSS JOIN LATERAL jsonb_each(attributes) AS given (name, content)
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE jsonb_typeof(content) WHEN 'array' THEN content ELSE jsonb_build_array(content) END) AS one (value)
"""


@pytest.fixture(scope="module")
def connection(template_databases: TemplateDatabases) -> Iterator[psycopg.Connection[Any]]:
    """A database with a hundred thousand chains with attributes."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        text = FILL.replace("{chains}", str(CHAINS)).replace(" % ", " %% ")
        connection.execute(text.encode(), {"first": FIRST})
        connection.execute(ENTRIES)
        connection.execute("VACUUM ANALYZE queuert.job, queuert.chain_attribute")
        connection.execute("SET jit = off")
        yield connection


@pytest.fixture(params=["fresh statistics", "no statistics"])
def statistics(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def explained(
    request: pytest.FixtureRequest, connection: psycopg.Connection[Any], statistics: str
) -> Callable[..., Plan]:
    def run(statement: bytes, values: Mapping[str, Any]) -> Plan:
        with connection.transaction(force_rollback=True):
            if statistics == "no statistics":
                connection.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text LIKE 'queuert.%'")
            return explain(connection, statement, values, request.param)

    return run


MIDDLE = FIRST + timedelta(seconds=CHAINS // 2)
PAGES = {
    "first": PageRequest(),
    "from the middle": PageRequest(cursor=Position.at_time(MIDDLE, "job").encode()),
    "oldest first": PageRequest(oldest_first=True),
}
STEPS = 2 * (LIMIT + 1)
"""Two for each chain that is found: one leap to it, and one that finds all there."""

# What is asked for, and how many steps there may be.
PARAMS: dict[str, tuple[ChainFilter, int]] = {
    "what all have": (ChainFilter(attributes=(("all", "1"),)), LIMIT + 1),
    "what few have": (ChainFilter(attributes=(("rare", "x"),)), LIMIT + 1),
    "what none have": (ChainFilter(attributes=(("user", "none"),)), 1),
    "one user": (ChainFilter(attributes=(("user", "250"),)), LIMIT + 1),
    "few of all": (ChainFilter(attributes=(("all", "1"), ("rare", "yes"))), STEPS),
    "few of all, the other way": (ChainFilter(attributes=(("rare", "yes"), ("all", "1"))), STEPS),
    "half of all": (ChainFilter(attributes=(("all", "1"), ("side", "1"))), STEPS),
    "one user among all": (ChainFilter(attributes=(("all", "1"), ("user", "250"))), STEPS),
    "nobody has both": (ChainFilter(attributes=(("user", "250"), ("user", "900"))), 2),
    "nobody, of three": (ChainFilter(attributes=(("all", "1"), ("rare", "x"), ("user", "none"))), 1),
    "a type": (ChainFilter(attributes=(("all", "1"),), types=("type3",)), 5 * (LIMIT + 1)),
    "a status": (ChainFilter(attributes=(("user", "250"),), statuses=(ChainStatus.FAILED,)), 101),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_page_reads_what_it_must(
    explained: Callable[..., Plan], params: tuple[ChainFilter, int], page: PageRequest
) -> None:
    filter, steps = params
    values = {**listing.by_time(filter, page), **listing.attribute_pairs(filter), "payloads": True}
    newest, oldest = SQL.list_chains_by_attributes, SQL.list_chains_by_attributes_oldest_first
    plan = explained(oldest if page.oldest_first else newest, values)
    assert plan.scanned() == set()
    # A step reads one entry where it begins, perhaps that of the step before it too, and one of each attribute.
    assert plan.rows_of("chain_attribute") <= (steps + 1) * (2 + len(filter.attributes))
    # Each chain is looked up, and so are the rows of the page with the last job of each.
    assert plan.rows_of("job") <= steps + 4 * (LIMIT + 1)
    assert plan.buffers() <= 40 * (steps + 1) + 20 * (LIMIT + 1)


def test_a_deletion_finds_the_entries_by_their_keys(explained: Callable[..., Plan]) -> None:
    attributes = '{"all": "1", "rare": ["yes", "x"]}'
    job = DeletedJob("job1000", "job1000", "failed", "t", None, FIRST + timedelta(seconds=1000), attributes)
    plan = explained(SQL.delete_attributes, management.attribute_rows([job]))
    assert plan.scanned() == set()
    assert plan.rows_of("chain_attribute") == 6
    [deleted] = [node for node in plan.nodes() if node["Node Type"] == "ModifyTable"]
    assert deleted["Plans"][0]["Actual Rows"] == 3


def test_a_start_without_attributes_does_not_know_of_them() -> None:
    """The statement is the one without entries, and the row that is sent says nothing of them."""
    bare, given = NewJob("a", "t", "1"), NewJob("a", "t", "1", attributes={"user": "17"})
    assert b"chain_attribute" not in SQL.start_jobs
    assert "attributes" not in parameters.new_job(bare)
    assert '"attributes":{"user":"17"}' in parameters.new_job(given)
    assert b"chain_attribute" in SQL.start_jobs_with_attributes


def test_a_deletion_without_attributes_does_not_look_for_them() -> None:
    assert management.attribute_rows([DeletedJob("a", "a", "failed", "t", None, None, None)])["ids"] == []
