"""What statements read: claims and the worker's other rounds use indexes, whatever the backlog."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from queuert.deduplication import Deduplicate
from queuert.jobs import ChainStatus, JobStatus
from queuert.limits import Limits, Rate
from queuert.policies import Keep, Retention
from queuert.run_at import RunAt
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.sqlite import SQLiteState
from queuert.state.sqlite.connection import statements
from queuert.state.sqlite.store import SQLiteStore
from queuert.state.types import ClaimRequest, PruneRequest, ReapRequest, Renewal, WorkerlessCompletion
from queuert.testing.conformance.builders import AT_ONCE, ask, complete, go_on, job, retry

pytestmark = pytest.mark.timeout(300)

_PARAMETER = re.compile(r":(\w+)")

_WHOLE = {
    # By name, what is read from end to end, or sorted, and is meant to.
    "list_schedules": "all are wanted",
    "schedule_delays": "those of all types are wanted",
    "list_paused_job_types": "all are wanted",
    "list_workers": "all are wanted, and there are few",
    "list_type_traits": "all are wanted, and there are few",
    "delete_stale_workers": "there are few",
    "types": "jumps from type to type",
    "types_of_chains": "jumps from type to type",
    "ready_keys": "jumps from key to key",
    "open_dependents": "sorts the jobs that wait for one chain",
    "blockers_of_chain": "what one chain's jobs wait for, each once",
    "add_event": "the settings of the log, one row",
    "event_log": "the settings of the log, one row, and the last number of each table",
    "set_event_default": "the settings of the log, one row",
    "set_dropped_events": "the settings of the log, one row",
    "event_levels": "all are wanted",
    "count_held": "the running jobs, by an index that has no others",
    "oldest_event_time": "the first row",
    "get_webhook_records": "the ids that are given",
    "prune_webhook_attempts": "the first rows, up to a limit",
    "old_events": "the first rows, up to a limit",
    "list_events": "the types and kinds that are given",
    "list_events_oldest_first": "the types and kinds that are given",
}


@pytest.fixture
def connection(path: Path) -> sqlite3.Connection:
    store = SQLiteState(path).sync_store()
    store.open()
    store.close()
    return sqlite3.connect(path, isolation_level=None)


def plan_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    """The lines of the plan."""
    values = dict.fromkeys(_PARAMETER.findall(statement), 1)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize("name", sorted(set(statements())))
def test_no_statement_reads_a_table_from_end_to_end(connection: sqlite3.Connection, name: str) -> None:
    """Nor does it sort, without statistics: but for those that say why."""
    lines = plan_of(connection, statements()[name])
    bad = [line for line in lines if line.startswith("SCAN") or "TEMP B-TREE" in line]
    # An end of an index, and rows that are made up, are looked at and not searched for.
    bad = [line for line in bad if not re.match(r"SCAN (CONSTANT ROW|found|known|\(subquery)", line)]
    if name in ("last_created", "last_notification", "trim_notifications"):
        assert "max(" in statements()[name]
        bad = []
    assert not bad or name in _WHOLE, bad
    connection.close()


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("next_ready", "queuert_job_ready"),
        ("next_of_key", "queuert_job_limit_ready"),
        ("next_due_job", "queuert_job_scheduled"),
        ("ready_keys", "queuert_job_limit_ready"),
        ("next_scheduled", "queuert_job_scheduled"),
        ("expired_leases", "queuert_job_expiry"),
        ("next_expiry", "queuert_job_expiry"),
        ("find_open_duplicates", "queuert_job_open_key"),
        ("find_duplicates", "queuert_job_key"),
        ("find_expired", "queuert_job_end"),
        ("find_beyond_retention", "queuert_chain_type_listing"),
        ("retention_cutoff", "queuert_chain_type_listing"),
        ("count_type", "queuert_job_type_listing"),
        ("stranded", "queuert_job_blocked"),
        ("due_schedules", "queuert_schedule_due"),
    ],
)
def test_the_index_that_is_meant(connection: sqlite3.Connection, name: str, index: str) -> None:
    assert any(f" {index} " in line for line in plan_of(connection, statements()[name]))
    connection.close()


# --- what operations cost --------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of SQLite's machine on both connections of a store."""

    def __init__(self, path: Path) -> None:
        self.store: SQLiteStore = SQLiteState(path, synchronous="normal").sync_store()
        self.store.open()
        self._count = 0
        for link in (self.store._links.main, self.store._links.reader):
            link.connection.set_progress_handler(self._tick, 10)

    def _tick(self) -> None:
        self._count += 1

    def of(self, work: Callable[[], object]) -> int:
        """Tens of steps that this takes."""
        self._count = 0
        work()
        return self._count


