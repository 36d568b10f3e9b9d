"""PgBouncer in transaction mode before the database: everything works, and its sessions are unchanged afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from queuert import AsyncClient, Client, InProcessWorker, JobType, NewChain, PostgresState
from queuert.errors import ChainCancelledError
from queuert.jobs import AbortReason
from queuert.notify.listener import ListenerTimeouts
from queuert.notify.postgres import PostgresNotify
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    JobReaped,
    LeasesRenewed,
    ListenerLost,
)
from queuert.testing.events import EventLog
from tests.faults.application import JOB_TYPES, KEPT, LEASE, Plan, patient, processors_for, quick, threaded
from tests.faults.harness import MODES, FaultHarness
from tests.faults.pgbouncer import PgBouncer, pgbouncer_before
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault

SESSIONS = 4
"""Fewer sessions than connections, so that each transaction gets another session than the one before."""

NEVER = 3600.0
UNPREPARED = 1000
"""After so many executions psycopg would prepare a statement, which versions before 1.21 do not support."""

_LEFTOVERS = """
    select 'setting', name, setting from pg_settings where source = 'session' and name not in
        -- Those that PgBouncer keeps for each client.
        ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')
    union all select 'prepared', name, statement from pg_prepared_statements
    union all select 'cursor', name, statement from pg_cursors where name <> ''
    union all select 'listens', channel, '' from pg_listening_channels() as channel
    union all select 'lock', locktype, mode from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'
    union all select 'table', relname::text, '' from pg_class where relpersistence = 't'
"""

Through = Callable[..., PostgresState]


@pytest.fixture(scope="module")
def pooler(postgres_server: str) -> Iterator[PgBouncer]:
    with pgbouncer_before(postgres_server, sessions=SESSIONS) as pooler:
        yield pooler


@pytest.fixture(autouse=True)
def address(pooler: PgBouncer, dsn: str) -> Iterator[str]:
    """Yield the database behind the pooler, which disconnects before the database is dropped."""
    yield pooler.address_in(dsn)
    pooler.let_go(dsn)


@pytest.fixture
def through(address: str, dsn: str) -> Through:
    """Make states that connect through the pooler, with the settings of docs/running.md."""

    def state(**other: Any) -> PostgresState:
        settings: dict[str, Any] = {"prepare_threshold": None, "listen_dsn": dsn, **other}
        return PostgresState(address, **settings)

    return state


def leftovers(address: str) -> set[tuple[Any, ...]]:
    """Return how the pooler's sessions differ from new ones."""
    found = set()
    with ExitStack() as stack:
        for _ in range(SESSIONS):
            connection = stack.enter_context(psycopg.connect(address, prepare_threshold=None))
            found |= set(connection.execute(_LEFTOVERS).fetchall())
            # Each connection occupies a session, so that the next one gets another.
            assert connection.info.transaction_status is TransactionStatus.INTRANS
    return found


async def test_all_goes_through_and_nothing_stays(harness: FaultHarness, through: Through, address: str) -> None:
    """Clients and handlers of both modes; afterwards the pooler's sessions are like new ones for others."""
    state = through()
    async with AsyncClient(state, JOB_TYPES) as client, harness.worker(state=state, concurrency=6):
        chains = await client.start_chains([NewChain(quick, number) for number in range(30)])
        assert [await chain.result(WAIT) for chain in chains] == list(range(30))
        with Client(state, JOB_TYPES) as sync_client:
            for job_type in (patient, threaded):
                chain = await asyncio.to_thread(sync_client.start_chain, job_type, Plan(completes=True))
                assert await asyncio.to_thread(chain.result, WAIT) == 1
        blocked = await client.start_chain(quick, 5, blockers=chains[:2])
        assert await blocked.result(WAIT) == 5
    assert leftovers(address) == set()


