"""A store that one worker cannot reach, and listeners that lose their connection."""

from __future__ import annotations

import logging

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.base import AttemptWithBackoff

from queuert import JobType, PostgresState
from queuert.jobs import AbortReason
from queuert.observability import LogObservability
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptStarted,
    JobReaped,
    ListenerLost,
    ListenerRestored,
    LoopFailed,
    LoopRecovered,
)
from queuert.policies import LeasePolicy
from queuert.testing.events import EventLog
from queuert.testing.fault_proxy import FaultProxy
from tests.faults.application import KEPT, Plan, patient
from tests.faults.harness import MODES, FaultHarness
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

NEVER = 3600.0


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
async def test_a_black_hole_for_longer_than_the_lease(
    harness: FaultHarness, proxy: FaultProxy, job_type: JobType[Plan, int], completes: bool
) -> None:
    """The worker gives up its lease before it expires, another worker takes over, and the first one recovers."""
    cut_off = EventLog()
    state = PostgresState(proxy.address_in(harness.dsn), answer_timeout=3.0)
    # It gives up a lease when a tenth is left: the handler's record may be as late as that.
    lease = LeasePolicy(seconds=10.0, renew_every=1.0)
    async with harness.worker(name="cut-off", state=state, log=cut_off, lease=lease):
        plan = Plan(before=[1], completes=completes, stubborn=True)
        chain = await harness.client.start_chain(job_type, plan)
        await harness.step(chain.id, "began")
        proxy.black_hole()
        aborted = await cut_off.wait_for(AttemptAborted, job_id=chain.id)
        assert aborted.reason is AbortReason.LEASE_NOT_RENEWED
        await harness.step(chain.id, "reported")
        # By the database's clock: the handler was aborted before another worker could start the job.
        ended = harness.witness.one("select lease_expires_at from queuert.job where id = %s", chain.id)
        reported = harness.witness.one("select at from step where name = 'reported' and job_id = %s", chain.id)
        assert reported < ended

        async with harness.worker(name="other"):
            assert await chain.result(WAIT) == 2
        await cut_off.wait_for(LoopFailed, loop="reaper")
        proxy.heal()
        await cut_off.wait_for(LoopRecovered, loop="reaper")
        harness.witness.open("before:1")
        other = await harness.client.start_chain(job_type, Plan(completes=completes))
        assert await other.result(WAIT) == 1
        assert cut_off.of(AttemptCompleted, job_id=chain.id) == []
    assert harness.witness.effects(chain.id) == ([2] if completes else [])
    assert harness.witness.job(chain.id) == ("completed", 2, 1, 0)


@MODES
@pytest.mark.parametrize("queries", [False, True], ids=["in the commit", "in a statement of the handler's"])
async def test_a_black_hole_inside_complete(
    harness: FaultHarness,
    proxy: FaultProxy,
    job_type: JobType[Plan, int],
    queries: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server ends the transaction; the handler does not wait for ever for an answer on its connection."""
    # The worker queries the result of the commit twice: each query takes as long as an answer may take.
    monkeypatch.setattr("queuert.state._asyncio._PAUSES", (0.0, 0.1))
    cut_off = EventLog()
    state = PostgresState(proxy.address_in(harness.dsn), answer_timeout=3.0)
    plan = Plan(completes=True, inside=[1], queries=queries)
    async with harness.worker(name="cut-off", state=state, log=cut_off, lease=KEPT):
        chain = await harness.client.start_chain(job_type, plan)
        await harness.step(chain.id, "inside")
        proxy.black_hole()
        harness.witness.open("inside:1")
        async with harness.worker(name="other"):
            assert await chain.result(WAIT) == 2
        try:
            await harness.step(chain.id, "broke" if queries else "refused")
        finally:
            proxy.heal()
        other = await harness.client.start_chain(job_type, Plan(completes=True))
        assert await other.result(WAIT) == 1
    assert harness.witness.effects(chain.id) == [2]


async def test_a_black_hole_for_shorter_than_the_lease(harness: FaultHarness, proxy: FaultProxy) -> None:
    """Renewals are repeated in time: no job is affected."""
    state = PostgresState(proxy.address_in(harness.dsn))
    async with harness.worker(state=state, lease=KEPT):
        chain = await harness.client.start_chain(patient, Plan(before=[1]))
        await harness.step(chain.id, "began")
        for _ in range(3):
            proxy.black_hole("to_client")
            await until(proxy.held.is_set, "something is on its way")
            proxy.heal()
        harness.witness.open("before:1")
        assert await chain.result(WAIT) == 1
    assert harness.log.of(AttemptAborted) == []
    assert harness.log.of(JobReaped) == []


async def test_a_long_outage_is_over_when_it_is_over(
    harness: FaultHarness, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses between attempts to connect are bounded: this sets the pool's to their value after an hour."""
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 3600.0)
    log = EventLog()
    async with harness.worker(
        state=PostgresState(proxy.address_in(harness.dsn), listen_dsn=harness.dsn), log=log, poll_interval=0.1
    ):
        first = await harness.client.start_chain(patient, Plan())
        assert await first.result(WAIT) == 1
        proxy.refuse()
        proxy.reset()
        proxy.accepted.clear()
        await log.wait_for(LoopFailed)
        await until(proxy.accepted.is_set, "an attempt to connect has failed")
        proxy.heal()
        chain = await harness.client.start_chain(patient, Plan())
        assert await chain.result(2 * WAIT) == 1


