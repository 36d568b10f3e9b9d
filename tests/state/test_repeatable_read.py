"""Callers whose transactions see an old snapshot: what they cannot see, they must not decide by."""

from __future__ import annotations

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.errors import StateUnavailableError
from queuert.ids import new_id
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob


def test_a_key_is_refused_rather_than_doubled(dsn: str) -> None:
    """A start whose snapshot is older than the winner's commit is refused by the database, and writes nothing."""
    new = [NewJob(new_id(), "work", "1", deduplication=Deduplicate("key")) for _ in range(3)]
    store = PostgresState(dsn).sync_store(max_connections=1)
    store.open()
    try:
        with psycopg.connect(dsn) as caller:
            caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            caller.execute("SELECT 1")
            [first] = store.start_jobs(new[:1])
            with pytest.raises(StateUnavailableError, match="serialize"):
                store.start_jobs(new[1:2], connection=caller)
            caller.rollback()
            [again] = store.start_jobs(new[2:], connection=caller)
        assert (again.id, again.existing) == (first.id, True)
        assert store.get_jobs([new[1].id, new[2].id]) == [None, None]
    finally:
        store.close()
