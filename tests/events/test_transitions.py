"""Every transition leaves exactly one event, written with it: what happened, what the job is then, whose attempt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queuert.errors import JobIdConflictError
from queuert.ids import new_token
from queuert.jobs import JobError
from queuert.limits import Limits
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.schedules import MissedRuns, tick_id
from queuert.state.types import (
    ClaimRequest,
    Finish,
    FinishKind,
    NewJob,
    ReapRequest,
    Renewal,
    ScheduleRecord,
    WorkerlessCompletion,
)
from tests.events.support import Scene

LATER = RunAt(delay=3600.0)
ERROR = JobError("handler", "no", "ValueError", "File x")
AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0)


# --- starts -----------------------------------------------------------------------------------------------------------


def test_started_chains(scene: Scene) -> None:
    """However they are started: alike, each its own way, with attributes, or found to be missing."""
    scene.start("a", "b")
    assert scene.new() == [("a", "created", "ready", 0, None), ("b", "created", "ready", 0, None)]
    scene.store.start_jobs([NewJob("c", "work", "1", run_at=LATER), NewJob("d", "other", "1")])
    assert scene.new() == [("c", "created", "scheduled", 0, None), ("d", "created", "ready", 0, None)]
    scene.store.start_jobs([NewJob("e", "work", "1", attributes={"user": "17"})])
    assert scene.new() == [("e", "created", "ready", 0, None)]
    scene.start("f", attach=True)
    assert scene.new() == [("f", "created", "ready", 0, None)]
    scene.start("f", attach=True)
    assert scene.new() == []


def test_started_chains_that_wait(scene: Scene) -> None:
    scene.start("a")
    scene.new()
    scene.start("b", blockers=("a",))
    assert scene.new() == [("b", "created", "ready", 0, None), ("b", "blocked", "blocked", 0, None)]
    scene.store.finish([Finish(one, FinishKind.COMPLETE, output="1") for one in scene.claim()])
    assert scene.new() == [
        ("a", "started", "running", 1, "me"),
        ("a", "completed", "completed", 1, "me"),
        ("b", "unblocked", "ready", 0, None),
    ]
    scene.start("c", blockers=("a",))
    assert scene.new() == [("c", "created", "ready", 0, None)]


def test_several_blockers(scene: Scene) -> None:
    """Only the last of them lets the job go."""
    scene.start("a", "b")
    scene.start("c", blockers=("a", "b"), run_at=LATER)
    scene.new()
    scene.store.cancel_chains(["a"], reason="no")
    assert scene.new() == [("a", "cancelled", "cancelled", 0, None)]
    scene.store.cancel_chains(["b"], reason="no")
    assert scene.new() == [("b", "cancelled", "cancelled", 0, None), ("c", "unblocked", "scheduled", 0, None)]


def test_ticks(scene: Scene) -> None:
    scene.store.put_schedules([ScheduleRecord("s", "work", "1", None, 3600.0, "UTC", MissedRuns.ONCE)])
    tick = scene.value("SELECT next_at FROM queuert.schedule")
    id = tick_id("s", tick)
    assert scene.store.fire_schedule("s", tick, None, [NewJob(id, "work", "1")])
    assert scene.new() == [(id, "created", "ready", 0, None)]


def test_rolled_back_starts_leave_none(scene: Scene) -> None:
    with psycopg.connect(scene.dsn) as connection:
        scene.store.start_jobs([NewJob("a", "work", "1"), NewJob("b", "other", "1")], connection=connection)
        connection.rollback()
    assert scene.new() == []
    with pytest.raises(JobIdConflictError):
        scene.start("a", "a")
    assert scene.new() == []


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
def test_finishes(scene: Scene, kind: FinishKind, more: dict[str, Any], event: tuple[str, str], beside: bool) -> None:
    """Alone, and in a batch with another kind."""
    scene.start("a")
    [lease] = scene.claim()
    scene.new()
    finishes = [Finish(lease, kind, **more)]
    if beside:
        scene.start("z")
        finishes += [Finish(one, FinishKind.INTERRUPT) for one in scene.claim()]
        scene.new()
    scene.store.finish(finishes)
    assert [one for one in scene.new() if one[0] == "a"] == [("a", *event, 1, "me")]
    stored = scene.value("SELECT error FROM queuert.event WHERE job_id = 'a' ORDER BY seq DESC LIMIT 1")
    assert (stored is None) == ("error" not in more)
    if stored is not None:
        assert stored == scene.value("SELECT error FROM queuert.job WHERE id = 'a'")
    assert all(result.lost is None for result in scene.store.finish(finishes))
    assert [one for one in scene.new() if one[0] == "a"] == []


def test_lost_leases_leave_none(scene: Scene) -> None:
    scene.start("a")
    [lease] = scene.claim()
    scene.store.release([lease.lease])
    scene.new()
    assert scene.store.finish([Finish(lease, FinishKind.COMPLETE, output="1")])[0].lost
    assert scene.store.finish([Finish(lease, FinishKind.FAIL)])[0].lost
    assert scene.store.release([lease.lease]) == 0
    assert scene.new() == []


def test_going_on(scene: Scene) -> None:
    """The next job is created in the statement that ends the one before it, whatever the one waits for."""
    scene.start("a")
    [lease] = scene.claim()
    scene.new()
    scene.store.finish([Finish(lease, FinishKind.CONTINUE, continuation=NewJob("b", "next", "1", run_at=LATER))])
    assert scene.new() == [("a", "continued", "continued", 1, "me"), ("b", "created", "scheduled", 0, None)]
    place = scene.sql.execute(
        "SELECT chain_id, chain_index, type, chain_type FROM queuert.event WHERE job_id = 'b'"
    ).fetchone()
    assert place == ("a", 1, "next", "work")


def test_waiting_for_others(scene: Scene) -> None:
    scene.start("a")
    [lease] = scene.claim()
    scene.new()
    child = NewJob("child", "other", "1")
    scene.store.finish([Finish(lease, FinishKind.WAIT, starts=(child,), blockers=("child",))])
    assert scene.new() == [
        ("a", "waiting", "ready", 1, "me"),
        ("child", "created", "ready", 0, None),
        ("a", "blocked", "blocked", 1, None),
    ]


def test_given_back(scene: Scene) -> None:
    """The attempt never was, and its number is used again."""
    scene.start("a", "b")
    [first] = scene.claim()
    scene.new()
    scene.store.release([first.lease])
    assert scene.new() == [("a", "released", "ready", 1, "me")]
    request = ClaimRequest({"work": 60.0}, 2, "you", new_token())
    assert len(scene.store.claim(request)) == 2
    assert scene.store.release_claim(request) == (2, 0)
    events = scene.new()
    assert sorted(events[:2]) == [("a", "started", "running", 1, "you"), ("b", "started", "running", 1, "you")]
    assert sorted(events[2:]) == [("a", "released", "ready", 1, "you"), ("b", "released", "ready", 1, "you")]


def test_claims_under_limits(scene: Scene) -> None:
    scene.start("a", limit_key="k")
    scene.new()
    request = ClaimRequest({"work": 60.0}, 1, "me", new_token(), limits={"work": Limits(concurrency=1)})
    assert len(scene.store.claim(request)) == 1
    assert scene.new() == [("a", "started", "running", 1, "me")]


@pytest.mark.parametrize("later", [False, True])
def test_expired_leases(scene: Scene, later: bool) -> None:
    policy = RetryPolicy(initial_delay=60.0) if later else AT_ONCE
    scene.start("a")
    scene.claim()
    scene.expire("a")
    scene.new()
    scene.store.reap(ReapRequest({"work": policy}))
    assert scene.new() == [("a", "lease_expired", "scheduled" if later else "ready", 1, "me")]


def test_expired_for_the_last_time(scene: Scene) -> None:
    scene.start("a")
    scene.start("b", blockers=("a",))
    scene.claim()
    scene.expire("a")
    scene.new()
    scene.store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)}))
    assert scene.new() == [("a", "lease_expired", "failed", 1, "me"), ("b", "unblocked", "ready", 0, None)]
    assert scene.value("SELECT error ->> 'kind' FROM queuert.event WHERE status = 'failed'") == "lease_expired"


def test_a_block_that_is_rolled_back_leaves_none(scene: Scene) -> None:
    scene.start("a")
    [lease] = scene.claim()
    scene.new()

    def complete(trouble: Exception | None) -> None:
        with scene.store.transaction(lease) as transaction:
            transaction.finish(Finish(lease, FinishKind.COMPLETE, output="1"))
            if trouble:
                raise trouble

    with pytest.raises(RuntimeError):
        complete(RuntimeError())
    assert scene.new() == []
    complete(None)
    assert scene.new() == [("a", "completed", "completed", 1, "me")]


# --- from outside -----------------------------------------------------------------------------------------------------


def test_completed_from_outside(scene: Scene) -> None:
    scene.start("a", "b")
    scene.new()
    scene.store.complete_chains(
        [WorkerlessCompletion("a", "a", "1", None), WorkerlessCompletion("b", "b", None, NewJob("c", "next", "1"))]
    )
    assert sorted(scene.new()) == [
        ("a", "completed", "completed", 0, None),
        ("b", "continued", "continued", 0, None),
        ("c", "created", "ready", 0, None),
    ]


def test_cancelled_from_outside(scene: Scene) -> None:
    """A running one too: its attempt ends by nobody of its own."""
    scene.start("a")
    scene.claim()
    scene.new()
    scene.store.cancel_chains(["a"], reason="no more")
    assert scene.new() == [("a", "cancelled", "cancelled", 1, None)]
    assert scene.value("SELECT error ->> 'message' FROM queuert.event WHERE kind = 'cancelled'") == "no more"
    scene.store.cancel_chains(["a"], reason="no more")
    assert scene.new() == []


def test_retried_by_hand(scene: Scene) -> None:
    """One that waited for a chain that is open again waits again."""
    scene.start("a")
    scene.start("b", blockers=("a",))
    scene.store.cancel_chains(["a", "b"], reason="no")
    scene.new()
    scene.store.retry_chains(["a"])
    assert scene.new() == [("a", "retried_by_hand", "ready", 0, None)]
    scene.store.retry_chains(["b"])
    assert scene.new() == [("b", "retried_by_hand", "ready", 0, None), ("b", "blocked", "blocked", 0, None)]


def test_triggered(scene: Scene) -> None:
    scene.start("a", run_at=LATER)
    scene.start("b")
    scene.new()
    scene.store.trigger_jobs(["a", "b"])
    assert scene.new() == [("a", "triggered", "ready", 0, None)]


def test_stranded(scene: Scene) -> None:
    scene.start("a")
    scene.start("b", blockers=("a",))
    scene.sql.execute("UPDATE queuert.job_blocker SET closed = true")
    scene.new()
    assert len(scene.store.release_stranded().released) == 1
    assert scene.new() == [("b", "unblocked", "ready", 0, None)]


def test_deleted(scene: Scene) -> None:
    scene.start("a")
    scene.store.finish(
        [Finish(one, FinishKind.CONTINUE, continuation=NewJob("b", "work", "1")) for one in scene.claim()]
    )
    scene.new()
    scene.store.delete_chains(["a"])
    assert sorted(scene.new()) == [("a", "deleted", "continued", 1, None), ("b", "deleted", "ready", 0, None)]
    assert scene.store.get_jobs(["a", "b"]) == [None, None]


def test_renewals_and_reads_leave_none(scene: Scene) -> None:
    scene.start("a")
    [lease] = scene.claim()
    scene.new()
    assert scene.store.renew([Renewal(lease.lease, 60.0)]) == [True]
    scene.store.get_jobs(["a"])
    assert scene.new() == []


# --- what is in a row -------------------------------------------------------------------------------------------------


def test_times_and_the_transaction(scene: Scene) -> None:
    """An event has the transaction, and times by which waits and runs can be told."""
    scene.start("a")
    [lease] = scene.claim()
    scene.store.finish([Finish(lease, FinishKind.COMPLETE, output="1")])
    found = scene.sql.execute(
        "SELECT scheduled_at, started_at, happened_at, tx::text FROM queuert.event ORDER BY seq"
    ).fetchall()
    job = scene.sql.execute(
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


def completed(scene: Scene) -> dict[str, bool]:
    rows = scene.sql.execute("SELECT id, completed_tx IS NOT NULL FROM queuert.job ORDER BY id").fetchall()
    return {row[0]: row[1] for row in rows}


def last_tx(scene: Scene) -> str:
    return str(scene.value("SELECT tx::text FROM queuert.event ORDER BY seq DESC LIMIT 1"))


@pytest.mark.parametrize("outside", [False, True])
def test_completed_tx(scene: Scene, outside: bool) -> None:
    """Of each job its own; of a chain's first job that by which the chain closed, until it is opened again."""
    scene.start("a")
    [lease] = scene.claim()
    assert completed(scene) == {"a": False}
    scene.store.finish([Finish(lease, FinishKind.CONTINUE, continuation=NewJob("b", "next", "1"))])
    assert completed(scene) == {"a": True, "b": False}
    if outside:
        scene.store.cancel_chains(["a"], reason="no")
    else:
        [lease] = scene.claim(type="next")
        scene.store.finish([Finish(lease, FinishKind.FAIL)])
    ids = scene.sql.execute("SELECT DISTINCT completed_tx::text FROM queuert.job").fetchall()
    assert ids == [(last_tx(scene),)]
    scene.store.retry_chains(["a"])
    assert completed(scene) == {"a": False, "b": False}
    scene.store.complete_chains([WorkerlessCompletion("a", "b", "1", None)])
    ids = scene.sql.execute("SELECT DISTINCT completed_tx::text FROM queuert.job").fetchall()
    assert ids == [(last_tx(scene),)]


def test_completed_tx_of_the_reaped(scene: Scene) -> None:
    scene.start("a")
    scene.claim()
    scene.expire("a")
    scene.store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)}))
    assert scene.value("SELECT completed_tx::text FROM queuert.job") == last_tx(scene)


@pytest.mark.parametrize("kind", [FinishKind.RETRY, FinishKind.INTERRUPT])
def test_what_is_to_run_again_has_not_ended(scene: Scene, kind: FinishKind) -> None:
    scene.start("a")
    scene.store.finish([Finish(scene.claim()[0], kind)])
    assert completed(scene) == {"a": False}