@pytest.mark.quick
async def test_an_outage_is_a_few_lines_of_the_log(
    harness: FaultHarness, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop has one when it begins to fail and when it ends, and few in between. A pool of ours has one."""
    caplog.set_level(logging.INFO)
    log, address = EventLog(), proxy.address_in(harness.dsn)
    state = PostgresState(address, listen_dsn=harness.dsn, answer_timeout=0.5)
    async with harness.worker(state=state, log=log, poll_interval=0.1):
        first = await harness.client.start_chain(patient, Plan())
        assert await first.result(WAIT) == 1
        proxy.refuse()
        proxy.reset()
        await until(
            lambda: any(event.failures == 3 for event in log.of(LoopFailed)), "a loop has failed again and again"
        )
        theirs = [one for one in caplog.records if one.name.startswith("psycopg")]
        pools = {id(one.args[0]) for one in theirs if isinstance(one.args, tuple)}
        assert len(theirs) == len(pools) > 0
        assert all("error connecting in 'queuert" in one.getMessage() for one in theirs)
        async with AsyncConnectionPool(address, name="queuert", open=False):
            await until(lambda: "error connecting in 'queuert'" in caplog.text, "the pool of somebody else has failed")
        proxy.heal()
        loop = next(event.loop for event in log.of(LoopFailed) if event.failures == 3)
        recovered = await log.wait_for(LoopRecovered, loop=loop)
    observability = LogObservability(logging.getLogger("queuert.outage"))
    for event in log.events:
        observability.emit(event)
    values = [vars(record) for record in caplog.records if record.name == "queuert.outage"]
    failed = [
        one["queuert_failures"]
        for one in values
        if one["queuert_event"] == "LoopFailed" and one["queuert_loop"] == loop
    ]
    assert failed[:2] == [1, 2]
    assert 3 not in failed
    assert f"{loop} recovered after {recovered.failures} failures" in caplog.text


@pytest.mark.quick
async def test_the_listener_is_ended(harness: FaultHarness, proxy: FaultProxy) -> None:
    """After a lost notification the worker polls once; then notifications arrive again. It does not poll otherwise."""
    state = PostgresState(harness.dsn, listen_dsn=proxy.address_in(harness.dsn))
    log = EventLog()
    async with harness.worker(state=state, log=log, poll_interval=NEVER):
        early = await harness.client.start_chain(patient, Plan())
        assert await early.result(WAIT) == 1
        proxy.refuse()
        with psycopg.connect(harness.dsn, autocommit=True) as connection:
            ended = connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and application_name = %s",
                ["queuert notify"],
            ).fetchall()
        assert (True,) in ended
        await log.wait_for(ListenerLost)
        meanwhile = await harness.client.start_chain(patient, Plan())
        proxy.heal()
        await log.wait_for(ListenerRestored)
        assert await meanwhile.result(WAIT) == 1
        later = await harness.client.start_chain(patient, Plan())
        assert await later.result(WAIT) == 1
    assert len(log.of(AttemptStarted)) == 3
