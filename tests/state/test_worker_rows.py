"""The rows of the worker registry: cheap to beat, swept when their time is over, and never in the way of each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from queuert.state import Store
from queuert.state.postgres import PostgresState
from queuert.workers import WorkerHeartbeat

HOUR = 3600.0


def beat(id: str) -> WorkerHeartbeat:
    return WorkerHeartbeat(id, "name", "host", 1, "1.0", tuple(f"type{at}" for at in range(20)), 10, 3, 5.0)


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def ids(sql: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in sql.execute("SELECT id FROM queuert.worker ORDER BY id")]


def test_a_beat_touches_no_index(dsn: str, sql: psycopg.Connection[Any]) -> None:
    """Each goes beside the version before it, and leaves nothing behind that a vacuum would have to find."""
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    for _ in range(501):
        store.record_heartbeat(beat("one"), HOUR)
    store.close()  # The server's numbers are there when the session has ended.
    updates = hot = size = 0
    for _ in range(2000):
        updates, hot, size = sql.execute(
            """
            SELECT n_tup_upd, n_tup_hot_upd, pg_relation_size(relid) FROM pg_stat_user_tables
            WHERE relname = 'worker'
            """
        ).fetchall()[0]
        if updates >= 500:  # A session tells of some before its end as well, if it lasts for longer than a second.
            break
        threading.Event().wait(0.005)
    assert (updates, hot) == (500, 500)
    assert size <= 8 * 8192


def test_any_beat_sweeps_what_is_over(store: Store, sql: psycopg.Connection[Any]) -> None:
    for at in range(3):
        store.record_heartbeat(beat(f"dead{at}"), 0.0)
    assert ids(sql) == ["dead2"]
    store.record_heartbeat(beat("alive"), HOUR)
    assert ids(sql) == ["alive"]


def test_one_that_is_over_sweeps_not_itself(store: Store, sql: psycopg.Connection[Any]) -> None:
    """A beat of nothing but itself sends no second statement."""
    store.record_heartbeat(beat("one"), 0.0)
    store.record_heartbeat(beat("one"), 0.0)
    assert ids(sql) == ["one"]


def test_a_row_that_somebody_holds_is_not_waited_for(dsn: str, store: Store, sql: psycopg.Connection[Any]) -> None:
    """Neither by the sweep, nor by the beats of others."""
    for id in ("held", "dead"):
        store.record_heartbeat(beat(id), HOUR)
    sql.execute("UPDATE queuert.worker SET expires_at = now() - interval '1 second'")
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT FROM queuert.worker WHERE id = 'held' FOR UPDATE")
        store.record_heartbeat(beat("alive"), HOUR)
        assert ids(sql) == ["alive", "held"]
    store.record_heartbeat(beat("alive"), HOUR)
    assert ids(sql) == ["alive"]


def test_all_come_back_at_once(dsn: str, sql: psycopg.Connection[Any]) -> None:
    """After an outage the time of all is over: whoever beats sweeps the others, who beat at the same moment."""
    workers, rounds = 8, 25
    start = threading.Barrier(workers)

    def work(at: int) -> None:
        store = PostgresState(dsn).sync_store(max_connections=1)
        store.open()
        try:
            for _ in range(rounds):
                start.wait(20)
                store.record_heartbeat(beat(f"worker{at}"), 0.0)
            start.wait(20)
            store.record_heartbeat(beat(f"worker{at}"), HOUR)
        finally:
            store.close()

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(work, range(workers)))
    assert ids(sql) == [f"worker{at}" for at in range(workers)]
