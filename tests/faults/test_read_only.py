"""A server that accepts no writes: by its settings, or as a standby. Workers wait, clients get errors, then all
continue."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from queuert import AsyncClient, Client, InProcessWorker, JobType, PostgresState, migrations
from queuert.errors import StateUnavailableError
from queuert.observability.events import (
    AttemptCompleted,
    ListenerLost,
    ListenerRestored,
    LoopFailed,
    LoopRecovered,
    StoreCallFailed,
    WorkerStarted,
    WorkerStopped,
)
from queuert.testing.events import EventLog
from tests.conftest import StartPostgres
from tests.faults.application import JOB_TYPES, KEPT, Plan, processors_for, quick
from tests.faults.harness import MODES, FaultHarness
from tests.faults.roles import Role
from tests.faults.witness import Witness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault


async def refused(address: str) -> None:
    """Clients of both modes get `StateUnavailableError`, as during any failover."""
    async with AsyncClient(PostgresState(address), JOB_TYPES) as client:
        with pytest.raises(StateUnavailableError, match="read-only"):
            await client.start_chain(quick, 1)
    with (
        Client(PostgresState(address), JOB_TYPES) as sync_client,
        pytest.raises(StateUnavailableError, match="read-only"),
    ):
        await asyncio.to_thread(sync_client.start_chain, quick, 1)


async def reported(log: EventLog) -> None:
    """The worker reports that it cannot claim, and why."""

    def has_reported() -> bool:
        return any("read-only transaction" in one.error for one in log.of(LoopFailed, loop="claimer"))

    await until(has_reported, "the worker tells that it cannot claim")


async def recovered(log: EventLog) -> None:
    """Each loop that has failed works again."""
    for failed in {event.loop for event in log.of(LoopFailed)}:
        await log.wait_for(LoopRecovered, loop=failed)


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
async def test_set_so_and_set_back(
    harness: FaultHarness, role: Role, job_type: JobType[Plan, int], completes: bool
) -> None:
    """With a running attempt: its finish is written afterwards, or the attempt is repeated."""
    log = EventLog()
    state = PostgresState(role.address)
    async with harness.worker(state=state, log=log, lease=KEPT, poll_interval=0.1, concurrency=2):
        chain = await harness.client.start_chain(job_type, Plan(before=[1], completes=completes))
        await harness.step(chain.id, "began")
        await asyncio.to_thread(role.set, "default_transaction_read_only", "on")
        await reported(log)
        await refused(role.address)
        harness.witness.open("before:1")
        await log.wait_for(StoreCallFailed)
        await asyncio.to_thread(role.reset)
        attempt = await chain.result(2 * WAIT)
        # A block may get a session that was opened while the server was read-only, and could not write.
        other = await harness.client.start_chain(job_type, Plan(completes=completes))
        attempts = {chain.id: attempt, other.id: await other.result(2 * WAIT)}
        await recovered(log)
    for chain_id, attempt in attempts.items():
        assert harness.witness.effects(chain_id) == ([attempt] if completes else [])
    assert completes or attempts[other.id] == 1
    assert len(log.of(AttemptCompleted)) == 2
    assert len(log.of(WorkerStarted)) == len(log.of(WorkerStopped)) == 1


@pytest.mark.quick
async def test_a_worker_that_starts_on_it(harness: FaultHarness, role: Role) -> None:
    """The worker does not end, reports what is wrong, and begins to work by itself."""
    role.set("default_transaction_read_only", "on")
    log = EventLog()
    chain = await harness.client.start_chain(quick, 1)
    async with harness.worker(state=PostgresState(role.address), log=log, poll_interval=0.1):
        await reported(log)
        role.reset()
        assert await chain.result(2 * WAIT) == 1
        await recovered(log)


async def test_a_standby_that_is_promoted(private_postgres: StartPostgres) -> None:
    """Connections from before the promotion are used after it: those of the pool, and the listener's."""
    server = private_postgres(settings={"fsync": "off"})
    migrations.upgrade(server.dsn())
    Witness(server.dsn()).close()
    log = EventLog()
    state = PostgresState(server.dsn())
    async with AsyncClient(state, JOB_TYPES, observability=log) as client:
        chain = await client.start_chain(quick, 1)
        await asyncio.to_thread(server.stop)
        (server.data_dir / "standby.signal").touch()
        await asyncio.to_thread(server.start)
        async with InProcessWorker(client, processors_for(server.dsn()), poll_interval=0.1):
            await log.wait_for(LoopFailed, loop="claimer")
            await log.wait_for(ListenerLost)
            await refused(server.dsn())
            with psycopg.connect(server.dsn(), autocommit=True) as admin:
                admin.execute("select pg_promote()")
            assert await chain.result(2 * WAIT) == 1
            await recovered(log)
            await log.wait_for(ListenerRestored)
    assert len(log.of(AttemptCompleted)) == 1
