"""Lists and counts cost what they show, in a table of a million jobs, whatever the planner knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queuert.jobs import ChainStatus, JobStatus
from queuert.state import AsyncStore
from queuert.state.paging import ChainFilter, JobFilter, PageRequest, Position
from queuert.state.postgres import PostgresState, listing
from queuert.state.postgres.statements import Statements
from queuert.testing.databases import TemplateDatabases
from tests.state.plans import Plan, explain, without_indexes

pytestmark = [pytest.mark.timeout(600)]

JOBS = 1_000_000
TYPES = [f"type{number}" for number in range(20)]
LIMIT = 50
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
"""When the first job was created; the others followed second by second."""
SQL = Statements("queuert")

# Half of all jobs are of one type, most are completed, but those of type3 cancelled; the last thousand are one chain.
FILL = """
    INSERT INTO queuert.job (
        id, type, chain_id, chain_type, chain_index, chain_status, status, continued_by, priority, created_at,
        scheduled_at, finished_at, lease_expires_at, lease_token, input
    )
    SELECT 'job' || n, type, 'job' || least(n, {last}), type, greatest(n - {last}, 0),
        CASE WHEN n > {last} THEN NULL WHEN status IN ('completed', 'failed', 'cancelled') THEN status ELSE 'open' END,
        status, CASE WHEN status = 'continued' THEN 'job' || n + 1 END, n % 3,
        %(first)s + n * interval '1 second',
        now() + interval '1 second'
            * CASE WHEN status <> 'scheduled' OR n % 400 < 2 THEN -n * (3 - n % 3) ELSE 3600 + n END,
        CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN now() - n * interval '1 second' END,
        CASE WHEN status = 'running' THEN now() END, CASE WHEN status = 'running' THEN gen_random_uuid() END, '1'
    FROM generate_series(1, {jobs}) AS n
    CROSS JOIN LATERAL (
        SELECT CASE WHEN n % 2 = 0 OR n >= {last} THEN 'type0' ELSE 'type' || n / 2 % 20 END AS type,
            CASE
                WHEN n >= {last} AND n < {jobs} THEN 'continued' WHEN n % 10007 = 0 THEN 'running'
                WHEN n % 1009 = 0 THEN 'failed' WHEN n % 1013 = 0 THEN 'cancelled' WHEN n % 31 = 0 THEN 'scheduled'
                WHEN n % 29 = 0 THEN 'ready' WHEN n % 101 = 0 THEN 'blocked' WHEN n % 40 = 7 THEN 'cancelled'
                ELSE 'completed'
            END AS status
    ) AS made
"""
BLOCKERS = """
    INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT 'job' || n, 'job' || CASE WHEN n % 2 = 0 THEN 1 ELSE n + 1 END, 0, false FROM generate_series(2, 40000) AS n
