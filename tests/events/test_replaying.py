"""What the log tells of any sequence of operations: folded, it is how the jobs stand."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant

from queuert.state import Store
from tests.model.test_state_machine import PostgresPlace, StoreMachine
from tests.support.store_harness import StoreHarness, opened

OPEN: set[str | None] = {"ready", "scheduled", "blocked", "running"}
FROM: dict[str, set[str | None]] = {
    "created": {None},
    "blocked": {"ready", "scheduled"},
    "unblocked": {"blocked"},
    "started": {"ready", "scheduled"},
    "released": {"running"},
    "completed": OPEN,
    "continued": OPEN,
    "retried": {"running"},
    "snoozed": {"running"},
    "failed": {"running"},
    "cancelled": OPEN,
    "interrupted": {"running"},
    "waiting": {"running"},
    "lease_expired": {"running"},
    "triggered": {"scheduled"},
    "debounced": {"ready", "scheduled"},
    "retried_by_hand": {"failed", "cancelled"},
    "deleted": {*OPEN, "continued", "completed", "failed", "cancelled"},
}
"""What a job can have been before each kind of event."""

_LOG = "SELECT job_id, kind, status, attempt FROM queuert.event ORDER BY {order}"
_JOBS = "SELECT id, status, attempt FROM queuert.job"
Log = dict[str, tuple[str | None, int]]


def replayed(sql: psycopg.Connection[Any], order: str) -> Log:
    """Status and attempt of each job that is there, from nothing but its events."""
    jobs: Log = {}
    for id, kind, status, attempt in sql.execute(_LOG.format(order=order).encode()):
        before, attempts = jobs.get(id, (None, 0))
        assert before in FROM[kind], (id, kind, before)
        assert attempt == attempts + (kind == "started"), (id, kind, attempt)
        if kind == "deleted":
            assert status == before
            del jobs[id]
        else:
            jobs[id] = (status, attempt - (kind == "released"))
    return jobs


class LoggedMachine(StoreMachine):
    """The model's operations, and what the log makes of them."""

    sql: psycopg.Connection[Any]

    @invariant()
    def the_log_tells_how_the_jobs_stand(self) -> None:
        if not hasattr(self, "model"):
            return
        stored = {row[0]: row[1:] for row in self.sql.execute(_JOBS.encode())}
        assert replayed(self.sql, "tx, seq") == stored
        assert replayed(self.sql, "seq") == stored


class LoggedPlace(PostgresPlace):
    """With an empty log."""

    def __init__(self, sql: psycopg.Connection[Any], store: Store) -> None:
        super().__init__(sql, store)
        self._log = sql

    def emptied(self) -> Store:
        self._log.execute("TRUNCATE queuert.job_event")
        return super().emptied()


@pytest.mark.timeout(300)
def test_any_sequence_is_reported_by_the_log(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        store = opened(dsn)
        machine: Any = type("Machine", (LoggedMachine,), {"place": LoggedPlace(sql, store), "sql": sql})
        machine.TestCase.settings = settings(
            max_examples=40,
            phases=[Phase.generate],
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        )
        try:
            machine.TestCase().runTest()
        finally:
            store.close()


def test_a_transaction_that_is_older_than_what_it_follows(harness: StoreHarness) -> None:
    """Its number is the lower one, so only by `seq` does a job's story end as it did."""
    harness.start("a")
    with psycopg.connect(harness.dsn) as callers:
        callers.execute("CREATE TEMPORARY TABLE takes_a_number (n int) ON COMMIT DROP")
        callers.execute("SELECT pg_current_xact_id()")
        [lease] = harness.claim()
        assert lease.id == "a"
        harness.store.cancel_chains(["a"], reason="no", connection=callers)
        callers.commit()
    stored = {row[0]: row[1:] for row in harness.sql.execute(_JOBS.encode())}
    assert stored == {"a": ("cancelled", 1)}
    assert replayed(harness.sql, "seq") == stored
    by_transaction = harness.sql.execute("SELECT kind FROM queuert.event ORDER BY tx, seq").fetchall()
    assert [row[0] for row in by_transaction] == ["created", "cancelled", "started"]
