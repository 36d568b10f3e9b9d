"""Attempts that fail have a lean statement, beside completions or alone, which writes the same as the general one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from queuert.ids import new_token
from queuert.jobs import AbortReason, JobError, JobStatus
from queuert.state import Store
from queuert.state.postgres import PostgresState, finishing, sync_finishing
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, FinishResult, NewJob
from tests.state.test_round_trips import steps

ODD = JobError("handler", 'no "way"\n\\ {},ä\U0001f600', "app.Broken", "File x\n\tboom")
ERROR = JobError("handler", "no")

FINISHES: dict[str, dict[str, Any]] = {
    "done": {"kind": FinishKind.COMPLETE, "output": '{"a": [1, null]}'},
    "done with nothing": {"kind": FinishKind.COMPLETE},
    "again": {"kind": FinishKind.RETRY, "error": ODD, "delay": 3_600.0},
    "again at once": {"kind": FinishKind.RETRY, "error": ERROR},
    "again by itself": {"kind": FinishKind.RETRY, "delay": 0.5},
    "crashed": {"kind": FinishKind.RETRY, "error": ERROR, "delay": 1e9, "crashed": True},
    "failed": {"kind": FinishKind.FAIL, "error": ODD},
    "failed by itself": {"kind": FinishKind.FAIL},
    "crashed for good": {"kind": FinishKind.FAIL, "error": ERROR, "crashed": True},
}
"""By the ids of jobs, how their attempts end."""

ROWS = """
    SELECT id, status, chain_status, attempt, uncounted, lease_expirations, priority, output::text, error::text,
        lease_token IS NULL, lease_expires_at IS NULL, finished_at IS NULL, chain_closed_at IS NULL,
        completed_tx IS NULL, extract(epoch FROM expires_at - chain_closed_at)::int,
        scheduled_at - clock_timestamp() > interval '50 minutes', scheduled_at > started_at,
        holder, continued_by, has_dependents
    FROM queuert.job ORDER BY id
"""
EVENTS = """
    SELECT job_id, kind, event.status, event.chain_id, event.chain_index, event.type, event.chain_type, event.attempt,
        event.scheduled_at = job.scheduled_at, event.started_at = job.started_at, worker, event.error::text
    FROM queuert.event JOIN queuert.job ON job.id = job_id
    WHERE kind NOT IN ('created', 'started') ORDER BY job_id, seq