"""
LAST = JOBS - 1000


@pytest.fixture(scope="module")
def filled(template_databases: TemplateDatabases) -> Iterator[str]:
    """A database with a million jobs."""
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        text = FILL.replace("{last}", str(LAST)).replace("{jobs}", str(JOBS)).replace(" % ", " %% ")
        with without_indexes(connection, "queuert.job", "queuert.job_blocker"):
            connection.execute(text.encode(), {"first": FIRST})
            connection.execute(BLOCKERS.encode())
        connection.execute("VACUUM ANALYZE queuert.job, queuert.job_blocker")
        yield dsn


@pytest.fixture(scope="module")
def connection(filled: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(filled, autocommit=True) as connection:
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


def check_page(plan: Plan, *, index_ranges: int, limit: int = LIMIT, types: int = 0, buffers: int = 2500) -> None:
    """The plan reads the head of each stretch, a page of those that matter, and the rows of the page."""
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= types + index_ranges + (limit + 1) * min(index_ranges, limit + 1) + 3 * (limit + 1)
    assert plan.buffers() <= buffers


PLACE = Position.at_time(FIRST + timedelta(seconds=JOBS // 2), "job").encode()
MIDDLE = FIRST + timedelta(seconds=JOBS // 2)

PAGES = {
    "first": PageRequest(),
    "from the middle": PageRequest(cursor=PLACE),
    "oldest first": PageRequest(oldest_first=True),
    "oldest first from the middle": PageRequest(cursor=PLACE, oldest_first=True),
    "the largest": PageRequest(limit=1000),
}
JOB_FILTERS: dict[str, tuple[JobFilter, int]] = {
    "all": (JobFilter(), len(TYPES) * len(JobStatus)),
    "a type": (JobFilter(types=("type7",)), len(JobStatus)),
    "the great type": (JobFilter(types=("type0",)), len(JobStatus)),
    "a rare status": (JobFilter(statuses=(JobStatus.FAILED,)), len(TYPES)),
    "what there is none of": (JobFilter(types=("type7",), statuses=(JobStatus.CONTINUED,)), 1),
    "the great stretch": (JobFilter(types=("type0",), statuses=(JobStatus.COMPLETED,)), 1),
    "what is not due": (JobFilter(types=("type0",), statuses=(JobStatus.SCHEDULED,)), 1),
    "a span": (JobFilter(since=MIDDLE, before=MIDDLE + timedelta(hours=1)), len(TYPES) * len(JobStatus)),
    "an old span of the great type": (JobFilter(types=("type0",), before=FIRST + timedelta(days=1)), len(JobStatus)),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("params", JOB_FILTERS.values(), ids=JOB_FILTERS)
def test_list_jobs(explained: Callable[..., Plan], params: tuple[JobFilter, int], page: PageRequest) -> None:
    filter, index_ranges = params
    plan = explained(SQL.list_jobs_oldest_first if page.oldest_first else SQL.list_jobs, listing.by_time(filter, page))
    types = 0 if filter.types else len(TYPES) + 1
    buffers = 2500 if page.limit == LIMIT else 8000
    check_page(plan, index_ranges=index_ranges, limit=page.limit, types=types, buffers=buffers)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_list_jobs_that_are_due(
    explained: Callable[..., Plan], connection: psycopg.Connection[Any], page: PageRequest
) -> None:
    """All scheduled jobs of the type that are due are read, for the first of a page and for the page; no others."""
    [(due,)] = connection.execute(
        "SELECT count(*) FROM queuert.job WHERE type = 'type0' AND status = 'scheduled' AND scheduled_at <= now()"
    )
    assert due > 100
    filter = JobFilter(types=("type0",), statuses=(JobStatus.READY,))
    plan = explained(SQL.list_jobs_oldest_first if page.oldest_first else SQL.list_jobs, listing.by_time(filter, page))
    assert plan.scanned() == set()
    assert plan.rows_of("job") <= 2 * due + 3 + 2 * (page.limit + 1) + 3 * (page.limit + 1)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("statuses", [None, (ChainStatus.FAILED,)], ids=["all", "dead letters"])
@pytest.mark.parametrize(
    "types", [None, ("type0",), ("type7", "type8")], ids=["all types", "the great type", "two types"]
)
def test_list_chains(
    explained: Callable[..., Plan],
    types: tuple[str, ...] | None,
    statuses: tuple[ChainStatus, ...] | None,
    page: PageRequest,
) -> None:
    values = {**listing.by_time(ChainFilter(types=types, statuses=statuses), page), "payloads": True}
    plan = explained(SQL.list_chains_oldest_first if page.oldest_first else SQL.list_chains, values)
    index_ranges = len(types or TYPES) * len(statuses or ChainStatus)
    # The view looks for the last job of each chain.
    found = len(TYPES) + 1 + 3 * (page.limit + 1)
    check_page(
        plan,
        index_ranges=index_ranges,
        limit=page.limit,
        types=found,
        buffers=2500 if page.limit == LIMIT else 20_000,
    )


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("place", [None, 500])
def test_list_chain_jobs(explained: Callable[..., Plan], place: int | None, oldest_first: bool) -> None:
    cursor = None if place is None else Position(str(place), "job").encode()
    values = listing.by_index(f"job{LAST}", PageRequest(LIMIT, cursor, oldest_first))
    plan = explained(SQL.list_chain_jobs_oldest_first if oldest_first else SQL.list_chain_jobs, values)
    check_page(plan, index_ranges=1, types=2, buffers=500)


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("place", [None, "job2"])
def test_list_blocked_jobs(explained: Callable[..., Plan], place: str | None, oldest_first: bool) -> None:
    cursor = None if place is None else Position("", place).encode()
    values = listing.by_id("job1", PageRequest(LIMIT, cursor, oldest_first))
    plan = explained(SQL.list_dependents_oldest_first if oldest_first else SQL.list_dependents, values)
    check_page(plan, index_ranges=1, buffers=500)
    assert plan.scanned() == set()
    assert plan.rows_of("job_blocker") <= LIMIT + 1


@pytest.mark.parametrize("id", ["job3", "job2"])
def test_get_blockers(explained: Callable[..., Plan], id: str) -> None:
    plan = explained(SQL.get_blockers, {"id": id, "outputs": True})
    check_page(plan, index_ranges=1, limit=1, buffers=50)


@pytest.mark.parametrize("cap", [0, 10, 100])
@pytest.mark.parametrize("types", [None, ["type0", "type7", "unknown"]], ids=["all types", "some"])
def test_counts(explained: Callable[..., Plan], types: list[str] | None, cap: int) -> None:
    plan = explained(SQL.count_jobs, listing.count_parameters(types, cap))
    index_ranges = len(types or TYPES) * (len(JobStatus) + 1)
    assert plan.scanned() == set()
    # The entries that are counted; the rows of small numbers, for their age; the ranks of ready jobs.
    assert plan.rows_of("job") <= len(TYPES) + index_ranges * ((cap + 1) * 2 + 4)
    assert plan.buffers() <= 1000 + 20 * (cap + 1) * len(types or TYPES)


# --- what they say ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def store(filled: str) -> Any:
    store: AsyncStore = PostgresState(filled).async_store()
    await store.open()
    yield store
    await store.aclose()


async def test_the_numbers_are_exact_or_near(store: AsyncStore, connection: psycopg.Connection[Any]) -> None:
    truth = {
        (type, JobStatus(status)): number
        for type, status, number in connection.execute(
            """
            SELECT type, shown, count(*) FROM queuert.job CROSS JOIN LATERAL (
                SELECT CASE WHEN status = 'scheduled' AND scheduled_at <= now() THEN 'ready' ELSE status END AS shown
            ) AS seen
            GROUP BY type, shown
            """
        )
    }
    found = {(one.type, one.status): one for one in await store.count_jobs(exact_up_to=1000)}
    assert set(found) == set(truth)
    for key, number in truth.items():
        one = found[key]
        assert one.estimated or one.count == number
        # Statistics are of a sample. Did they not know that type3 is mostly cancelled, that number would be far off.
        assert 0.6 * number <= one.count <= 1.6 * number, key
    assert sum(one.estimated for one in found.values()) >= 20


async def test_ages_are_of_the_oldest(store: AsyncStore, connection: psycopg.Connection[Any]) -> None:
    """Ready ones are as old as the first to become due, of whatever priority, however many there are."""
    found = {(one.type, one.status): one for one in await store.count_jobs(exact_up_to=1000)}
    for type in ("type0", "type7"):
        rows = connection.execute(
            """
            SELECT status, extract(epoch FROM now() - min(coalesce(finished_at, scheduled_at)))::float8
            FROM queuert.job WHERE type = %s AND (status <> 'scheduled' OR scheduled_at <= now()) GROUP BY status
            """,
            [type],
        ).fetchall()
        ages: dict[str, float] = dict(rows)
        ready = found[type, JobStatus.READY].oldest_seconds
        assert ready == pytest.approx(max(ages["ready"], ages.get("scheduled", 0.0)), abs=60)
        assert found[type, JobStatus.FAILED].oldest_seconds == pytest.approx(ages["failed"], abs=60)
        assert found[type, JobStatus.COMPLETED].oldest_seconds is None
        assert found[type, JobStatus.SCHEDULED].oldest_seconds == 0


async def test_a_walk_through_many_pages_is_the_whole(store: AsyncStore, connection: psycopg.Connection[Any]) -> None:
    """All failed chains of all types, page by page, are what one reading of the table finds."""
    expected = [
        id
        for (id,) in connection.execute(
            "SELECT id FROM queuert.job WHERE chain_status = 'failed' ORDER BY created_at DESC, id DESC"
        )
    ]
    seen: list[str] = []
    cursor: str | None = None
    while not seen or cursor is not None:
        page = await store.list_chains(ChainFilter(statuses=(ChainStatus.FAILED,)), PageRequest(100, cursor))
        seen += [one.id for one in page]
        cursor = page.next_cursor
    assert seen == expected
    assert len(seen) > 900
