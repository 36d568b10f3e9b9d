"""Times are in UTC, whatever time zone a database, a role or a caller's session has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuert import Client, JobType, JobTypes
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.postgres.sync_store import PostgresStore
from tests.redis.test_identifiers import Tour

number = JobType("number", input=int, output=int)

pytestmark = pytest.mark.quick


@pytest.fixture
def elsewhere(dsn: str) -> str:
    """A database whose sessions are in New York."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET TimeZone = 'America/New_York'").format(database))
    return dsn


def times(value: object) -> Iterable[datetime]:
    """All times in a value."""
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, str | bytes):
        return
    elif is_dataclass(value):
        for field in fields(value):
            yield from times(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from times(key)
            yield from times(one)
    elif isinstance(value, Iterable):
        for one in value:
            yield from times(one)


class Watched:
    """A store, of whose results all times are looked at."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.seen: set[str] = set()

    def why_lost(self, lease: object) -> None:
        """The tour asks this of Redis alone."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            result = found(*given, **named)
            looked_at = (
                list(times(result)) if isinstance(result, tuple | list | Mapping) or is_dataclass(result) else []
            )
            assert [one for one in looked_at if one.tzinfo is not UTC] == [], name
            if looked_at:
                self.seen.add(name)
            return result

        return call


@pytest.mark.parametrize("plain", [False, True], ids=["", "by psycopg's cursors"])
def test_every_operation(elsewhere: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.state.postgres.psycopg_internals.PLAIN_CURSORS", plain)
    state: Any = PostgresState(elsewhere)
    store = PostgresStore(state._settings, state._statements, 2)
    store.open()
    watched: Any = Watched(store)
    try:
        Tour(watched, "text").go()
        watched.list_chains(ChainFilter(), PageRequest())
    finally:
        store.close()
    assert watched.seen >= {
        "claim",
        "start_jobs",
        "get_jobs",
        "list_chains",
        "list_jobs",
        "list_schedules",
        "list_workers",
    }


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_callers_connection(elsewhere: str, driver: str) -> None:
    module = pytest.importorskip(driver)
    with Client(PostgresState(elsewhere), JobTypes(number)) as client, module.connect(elsewhere) as connection:
        chain = client.start_chain(number, 1, connection=connection)
        read = client.get_chain(chain.id, connection=connection)
        assert [one.created_at.tzinfo for one in (chain, read)] == [UTC, UTC]
        [[own]] = [connection.cursor().execute("SELECT now()").fetchone()] if driver == "psycopg" else [[None]]
        assert own is None or str(own.tzinfo) == "America/New_York"  # What is read on it else is the caller's.
