"""Reading and maintaining the activity costs what is read, by the table's only index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queuert.activity import HOURS_KEPT, MINUTES_KEPT, Activity, ActivityFilter, ActivityReport
from queuert.state.postgres import PostgresState, workers
from queuert.state.postgres.statements import Statements
from queuert.testing.databases import TemplateDatabases
from queuert.workers import WorkerHeartbeat
from tests.state.plans import explain

SQL = Statements("queuert")

# Ten hours of minutes by five workers, of which four are to be added up, and thirty-one days of hours: of four types.
FILL = """
    INSERT INTO queuert.activity
    SELECT 60, date_trunc('minute', now()) - n * interval '1 minute', 'type' || type, 'worker' || worker, 1,
        1, 1, 0, 0, 0, 0, 0, 0, 0, 0, '{0,1}'::bigint[], '{0,0,1}'::bigint[]
    FROM generate_series(0, 599) AS n
    CROSS JOIN generate_series(1, 4) AS type CROSS JOIN generate_series(1, 5) AS worker
    UNION ALL
    SELECT 3600, date_trunc('hour', now()) - n * interval '1 hour', 'type' || type, '', 0,
        1, 1, 0, 0, 0, 0, 0, 0, 0, 0, '{0,1}'::bigint[], '{0,0,1}'::bigint[]
    FROM generate_series(20, 743) AS n CROSS JOIN generate_series(1, 4) AS type
"""


@pytest.fixture(scope="module")
def connection(template_databases: TemplateDatabases) -> Iterator[psycopg.Connection[Any]]:
    with template_databases.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL)
        connection.execute("VACUUM ANALYZE queuert.activity")
        connection.execute("SET jit = off")
        yield connection


@pytest.fixture(params=["force_generic_plan", "force_custom_plan"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_hour_of_minutes(connection: psycopg.Connection[Any], mode: str) -> None:
    now = datetime.now(UTC)
    filter = ActivityFilter(now - timedelta(hours=1), now, ("type1",))
    plan = explain(connection, SQL.get_activity, workers.activity_filter(filter), mode)
    assert plan.indexes() == {"activity_pkey"}
    assert plan.scanned() == set()
    assert plan.rows_of("activity") <= 61 * 4 * 5 + 4


def test_a_day_of_hours(connection: psycopg.Connection[Any], mode: str) -> None:
    now = datetime.now(UTC)
    filter = ActivityFilter(now - timedelta(days=12), now - timedelta(days=11), by="hour")
    plan = explain(connection, SQL.get_activity, workers.activity_filter(filter), mode)
    assert plan.scanned() == set()
    assert plan.rows_of("activity") <= 26 * 4


def test_a_round_of_adding_up(connection: psycopg.Connection[Any], mode: str) -> None:
    """It finds the oldest minutes, beside all hours that there are, and looks at no more than it may."""
    plan = explain(connection, SQL.fold_activity, {"kept": MINUTES_KEPT, "limit": 100}, mode)
    assert plan.scanned() == set()
    assert plan.rows_of("activity") <= 200
    with connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM queuert.activity WHERE seconds = 60 AND begins_at < now() - interval '5 hours'")
        plan = explain(connection, SQL.fold_activity, {"kept": MINUTES_KEPT, "limit": 100}, mode)
        assert plan.scanned() == set()
        assert plan.rows_of("activity") == 0


def test_a_round_of_dropping(connection: psycopg.Connection[Any], mode: str) -> None:
    plan = explain(connection, SQL.drop_activity, {"kept": HOURS_KEPT, "limit": 50}, mode)
    assert plan.scanned() == set()
    assert plan.rows_of("activity") <= 100


def test_reports_of_a_minute_write_to_no_index_again(dsn: str) -> None:
    """Each goes beside the version before it (HOT), and the page is cleaned as it goes."""
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    beat = WorkerHeartbeat("one", "name", "host", 1, "1.0", ("work",), 1, 0, 0.0)
    minute = datetime(2026, 1, 1, tzinfo=UTC)
    types = [f"type{at}" for at in range(20)]
    with psycopg.connect(dsn) as observer:
        for number in range(1, 21):
            report = ActivityReport(number, [Activity(minute, 60, type, "one", started=1) for type in types])
            store.record_heartbeat(beat, 60.0, report)
        store.close()
        [(rows, started)] = observer.execute("SELECT count(*), sum(started)::int FROM queuert.activity").fetchall()
        [(pages,)] = observer.execute("SELECT pg_relation_size('queuert.activity') / 8192").fetchall()
        [(of_index,)] = observer.execute("SELECT pg_relation_size('queuert.activity_pkey') / 8192").fetchall()
    assert (rows, started) == (20, 400)
    assert pages <= 4
    assert of_index == 2
