"""Starts in parts: the server writes one part while the next is being made, and all of it is one transaction."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, field_serializer, field_validator

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain, PostgresState
from queuert.errors import PayloadError
from queuert.ids import new_ids
from queuert.new_chain import PART, new_jobs, parts
from queuert.run_at import after
from queuert.state.adapter import StateAdapter
from queuert.state.postgres.pool import Watchdog
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import NewJob
from queuert.testing.fault_proxy import FaultProxy


class Number(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def _small(cls, value: int) -> int:
        if value >= 10_000:
            raise ValueError("too large")
        return value


count = JobType("count", input=Number, output=int)
job_types = JobTypes(count)


def numbers(*values: int) -> list[NewChain[Any]]:
    return [NewChain(count, Number.model_construct(value=value)) for value in values]


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), job_types, max_connections=1) as client:
        yield client


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn).sync_store(max_connections=1)
    assert isinstance(store, PostgresStore)
    store.open()
    yield store
    store.close()


def value(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def jobs_of(size: int) -> list[NewJob]:
    return [NewJob(id, "count", "{}") for id in new_ids(size)]


def test_a_part_is_written_while_the_next_is_made(dsn: str, store: PostgresStore) -> None:
    """Nobody has asked for the second part's successor yet, and the server has answered for the first."""
    seen: list[Any] = []

    def parts() -> Iterator[list[NewJob]]:
        yield jobs_of(3)
        with psycopg.connect(dsn, autocommit=True) as beside:
            # The transaction has a number as soon as it has written.
            while not beside.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_xid IS NOT NULL AND query LIKE '%before%'"
            ).fetchall():
                seen.append("not yet")
            row = beside.execute("SELECT count(*) FROM queuert.job").fetchone()
        seen.append(row)
        yield jobs_of(2)

    assert len(store.start_pipelined(parts())) == 5
    assert seen[-1] == (0,)  # What is written is to be seen when all of it is.
    assert value(dsn, "SELECT count(*) FROM queuert.job") == 5


def test_the_client_sends_many_in_parts(dsn: str, client: Client) -> None:
    """They are claimed in the order in which they were given, all of one transaction."""
    values = list(range(2 * PART + 7))
    chains = client.start_chains(numbers(*values))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id, xmin, input -> 'value' FROM queuert.job ORDER BY scheduled_at").fetchall()
    assert [row[0] for row in rows] == [chain.id for chain in chains]
    assert [row[2] for row in rows] == values
    assert len({row[1] for row in rows}) == 1
    assert all(one.id < next.id for one, next in pairwise(chains))


@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART + 6])
def test_bad_input_anywhere_takes_all_back(dsn: str, client: Client, place: int) -> None:
    """A typed error, no row, no event, and the only connection goes on."""
    values = list(range(2 * PART + 7))
    values[place] = 10_000
    with pytest.raises(PayloadError, match="too large"):
        client.start_chains(numbers(*values))
    assert value(dsn, "SELECT count(*) FROM queuert.job") == 0
    assert value(dsn, "SELECT count(*) FROM queuert.event") == 0
    assert len(client.start_chains(numbers(1, 2))) == 2
    assert len(client.start_chains(numbers(*range(2 * PART)))) == 2 * PART


def test_options_of_some_are_kept(dsn: str, client: Client) -> None:
    """A part whose jobs are not alike goes by the general statement."""
    chains = numbers(*range(2 * PART))
    chains[PART + 3] = chains[PART + 3].replace(priority=7, run_at=after(hours=1), attributes={"user": 17})
    started = client.start_chains(chains)
    odd = client.get_job(started[PART + 3].id)
    assert (odd.priority, odd.status.value) == (7, "scheduled")
    assert value(dsn, "SELECT count(*) FROM queuert.job WHERE status = 'ready' AND priority = 0") == 2 * PART - 1
    assert value(dsn, "SELECT chain_id FROM queuert.chain_attribute") == odd.id


def test_chosen_ids_are_started_together(client: Client) -> None:
    """What may be refused, or found to exist, goes as before."""
    chains = [NewChain(count, Number(value=one), id=f"{one}") for one in range(2 * PART)]
    client.start_chains(chains)
    again = client.start_chains([one.replace(attach=True) for one in chains])
    assert all(chain.deduplicated for chain in again)


def test_parts_have_their_time_each(dsn: str) -> None:
    """The wait for the server is limited anew for each: together they take longer, and each far less."""
    watchdog = Watchdog(4.5)
    with psycopg.connect(dsn, autocommit=True) as connection, watchdog.limit(connection):
        for _ in range(5):
            watchdog.restart(connection)
            connection.execute("SELECT pg_sleep(1.0)")


