"""Workers look after the days of the log, and tell what they did or could not do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import psycopg
import pytest

from queuert import Processors
from queuert.errors import StateError
from queuert.event_log import EventLogMaintenance
from queuert.observability.events import (
    EventLogMaintained,
    EventLogMaintenanceFailed,
    EventLogMaintenancePostponed,
    LoopFailed,
)
from queuert.state.postgres.async_event_log import AsyncPostgresEventLog
from queuert.worker import maintenance
from tests.support.harness import PostgresHarness
from tests.support.job_types import JOB_TYPES, echo, number
from tests.worker.conftest import complaints, harness

__all__ = ["complaints", "harness"]

SOME_DAY = date(2026, 1, 1)


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """A worker looks at once again."""
    before = maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE
    maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE = 0.01, 0.01
    yield
    maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE = before


@pytest.fixture
def processors() -> Processors:
    processors = Processors(JOB_TYPES)
    processors.handles(number)(echo)
    return processors


def days(harness: PostgresHarness) -> list[str]:
    found = harness.rows(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'queuert.job_event'::regclass "
        "and inhrelid <> 'queuert.job_event_default'::regclass"
    )
    return [row[0] for row in found]


async def test_workers_make_the_days_to_come(harness: PostgresHarness, dsn: str, processors: Processors) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for day in days(harness):
            connection.execute(f"DROP TABLE {day}".encode())
    async with harness.worker(processors) as worker:
        reported = await harness.log.wait_for(EventLogMaintained)
    assert (reported.worker, len(reported.made), reported.dropped, reported.deleted) == (worker.name, 3, (), 0)
    assert [day[-8:] for day in sorted(days(harness))] == [day.replace("-", "") for day in reported.made]


async def test_what_cannot_be_done_is_reported_once(
    harness: PostgresHarness, processors: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has not failed: it does all else. It is told again when something else is the matter."""
    answers: list[StateError | EventLogMaintenance] = [
        StateError("must be owner"),
        StateError("must be owner"),
        StateError("something else"),
        EventLogMaintenance(postponed=(SOME_DAY,)),
        StateError("something else"),
    ]
    left = list(answers)

    async def tend(_: AsyncPostgresEventLog) -> EventLogMaintenance:
        answer = left.pop(0) if left else EventLogMaintenance(deleted=1)
        if isinstance(answer, StateError):
            raise answer
        return answer

    monkeypatch.setattr(AsyncPostgresEventLog, "maintain_event_log", tend)
    async with harness.worker(processors):
        await harness.log.wait_for(EventLogMaintained)
    assert [one.error for one in harness.log.of(EventLogMaintenanceFailed)] == [
        "must be owner", "something else", "something else",
    ]  # fmt: skip
    assert [one.days for one in harness.log.of(EventLogMaintenancePostponed)] == [(str(SOME_DAY),)]
    assert harness.log.of(LoopFailed) == []


@pytest.mark.quick
async def test_what_is_left_of_the_log_is_gone_on_with_at_once(
    harness: PostgresHarness, processors: Processors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the next sweep, and without another one."""
    left = [
        EventLogMaintenance(deleted=5, more=True),
        EventLogMaintenance(deleted=5, more=True),
        EventLogMaintenance(deleted=1),
    ]

    async def tend(_: AsyncPostgresEventLog) -> EventLogMaintenance:
        return left.pop(0) if left else EventLogMaintenance()

    monkeypatch.setattr(AsyncPostgresEventLog, "maintain_event_log", tend)
    monkeypatch.setattr(maintenance, "INTERVAL", 3600.0)
    async with harness.worker(processors):
        await harness.log.wait_for(EventLogMaintained, times=3)
    assert [one.deleted for one in harness.log.of(EventLogMaintained)] == [5, 5, 1]
