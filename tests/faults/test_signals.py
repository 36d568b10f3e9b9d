"""SIGTERM and SIGINT at any moment: the exit code says what happened, and no lease is left."""

from __future__ import annotations

import signal

import pytest

from queuert import JobType, NewChain
from queuert.observability.events import WorkerStopped, WorkerStopping
from queuert.testing.fault_proxy import FaultProxy
from queuert.worker.run import ExitCode
from tests.faults.application import LASTING, Plan, blocking, patient, quick, threaded
from tests.faults.harness import MODES, FaultHarness
from tests.support.waiting import START, WAIT, until

pytestmark = pytest.mark.fault

GIVEN_BACK = ("ready", 1, 0, 1)
"""The attempt does not count: it was interrupted."""

CUT_OFF = ("ready", 1, 1, 0)
"""The attempt counts as a crash: its handler did not end."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: str(number.name))
async def test_idle(harness: FaultHarness, number: signal.Signals) -> None:
    process = harness.spawn()
    await process.started()
    process.send(number)
    assert await process.ended() == ExitCode.STOPPED
    assert len(process.log.of(WorkerStopped, abandoned=0)) == 1


async def test_at_birth(harness: FaultHarness) -> None:
    """Before the process handles signals it dies of them, which does no harm: it had not begun anything."""
    chain = await harness.client.start_chain(patient, Plan())
    process = harness.command()
    process.send(signal.SIGTERM)
    assert await process.ended() in {ExitCode.STOPPED, -signal.SIGTERM}
    assert harness.witness.job(chain.id) == ("ready", 0, 0, 0)


@pytest.mark.parametrize("answers", [True, False], ids=["server answers then", "server never answers"])
async def test_while_it_connects(harness: FaultHarness, proxy: FaultProxy, answers: bool) -> None:
    """The process begins nothing, and does not wait for a server that may never answer."""
    chain = await harness.client.start_chain(patient, Plan())
    proxy.black_hole()
    process = harness.command(url=f"{proxy.address_in(harness.dsn)}?connect_timeout=60")
    await until(proxy.held.is_set, "the worker connects", START)
    process.send(signal.SIGTERM)
    if answers:
        proxy.heal()
    assert await process.ended() == ExitCode.STOPPED
    assert harness.witness.job(chain.id) == ("ready", 0, 0, 0)


@MODES
@pytest.mark.parametrize("completes", [False, True], ids=["returns", "completes"])
async def test_within_the_grace(harness: FaultHarness, job_type: JobType[Plan, int], completes: bool) -> None:
    """Running handlers may finish; waiting jobs are not started any more."""
    plan = Plan(completes=True, inside=[1]) if completes else Plan(before=[1])
    chain = await harness.client.start_chain(job_type, plan)
    process = harness.spawn(shutdown_timeout=WAIT, lease=LASTING)
    await harness.step(chain.id, "inside" if completes else "began")
    process.send(signal.SIGTERM)
    await process.log.wait_for(WorkerStopping, running=1)
    waiting = await harness.client.start_chain(job_type, Plan())
    harness.witness.open("inside:1")
    harness.witness.open("before:1")
    assert await process.ended() == ExitCode.STOPPED
    assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)
    assert harness.witness.job(waiting.id) == ("ready", 0, 0, 0)


@pytest.mark.parametrize("inside", [False, True], ids=["in the handler", "in its transaction"])
@pytest.mark.parametrize("how", ["beyond the grace", "asked twice"])
async def test_a_coroutine_that_would_go_on(harness: FaultHarness, inside: bool, how: str) -> None:
    plan = Plan(completes=True, inside=[1]) if inside else Plan(before=[1])
    chain = await harness.client.start_chain(patient, plan)
    process = harness.spawn(shutdown_timeout=0.1 if how == "beyond the grace" else 60, lease=LASTING)
    await harness.step(chain.id, "inside" if inside else "began")
    process.send(signal.SIGTERM)
    if how == "asked twice":
        await process.log.wait_for(WorkerStopping)
        process.send(signal.SIGTERM)
    assert await process.ended() == ExitCode.STOPPED
    if not inside:
        assert harness.witness.detail(chain.id, "reported", 1) == "worker_stopping"
    assert harness.witness.job(chain.id) == GIVEN_BACK
    assert harness.witness.effects(chain.id) == []
    async with harness.worker():
        assert await chain.result(WAIT) == 2


async def test_a_coroutine_that_does_not_listen(harness: FaultHarness) -> None:
    """The handler ignores its cancellations: the worker releases its job, and the process ends nevertheless."""
    chain = await harness.client.start_chain(patient, Plan(before=[1], deaf=True))
    process = harness.spawn(shutdown_timeout=0, lease=LASTING)
    await harness.step(chain.id, "began")
    process.send(signal.SIGTERM)
    assert await process.ended() == ExitCode.ABANDONED
    assert len(process.log.of(WorkerStopped, abandoned=1)) == 1
    assert harness.witness.job(chain.id) == CUT_OFF


async def test_a_thread_that_does_not_listen(harness: FaultHarness) -> None:
    chain = await harness.client.start_chain(threaded, Plan(before=[1], stubborn=True))
    process = harness.spawn(shutdown_timeout=0, lease=LASTING)
    await harness.step(chain.id, "began")
    process.send(signal.SIGTERM)
    assert await process.ended() == ExitCode.ABANDONED
    assert len(process.log.of(WorkerStopped, abandoned=1)) == 1
    assert harness.witness.job(chain.id) == CUT_OFF


async def test_a_thread_that_listens(harness: FaultHarness) -> None:
    """The handler checks its signal and returns: it is not abandoned, and its work counts or is repeated."""
    chain = await harness.client.start_chain(threaded, Plan(before=[1]))
    process = harness.spawn(shutdown_timeout=0, lease=LASTING)
    await harness.step(chain.id, "began")
    process.send(signal.SIGTERM)
    assert await process.ended() == ExitCode.STOPPED
    assert harness.witness.detail(chain.id, "reported", 1) == "worker_stopping"
    assert harness.witness.job(chain.id) in {GIVEN_BACK, ("completed", 1, 0, 0)}


async def test_under_load(harness: FaultHarness) -> None:
    """Each job is completed or untouched: claimed jobs that had not started are released uncounted."""
    chains = await harness.client.start_chains([NewChain(quick, number) for number in range(1000)])
    # However late the signal arrives, there are jobs left that were not touched.
    await harness.client.start_chains([NewChain(patient, Plan(before=[1])) for _ in range(10)])
    await harness.client.start_chains([NewChain(quick, number) for number in range(1000)])
    process = harness.spawn(concurrency=10, lease=LASTING)
    await until(lambda: harness.witness.effects(chains[0].id), "it works", START)
    process.send(signal.SIGTERM)
    await process.log.wait_for(WorkerStopping)
    harness.witness.open("before:1")
    assert await process.ended() == ExitCode.STOPPED
    found = set(harness.witness.rows("select status, attempt, uncounted from queuert.job"))
    assert found == {("completed", 1, 0), ("ready", 0, 0)}


@pytest.mark.parametrize("what", ["task", "thread"])
async def test_a_process_ends_though_a_handler_has_left_something_that_does_not(
    harness: FaultHarness, what: str
) -> None:
    """The job is completed; the event loop would wait for the rest without a limit."""
    chain = await harness.client.start_chain(patient, Plan(leaves=what))
    process = harness.spawn(shutdown_timeout=0, lease=LASTING)
    await harness.status(chain.id, "completed")
    process.send(signal.SIGTERM)
    assert await process.ended() == ExitCode.ABANDONED
    assert len(process.log.of(WorkerStopped, abandoned=0)) == 1


async def test_a_signal_is_heard_that_comes_while_the_event_loop_is_blocked_and_called_by_many(
    harness: FaultHarness,
) -> None:
    """The pipe that wakes the event loop is full then, and has no space for the signal."""
    chain = await harness.client.start_chain(blocking, -1.0)
    process = harness.spawn(lease=LASTING)
    await harness.step(chain.id, "began")
    process.send(signal.SIGTERM)
    harness.witness.open("wake")
    assert await process.ended() == ExitCode.STOPPED
    assert harness.witness.job(chain.id)[0] == "completed"


async def test_the_store_is_out_of_reach(harness: FaultHarness, proxy: FaultProxy) -> None:
    """The worker cannot release anything, and ends nevertheless; the lease expires."""
    chain = await harness.client.start_chain(patient, Plan(before=[1]))
    process = harness.spawn(url=proxy.address_in(harness.dsn), shutdown_timeout=0)
    await harness.step(chain.id, "began")
    proxy.black_hole()
    process.send(signal.SIGTERM)
    assert await process.ended() in {ExitCode.STOPPED, ExitCode.ABANDONED}
    harness.witness.open("before:1")
    async with harness.worker():
        assert await chain.result(WAIT) == 2
