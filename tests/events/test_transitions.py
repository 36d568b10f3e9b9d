"""Every transition leaves exactly one event, written with it: what happened, what the job is then, whose attempt."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.errors import JobIdConflictError
from queuert.event_log import EventFilter, EventLevel
from queuert.ids import new_token
from queuert.jobs import JobError, JobProgress
from queuert.limits import Limits
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.schedules import MissedRuns, tick_id
from queuert.state.paging import PageRequest
from queuert.state.types import (
    ClaimRequest,
    Finish,
    FinishKind,
    Lease,
    NewJob,
    ReapRequest,
    Renewal,
    ScheduleRecord,
    WorkerlessCompletion,
)
from tests.support.store_harness import StoreHarness

LATER = RunAt(delay=3600.0)
ERROR = JobError("handler", "no", "ValueError", "File x")
AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)


# --- starts -----------------------------------------------------------------------------------------------------------


def test_started_chains(harness: StoreHarness) -> None:
    """However they are started: alike, each its own way, with attributes, or found to be missing."""
    harness.start("a", "b")
    assert harness.new() == [("a", "created", "ready", 0, None), ("b", "created", "ready", 0, None)]
    harness.store.start_jobs([NewJob("c", "work", "1", run_at=LATER), NewJob("d", "other", "1")])
    assert harness.new() == [("c", "created", "scheduled", 0, None), ("d", "created", "ready", 0, None)]
    harness.store.start_jobs([NewJob("e", "work", "1", attributes={"user": "17"})])
    assert harness.new() == [("e", "created", "ready", 0, None)]
    harness.start("f", attach=True)
    assert harness.new() == [("f", "created", "ready", 0, None)]
    harness.start("f", attach=True)
    assert harness.new() == []


def test_started_chains_that_wait(harness: StoreHarness) -> None:
    harness.start("a")
    harness.new()
    harness.start("b", blockers=("a",))
    assert harness.new() == [("b", "created", "ready", 0, None), ("b", "blocked", "blocked", 0, None)]
    harness.store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in harness.claim()])
    assert harness.new() == [
        ("a", "started", "running", 1, "me"),
        ("a", "completed", "completed", 1, "me"),
        ("b", "unblocked", "ready", 0, None),
    ]
    harness.start("c", blockers=("a",))
    assert harness.new() == [("c", "created", "ready", 0, None)]


def test_several_blockers(harness: StoreHarness) -> None:
    """Only the last of them lets the job go."""
    harness.start("a", "b")
    harness.start("c", blockers=("a", "b"), run_at=LATER)
    harness.new()
    harness.store.cancel_chains(["a"], reason="no")
    assert harness.new() == [("a", "cancelled", "cancelled", 0, None)]
    harness.store.cancel_chains(["b"], reason="no")
    assert harness.new() == [("b", "cancelled", "cancelled", 0, None), ("c", "unblocked", "scheduled", 0, None)]


def test_ticks(harness: StoreHarness) -> None:
    harness.store.put_schedules([ScheduleRecord("s", "work", "1", None, 3600.0, "UTC", MissedRuns.ONCE)])
    tick = harness.value("SELECT next_at FROM queuert.schedule")
    id = tick_id("s", tick)
    assert harness.store.fire_schedule("s", tick, None, [NewJob(id, "work", "1")])
    assert harness.new() == [(id, "created", "ready", 0, None)]


def test_rolled_back_starts_leave_none(harness: StoreHarness) -> None:
    with psycopg.connect(harness.dsn) as connection:
        harness.store.start_jobs([NewJob("a", "work", "1"), NewJob("b", "other", "1")], connection=connection)
        connection.rollback()
    assert harness.new() == []
    with pytest.raises(JobIdConflictError):
        harness.start("a", "a")
    assert harness.new() == []


# --- attempts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "more", "event"),
    [
        (FinishKind.COMPLETE, {"output": "1"}, ("completed", "completed")),
        (FinishKind.FAIL, {"error": ERROR}, ("failed", "failed")),
        (FinishKind.CANCEL, {"error": ERROR}, ("cancelled", "cancelled")),
        (FinishKind.RETRY, {"error": ERROR}, ("retried", "ready")),
        (FinishKind.RETRY, {"error": ERROR, "delay": 60.0}, ("retried", "scheduled")),
        (FinishKind.INTERRUPT, {}, ("interrupted", "ready")),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_finishes(
    harness: StoreHarness, kind: FinishKind, more: dict[str, Any], event: tuple[str, str], beside: bool
) -> None:
    """Alone, and in a batch with another kind."""
    harness.start("a")
    [lease] = harness.claim()
    harness.new()
    finishes = [Finish(lease, kind, **more)]
    if beside:
        harness.start("z")
        finishes += [Finish(one, FinishKind.INTERRUPT) for one in harness.claim()]
        harness.new()
    harness.store.finish(finishes)
    assert [one for one in harness.new() if one[0] == "a"] == [("a", *event, 1, "me")]
    stored = harness.value("SELECT error FROM queuert.event WHERE job_id = 'a' ORDER BY seq DESC LIMIT 1")
    assert (stored is None) == ("error" not in more)
    if stored is not None:
        assert stored == harness.value("SELECT error FROM queuert.job WHERE id = 'a'")
    assert all(result.lost is None for result in harness.store.finish(finishes))
    assert [one for one in harness.new() if one[0] == "a"] == []


def test_lost_leases_leave_none(harness: StoreHarness) -> None:
    harness.start("a")
    [lease] = harness.claim()
    harness.store.release([lease.lease])
    harness.new()
    assert harness.store.finish([Finish(lease, FinishKind.COMPLETE, output="1")])[0].lost
    assert harness.store.finish([Finish(lease, FinishKind.FAIL)])[0].lost
    assert harness.store.release([lease.lease]) == 0
    assert harness.new() == []


def test_going_on(harness: StoreHarness) -> None:
    """The next job is created in the statement that ends the one before it, whatever the one waits for."""
    harness.start("a")
    [lease] = harness.claim()
    harness.new()
    harness.store.finish([Finish(lease, FinishKind.CONTINUE, continuation=NewJob("b", "next", "1", run_at=LATER))])
    assert harness.new() == [("a", "continued", "continued", 1, "me"), ("b", "created", "scheduled", 0, None)]
    place = harness.sql.execute(
        "SELECT chain_id, chain_index, type, chain_type FROM queuert.event WHERE job_id = 'b'"
    ).fetchone()
    assert place == ("a", 1, "next", "work")


def test_waiting_for_others(harness: StoreHarness) -> None:
    harness.start("a")
    [lease] = harness.claim()
    harness.new()
    child = NewJob("child", "other", "1")
    harness.store.finish([Finish(lease, FinishKind.WAIT, starts=(child,), blockers=("child",))])
    assert harness.new() == [
        ("a", "waiting", "ready", 1, "me"),
        ("child", "created", "ready", 0, None),
        ("a", "blocked", "blocked", 1, None),
    ]


def test_given_back(harness: StoreHarness) -> None:
    """The attempt never was, and its number is used again."""
    harness.start("a", "b")
    [first] = harness.claim()
    harness.new()
    harness.store.release([first.lease])
    assert harness.new() == [("a", "released", "ready", 1, "me")]
    request = ClaimRequest({"work": 60.0}, 2, "you", new_token())
    assert len(harness.store.claim(request)) == 2
    assert harness.store.release_claim(request) == (2, 0)
    events = harness.new()
    assert sorted(events[:2]) == [("a", "started", "running", 1, "you"), ("b", "started", "running", 1, "you")]
    assert sorted(events[2:]) == [("a", "released", "ready", 1, "you"), ("b", "released", "ready", 1, "you")]


def test_claims_under_limits(harness: StoreHarness) -> None:
    harness.start("a", limit_key="k")
    harness.new()
    request = ClaimRequest({"work": 60.0}, 1, "me", new_token(), limits={"work": Limits(concurrency=1)})
    assert len(harness.store.claim(request)) == 1
    assert harness.new() == [("a", "started", "running", 1, "me")]


@pytest.mark.parametrize("later", [False, True])
def test_expired_leases(harness: StoreHarness, later: bool) -> None:
    policy = RetryPolicy(initial_delay=60.0) if later else AT_ONCE
    harness.start("a")
    harness.claim()
    harness.expire("a")
    harness.new()
    harness.store.reap(ReapRequest({"work": policy}))
    assert harness.new() == [("a", "lease_expired", "scheduled" if later else "ready", 1, "me")]


def test_expired_for_the_last_time(harness: StoreHarness) -> None:
    harness.start("a")
    harness.start("b", blockers=("a",))
    harness.claim()
    harness.expire("a")
    harness.new()
    harness.store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)}))
    assert harness.new() == [("a", "lease_expired", "failed", 1, "me"), ("b", "unblocked", "ready", 0, None)]
    assert harness.value("SELECT error ->> 'kind' FROM queuert.event WHERE status = 'failed'") == "lease_expired"


def test_a_block_that_is_rolled_back_leaves_none(harness: StoreHarness) -> None:
    harness.start("a")
    [lease] = harness.claim()
    harness.new()

    def complete(trouble: Exception | None) -> None:
        with harness.store.transaction(lease) as transaction:
            transaction.finish(Finish(lease, FinishKind.COMPLETE, output="1"))
            if trouble:
                raise trouble

    with pytest.raises(RuntimeError):
        complete(RuntimeError())
    assert harness.new() == []
    complete(None)
    assert harness.new() == [("a", "completed", "completed", 1, "me")]


# --- from outside -----------------------------------------------------------------------------------------------------


def test_completed_from_outside(harness: StoreHarness) -> None:
    harness.start("a", "b")
    harness.new()
    harness.store.complete_chains(
        [WorkerlessCompletion("a", "a", "1", None), WorkerlessCompletion("b", "b", None, NewJob("c", "next", "1"))]
    )
    assert sorted(harness.new()) == [
        ("a", "completed", "completed", 0, None),
        ("b", "continued", "continued", 0, None),
        ("c", "created", "ready", 0, None),
    ]


def test_cancelled_from_outside(harness: StoreHarness) -> None:
    """A running one too: its attempt ends by nobody of its own."""
    harness.start("a")
    harness.claim()
    harness.new()
    harness.store.cancel_chains(["a"], reason="no more")
    assert harness.new() == [("a", "cancelled", "cancelled", 1, None)]
    assert harness.value("SELECT error ->> 'message' FROM queuert.event WHERE kind = 'cancelled'") == "no more"
    harness.store.cancel_chains(["a"], reason="no more")
    assert harness.new() == []


def test_retried_by_hand(harness: StoreHarness) -> None:
    """One that waited for a chain that is open again waits again."""
    harness.start("a")
    harness.start("b", blockers=("a",))
    harness.store.cancel_chains(["a", "b"], reason="no")
    harness.new()
    harness.store.retry_chains(["a"])
    assert harness.new() == [("a", "retried_by_hand", "ready", 0, None)]
    harness.store.retry_chains(["b"])
    assert harness.new() == [("b", "retried_by_hand", "ready", 0, None), ("b", "blocked", "blocked", 0, None)]


def test_debounced(harness: StoreHarness) -> None:
    key = Deduplicate("key", debounce=3600.0)
    harness.start("a", run_at=LATER, deduplication=key)
    harness.new()
    harness.start("b", run_at=LATER, deduplication=key)
    assert harness.new() == [("a", "debounced", "scheduled", 0, None)]


def test_triggered(harness: StoreHarness) -> None:
    harness.start("a", run_at=LATER)
    harness.start("b")
    harness.new()
    harness.store.trigger_jobs(["a", "b"])
    assert harness.new() == [("a", "triggered", "ready", 0, None)]


def test_stranded(harness: StoreHarness) -> None:
    harness.start("a")
    harness.start("b", blockers=("a",))
    harness.sql.execute("UPDATE queuert.job_blocker SET closed = true")
    harness.new()
    assert len(harness.store.release_stranded().released) == 1
    assert harness.new() == [("b", "unblocked", "ready", 0, None)]


def test_deleted(harness: StoreHarness) -> None:
    harness.start("a")
    harness.store.finish(
        [Finish(one, FinishKind.CONTINUE, continuation=NewJob("b", "work", "1")) for one in harness.claim()]
    )
    harness.new()
    harness.store.delete_chains(["a"])
    assert sorted(harness.new()) == [("a", "deleted", "continued", 1, None), ("b", "deleted", "ready", 0, None)]
    assert harness.store.get_jobs(["a", "b"]) == [None, None]


def test_progress_that_is_to_be_logged(harness: StoreHarness) -> None:
    """By the renewal that writes it, if its lease holds; at the level ``all`` only."""
    harness.start("a", "b")
    first, second = harness.claim(2)
    harness.new()
    text = json.dumps({"attempt": 1, "at": "2026-01-02T03:04:05+00:00", "done": 3, "message": "pages"})
    lost = Lease(second.id, new_token())
    renewals = [Renewal(first.lease, 60.0, text, logs_progress=True), Renewal(lost, 60.0, text, logs_progress=True)]
    assert harness.store.renew(renewals) == [True, False]
    assert harness.new() == [(first.id, "progressed", "running", 1, "me")]
    [event] = harness.store.list_events(EventFilter(kinds=("progressed",)), PageRequest())
    assert event.progress == JobProgress(None, 3, None, "pages", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert event.started_at is not None
    harness.store.renew([Renewal(first.lease, 60.0, text), Renewal(second.lease, 60.0)])
    harness.store.set_event_level(EventLevel.TERMINAL)
    harness.store.renew([Renewal(first.lease, 60.0, text, logs_progress=True)])
    assert harness.new() == []


def test_renewals_and_reads_leave_none(harness: StoreHarness) -> None:
    harness.start("a")
    [lease] = harness.claim()
    harness.new()
    assert harness.store.renew([Renewal(lease.lease, 60.0)]) == [True]
    harness.store.get_jobs(["a"])
    assert harness.new() == []


# --- what is in a row -------------------------------------------------------------------------------------------------


def test_times_and_the_transaction(harness: StoreHarness) -> None:
    """An event has the transaction, and times by which waits and runs can be told."""
    harness.start("a")
    [lease] = harness.claim()
    harness.store.finish([Finish(lease, FinishKind.COMPLETE, output="1")])
    found = harness.sql.execute(
        "SELECT scheduled_at, started_at, happened_at, tx::text FROM queuert.event ORDER BY seq"
    ).fetchall()
    job = harness.sql.execute(
        "SELECT created_at, started_at, finished_at, completed_tx::text FROM queuert.job"
    ).fetchone()
    assert job is not None
    created, started, done = found
    assert (created[0], created[1]) == (job[0], None)
    assert [one[:2] for one in (started, done)] == [(job[0], job[1])] * 2
    assert created[2] >= job[0]
    assert done[3] == job[3]
    assert len({one[3] for one in found}) == 3
    assert created[2] <= started[2] <= done[2] <= datetime.now(UTC)


# --- by which transaction it ended ------------------------------------------------------------------------------------


def completed(harness: StoreHarness) -> dict[str, bool]:
    rows = harness.sql.execute("SELECT id, completed_tx IS NOT NULL FROM queuert.job ORDER BY id").fetchall()
    return {row[0]: row[1] for row in rows}


def last_tx(harness: StoreHarness) -> str:
    return str(harness.value("SELECT tx::text FROM queuert.event ORDER BY seq DESC LIMIT 1"))


@pytest.mark.parametrize("outside", [False, True])
def test_completed_tx(harness: StoreHarness, outside: bool) -> None:
    """Of each job its own; of a chain's first job that by which the chain closed, until it is opened again."""
    harness.start("a")
    [lease] = harness.claim()
    assert completed(harness) == {"a": False}
    harness.store.finish([Finish(lease, FinishKind.CONTINUE, continuation=NewJob("b", "next", "1"))])
    assert completed(harness) == {"a": True, "b": False}
    if outside:
        harness.store.cancel_chains(["a"], reason="no")
    else:
        [lease] = harness.claim(type="next")
        harness.store.finish([Finish(lease, FinishKind.FAIL)])
    ids = harness.sql.execute("SELECT DISTINCT completed_tx::text FROM queuert.job").fetchall()
    assert ids == [(last_tx(harness),)]
    harness.store.retry_chains(["a"])
    assert completed(harness) == {"a": False, "b": False}
    harness.store.complete_chains([WorkerlessCompletion("a", "b", "1", None)])
    ids = harness.sql.execute("SELECT DISTINCT completed_tx::text FROM queuert.job").fetchall()
    assert ids == [(last_tx(harness),)]


def test_completed_tx_of_the_reaped(harness: StoreHarness) -> None:
    harness.start("a")
    harness.claim()
    harness.expire("a")
    harness.store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)}))
    assert harness.value("SELECT completed_tx::text FROM queuert.job") == last_tx(harness)


@pytest.mark.parametrize("kind", [FinishKind.RETRY, FinishKind.INTERRUPT])
def test_what_is_to_run_again_has_not_ended(harness: StoreHarness, kind: FinishKind) -> None:
    harness.start("a")
    harness.store.finish([Finish(harness.claim()[0], kind)])
    assert completed(harness) == {"a": False}
