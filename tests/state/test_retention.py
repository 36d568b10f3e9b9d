"""Retention by what only the database can be told: chains that are old, and rows that others hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.policies import Keep, Retention
from queuert.state.postgres import PostgresState
from queuert.state.postgres.bulk import BulkSettings, bulk_session
from queuert.state.postgres.history import ArchivedChain, delete_archived, kept_chains
from queuert.state.sync_store import Store
from queuert.state.types import NewJob, PruneRequest

HOUR = Retention(completed=Keep(age=3_600))


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


def closed(
    connection: psycopg.Connection[Any], id: str, *, started: float, ended: float, ttl: float | None = None
) -> None:
    """A completed chain that was started and closed so many hours ago."""
    connection.execute(
        "INSERT INTO queuert.job (id, chain_id, type, chain_type, chain_status, status, input, output, created_at,"
        " chain_closed_at, expires_at) SELECT %(id)s, %(id)s, 'work', 'work', 'completed', 'completed', '1', '1',"
        " now() - %(started)s * interval '1 hour', now() - %(ended)s * interval '1 hour',"
        " now() + %(ttl)s * interval '1 hour'",
        {"id": id, "started": started, "ended": ended, "ttl": ttl},
    )


def pruned(store: Store, policy: Retention) -> list[str]:
    return sorted(store.prune(PruneRequest({"work": policy})).chain_ids)


def test_age_counts_from_the_closing(store: Store, connection: psycopg.Connection[Any]) -> None:
    """A chain that was started long ago and closed just now is young."""
    closed(connection, "old", started=3, ended=2)
    closed(connection, "young", started=3, ended=0.5)
    closed(connection, "younger", started=0.5, ended=0.4)
    assert pruned(store, HOUR) == ["old"]
    assert pruned(store, HOUR) == []


def test_count_goes_by_the_start(store: Store, connection: psycopg.Connection[Any]) -> None:
    closed(connection, "started first", started=3, ended=0)
    closed(connection, "started last", started=2, ended=1)
    assert pruned(store, Retention(completed=Keep(count=1))) == ["started first"]


def test_with_both_bounds_and_a_ttl(store: Store, connection: psycopg.Connection[Any]) -> None:
    """Three are kept by count, and of these what is young; one with a TTL is counted, and stays."""
    closed(connection, "beyond the count", started=5, ended=0.1)
    closed(connection, "too old", started=4, ended=3)
    closed(connection, "lasts", started=3, ended=2, ttl=1)
    closed(connection, "kept", started=2, ended=0.5)
    closed(connection, "over", started=9, ended=0.1, ttl=-1)
    assert pruned(store, Retention(completed=Keep(age=3_600, count=3))) == ["beyond the count", "over", "too old"]
    assert pruned(store, Retention(completed=Keep(age=3_600, count=3))) == []


def test_rows_that_are_held_are_not_waited_for(dsn: str, store: Store, connection: psycopg.Connection[Any]) -> None:
    """A look passes over a chain of which somebody holds one row, be it a later job, or one that waited for it."""
    for id in ("plain", "long", "named"):
        closed(connection, id, started=3, ended=2)
    connection.execute(
        "INSERT INTO queuert.job (id, chain_id, type, chain_type, chain_index, status, input)"
        " VALUES ('long2', 'long', 'work', 'work', 1, 'completed', '1')"
    )
    closed(connection, "waited", started=0.2, ended=0.1)
    connection.execute("INSERT INTO queuert.job_blocker VALUES (0, true, 'waited', 'named')")
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM queuert.job WHERE id IN ('long2', 'waited') FOR UPDATE")
        assert pruned(store, HOUR) == ["plain"]
    assert pruned(store, HOUR) == ["long", "named"]
    assert [job is not None for job in store.get_jobs(["long2", "waited"])] == [False, True]


def test_the_archive_keeps_what_webhooks_have_still_to_read(dsn: str, connection: psycopg.Connection[Any]) -> None:
    """What closed, or became stale, at a time or later; each batch counts, also those that wait for locks."""
    for id, ended in (("old", 4), ("stale", 3), ("retried", 2), ("edge", 1), ("young", 0.5)):
        closed(connection, id, started=5, ended=ended)
    connection.execute("UPDATE queuert.job SET stale_at = now() WHERE id = 'stale'")
    connection.execute("UPDATE queuert.job SET stale_at = chain_closed_at - interval '1 hour' WHERE id = 'retried'")
    rows = connection.execute("SELECT id, created_at, chain_closed_at, expires_at FROM queuert.job").fetchall()
    chains = {id: ArchivedChain(id, started, ended, expires, 1) for id, started, ended, expires in rows}
    edge, every = chains["edge"].closed_at, list(chains.values())
    with bulk_session(BulkSettings(dsn, "queuert")) as session:
        assert sorted(delete_archived(session, every, closed_before=edge) or ()) == ["old", "retried"]
        assert delete_archived(session, every, closed_before=edge, wait=True) == []
        assert kept_chains(session, every, edge) == {"stale": "unread", "edge": "unread", "young": "unread"}
        assert kept_chains(session, every) == {"stale": "busy", "edge": "busy", "young": "busy"}
        later = edge + timedelta(microseconds=1)
        assert delete_archived(session, every, closed_before=later) == ["edge"]
        assert sorted(delete_archived(session, every) or ()) == ["stale", "young"]


def test_a_deduplication_slot_goes_with_its_last_chain(store: Store, connection: psycopg.Connection[Any]) -> None:
    store.start_jobs([NewJob("a", "work", "1", deduplication=Deduplicate("key"))])
    store.cancel_chains(["a"], reason="enough")
    assert connection.execute("SELECT count(*) FROM queuert.deduplication").fetchone() == (1,)
    assert pruned(store, Retention(cancelled=Keep(count=0))) == ["a"]
    assert connection.execute("SELECT count(*) FROM queuert.deduplication").fetchone() == (0,)
