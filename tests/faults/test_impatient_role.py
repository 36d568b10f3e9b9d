"""Timeouts of a worker's role, and locks of others: the worker's calls fail, it reports that, and continues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import LiteralString

import psycopg
import pytest

from queuert import AsyncClient, JobType, PostgresState
from queuert.errors import StateUnavailableError
from queuert.observability.events import AttemptCompleted, LoopFailed, LoopRecovered, WorkerStarted
from queuert.policies import LeasePolicy
from queuert.testing.events import EventLog
from tests.faults.application import JOB_TYPES, LEASE, Plan, quick
from tests.faults.harness import MODES, FaultHarness
from tests.faults.roles import Role
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault

SETTINGS = pytest.mark.parametrize(
    ("setting", "milliseconds"),
    # All statements of a worker or client take less than the first; only waits for other sessions take longer.
    [("statement_timeout", "3000"), ("lock_timeout", "100")],
    ids=["statement_timeout", "lock_timeout"],
)
TABLE = "lock table queuert.job in access exclusive mode"
ROW = "select from queuert.job for update"


@asynccontextmanager
async def locked(dsn: str, command: LiteralString) -> AsyncIterator[None]:
    """Hold a lock of another session."""
    async with await psycopg.AsyncConnection.connect(dsn) as stranger:
        await stranger.execute(command)
        yield
        await stranger.rollback()


@SETTINGS
async def test_the_table_is_locked(
    harness: FaultHarness, role: Role, setting: LiteralString, milliseconds: LiteralString
) -> None:
    """Loops fail and start again; a client gets `StateUnavailableError`; then everything works as before."""
    role.set(setting, milliseconds)
    state, log = PostgresState(role.address), EventLog()
    # With a short lease the reaper checks often.
    worker = harness.worker(state=state, log=log, lease=LEASE, poll_interval=0.1)
    async with worker, AsyncClient(state, JOB_TYPES) as client:
        assert await (await client.start_chain(quick, 1)).result(WAIT) == 1
        async with locked(harness.dsn, TABLE):
            await log.wait_for(LoopFailed, loop="claimer")
            await log.wait_for(LoopFailed, loop="reaper")
            with pytest.raises(StateUnavailableError, match="timeout"):
                await client.start_chain(quick, 2, id="late")
        for loop in ("claimer", "reaper"):
            await log.wait_for(LoopRecovered, loop=loop)
        assert await (await client.start_chain(quick, 2, id="late")).result(WAIT) == 2
    assert all("timeout" in event.error for event in log.of(LoopFailed))
    assert len(log.of(WorkerStarted)) == 1


@pytest.mark.quick
@SETTINGS
@MODES
async def test_the_row_of_an_attempt_is_locked(
    harness: FaultHarness, role: Role, setting: LiteralString, milliseconds: LiteralString, job_type: JobType[Plan, int]
) -> None:
    """Its finish is postponed until the row is unlocked, and delays no other."""
    role.set(setting, milliseconds)
    log = EventLog()
    async with harness.worker(state=PostgresState(role.address), log=log, concurrency=2):
        chain = await harness.client.start_chain(job_type, Plan(before=[1]))
        await harness.step(chain.id, "began")
        async with locked(harness.dsn, ROW):
            harness.witness.open("before:1")
            assert await (await harness.client.start_chain(quick, 1)).result(WAIT) == 1
        assert await chain.result(WAIT) == 1
    assert len(log.of(AttemptCompleted)) == 2


@MODES
async def test_complete_meets_a_locked_row(harness: FaultHarness, role: Role, job_type: JobType[Plan, int]) -> None:
    """The block raises a typed error, the attempt is repeated, and its effect is committed once."""
    role.set("lock_timeout", "100")
    # Without renewals: a renewal that waits with the row locked would also delay the second attempt.
    unrenewed = LeasePolicy(seconds=120.0, renew_every=30.0)
    async with harness.worker(state=PostgresState(role.address), lease=unrenewed):
        chain = await harness.client.start_chain(job_type, Plan(before=[1], completes=True))
        await harness.step(chain.id, "began")
        async with locked(harness.dsn, ROW):
            harness.witness.open("before:1")
            await harness.step(chain.id, "refused")
        assert await chain.result(WAIT) == 2
    assert harness.witness.detail(chain.id, "refused", 1) == "StateUnavailableError"
    assert harness.witness.effects(chain.id) == [2]
