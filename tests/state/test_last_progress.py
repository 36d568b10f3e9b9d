"""The last progress of an attempt is written with its finish on Postgres: once, whatever the finish has to wait for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from queuert import PostgresState
from queuert.event_log import EventFilter
from queuert.state import AsyncStore
from queuert.state.paging import PageRequest
from queuert.state.types import ClaimedJob, Finish
from queuert.testing.conformance import Mode
from queuert.testing.conformance.builders import complete, job, read, retry, start, started_and_claimed
from queuert.testing.conformance.stores import Stores
from tests.support.waiting import in_time


@pytest.fixture
async def store(dsn: str, mode: Mode) -> AsyncIterator[AsyncStore]:
    """A store of one connection."""
    stores = Stores(PostgresState(dsn), mode)
    yield await stores.open(max_connections=1)
    await stores.aclose()


def reporting(finish: Finish) -> Finish:
    """The finish of an attempt that has recorded progress last."""
    at = datetime(2026, 1, 2, tzinfo=UTC).isoformat()
    progress = {"attempt": finish.job.attempt, "at": at, "fraction": 1.0, "done": 4, "total": 4, "message": None}
    return replace(finish, progress=json.dumps(progress))


async def logged(store: AsyncStore, claimed: ClaimedJob) -> list[str]:
    """The kinds of the events of a job after its start."""
    page = await store.list_events(EventFilter(chain_id=claimed.chain_id), PageRequest())
    return [str(event.kind) for event in page.items][::-1][2:]


async def lock(dsn: str, job_id: str) -> psycopg.AsyncConnection:
    """A caller's transaction that has locked the row of a job."""
    connection = await psycopg.AsyncConnection.connect(dsn)
    await connection.execute("SELECT FROM queuert.job WHERE id = %s FOR UPDATE", [job_id])
    return connection


@pytest.mark.parametrize("locked", ["dependent", "own"])
async def test_a_finish_that_does_not_wait_writes_it_with_the_last_round(
    dsn: str, store: AsyncStore, locked: str
) -> None:
    [claimed] = await started_and_claimed(store)
    [dependent] = await start(store, job("waits", blockers=[claimed.id]))
    finish = reporting(complete(replace(claimed, has_dependents=True)))
    caller = await lock(dsn, dependent if locked == "dependent" else claimed.id)
    for _ in range(3):
        [result] = await store.finish([finish], wait=False)
        assert result.locked
        assert await logged(store, claimed) == []
    await caller.close()
    [result] = await store.finish([finish], wait=False)
    assert result.written
    assert await logged(store, claimed) == ["progressed", "completed"]


async def test_the_others_of_its_batch_wait_for_no_lock(dsn: str, store: AsyncStore) -> None:
    """Their results are in the order of the finishes, and none is written twice."""
    first, reports, locked, last = await started_and_claimed(store, 4)
    caller = await lock(dsn, locked.id)
    finishes = [complete(first), reporting(complete(reports)), reporting(complete(locked)), complete(last)]
    written = await store.finish(finishes, wait=False)
    assert [(one.job_id, one.locked) for one in written[::3]] == [(first.id, False), (last.id, False)]
    assert written[2].locked
    await caller.close()
    again = await store.finish(finishes, wait=False)
    assert all(one.written for one in again)
    for claimed, kinds in ((first, ["completed"]), (reports, ["progressed", "completed"]), (last, ["completed"])):
        assert await logged(store, claimed) == kinds


@pytest.mark.parametrize("finish", [complete, retry])
async def test_who_waits_for_the_row_of_the_job_loses_nothing(dsn: str, store: AsyncStore, finish: object) -> None:
    """The renewal of the lease would pass over the row that another transaction has locked."""
    [claimed] = await started_and_claimed(store)
    caller = await lock(dsn, claimed.id)
    finishing = asyncio.ensure_future(store.finish([reporting(finish(claimed))]))  # type: ignore[operator]
    waits = "SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as beside:
        while not await (await beside.execute(waits)).fetchall():
            assert not finishing.done()
            await asyncio.sleep(0)
    await caller.close()
    [result] = await in_time(finishing)
    assert result.written
    assert (await logged(store, claimed))[0] == "progressed"
    found = (await read(store, claimed.id)).progress
    assert found is not None
    assert found.done == 4
