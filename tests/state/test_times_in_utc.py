"""Times are in UTC, whatever time zone a database, a role or a caller's session has."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from queuert import AsyncClient, Client, JobType, JobTypes
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.postgres.async_statements import fetch as fetch_async
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.postgres.protocol import PooledConnection
from queuert.state.postgres.rows import UnreadableRow
from queuert.state.postgres.sync_statements import fetch
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
    """A store, of whose results all times are looked at. Those of an async one are waited for by ``run``."""

    def __init__(self, store: PostgresStore | AsyncPostgresStore, run: Callable[[Any], Any] | None = None) -> None:
        self.store = store
        self.run = run
        self.seen: set[str] = set()

    def why_lost(self, lease: object) -> None:
        """The tour asks this of Redis alone."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            result = found(*given, **named) if self.run is None else self.run(found(*given, **named))
            has_times = isinstance(result, datetime | tuple | list | Mapping) or is_dataclass(result)
            looked_at = list(times(result)) if has_times else []
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
        look_at_all(watched)
    finally:
        store.close()


@pytest.mark.parametrize("plain", [False, True], ids=["", "by psycopg's cursors"])
def test_every_operation_of_an_async_store(elsewhere: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuert.state.postgres.psycopg_internals.PLAIN_CURSORS", plain)
    store = PostgresState(elsewhere).async_store(max_connections=2)
    with asyncio.Runner() as runner:
        runner.run(store.open())
        try:
            look_at_all(Watched(store, runner.run))
        finally:
            runner.run(store.aclose())


def look_at_all(watched: Any) -> None:
    Tour(watched, "text").go()
    watched.list_chains(ChainFilter(), PageRequest())
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


UNREADABLE = b"SELECT now(), 'infinity'::timestamptz UNION ALL SELECT now(), now()"


@pytest.mark.parametrize("pooled", [False, True], ids=["by a cursor", "of the pool"])
def test_rows_beside_one_that_cannot_be_read(elsewhere: str, pooled: bool) -> None:
    kind = PooledConnection if pooled else psycopg.Connection[Any]
    with kind.connect(elsewhere) as connection:
        if isinstance(connection, PooledConnection):
            cursor = psycopg.RawCursor(connection)
            cursor.execute(UNREADABLE, binary=True)
            assert cursor.pgresult is not None
            rows = connection.read(cursor.pgresult)
        else:
            rows = fetch(connection, UNREADABLE, lenient=True)
        expect_one_unreadable(rows)


async def test_rows_beside_one_that_cannot_be_read_async(elsewhere: str) -> None:
    async with await psycopg.AsyncConnection[Any].connect(elsewhere) as connection:
        expect_one_unreadable(await fetch_async(connection, UNREADABLE, lenient=True))


def expect_one_unreadable(rows: Sequence[Sequence[Any]]) -> None:
    [unreadable, other] = rows
    assert unreadable[1] is None
    assert isinstance(unreadable, UnreadableRow)
    assert [one.tzinfo for one in (unreadable[0], *other)] == [UTC, UTC, UTC]


def test_a_loader_that_the_program_has_registered_for_all_connections(elsewhere: str) -> None:
    """Also one from before queuert was imported."""
    code = f"""
import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format

class AsText(Loader):
    format = Format.BINARY

    def load(self, data):
        return "the program's own"

psycopg.adapters.register_loader("timestamptz", AsText)

from queuert.state.postgres.sync_statements import fetch

with psycopg.connect({elsewhere!r}) as connection:
    [[time]] = fetch(connection, b"SELECT now()")
    [own] = connection.cursor(binary=True).execute("SELECT now()").fetchone()
print(type(time).__name__, time.tzinfo, own)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "datetime UTC the program's own"


class Moment(datetime):
    """A class of times as libraries have them."""


def moment(text: str) -> Moment:
    return Moment.fromisoformat(text)


@pytest.mark.parametrize("codec", [None, str, moment], ids=["no codec", "a text", "another class"])
@pytest.mark.parametrize("pooled", [False, True], ids=["connection", "pool"])
async def test_a_callers_connection_of_asyncpg(elsewhere: str, codec: Any, pooled: bool) -> None:
    """In another zone, which the database has, and with the caller's own codec of times."""
    asyncpg = pytest.importorskip("asyncpg")

    async def own(connection: Any) -> None:
        await connection.execute("SET TIME ZONE 'America/New_York'")
        if codec is not None:
            await connection.set_type_codec(
                "timestamptz", encoder=str, decoder=codec, schema="pg_catalog", format="text"
            )

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(PostgresState(elsewhere), JobTypes(number)))
        pool = await stack.enter_async_context(asyncpg.create_pool(elsewhere, min_size=1, max_size=1, init=own))
        connection = pool if pooled else await stack.enter_async_context(pool.acquire())
        chain = await client.start_chain(number, 1, connection=connection)
        attached = await client.start_chain(number, 1, id=chain.id, attach=True, connection=connection)
        read = await client.get_chain(chain.id, connection=connection)
        [listed] = (await client.list_jobs(connection=connection)).items
        found = [one.created_at for one in (chain, attached, read, listed)]
        assert [(type(one), one.tzinfo) for one in found] == [(datetime, UTC)] * 4
        assert len(set(found)) == 1
        theirs = await connection.fetchval("SELECT now()")
        assert type(theirs) is {None: datetime, str: str, moment: Moment}[codec]  # What is read on it else.
