"""What is kept if nobody says how long: not all of it, and each worker says so when it starts."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, Processors
from queuert.errors import ConfigurationError
from queuert.observability.events import ChainsPruned, RetentionInUse, WorkerStarted
from queuert.policies import Keep, Retention
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import until

work = JobType("work", input=int, output=int)
mail = JobType("mail", input=int, output=int)
audit = JobType("audit", input=int, output=int)
JOB_TYPES = JobTypes(work, mail, audit)

DAYS = 86_400


async def _handle(attempt: Any) -> Any:
    return attempt.input


async def _said(**settings: Any) -> dict[tuple[str, ...], str]:
    """What a worker says at its start, with one type that is kept forever."""
    processors, log = Processors(JOB_TYPES, **settings), EventLog()
    for job_type in (work, mail):
        processors.handles(job_type)(_handle)
    processors.handles(audit, retention=Retention.forever())(_handle)
    async with AsyncClient(SQLiteState(), JOB_TYPES, observability=log) as client, InProcessWorker(client, processors):
        said, started = log.of(RetentionInUse), log.of(WorkerStarted)
        assert {event.worker for event in said} == {event.worker for event in started}
        return {event.types: event.kept for event in said}


async def test_a_worker_says_what_it_keeps() -> None:
    forever: dict[tuple[str, ...], str] = {("audit",): "completed forever; failed forever; cancelled forever"}
    assert await _said() == {
        ("work", "mail"): "completed for 14 days; failed forever; cancelled for 14 days",
        **forever,
    }
    assert await _said(retention=Retention(Keep(count=1_000), Keep(age=90), Keep(age=3_600, count=1))) == {
        ("work", "mail"): "completed the last 1,000; failed for 90 s; cancelled for 1 hour, the last 1",
        **forever,
    }
    assert await _said(retention=Retention.forever()) == {("work", "mail", "audit"): forever["audit",]}


def test_what_is_not_given_is_the_default() -> None:
    assert Retention(completed=Keep(count=0)) == Retention(Keep(count=0), "forever", Keep(age=14 * DAYS))
    assert [Retention().bound(status) for status in ("completed", "failed", "cancelled")] == [
        Keep(age=14 * DAYS), None, Keep(age=14 * DAYS),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [None, 14 * DAYS, "always", {}])
def test_forever_is_a_word_one_writes(value: Any) -> None:
    for name in ("completed", "failed", "cancelled"):
        with pytest.raises(ConfigurationError, match=f"{name} must be Keep.* or 'forever', got"):
            Retention(**{name: value})


async def test_two_weeks_later(dsn: str) -> None:
    """Completed and cancelled chains are gone, failed ones are there, and so are those of two weeks less an hour."""
    harness = PostgresHarness(dsn)
    harness.handles(number, _handle)
    for status in ("completed", "cancelled", "failed"):
        for name, hours in (("old", 14 * 24 + 1), ("recent", 14 * 24 - 1)):
            harness.rows(
                "insert into queuert.job (id, chain_id, type, chain_type, chain_status, chain_closed_at, created_at,"
                " scheduled_at, status, input) select id, id, 'number', 'number', status, at, at, at, status, '1' from"
                " (select %s || %s::text as id, %s as status, now() - %s * interval '1 hour' as at) as row",
                name,
                status,
                status,
                hours,
            )
    async with harness.worker():
        await until(lambda: sum(event.count for event in harness.log.of(ChainsPruned)) == 2, "two are pruned")
    left = {row[0] for row in harness.rows("select id from queuert.job")}
    assert left == {"oldfailed", "recentcompleted", "recentcancelled", "recentfailed"}
    await harness.close()
