"""The sweep repairs what statements by hand have stranded, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from queuert.jobs import JobStatus
from queuert.run_at import after
from queuert.state.postgres import PostgresState
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import NewJob


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


def waiting(store: PostgresStore, id: str = "waits", **more: Any) -> None:
    """A job that waits for two chains."""
    if id == "waits":
        store.start_jobs([NewJob(one, "work", "1") for one in ("one", "two")])
    store.start_jobs([NewJob(id, "waits", "1", blockers=("one", "two"), **more)])


def status(store: PostgresStore, id: str = "waits") -> tuple[JobStatus, int]:
    [job] = store.get_jobs([id])
    assert job is not None
    return job.status, job.open_blockers


CLOSE: LiteralString = """
    UPDATE queuert.job SET status = 'completed', chain_status = 'completed', chain_closed_at = now() WHERE id = ANY (%s)
"""

STRANDED: list[tuple[LiteralString, ...]] = [
    # Chains that were closed by hand, and nobody released what waited for them.
    ("UPDATE queuert.job SET status = 'failed', chain_status = 'failed' WHERE type = 'work'",),
    # A counter that was set wrong.
    (
        "UPDATE queuert.job SET status = 'completed', chain_status = 'completed' WHERE type = 'work'",
        "UPDATE queuert.job_blocker SET closed = true",
        "UPDATE queuert.job SET open_blockers = 7 WHERE id = 'waits'",
    ),
    # Blockers that were taken away.
    ("DELETE FROM queuert.job_blocker",),
]


@pytest.mark.parametrize("by_hand", STRANDED, ids=["closed", "counter", "no blockers"])
def test_stranded_jobs_are_released(
    store: PostgresStore, connection: psycopg.Connection[Any], by_hand: tuple[LiteralString, ...]
) -> None:
    waiting(store)
    for statement in by_hand:
        connection.execute(statement)
    assert status(store)[0] is JobStatus.BLOCKED
    result = store.release_stranded()
    assert [(one.id, one.type) for one in result.released] == [("waits", "waits")]
    assert status(store) == (JobStatus.READY, 0)
    assert connection.execute("SELECT count(*) FROM queuert.job_blocker WHERE NOT closed").fetchone() == (0,)
    assert list(store.release_stranded().released) == []


def test_one_that_still_waits_is_let_be(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    waiting(store)
    connection.execute(CLOSE, [["one"]])
    assert list(store.release_stranded().released) == []
    assert status(store) == (JobStatus.BLOCKED, 2)
    connection.execute(CLOSE, [["two"]])
    assert [one.id for one in store.release_stranded().released] == ["waits"]


def test_its_time_is_kept(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    waiting(store, run_at=after(hours=1))
    connection.execute(CLOSE, [["one", "two"]])
    store.release_stranded()
    assert status(store) == (JobStatus.SCHEDULED, 0)


def test_pages(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    for id in ("waits", "c", "a", "b"):
        waiting(store, id)
    connection.execute(CLOSE, [["one", "two"]])
    first = store.release_stranded(limit=2)
    assert ([one.id for one in first.released], first.cursor) == (["a", "b"], "b")
    second = store.release_stranded(cursor=first.cursor, limit=2)
    assert [one.id for one in second.released] == ["c", "waits"]
    assert store.release_stranded(cursor=second.cursor, limit=2).cursor is None


def test_a_locked_row_is_passed_over(store: PostgresStore, connection: psycopg.Connection[Any], dsn: str) -> None:
    for id in ("waits", "other"):
        waiting(store, id)
    connection.execute(CLOSE, [["one", "two"]])
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT FROM queuert.job WHERE id = 'waits' FOR UPDATE")
        assert [one.id for one in store.release_stranded().released] == ["other"]
    assert [one.id for one in store.release_stranded().released] == ["waits"]


def test_a_retried_blocker_does_not_hold_it(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    """A chain that has closed once has closed for the job, although it is open again."""
    waiting(store)
    store.cancel_chains(["one", "two"], reason="no")
    store.retry_chains(["one"])
    connection.execute("UPDATE queuert.job SET status = 'blocked', open_blockers = 1 WHERE id = 'waits'")
    assert [one.id for one in store.release_stranded().released] == ["waits"]


def test_deleting_forgets_the_keys_that_nobody_has(
    store: PostgresStore, connection: psycopg.Connection[Any], dsn: str
) -> None:
    """The slot of a deduplication key goes with its last chain, unless somebody is about to start another."""
    store.start_jobs([NewJob(one, "work", "1") for one in ("a", "b", "c", "d")])
    by_id = {"a": "key", "b": "key", "c": "held", "d": "gone"}
    for id, key in by_id.items():
        connection.execute("UPDATE queuert.job SET deduplication_key = %s WHERE id = %s", [key, id])
    for key in ("key", "held", "gone"):
        connection.execute("INSERT INTO queuert.deduplication (type, key) VALUES ('work', %s)", [key])
    with psycopg.connect(dsn) as holder:
        holder.execute("UPDATE queuert.deduplication SET taken = taken + 1 WHERE key = 'held'")
        store.delete_chains(["a", "c", "d"])
    keys: LiteralString = "SELECT key FROM queuert.deduplication ORDER BY key"
    assert connection.execute(keys).fetchall() == [("held",), ("key",)]
    store.delete_chains(["b"])
    assert connection.execute(keys).fetchall() == [("held",)]
