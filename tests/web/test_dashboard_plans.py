"""What pages read of the table of jobs: by its indexes, and no more rows than a page shows, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import psycopg
import pytest

from benchmarks.dashboard import JOB_TYPES, application, beat, fill, pages
from queuert import AsyncClient, PostgresState
from queuert.state.postgres import async_statements
from queuert.testing.databases import TemplateDatabases
from queuert.web.dashboard.pages.shared import COUNTED, EXACT, LOOKED_AT, PAGE
from tests.state.plans import explain

JOBS = 30_000
TYPES = 20
LIST = 4 * TYPES * 8 + 4 * (PAGE + 1) * TYPES
"""Rows of a page of a list: the head of each type and status, of first and of later jobs, and those that are shown."""

COUNTS = 2 * TYPES * 8 * (EXACT + 1)
"""Rows that are counted, of each type and status."""

ROWS = {
    "overview": COUNTS,
    "overview, 30 days": COUNTS,
    "types": COUNTS,
    "a type": COUNTS,
    "a type, 30 days": COUNTS,
    "search": 10,
    "a job": 10,
    "schedules": 10,
    "operations": 10,
    "retry of failures": 2 * COUNTED,
    "cancel all that match": 2 * COUNTED,
    "failures": 4 * LOOKED_AT,
    "failures, 12 hours": 4 * LOOKED_AT,
}
"""Rows of the table of jobs that one statement of a page may read; by default those of a list."""

READ = (b"SELECT", b"WITH", b"--", b"(")


@pytest.fixture(scope="module")
def filled(template_databases: TemplateDatabases) -> Iterator[str]:
    with template_databases.database() as dsn:
        fill(dsn, JOBS)
        yield dsn


Statement = tuple[bytes, Mapping[str, Any]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    """The statements that are executed."""
    found: list[Statement] = []
    send = async_statements._send

    async def noting(connection: Any, statement: Any, values: Any = None, **settings: Any) -> Any:
        if statement.lstrip().startswith(READ) and b'"queuert"' in statement:
            found.append((statement, values or {}))
        return await send(connection, statement, values, **settings)

    monkeypatch.setattr(async_statements, "_send", noting)
    return found


async def test_no_page_scans_the_jobs(filled: str, seen: list[Statement]) -> None:
    await beat(filled)
    wrong: list[str] = []
    with psycopg.connect(filled, autocommit=True) as connection:
        # In a small table a scan may be the cheapest. Without scans there is one only where no index serves.
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET jit = off")
        async with AsyncClient(PostgresState(filled), JOB_TYPES, max_connections=4) as client:
            dashboard = application(client)
            transport = httpx.ASGITransport(app=dashboard)
            async with httpx.AsyncClient(transport=transport, base_url="http://dashboard", timeout=60) as web:
                for name, path in pages(JOBS).items():
                    dashboard.databases[""].shared.forget()
                    seen.clear()
                    answer = await web.get(path)
                    assert answer.status_code in (200, 303), (path, answer.text)
                    assert "Left out" not in answer.text, path
                    for statement, values in seen:
                        plan = explain(connection, statement, values, "force_custom_plan")
                        if "job" in plan.scanned():
                            wrong.append(f"{name} scans the table of jobs: {statement[:120]!r}")
                        if (rows := plan.rows_of("job")) > ROWS.get(name, LIST):
                            wrong.append(f"{name} reads {rows:,.0f} rows of jobs: {statement[:120]!r}")
    assert wrong == []
