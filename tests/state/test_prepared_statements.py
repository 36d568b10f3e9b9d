"""Statements under names of their own, past psycopg's cursors: what others do to a connection does not matter."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import migrations
from queuert.jobs import JobStatus
from queuert.state.adapter import NewJob
from queuert.state.postgres import PostgresState
from queuert.testing.conformance import Colour, Stores
from queuert.testing.conformance.building import claim_one, complete, fail, job, read, started_and_claimed


@pytest.fixture(params=list(Colour), ids=str)
def colour(request: pytest.FixtureRequest) -> Colour:
    given: Colour = request.param
    return given


@pytest.fixture
async def stores(dsn: str, colour: Colour) -> AsyncIterator[Stores]:
    stores = Stores(PostgresState(dsn), colour)
    yield stores
    await stores.aclose()


async def run(connection: Any, statement: str) -> list[Any]:
    """The rows of a statement, on a connection of either colour."""
    cursor = connection.execute(statement)
    if inspect.isawaitable(cursor):
        cursor = await cursor
        return list(await cursor.fetchall()) if cursor.description else []
    return list(cursor.fetchall()) if cursor.description else []


NAMES = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'queuert\\_%'"


@pytest.mark.parametrize("statement", ["DEALLOCATE ALL", "DISCARD PLANS"])
async def test_what_a_handler_deallocates_is_prepared_anew(stores: Stores, statement: str) -> None:
    """Each statement is used, taken away, and used again on the only connection that there is."""
    store = await stores.open(connections=1)
    for _ in range(2):
        [held] = await started_and_claimed(store)
        blocker = await started_and_claimed(store, type="blocker")
        await store.start_jobs([job("a"), job("b")])
        [waits] = await store.start_jobs([NewJob("w" + held.id, "waits", "1", blockers=(blocker[0].id,))])
        assert (await store.finish([complete(held)]))[0].written
        assert (await store.finish([complete(await claim_one(store, "a")), fail(await claim_one(store, "b"))]))[
            1
        ].written
        blocking = await read(store, blocker[0].id)
        assert blocking.status is JobStatus.RUNNING
        assert (await store.finish(list(map(complete, blocker))))[0].readied == ("waits",)
        last = await claim_one(store, "waits")
        assert last.id == waits.id
        async with store.transaction(last) as transaction:
            names = {row[0].rpartition("_")[0] for row in await run(transaction.connection, NAMES)}
            assert {"queuert_start_one", "queuert_claim", "queuert_complete", "queuert_unblock"} <= names
            await run(transaction.connection, statement)
        assert (await store.finish([complete(last)]))[0].written


async def test_a_connection_of_one_schema_serves_a_store_of_another(stores: Stores, dsn: str) -> None:
    """Both have prepared their start on it, each its own."""
    migrations.upgrade(dsn, schema="other")
    others = Stores(PostgresState(dsn, schema="other"), stores.colour)
    store, other = await stores.open(connections=1), await others.open()
    try:
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            await other.start_jobs([job()], connection=transaction.connection)
            await transaction.finish(complete(held))
        assert [one.count for one in await other.counts()] == [1]
        assert [(one.status, one.count) for one in await store.counts()] == [(JobStatus.COMPLETED, 1)]
    finally:
        await others.aclose()
