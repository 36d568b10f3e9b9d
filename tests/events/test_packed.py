"""The events of one statement share rows: whoever reads the log sees each, in its place."""

from __future__ import annotations

from typing import Any

import pytest

from queuert.event_log import EventFilter, EventKind, JobEvent
from queuert.jobs import JobError
from queuert.state.paging import PageRequest
from queuert.state.postgres.statements import EVENTS_A_ROW
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult, NewJob
from tests.support.store_harness import StoreHarness

COUNT = 100
IDS = [f"{number:03}" for number in range(COUNT)]


def read(
    harness: StoreHarness, filter: EventFilter | None = None, *, limit: int = 1000, oldest_first: bool = True
) -> list[JobEvent]:
    """All pages."""
    found: list[JobEvent] = []
    cursor = None
    while True:
        request = PageRequest(limit=limit, oldest_first=oldest_first, cursor=cursor)
        page = harness.store.list_events(filter or EventFilter(), request)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def end(harness: StoreHarness, jobs: list[ClaimedJob], kind: FinishKind, **more: Any) -> list[FinishResult]:
    return harness.store.finish([Finish(job, kind, **more) for job in jobs])


@pytest.fixture
def drained(harness: StoreHarness) -> StoreHarness:
    """A hundred chains that were started by one call, claimed by one and ended by one."""
    harness.start(*IDS)
    end(harness, harness.claim(COUNT), FinishKind.COMPLETE, output="1")
    return harness


def test_they_share_rows(drained: StoreHarness) -> None:
    rows = drained.value("SELECT count(*) FROM queuert.job_event")
    assert rows <= 3 * (COUNT // EVENTS_A_ROW + 1)
    assert drained.value("SELECT max(cardinality(job_ids)) < 64 FROM queuert.job_event")


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 7, EVENTS_A_ROW, 64, 1000])
def test_pages_may_end_within_a_row(drained: StoreHarness, limit: int, oldest_first: bool) -> None:
    found = read(drained, limit=limit, oldest_first=oldest_first)
    places = [(event.tx, event.seq) for event in found]
    assert places == sorted(set(places), reverse=not oldest_first)
    by_kind = {kind: [event.job_id for event in found if event.kind == kind] for kind in EventKind}
    assert {kind for kind, jobs in by_kind.items() if jobs} == {
        EventKind.CREATED,
        EventKind.STARTED,
        EventKind.COMPLETED,
    }
    for jobs in by_kind.values():
        assert sorted(jobs) == (IDS if jobs else [])


def test_each_tells_what_its_own_row_would(drained: StoreHarness) -> None:
    jobs = {job.id: job for job in drained.store.get_jobs(IDS) if job is not None}
    for event in read(drained):
        job = jobs[event.job_id]
        assert (event.chain_id, event.chain_index, event.type, event.chain_type) == (job.id, 0, "work", "work")
        assert event.scheduled_at == job.scheduled_at
        created = event.kind == EventKind.CREATED
        assert event.started_at == (None if created else job.started_at)
        assert event.worker == (None if created else "me")
        assert event.attempt == (0 if created else 1)


def test_those_of_one_chain(drained: StoreHarness) -> None:
    found = read(drained, EventFilter(chain_id="042"))
    assert [event.kind for event in found] == [EventKind.CREATED, EventKind.STARTED, EventKind.COMPLETED]
    assert {event.job_id for event in found} == {"042"}


def test_later_jobs_of_chains(harness: StoreHarness) -> None:
    harness.start(*IDS)
    first = harness.claim(COUNT)
    harness.store.finish(
        [Finish(job, FinishKind.CONTINUE, continuation=NewJob(f"{job.id}-next", "second", "1")) for job in first]
    )
    second = harness.claim(COUNT, type="second")
    end(harness, second, FinishKind.COMPLETE, output="1")
    rows = harness.value("SELECT count(*) FROM queuert.job_event")
    assert rows < COUNT
    for event in read(harness):
        assert event.chain_id == event.job_id.removesuffix("-next")
        assert event.chain_index == int(event.job_id.endswith("-next"))
        assert event.chain_type == "work"
    story = [(event.job_id, event.kind) for event in read(harness, EventFilter(chain_id="007"))]
    assert [one for one in story if one[0] == "007"] == [("007", "created"), ("007", "started"), ("007", "continued")]
    assert [one for one in story if one[0] != "007"] == [
        ("007-next", "created"), ("007-next", "started"), ("007-next", "completed"),
    ]  # fmt: skip


def test_kinds_and_errors_are_not_mixed(harness: StoreHarness) -> None:
    harness.start(*IDS[:60])
    jobs = harness.claim(60)
    errors = {job.id: JobError("handler", f"no {number % 2}", "ValueError", None) for number, job in enumerate(jobs)}
    finishes = [Finish(job, FinishKind.COMPLETE, output="1") for job in jobs[:20]]
    finishes += [Finish(job, FinishKind.FAIL, error=errors[job.id]) for job in jobs[20:40]]
    finishes += [Finish(job, FinishKind.RETRY, delay=60.0, error=errors[job.id]) for job in jobs[40:]]
    harness.store.finish(finishes)
    ended = {event.job_id: event for event in read(harness) if event.kind not in (EventKind.CREATED, EventKind.STARTED)}
    assert [ended[job.id].kind for job in jobs] == 20 * ["completed"] + 20 * ["failed"] + 20 * ["retried"]
    assert all((ended[job.id].error == errors[job.id]) for job in jobs[20:])
    assert all((ended[job.id].error is None) for job in jobs[:20])


def test_types_that_are_not_logged_are_left_out(harness: StoreHarness) -> None:
    harness.sql.execute("INSERT INTO queuert.event_level (type, level) VALUES ('quiet', 'off'), ('short', 'terminal')")
    for type in ("work", "quiet", "short"):
        harness.store.start_jobs([NewJob(f"{type}-{number}", type, "1") for number in range(40)])
    for type in ("work", "quiet", "short"):
        end(harness, harness.claim(40, type=type), FinishKind.COMPLETE, output="1")
    kinds = {(event.type, event.kind) for event in read(harness)}
    assert kinds == {("work", "created"), ("work", "started"), ("work", "completed"), ("short", "completed")}
    assert len(read(harness)) == 4 * 40
