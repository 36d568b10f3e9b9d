"""Statements under names of their own, past psycopg's cursors: what others do to a connection does not matter."""

from __future__ import annotations

import inspect
from dataclasses import replace
from enum import Enum
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert import migrations
from queuert.errors import StateError
from queuert.jobs import AbortReason, JobStatus
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob
from queuert.testing.conformance import Stores
from queuert.testing.conformance.builders import (
    AT_ONCE,
    claim_one,
    complete,
    expire,
    fail,
    job,
    read,
    reap,
    started_and_claimed,
)


async def run(connection: Any, statement: str) -> list[Any]:
    """The rows of a statement, on a connection sync or async."""
    cursor = connection.execute(statement)
    if inspect.isawaitable(cursor):
        cursor = await cursor
        return list(await cursor.fetchall()) if cursor.description else []
    return list(cursor.fetchall()) if cursor.description else []


NAMES = "SELECT name FROM pg_prepared_statements WHERE name LIKE 'queuert\\_%'"


@pytest.mark.parametrize("statement", ["DEALLOCATE ALL", "DISCARD PLANS"])
async def test_what_a_handler_deallocates_is_prepared_anew(stores: Stores, statement: str) -> None:
    """Each statement is used, taken away, and used again on the only connection that there is."""
    store = await stores.open(max_connections=1)
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
        assert (await store.finish(list(map(complete, blocker))))[0].due_types == ("waits",)
        last = await claim_one(store, "waits")
        assert last.id == waits.id
        async with store.transaction(last) as transaction:
            names = {row[0].rpartition("_")[0] for row in await run(transaction.connection, NAMES)}
            assert {"queuert_start_one", "queuert_claim", "queuert_complete", "queuert_release_dependents"} <= names
            await run(transaction.connection, statement)
        assert (await store.finish([complete(last)]))[0].written


async def test_a_block_that_deallocates_harms_nobody_else(stores: Stores) -> None:
    """Its own finish fails, as its transaction is spoiled; on the only connection all others go on."""
    store = await stores.open(max_connections=1)
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await transaction.finish(complete(held), last=True)
    [spoiled] = await started_and_claimed(store)

    async def spoil() -> None:
        async with store.transaction(spoiled) as transaction:
            await run(transaction.connection, "DEALLOCATE ALL")
            await transaction.finish(complete(spoiled), last=True)

    with pytest.raises(StateError, match="does not exist"):
        await spoil()
    for _ in range(3):
        async with store.transaction(spoiled) as transaction:
            await run(transaction.connection, "SELECT 1")
        [other] = await started_and_claimed(store)
        async with store.transaction(other) as transaction:
            await transaction.finish(complete(other), last=True)
    assert (await store.finish([complete(spoiled)]))[0].written


async def test_awaited_chains_close_after_a_deallocation(stores: Stores) -> None:
    store = await stores.open(max_connections=1)
    for _ in range(3):
        held = await started_and_claimed(store, type="blocker")
        await store.start_jobs([NewJob(held[0].id + "w", "waits", "1", blockers=(held[0].id,))])
        async with store.transaction(held[0]) as transaction:
            await run(transaction.connection, "DEALLOCATE ALL")
        assert (await store.finish([complete(held[0])], wait=False))[0].due_types == ("waits",)


# --- texts ------------------------------------------------------------------------------------------------------------


class Name(str, Enum):  # noqa: UP042
    """As programs wrote them before there was StrEnum: ``str()`` makes ``Name.SEND`` of it."""

    SEND = "send"


async def test_a_text_is_stored_as_it_is(stores: Stores, dsn: str) -> None:
    """Members of an enumeration of texts, and letters beyond ASCII, whatever encoding a connection string asks for."""
    state = PostgresState(make_conninfo(dsn, client_encoding="latin1"))
    others = Stores(state, stores.mode)
    store, other = await stores.open(), await others.open()
    try:
        await other.start_jobs([NewJob("\u00e9", Name.SEND, '"\u00f6"', limit_key=Name.SEND, id_chosen=True)])
        found = await claim_one(store, "send")
        assert (found.id, found.type, found.input) == ("\u00e9", "send", '"\u00f6"')
        with psycopg.connect(dsn) as observer:
            assert observer.execute("SELECT limit_key FROM queuert.job").fetchall() == [("send",)]
    finally:
        await others.aclose()


async def test_a_text_that_postgres_cannot_hold_is_refused(stores: Stores) -> None:
    """It would end where the NUL stands."""
    store = await stores.open()
    with pytest.raises(StateError, match="NUL"):
        await store.start_jobs([NewJob("abc\0def", "work", "1", id_chosen=True)])
    assert await store.count_jobs() == []


# --- other sessions ---------------------------------------------------------------------------------------------------


async def test_a_column_that_has_changed_fails_one_statement(stores: Stores, dsn: str) -> None:
    """What was prepared no longer fits; the session is replaced."""
    store = await stores.open(max_connections=1)
    await started_and_claimed(store)
    with psycopg.connect(dsn, autocommit=True) as stranger:
        stranger.execute("ALTER TABLE queuert.job ALTER trace_context TYPE varchar")
    await store.start_jobs([job()])
    with pytest.raises(StateError, match="cached plan"):
        await claim_one(store)
    assert (await claim_one(store)).attempt == 1


async def test_a_lost_finish_does_not_wait_for_who_has_taken_the_job(stores: Stores) -> None:
    """Others wait for its chain, and the new holder has its row in a transaction."""
    store = await stores.open()
    [lost] = await started_and_claimed(store)
    await store.start_jobs([NewJob("w", "waits", "1", blockers=(lost.id,), id_chosen=True)])
    await expire(store, lost)
    await reap(store, AT_ONCE)
    taken = await claim_one(store)
    [kept] = await started_and_claimed(store)
    async with store.transaction(taken):
        for wait in (False, True):
            [result] = await store.finish([replace(complete(lost), job=replace(lost, has_dependents=True))], wait=wait)
            assert result.lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
        assert (await store.finish([complete(kept)], wait=False))[0].written


async def test_a_connection_of_one_schema_serves_a_store_of_another(stores: Stores, dsn: str) -> None:
    """Both have prepared their start on it, each its own."""
    migrations.upgrade(dsn, schema="other")
    others = Stores(PostgresState(dsn, schema="other"), stores.mode)
    store, other = await stores.open(max_connections=1), await others.open()
    try:
        [held] = await started_and_claimed(store)
        async with store.transaction(held) as transaction:
            await other.start_jobs([job()], connection=transaction.connection)
            await transaction.finish(complete(held))
        assert [one.count for one in await other.count_jobs()] == [1]
        assert [(one.status, one.count) for one in await store.count_jobs()] == [(JobStatus.COMPLETED, 1)]
    finally:
        await others.aclose()