async def test_a_cancelled_start_is_all_or_nothing(dsn: str) -> None:
    """Cancelled while its answers are waited for, on the only connection: what is started after it stands."""
    with FaultProxy.before(dsn) as proxy:
        async with AsyncClient(PostgresState(proxy.address_in(dsn)), job_types, max_connections=1) as client:
            await client.start_chains(numbers(1))
            proxy.black_hole("to_client")
            task = asyncio.create_task(client.start_chains(numbers(*range(2 * PART))))
            begun = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND query LIKE '%before%'"
            )
            while not value(dsn, begun):  # noqa: ASYNC110  (only the server knows)
                await asyncio.sleep(0)
            task.cancel()
            proxy.heal()
            with pytest.raises(asyncio.CancelledError):
                await task
            chain = await client.start_chain(count, Number(value=1))
            assert value(dsn, f"SELECT count(*) FROM queuert.job WHERE id = '{chain.id}'") == 1
            assert value(dsn, "SELECT count(*) FROM queuert.job") in (2, 2 + 2 * PART)


def test_nobody_gets_a_connection_in_pipeline_mode(dsn: str, store: PostgresStore) -> None:
    """As psycopg leaves it where its ``pipeline()`` is interrupted: what is sent then would never be committed."""
    with store._connections.raw_connection() as connection:
        connection.pgconn.enter_pipeline_mode()
    store.start_jobs(jobs_of(1))
    assert value(dsn, "SELECT count(*) FROM queuert.job") == 1


def test_slow_models_are_done_before_anything_is_sent(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may look something up by the same client, whose only connection they would wait for."""
    monkeypatch.setattr("queuert.client.sync_client.LONG_PART", 0.0)
    with Client(PostgresState(dsn), job_types, max_connections=1) as client:

        class Checked(BaseModel):
            value: int

            @field_validator("value")
            @classmethod
            def _known(cls, value: int) -> int:
                if value == 2 * PART - 1:
                    client.count_jobs()
                return value

        checked = JobType("count", input=Checked, output=int)
        chains = [NewChain(checked, Checked.model_construct(value=value)) for value in range(2 * PART)]
        client.job_types = JobTypes(checked)
        assert len(client.start_chains(chains)) == 2 * PART
    assert value(dsn, "SELECT count(*) FROM queuert.job") == 2 * PART


def test_a_part_that_takes_long_is_sent_before_it_is_full(
    dsn: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server, which ends a transaction that is idle for long, hears from the client all the time."""
    monkeypatch.setattr("queuert.client.sync_client.LONG_PART", math.inf)  # However busy the machine is.
    monkeypatch.setattr("queuert.new_chain._LONGEST_PART", -1.0)
    values = list(range(2 * PART + 7))
    assert [len(part) for part in parts(new_jobs(job_types, numbers(*values)))] == [1] * len(values)
    client.start_chains(numbers(*values))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT input -> 'value', xmin FROM queuert.job ORDER BY scheduled_at").fetchall()
    assert [row[0] for row in rows] == values
    assert len({row[1] for row in rows}) == 1


@pytest.mark.parametrize(("count", "long_part"), [(3, 0.0), (2 * PART, 0.0), (2 * PART, math.inf)])
async def test_others_run_while_inputs_are_encoded(
    state: StateAdapter, monkeypatch: pytest.MonkeyPatch, count: int, long_part: float
) -> None:
    """An event loop is not held up by all of a call, in parts or not: here each input counts as one that takes long."""
    monkeypatch.setattr("queuert.new_chain._TURN", 0.0)
    monkeypatch.setattr("queuert.new_chain._LONGEST_PART", -1.0)
    monkeypatch.setattr("queuert.client.async_client.LONG_PART", long_part)
    turns, seen = 0, []

    class Counted(BaseModel):
        value: int

        @field_serializer("value")
        def _counted(self, value: int) -> int:
            seen.append(turns)
            return value

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counted = JobType("counted", input=Counted, output=int)
    others = asyncio.create_task(take_turns())
    async with AsyncClient(state, JobTypes(counted)) as client:
        await client.start_chains([NewChain(counted, Counted(value=value)) for value in range(count)])
    others.cancel()
    assert len(set(seen)) == count


async def test_a_list_that_others_change_meanwhile(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started is what the list had when it was given."""
    monkeypatch.setattr("queuert.new_chain._TURN", 0.0)
    given = numbers(1, 2, 3)
    async with AsyncClient(PostgresState(dsn), job_types) as client:
        starting = asyncio.create_task(client.start_chains(given))
        await asyncio.sleep(0)
        given.clear()
        assert len(await starting) == 3
