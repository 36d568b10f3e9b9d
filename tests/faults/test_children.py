"""What handlers fork neither stops their worker nor hangs, and a job that stops its workers reaches the cap."""

from __future__ import annotations

import signal

import pytest

from queuert import AsyncClient, JobType, NewChain, PostgresState
from queuert.errors import JobFailedError
from queuert.worker import forks
from queuert.worker.run import ExitCode
from tests.faults.application import Plan, quick, threaded
from tests.faults.children import (
    CHILDREN,
    JOB_TYPES,
    in_coroutine,
    in_process,
    in_thread,
    stop_in_coroutine,
    stop_in_process,
    stop_in_thread,
)
from tests.faults.harness import FaultHarness
from tests.support.waiting import START, WAIT, until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.fault

APPLICATION = "tests.faults.children:processors"


def command(harness: FaultHarness, *options: str) -> WorkerProcess:
    return harness.command(*options, "--concurrency", "1", application=APPLICATION)


@pytest.mark.quick
@pytest.mark.every_case
@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("job_type", [in_coroutine, in_thread, in_process], ids=lambda job_type: str(job_type.name))
async def test_children_of_a_handler_are_not_the_worker(
    harness: FaultHarness, job_type: JobType[str, str], event_loop: str
) -> None:
    """They end by the signals that they get, and go nowhere when the handler returns in them."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chains = await client.start_chains([NewChain(job_type, name) for name in CHILDREN])
        process = command(harness, "--event-loop", event_loop)
        found = {name: await chain.result(START) for name, chain in zip(CHILDREN, chains, strict=True)}
        assert found == {name: expected for name, (_, expected) in CHILDREN.items()}
        assert not process.has_ended
        process.send(signal.SIGTERM)
        assert await process.ended() == ExitCode.STOPPED
        assert {harness.witness.job(chain.id) for chain in chains} == {("completed", 1, 0, 0)}


async def test_a_worker_that_starts_in_a_child_is_one(harness: FaultHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may fork workers, from a handler's process, too."""
    ended: list[bool] = []
    monkeypatch.setattr(forks, "in_child", True)
    monkeypatch.setattr(forks, "end_child", lambda: ended.append(True))
    chains = await harness.client.start_chains([NewChain(quick, 1), NewChain(threaded, Plan())])
    async with harness.worker():
        assert [await chain.result(WAIT) for chain in chains] == [1, 1]
    assert ended == []


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_a_worker_that_ends_by_itself_does_not_say_that_all_is_well(
    harness: FaultHarness, event_loop: str
) -> None:
    """A task that a handler left calls sys.exit(0): the worker stops as by a signal, and its exit code tells."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "a task exits")
        process = command(harness, "--event-loop", event_loop)
        assert await process.ended() == ExitCode.UNASKED
        assert await chain.result(WAIT) == "left"
        assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)


@pytest.mark.quick
@pytest.mark.every_case
@pytest.mark.parametrize(
    "job_type", [stop_in_coroutine, stop_in_thread, stop_in_process], ids=lambda job_type: str(job_type.name)
)
async def test_a_job_that_stops_its_workers_ends_at_the_cap(harness: FaultHarness, job_type: JobType[str, str]) -> None:
    """A handler that its stopping worker cannot end counts as a crash: `max_crashes` is 2."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(job_type, "")
        codes = [await command(harness, "--shutdown-timeout", "0").ended() for _ in range(2)]
        with pytest.raises(JobFailedError):
            await chain.result(WAIT)
        code = ExitCode.STOPPED if job_type is stop_in_process else ExitCode.ABANDONED
        assert codes == [code, code]
        assert harness.witness.job(chain.id) == ("failed", 2, 2, 0)
        error = (await client.get_job(chain.id)).last_error
        assert error is not None
        assert error.kind == "worker_stopping"
        await until(lambda: harness.witness.sessions() == 0, "the sessions of the workers are over", START)
@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_what_exits_while_the_worker_stops_is_no_second_signal(harness: FaultHarness, event_loop: str) -> None:
    """Tasks that handlers left raise SystemExit: handlers go on to their end, and a requested stop says that it was."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "tasks exit while it stops")
        process = command(harness, "--event-loop", event_loop)
        assert await process.ended() == ExitCode.STOPPED
        assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)


