"""Connections that break during a commit: the worker finds out what happened, and neither guesses nor repeats it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from queuert import InProcessWorker, JobStatus, JobType, PostgresState
from queuert.errors import StateUnavailableError
from queuert.observability.events import AttemptCompleted, AttemptStarted, JobReaped, JobsReleased, LoopFailed
from queuert.state.async_store import AsyncStore
from queuert.state.types import ClaimedJob, Finish, FinishKind
from queuert.testing.conformance.builders import read
from queuert.testing.fault_proxy import FaultProxy
from queuert.worker.runner import AttemptState
from tests.faults.application import Plan, patient
from tests.faults.harness import MODES, FaultHarness
from tests.support.harness import PostgresHarness
from tests.support.job_types import number
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.fault

LAST = b"It is sent together with"
FINISH = b"jsonb_object_keys"
CLAIM = b"shares AS"
"""A text that only one statement contains."""


def through(proxy: FaultProxy, harness: FaultHarness) -> PostgresState:
    """Return the state behind the proxy. All statements are sent with their text, so that tests can recognize them."""
    return PostgresState(proxy.address_in(harness.dsn), listen_dsn=harness.dsn, prepare_threshold=None)


@pytest.fixture
async def worker(harness: FaultHarness, proxy: FaultProxy) -> AsyncIterator[InProcessWorker]:
    """Yield a worker whose statements go through the proxy."""
    async with harness.worker(state=through(proxy, harness)) as worker:
        yield worker


async def begun(harness: FaultHarness, job_type: JobType[Plan, int], step: str, plan: Plan) -> str:
    """Start a chain, wait until its job has reached this step, and return its id."""
    chain = await harness.client.start_chain(job_type, plan)
    await harness.step(chain.id, step)
    return chain.id


async def completed_by(harness: FaultHarness, chain_id: str, attempt: int) -> None:
    """The job is completed, and the worker knows it; only the last attempt completed it."""
    chain = await harness.client.get_chain(chain_id)
    assert await chain.result(WAIT) == attempt
    await harness.log.wait_for(AttemptCompleted, job_id=chain_id)
    assert [event.attempt for event in harness.log.of(AttemptCompleted)] == [attempt]
    job = await harness.client.get_job(chain_id)
    assert job.attempt == attempt
    assert job.last_error is None


@pytest.mark.quick
@MODES
@pytest.mark.usefixtures("worker")
async def test_answer_to_the_commit_of_complete_is_lost(
    harness: FaultHarness, proxy: FaultProxy, job_type: JobType[Plan, int]
) -> None:
    chain_id = await begun(harness, job_type, "inside", Plan(completes=True, inside=[1]))
    proxy.lose_answer(LAST)
    harness.witness.open("inside:1")
    await until(proxy.fired.is_set, "the answer is lost")
    await completed_by(harness, chain_id, 1)
    assert harness.witness.effects(chain_id) == [1]
    assert harness.log.of(JobReaped) == []


@MODES
@pytest.mark.usefixtures("worker")
async def test_commit_of_complete_never_arrives(
    harness: FaultHarness, proxy: FaultProxy, job_type: JobType[Plan, int]
) -> None:
    chain_id = await begun(harness, job_type, "inside", Plan(completes=True, inside=[1]))
    proxy.lose_request(LAST)
    harness.witness.open("inside:1")
    await until(proxy.fired.is_set, "the request is lost")
    await completed_by(harness, chain_id, 2)
    assert harness.witness.effects(chain_id) == [2]
    assert harness.witness.detail(chain_id, "refused", 1) == "StateUnavailableError"
    assert harness.log.of(JobReaped) == []


@MODES
@pytest.mark.parametrize("arrives", [True, False], ids=["answer is lost", "request is lost"])
@pytest.mark.usefixtures("worker")
async def test_the_completers_statement(
    harness: FaultHarness, proxy: FaultProxy, job_type: JobType[Plan, int], arrives: bool
) -> None:
    """The completer asks again: there is one attempt in either case, and no failure."""
    chain_id = await begun(harness, job_type, "began", Plan(before=[1]))
    (proxy.lose_answer if arrives else proxy.lose_request)(FINISH)
    harness.witness.open("before:1")
    await until(proxy.fired.is_set, "the connection is cut")
    await completed_by(harness, chain_id, 1)
    assert harness.log.of(JobReaped) == []


@pytest.mark.parametrize("arrives", [True, False], ids=["answer is lost", "request is lost"])
async def test_a_claim(harness: FaultHarness, proxy: FaultProxy, arrives: bool) -> None:
    """Jobs of a claim whose answer was lost are released at once, uncounted, and then run."""
    chain = await harness.client.start_chain(patient, Plan())
    (proxy.lose_answer if arrives else proxy.lose_request)(CLAIM)
    async with harness.worker(state=through(proxy, harness)):
        assert await chain.result(WAIT) == 1
    assert proxy.fired.is_set()
    assert [event.count for event in harness.log.of(JobsReleased)] == [1] * arrives
    assert len(harness.log.of(LoopFailed, loop="claimer")) == 1
    assert len(harness.log.of(AttemptStarted, job_id=chain.id)) == 1
    assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)
    claims = harness.witness.one("select count(*) from history where new_status = 'running'")
    assert claims == (2 if arrives else 1)


async def test_a_claim_before_a_stop(harness: FaultHarness, proxy: FaultProxy) -> None:
    """A worker that stops also releases the jobs of a claim whose answer was lost."""
    chain = await harness.client.start_chain(patient, Plan())
    proxy.lose_answer(CLAIM)
    async with harness.worker(state=through(proxy, harness), shutdown_timeout=WAIT):
        await until(proxy.fired.is_set, "the answer is lost")
    assert harness.witness.job(chain.id) in {("ready", 0, 0, 0), ("completed", 1, 0, 0)}


async def test_renewal(harness: FaultHarness, proxy: FaultProxy, worker: InProcessWorker) -> None:
    """A renewal whose answer was lost is repeated in time."""
    chain_id = await begun(harness, patient, "began", Plan(before=[1]))
    for _ in range(3):
        proxy.lose_answer(b"Renews the leases")
        await until(proxy.fired.is_set, "a renewal is lost")
    harness.witness.open("before:1")
    await completed_by(harness, chain_id, 1)
    assert worker.health().live


@pytest.fixture
async def held(dsn: str) -> AsyncIterator[tuple[AsyncStore, ClaimedJob]]:
    """A store, and a job whose worker is gone and whose lease holds for an hour."""
    postgres = PostgresHarness(dsn)
    await postgres.client.start_chain(number, 1)
    job = await postgres.claim_and_die(number, seconds=3600.0)
    store = postgres.state.async_store(max_connections=2)
    await store.open()
    yield store, job
    await store.aclose()
    await postgres.close()


async def test_what_the_stop_of_the_worker_wrote_instead_is_no_commit(
    held: tuple[AsyncStore, ClaimedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction was rolled back, and before anybody can look, the token has finished the job otherwise."""
    store, job = held
    transaction: Any = store.transaction(job)

    async def rolled_back(error: BaseException | None) -> psycopg.Error:
        await transaction.connection.rollback()
        await store.finish([Finish(job, FinishKind.INTERRUPT)])
        return psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(transaction, "_end", rolled_back)
    with pytest.raises(StateUnavailableError, match="did not take effect"):
        async with transaction:
            await transaction.finish(Finish(job, FinishKind.COMPLETE, output="1"))
    assert (await read(store, job.id)).status is JobStatus.READY


@pytest.mark.parametrize("written", [FinishKind.COMPLETE, FinishKind.INTERRUPT, None])
async def test_only_the_finish_in_doubt_counts_as_committed(
    held: tuple[AsyncStore, ClaimedJob], written: FinishKind | None
) -> None:
    """Of a child process that died in its commit: what a stop wrote with the same token is another finish."""
    store, job = held
    finish = Finish(job, FinishKind.COMPLETE, output="1")
    if written is not None:
        await store.finish([finish if written is FinishKind.COMPLETE else Finish(job, written)])
    attempt: Any = SimpleNamespace(_worker=SimpleNamespace(store=store), _job=job)
    assert await AttemptState._is_committed(attempt, finish) is (written is FinishKind.COMPLETE)