async def test_nothing_stays_of_clients_that_prepare(harness: FaultHarness, through: Through, address: str) -> None:
    """Settings for own sessions, such as to plan once, are not made in the pooler's."""
    state = through(prepare_threshold=UNPREPARED)
    async with AsyncClient(state, JOB_TYPES) as client:
        await client.start_chain(quick, 1)
    with Client(state, JOB_TYPES) as sync_client:
        await asyncio.to_thread(sync_client.start_chain, quick, 2)
    assert leftovers(address) == set()


@MODES
async def test_leases_are_renewed_and_chains_cancelled(
    harness: FaultHarness, through: Through, job_type: JobType[Plan, int]
) -> None:
    """For longer than a lease, with a handler whose transaction is open and one without."""
    async with harness.worker(state=through(), concurrency=3, lease=KEPT):
        holding, other = await harness.client.start_chains(
            [NewChain(patient, Plan(completes=True, inside=[1], busy=True)), NewChain(job_type, Plan(before=[1]))]
        )
        await harness.step(holding.id, "inside")
        await harness.step(other.id, "began")
        harness.log.forget()
        await harness.outlast_leases()
        await harness.log.wait_for(LeasesRenewed)
        harness.witness.open("inside:1")
        assert await holding.result(WAIT) == 1
        await harness.client.cancel_chains([other])
        with pytest.raises(ChainCancelledError):
            await other.result(WAIT)
        aborted = await harness.log.wait_for(AttemptAborted, job_id=other.id)
        assert aborted.reason is AbortReason.CANCELLED
        await harness.step(other.id, "reported")
        harness.witness.open("before:1")
    assert harness.log.of(JobReaped) == []


async def test_notifications_come_by_a_direct_way(harness: FaultHarness, through: Through) -> None:
    """No worker polls, so only a notification leads to the job."""
    async with harness.worker(state=through(), poll_interval=NEVER):
        for number in range(3):
            chain = await harness.client.start_chain(quick, number)
            assert await chain.result(WAIT) == number
    assert harness.log.of(ListenerLost) == []


async def test_without_a_direct_way_everybody_polls(harness: FaultHarness, through: Through, address: str) -> None:
    """The worker reports that once, with what to do about it."""
    log = EventLog()
    notify = PostgresNotify(address, timeouts=ListenerTimeouts(self_test=0.2))
    client = AsyncClient(through(listen_dsn=None), JOB_TYPES, notify=notify, observability=log)
    async with client, InProcessWorker(client, processors_for(harness.dsn), poll_interval=0.1):
        reported = await log.wait_for(ListenerLost)
        assert "listen_dsn" in reported.error
        chain = await harness.client.start_chain(quick, 1)
        assert await chain.result(WAIT) == 1
    assert len(log.of(ListenerLost)) == 1


async def test_more_transactions_than_sessions(harness: FaultHarness, through: Through) -> None:
    """Handlers occupy all sessions, and renewals wait for one: leases expire until the server ends the idle
    transactions."""
    log = EventLog()
    async with harness.worker(state=through(), log=log, lease=LEASE, concurrency=2 * SESSIONS):
        plan = Plan(completes=True, inside=[1])
        chains = await harness.client.start_chains([NewChain(patient, plan) for _ in range(2 * SESSIONS)])
        await log.wait_for(AttemptAborted)
        harness.witness.open("inside:1")
        for chain in chains:
            assert await chain.result(WAIT) in {1, 2}
    assert len(log.of(AttemptCompleted)) == len(chains)


async def test_it_is_restarted(harness: FaultHarness, through: Through, pooler: PgBouncer) -> None:
    """PgBouncer is killed with a transaction open, which is rolled back, and returns at the same address."""
    async with harness.worker(state=through(), poll_interval=0.1):
        chain = await harness.client.start_chain(patient, Plan(completes=True, inside=[1]))
        await harness.step(chain.id, "inside")
        await asyncio.to_thread(pooler.restart)
        harness.witness.open("inside:1")
        assert await chain.result(WAIT) == 2
    assert harness.witness.effects(chain.id) == [2]
