"""What handlers fork neither stops their worker nor hangs, and a job that stops its workers reaches the cap."""

from __future__ import annotations

import signal

import pytest

from queuert import AsyncClient, InProcessWorker, JobType, NewChain, PostgresState
from queuert.errors import JobFailedError
from queuert.worker.run import ExitCode
from tests.faults.children import (
    BACK,
    BACK_IN_THREAD,
    CHILDREN,
    JOB_TYPES,
    LEAVERS,
    UNGUARDED_IF_EMBEDDED,
    back_in_batch,
    back_in_coroutine,
    back_in_hook,
    back_in_middleware,
    back_in_process,
    back_in_thread,
    back_in_threaded_batch,
    back_in_threaded_hook,
    in_coroutine,
    in_lifespan,
    in_process,
    in_process_lifespan,
    in_thread,
    in_threaded_lifespan,
    processors,
    processors_with_lifespans,
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


def expected_ends() -> list[tuple[JobType[str, str], str, str]]:
    """Return the jobs whose children would go back to the worker, and how the children end."""
    in_threads = [(name, end) for name, (_, end) in BACK_IN_THREAD.items()]
    return [
        *((back_in_coroutine, name, end) for name, (_, end) in BACK.items()),
        *((job_type, name, end) for job_type in (back_in_thread, back_in_process) for name, end in in_threads),
        *((back_in_middleware, name, "1") for name in ("handler", "middleware")),
        *((back_in_batch, name, "1") for name in ("returns", "awaits")),
        (back_in_threaded_batch, "returns", "1"),
        *((back_in_hook, name, "1") for name in ("returns", "raises", "awaits")),
        *((back_in_threaded_hook, name, "1") for name in ("returns", "raises")),
    ]


@pytest.mark.quick
@pytest.mark.every_case
@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_children_do_not_go_back_to_the_worker(harness: FaultHarness, event_loop: str) -> None:
    """Wherever they would: at an await, a block, a step or a middleware. A worker that they run themselves works."""
    ends = expected_ends()
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chains = await client.start_chains([NewChain(job_type, name) for job_type, name, _ in ends])
        process = command(harness, "--event-loop", event_loop)
        found = [
            (job_type, name, await chain.result(START)) for (job_type, name, _), chain in zip(ends, chains, strict=True)
        ]
        assert found == ends
        assert not process.has_ended
        process.send(signal.SIGTERM)
        assert await process.ended() == ExitCode.STOPPED
        assert {harness.witness.job(chain.id) for chain in chains} == {("completed", 1, 0, 0)}
        nested = [chain.id for (_, name, _), chain in zip(ends, chains, strict=True) if name == "runs a worker"]
        assert {harness.witness.job(f"nested-{id}") for id in nested} == {("completed", 1, 0, 0)}


@pytest.mark.every_case
async def test_children_do_not_go_back_to_an_embedded_worker(harness: FaultHarness) -> None:
    """A worker beside other code of its process has no signal handlers."""
    ends = [each for each in expected_ends() if each[1] not in UNGUARDED_IF_EMBEDDED]
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client, InProcessWorker(client, processors()):
        chains = await client.start_chains([NewChain(job_type, name) for job_type, name, _ in ends])
        found = [
            (job_type, name, await chain.result(START)) for (job_type, name, _), chain in zip(ends, chains, strict=True)
        ]
    assert found == ends


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_children_of_a_lifespan_do_not_go_on_as_the_worker(harness: FaultHarness, event_loop: str) -> None:
    """Where it is entered and where it is left, in the event loop, in a thread and in the process of a handler."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        types = (in_lifespan, in_threaded_lifespan, in_process_lifespan)
        chains = await client.start_chains([NewChain(job_type, "") for job_type in types])
        application = "tests.faults.children:processors_with_lifespans"
        process = harness.command("--event-loop", event_loop, application=application)
        assert [await chain.result(START) for chain in chains] == ["1", "1", "1"]
        process.send(signal.SIGTERM)
        assert await process.ended() == ExitCode.STOPPED


async def test_children_of_a_lifespan_of_an_embedded_worker(harness: FaultHarness) -> None:
    """No guard around its event loop helps these."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_lifespan, "")
        async with InProcessWorker(client, processors_with_lifespans()[:1]):
            assert await chain.result(WAIT) == "1"


async def test_a_child_that_leaves_the_event_loop_by_an_exception_ends(harness: FaultHarness) -> None:
    """Forked in a callback, where nothing else stops it."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "a callback forks")
        process = command(harness, "--event-loop", "asyncio")
        assert await chain.result(START) == "7"
        process.send(signal.SIGTERM)
        assert await process.ended() == ExitCode.STOPPED


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


@pytest.mark.parametrize("left", LEAVERS)
async def test_what_a_handler_leaves_does_not_keep_the_process(harness: FaultHarness, left: str) -> None:
    """The interpreter would wait for it without a timeout."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, left)
        process = command(harness)
        assert await chain.result(START) == "left"
        process.send(signal.SIGTERM)
        assert await process.ended() == LEAVERS[left][1]
        assert harness.witness.job(chain.id) == ("completed", 1, 0, 0)


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_a_handler_that_cancels_all_tasks(harness: FaultHarness, event_loop: str) -> None:
    """The worker stops, and says that nobody has asked it to; the next one runs the job."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "cancels all tasks")
        assert await command(harness, "--event-loop", event_loop).ended() == ExitCode.UNASKED
        process = command(harness, "--event-loop", event_loop)
        assert await chain.result(START) == "ended"
        process.send(signal.SIGTERM)
        assert await process.ended() == ExitCode.STOPPED


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_a_handler_that_cancels_all_tasks_while_its_worker_stops(harness: FaultHarness, event_loop: str) -> None:
    """Nothing can be stopped in order any more: the process ends, and the lease of the job."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "cancels the stop")
        process = command(harness, "--event-loop", event_loop)
        assert await process.ended() == ExitCode.ABANDONED
        assert harness.witness.job(chain.id)[0] != "completed"


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
async def test_what_exits_while_the_worker_stops_is_no_second_signal(harness: FaultHarness, event_loop: str) -> None:
    """Tasks that handlers left raise SystemExit: handlers go on to their end, and a requested stop says that it was."""
    async with AsyncClient(PostgresState(harness.dsn), JOB_TYPES) as client:
        chain = await client.start_chain(in_coroutine, "tasks exit while it stops")
        process = command(harness, "--event-loop", event_loop)
        assert await process.ended() == ExitCode.STOPPED
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