def backlog(store: SQLiteStore, size: int) -> None:
    """Jobs of all kinds that have nothing to do with what is measured, and some that have."""
    store.start_jobs([job(priority=n % 7, limit_key=f"key{n % 5}") for n in range(size)])
    store.start_jobs([job(run_at=RunAt(delay=3600.0 + n)) for n in range(size)])
    store.start_jobs([job("other", attributes={"user": "17"}) for _ in range(size)])
    ended = store.start_jobs([job("ended", deduplication=Deduplicate(f"key{n}", scope="any")) for n in range(size)])
    store.complete_chains([WorkerlessCompletion(one.id, one.id, output="1") for one in ended])
    held = store.claim(ask("other", limit=size // 2))
    store.finish([complete(one) for one in held[: size // 4]])
    store.start_jobs([job("waits", blockers=[one.id]) for one in held[size // 4 :]])


def measured(steps: Steps) -> dict[str, int]:
    """What each operation takes."""
    store = steps.store
    mine = [job("mine", attributes={"user": "17"}) for _ in range(20)]
    found: dict[str, int] = {"start": steps.of(lambda: store.start_jobs(mine))}
    held = store.claim(ask("mine"))
    assert len(held) == 20
    keyed = job("ended", deduplication=Deduplicate("key7", scope="any"))
    found["start of a key"] = steps.of(lambda: store.start_jobs([keyed]))
    found["start of a new key"] = steps.of(
        lambda: store.start_jobs([job("mine", run_at=RunAt(delay=60.0), deduplication=Deduplicate("new"))])
    )
    found["renew"] = steps.of(lambda: store.renew([Renewal(one.lease, 60.0) for one in held]))
    found["finish"] = steps.of(lambda: store.finish([complete(held[0]), retry(held[1]), go_on(held[2], job("mine"))]))
    found["claim"] = steps.of(lambda: store.claim(ask(limit=10)))
    rated = {"work": Limits(concurrency=500, per_key=400, rate=Rate(1_000, per=60.0))}
    params = ask(limit=10)
    limited = ClaimRequest(params.leases, params.limit, params.holder, params.token, rated)
    found["limited claim"] = steps.of(lambda: store.claim(limited))
    found["claim of nothing"] = steps.of(lambda: store.claim(ask("nothing", "waits")))
    found["reap"] = steps.of(lambda: store.reap(ReapRequest(dict.fromkeys(("work", "mine", "other"), AT_ONCE))))
    found["next_due"] = steps.of(lambda: store.next_due(["waits", "ended"]))
    found["sweep"] = steps.of(lambda: store.release_stranded(limit=20))
    policies = {"ended": Retention(completed=Keep(count=10))}
    found["prune"] = steps.of(lambda: store.prune(PruneRequest(policies, limit=5)))
    found["update"] = steps.of(lambda: store.update_result_ttl([held[0].id], 60.0))
    for name, filter in {
        "all chains": ChainFilter(),
        "chains of a status": ChainFilter(statuses=(ChainStatus.FAILED, ChainStatus.COMPLETED)),
        "chains of a type": ChainFilter(types=("mine", "other")),
        "chains with attributes": ChainFilter(attributes=(("user", "17"),)),
    }.items():
        found[name] = steps.of(lambda filter=filter: store.list_chains(filter, PageRequest(limit=10)))  # type: ignore[misc]
    for name, jobs in {"all jobs": JobFilter(), "failed jobs": JobFilter(statuses=(JobStatus.FAILED,))}.items():
        found[name] = steps.of(lambda jobs=jobs: store.list_jobs(jobs, PageRequest(limit=10)))  # type: ignore[misc]
    found["cancel"] = steps.of(lambda: store.cancel_chains([held[3].id], reason="no"))
    return found


def test_nothing_costs_more_with_a_longer_backlog(tmp_path: Path) -> None:
    few, many = Steps(tmp_path / "few.db"), Steps(tmp_path / "many.db")
    backlog(few.store, 100)
    backlog(many.store, 4_000)
    less, more = measured(few), measured(many)
    assert {name: (less[name], cost) for name, cost in more.items() if cost > 1.5 * less[name] + 30} == {}
    few.store.close()
    many.store.close()