"""


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def lean_only(store: Store) -> None:
    """The general statement would be noticed."""
    vars(vars(store)["_sql"])["finish"] = b"SELECT 1 / 0"


def claimed(store: Store, *ids: str, type: str = "work") -> list[ClaimedJob]:
    """New jobs under a lease, in this order."""
    store.start_jobs([NewJob(id, type, "1", id_chosen=True, priority=3, result_ttl=60.0) for id in ids])
    found = {one.id: one for one in store.claim(ClaimRequest({type: 60.0}, len(ids), "me", new_token()))}
    return [found[id] for id in ids]


def retried(job: ClaimedJob) -> Finish:
    return Finish(job, FinishKind.RETRY, error=ERROR, delay=3_600.0)


def status(store: Store, *ids: str) -> list[JobStatus]:
    return [job.status for job in store.get_jobs(list(ids)) if job is not None]


# --- the same as the general one --------------------------------------------------------------------------------------


def written(store: Store, connection: psycopg.Connection[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """What these finishes of new jobs come to: what the store says, rows, events."""
    connection.execute("DELETE FROM queuert.job_event")
    connection.execute("DELETE FROM queuert.job")
    finishes = [Finish(job, **FINISHES[job.id]) for job in claimed(store, *names)]
    results = store.finish(finishes)
    assert all(one.written for one in store.finish(finishes))
    return results, connection.execute(ROWS).fetchall(), connection.execute(EVENTS).fetchall()


@pytest.mark.parametrize("names", [list(FINISHES), ["again"], ["failed"], ["done", "again"]], ids=len)
def test_both_statements_write_the_same(
    store: Store, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    lean = written(store, connection, names)
    monkeypatch.setattr(sync_finishing, "all_simple", lambda finishes: False)
    assert written(store, connection, names) == lean
    assert [row[0] for row in lean[1]] == [row[0] for row in lean[2]] == sorted(names)


@pytest.mark.parametrize(
    ("level", "of_type", "reported"),
    [
        ("all", None, {"completed", "retried", "failed"}),
        ("terminal", None, {"completed", "failed"}),
        ("off", None, set()),
        ("all", "terminal", {"completed", "failed"}),
        ("all", "off", set()),
        ("off", "all", {"completed", "retried", "failed"}),
        ("off", "terminal", {"completed", "failed"}),
        ("terminal", "all", {"completed", "retried", "failed"}),
    ],
)
def test_levels_of_events(
    store: Store, connection: psycopg.Connection[Any], level: str, of_type: str | None, reported: set[str]
) -> None:
    connection.execute("UPDATE queuert.event_log SET level = %s", [level])
    if of_type is not None:
        connection.execute("INSERT INTO queuert.event_level (type, level) VALUES ('work', %s)", [of_type])
    assert {event[1] for event in written(store, connection, ["done", "again", "failed"])[2]} == reported


# --- which statement --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lean_only")
@pytest.mark.parametrize("count", [1, 50])
def test_failures_are_one_statement(dsn: str, store: Store, count: int) -> None:
    """Beside completions, which then do not go by the general one either."""
    names = [f"{kind} {number}" for number in range(count) for kind in ("done", "again", "failed")]
    finishes = [Finish(job, **FINISHES[job.id.split()[0]]) for job in claimed(store, *names)]
    assert finishing.all_simple(finishes)
    assert steps(dsn, lambda store: store.finish(finishes)) == 1
    assert status(store, *names) == [JobStatus.COMPLETED, JobStatus.SCHEDULED, JobStatus.FAILED] * count


@pytest.mark.usefixtures("lean_only")
def test_a_later_job_of_a_chain_is_tried_again_by_it(store: Store, connection: psycopg.Connection[Any]) -> None:
    """Also where others wait for the chain: it stays open."""
    [first] = claimed(store, "a")
    connection.execute(
        "UPDATE queuert.job SET status = 'continued', continued_by = 'b', lease_expires_at = NULL,"
        " has_dependents = true"
    )
    connection.execute(
        "INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_index, status, scheduled_at, input)"
        " VALUES ('b', 'work', 'a', 'work', 1, 'ready', clock_timestamp(), '1')"
    )
    [second] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    assert (second.id, second.chain_index) == ("b", 1)
    assert store.finish([retried(second)])[0].written
    assert status(store, first.id, "b") == [JobStatus.CONTINUED, JobStatus.SCHEDULED]


@pytest.mark.parametrize(
    "finish",
    [
        {"kind": FinishKind.CANCEL, "error": ERROR},
        {"kind": FinishKind.INTERRUPT},
        {"kind": FinishKind.FAIL, "error": ERROR, "result_ttl": 5.0},
        {"kind": FinishKind.CONTINUE, "continuation": NewJob("next", "next", "1")},
        {"kind": FinishKind.COMPLETE, "output": f'"{"x" * (9 * 1024 * 1024)}"'},
    ],
)
def test_others_go_by_the_general_statement(store: Store, finish: dict[str, Any]) -> None:
    one, other = claimed(store, "a", "b")
    finishes = [Finish(one, **finish), retried(other)]
    assert not finishing.all_simple(finishes)
    assert all(result.written for result in store.finish(finishes))


def test_what_closes_a_chain_that_others_wait_for_goes_by_the_general_statement(store: Store) -> None:
    [job] = claimed(store, "a")
    later = replace(job, chain_index=1, chain_id="c")
    awaited = replace(job, has_dependents=True)
    assert not finishing.all_simple([Finish(later, FinishKind.FAIL)])
    assert not finishing.all_simple([Finish(awaited, FinishKind.FAIL)])
    assert finishing.all_simple([retried(later), retried(awaited)])


# --- the guard --------------------------------------------------------------------------------------------------------


def test_a_lost_lease_writes_nothing_and_disturbs_nobody(store: Store) -> None:
    lost, gone, held = claimed(store, "a", "b", "c")
    store.release([lost.lease])
    store.cancel_chains(["b"], reason="no")
    results = store.finish([retried(lost), Finish(gone, FinishKind.FAIL, error=ERROR), retried(held)])
    assert results[:2] == [
        FinishResult("a", AbortReason.TAKEN_BY_ANOTHER_WORKER),
        FinishResult("b", AbortReason.CANCELLED),
    ]
    assert results[2].written
    assert status(store, "a", "b", "c") == [JobStatus.READY, JobStatus.CANCELLED, JobStatus.SCHEDULED]


@pytest.mark.parametrize("last", ["old", "new"])
def test_two_finishes_of_one_job_are_reported_apart(store: Store, last: str) -> None:
    """Of an attempt that has lost its lease, and of the one that has it now, in either order."""
    [old] = claimed(store, "a")
    store.release([old.lease])
    [new] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    batch = [Finish(old, FinishKind.FAIL, error=ERROR), retried(new)]
    results = store.finish(batch if last == "new" else batch[::-1])
    assert sorted(result.written for result in results) == [False, True]
    assert status(store, "a") == [JobStatus.SCHEDULED]


def test_a_failure_for_which_somebody_waits_meanwhile_releases_them(store: Store) -> None:
    """The claim knew of none: the lean statement leaves such a row to the general one, and writes the others."""
    a, b = claimed(store, "a", "b")
    store.start_jobs([NewJob("waiting", "join", "1", blockers=("a",))])
    batch = [Finish(a, FinishKind.FAIL, error=ERROR), retried(b)]
    assert finishing.all_simple(batch)
    results = store.finish(batch)
    assert all(result.written for result in results)
    assert "join" in [type for result in results for type in result.due_types]
    assert status(store, "a", "b", "waiting") == [JobStatus.FAILED, JobStatus.SCHEDULED, JobStatus.READY]


def test_a_row_that_is_locked_holds_up_nobody(store: Store, connection: psycopg.Connection[Any]) -> None:
    a, b, c = claimed(store, "a", "b", "c")
    batch = [retried(a), retried(b), Finish(c, FinishKind.COMPLETE, output="1")]
    with connection.transaction():
        connection.execute("SELECT FROM queuert.job WHERE id = 'b' FOR UPDATE")
        results = store.finish(batch, wait=False)
        assert [result.locked for result in results] == [False, True, False]
        assert status(store, "a", "b", "c") == [JobStatus.SCHEDULED, JobStatus.RUNNING, JobStatus.COMPLETED]
    assert all(result.written for result in store.finish(batch))
    assert status(store, "b") == [JobStatus.SCHEDULED]
