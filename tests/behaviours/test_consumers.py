"""Consumers: what a handler is told, how failures are tried again, and how a worker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from queuert import AsyncClient, Attempt, InProcessWorker, JobStatus, NewChain, RetryPolicy
from queuert.errors import ClosedError, JobFailedError, RetryLater
from queuert.jobs import AbortReason
from queuert.observability.events import (
    AttemptCompleted,
    AttemptFailed,
    AttemptInterrupted,
    AttemptRetried,
    AttemptStarted,
    ChainClosed,
    ChainStarted,
    JobReaped,
    LeasesRenewed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from queuert.observability.otel import OTelObservability
from queuert.policies import LeasePolicy
from queuert.worker.after_attempt import EndedAttempt
from tests.behaviours.support import kept
from tests.support.harness import Harness
from tests.support.job_types import BRIEF, JOB_TYPES, LATER, anything, echo, loop, number, relay, text
from tests.support.waiting import WAIT, Gate, in_time, until


async def test_producer_consumer_or_both(harness: Harness) -> None:
    """P01: a client alone, a worker with a client of its own, and both on one client."""
    harness.handles(number, echo)
    async with harness.worker(), harness.worker(client=harness.client):
        producers = [harness.client, harness.new_client()]
        requested = [client.start_and_wait(number, value) for value in range(4) for client in producers]
        assert await in_time(asyncio.gather(*requested)) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_as_many_at_once_as_its_concurrency(harness: Harness) -> None:
    """P37: one by default."""
    gate = Gate()
    harness.handles(number, gate.pass_through)
    await harness.client.start_chains([NewChain(number, value) for value in range(5)])
    async with harness.worker() as one, harness.worker(concurrency=3) as three:
        for _ in range(4):
            await gate.next()
        assert (one.running, three.running) == (1, 3)
        assert gate.arrived.empty()
        await one.stop(shutdown_timeout=0)
        await three.stop(shutdown_timeout=0)


async def test_a_handler_knows_its_job(harness: Harness) -> None:
    """P26, P43, P47: its id, input, number and times; its job is running in its name before it begins."""
    seen: list[tuple[Any, ...]] = []

    async def handler(attempt: Attempt[int, int]) -> Any:
        job = await harness.client.get_job(attempt.job_id)
        seen.append((attempt.job_id, attempt.input, attempt.number, job.status, job.holder, job.attempt))
        assert attempt.created_at == job.created_at
        assert not attempt.abort
        if attempt.number == 1:
            raise ValueError("once more")
        return attempt.input

    harness.handles(number, handler)
    async with harness.worker() as worker:
        assert await harness.client.start_and_wait(number, 5, id="a") == 5
        assert seen == [("a", 5, 1, JobStatus.RUNNING, worker.name, 1), ("a", 5, 2, JobStatus.RUNNING, worker.name, 2)]
    assert len(harness.log.of(AttemptStarted)) == 2


async def test_a_failed_attempt_goes_back_to_the_queue(harness: Harness) -> None:
    """P49, P39: counted, with its error, behind those that have not failed; the type says how many there are."""
    order: list[tuple[int, int]] = []

    async def handler(attempt: Attempt[int, int]) -> int:
        order.append((attempt.input, attempt.number))
        if attempt.input == 1 and attempt.number < 3:
            raise ValueError("not yet")
        return attempt.input

    harness.handles(number, handler)
    chains = [await harness.client.start_chain(number, value) for value in (1, 2, 3)]
    async with harness.worker():
        await harness.client.wait(chains, timeout=WAIT)
    assert order == [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]
    retried = harness.log.of(AttemptRetried)
    assert [(event.attempt, event.error.message) for event in retried] == [(1, "not yet"), (2, "not yet")]


async def test_the_last_failure_is_kept_with_its_error(harness: Harness) -> None:
    """P50, P52, P15: the class, the message and the traceback, for as long as the chain's result would be."""

    class Refused(Exception):
        """With more to say than its message."""

        def __str__(self) -> str:
            return "refused with code 7"

    async def handler(attempt: Attempt[int, int]) -> int:
        raise Refused(7)

    harness.handles(number, handler, retry=RetryPolicy(max_attempts=2, initial_delay=0, jitter=0))
    async with harness.worker():
        chain = await (await harness.client.start_chain(number, 1, result_ttl=60)).wait(WAIT)
    assert chain.error is not None
    assert chain.error.type is not None
    assert (chain.error.kind, chain.error.message) == ("handler", "refused with code 7")
    assert chain.error.type.endswith("Refused")
    assert "Refused(7)" in (chain.error.traceback or "")
    assert kept(chain) == 60
    assert [event.attempt for event in harness.log.of(AttemptFailed)] == [2]


async def test_the_story_of_a_job_that_failed_is_one_look(harness: Harness) -> None:
    """Each attempt that failed, however it did, stands in the job, also when it has completed at last."""

    async def handler(attempt: Attempt[int, Any]) -> Any:
        match attempt.number:
            case 2:
                raise KeyError("which")
            case 3:
                return attempt.retry(after=0, reason="busy")
            case 4:
                raise ValueError("no number")
            case 5:
                raise RetryLater(after=0, reason="not yet")
            case _:
                return attempt.input

    harness.handles(number, handler)
    chain = await harness.client.start_chain(number, 1)
    await harness.claim_and_die(number, worker="dead-worker")
    async with harness.worker():
        await chain.result(WAIT)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.last_error) == (JobStatus.COMPLETED, 6, None)
    kinds = ["lease_expired", "handler", "retry", "handler", "retry"]
    assert [(one.attempt, one.error.kind) for one in job.failures] == list(enumerate(kinds, 1))
    assert [one.worker for one in job.failures] == ["dead-worker", *[job.holder] * 4]
    assert "KeyError" in (job.failures[1].error.traceback or "")
    assert all(one.started_at and one.started_at <= one.failed_at for one in job.failures)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_handler_that_takes_too_long_is_reported(harness: Harness, kind: str) -> None:
    """P44, G32: its time is over; the attempt has failed and is tried again."""
    reasons: list[AbortReason | None] = []

    async def coroutine(attempt: Attempt[int, int]) -> int:
        if attempt.number == 1:
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(attempt.abort.reason)
        return attempt.number

    def thread(attempt: Attempt[int, int]) -> int:
        if attempt.number == 1:
            attempt.abort.wait_sync(WAIT)
            reasons.append(attempt.abort.reason)
        return attempt.number

    harness.handles(number, {"coroutine": coroutine, "thread": thread}[kind], timeout=1.5)
    async with harness.worker():
        assert await harness.client.start_and_wait(number, 1) == 2
    assert reasons == [AbortReason.TIMEOUT]
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["timeout"]


async def test_a_long_job_is_run_once(harness: Harness) -> None:
    """P40, D12: its lease is renewed for as long as it runs, and nobody else takes it."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.number

    harness.handles(number, handler, lease=LeasePolicy(seconds=3.0, renew_every=0.6))
    async with harness.worker(), harness.worker():
        requested = asyncio.create_task(harness.client.start_and_wait(number, 1, id="long"))
        await gate.next()
        ends = (await harness.client.get_job("long")).lease_expires_at
        assert ends is not None
        await until(lambda: datetime.now(UTC) > ends, "the lease of the claim would be over")
        await harness.log.wait_for(LeasesRenewed, count=1)
        gate.open()
        assert await in_time(requested) == 1
    assert len(harness.log.of(AttemptStarted)) == 1


async def test_a_last_look_before_the_finish_is_written(harness: Harness) -> None:
    """P53, P52: it may change the output, the error and how long they are kept, of the last attempt alone."""
    seen: list[tuple[str, int, int, bool]] = []

    def look(ended: EndedAttempt) -> None:
        seen.append((ended.status, ended.attempt, ended.max_attempts, ended.duration >= 0))
        if ended.error is None:
            ended.output, ended.result_ttl = ended.output * 2, 60
        else:
            ended.error, ended.result_ttl = "told otherwise", 120

    async def handler(attempt: Attempt[int, int]) -> int:
        if attempt.input < 0:
            raise ValueError("no good")
        return attempt.input

    retry = RetryPolicy(max_attempts=2, initial_delay=0, jitter=0)
    harness.handles(number, handler, after_attempt=look, retry=retry)
    async with harness.worker():
        assert await harness.client.start_and_wait(number, 5, id="good") == 10
        with pytest.raises(JobFailedError, match="told otherwise"):
            await harness.client.start_and_wait(number, -5, id="bad")
    assert seen == [("completed", 1, 2, True), ("failed", 2, 2, True)]
    assert [kept(chain) for chain in await harness.client.get_chains(["good", "bad"])] == [60, 120]


async def test_the_events_of_a_jobs_life(harness: Harness) -> None:
    """P29, P30: from the start of its worker to its stop, one observer hears of each step once."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        if attempt.number == 1:
            raise ValueError("not yet")
        return attempt.input if attempt.input > 0 else attempt.fail("no good")

    harness.handles(number, handler)
    client = harness.client
    async with harness.worker():
        good = await (await client.start_chain(number, 1, id="good")).wait(WAIT)
        bad = await (await client.start_chain(number, -1, id="bad")).wait(WAIT)
        await client.start_chain(text, "a", id="unwanted")
        await client.cancel_chain("unwanted")
        await harness.log.wait_for(ChainClosed, chain_id="bad")
    kinds = [WorkerStarted, WorkerStopping, WorkerStopped]
    assert [len(harness.log.of(kind)) for kind in kinds] == [1, 1, 1]
    assert [event.chain_id for event in harness.log.of(ChainStarted)] == ["good", "bad", "unwanted"]
    assert [event.job_id for event in harness.log.of(AttemptRetried)] == ["good", "bad"]
    assert [event.job_id for event in harness.log.of(AttemptCompleted)] == ["good"]
    assert [event.job_id for event in harness.log.of(AttemptFailed)] == ["bad"]
    closed = {event.chain_id: event.status for event in harness.log.of(ChainClosed)}
    assert closed == {"good": good.status, "bad": bad.status, "unwanted": "cancelled"}


class Measured:
    """What an adapter for OpenTelemetry has recorded."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader])
        self.adapter = OTelObservability(self._provider)

    def count_jobs(self) -> dict[tuple[str, ...], float]:
        """By the metric and the values of its attributes: the sum of a counter, or how often a histogram recorded."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            (metric.name, *(str(value) for _, value in sorted((point.attributes or {}).items()))): (
                point.count if isinstance(point, HistogramDataPoint) else point.value
            )
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if isinstance(point, HistogramDataPoint | NumberDataPoint)
        }

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def measured() -> Iterator[Measured]:
    """An adapter of the test's own."""
    measured = Measured()
    yield measured
    measured.close()


async def test_a_worker_is_measured(harness: Harness, measured: Measured) -> None:
    """From its start to its stop, with the adapter for OpenTelemetry as the only observer of all but the test."""

    async def handler(attempt: Attempt[int, int]) -> Any:
        if attempt.number == 1 and attempt.input > 0:
            raise ValueError("not yet")
        return attempt.input if attempt.input > 0 else attempt.fail("no good")

    harness.handles(number, handler)
    client = harness.new_client(observability=measured.adapter)
    async with harness.worker(client=client):
        chains = await client.start_chains([NewChain(number, value) for value in (1, 2, -1)])
        await client.wait(chains, timeout=WAIT)
    # The worker has stopped: all has been told.
    counts = measured.count_jobs()
    expected = {
        ("queuert.worker.started",): 1,
        ("queuert.worker.stopping",): 1,
        ("queuert.worker.stopped",): 1,
        ("queuert.chain.started", "number"): 3,
        ("queuert.chain.closed", "completed", "number"): 2,
        ("queuert.chain.closed", "failed", "number"): 1,
        ("queuert.chain.duration", "completed", "number"): 2,
        ("queuert.chain.duration", "failed", "number"): 1,
        ("queuert.job.attempt.started", "number"): 5,
        ("queuert.job.wait.duration", "number"): 5,
        ("queuert.job.attempt.ended", "completed", "number"): 2,
        ("queuert.job.attempt.ended", "ValueError", "retried", "number"): 2,
        ("queuert.job.attempt.ended", "fail", "failed", "number"): 1,
        ("queuert.job.attempt.duration", "completed", "number"): 2,
        ("queuert.job.attempt.duration", "retried", "number"): 2,
        ("queuert.job.attempt.duration", "failed", "number"): 1,
    }
    assert {name: counts.get(name) for name in expected} == expected


async def test_errors_do_not_end_the_worker(harness: Harness) -> None:
    """P56: whatever handlers raise, the next job is run."""

    async def handler(attempt: Attempt[int, int]) -> int:
        raise (ValueError, SystemExit, KeyboardInterrupt, RecursionError)[attempt.input]("on purpose")

    harness.handles(number, handler, retry=RetryPolicy(max_attempts=1))
    harness.handles(text, echo)
    async with harness.worker():
        chains = await harness.client.start_chains([NewChain(number, value) for value in range(4)])
        closed = await harness.client.wait(chains, timeout=WAIT)
        assert {chain.status for chain in closed} == {"failed"}
        assert await harness.client.start_and_wait(text, "still here") == "still here"


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_a_stop_waits_for_what_runs(harness: Harness) -> None:
    """P54, G03: nothing new is begun, what runs ends well."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    harness.handles(number, handler)
    first, second = [await harness.client.start_chain(number, value) for value in (1, 2)]
    worker = harness.worker()
    await worker.start()
    attempt = await gate.next()
    stopping = asyncio.create_task(worker.stop(shutdown_timeout=WAIT))
    await harness.log.wait_for(WorkerStopping)
    assert attempt.worker_stopping
    gate.open()
    await in_time(stopping)
    assert await first.result(WAIT) == 1
    assert (await harness.client.get_job(second.id)).status is JobStatus.READY
    await worker.stop()


async def test_what_does_not_end_in_time_is_given_back_at_once(harness: Harness) -> None:
    """P44, P54, P82, D07: its handler is told; another worker runs it without waiting for the lease; nothing counts."""
    reasons: list[AbortReason | None] = []

    async def stuck(attempt: Attempt[int, int]) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(attempt.abort.reason)
        return 0

    lease = LeasePolicy(seconds=86_400)
    stuck_group, good_group = harness.new_processors(), harness.new_processors()
    stuck_group.handles(number, lease=lease)(stuck)
    good_group.handles(number, lease=lease)(echo)
    chains = await harness.client.start_chains([NewChain(number, value) for value in range(3)])
    worker = harness.worker(stuck_group, concurrency=2)
    await worker.start()
    await harness.log.wait_for(AttemptStarted, times=2)
    await worker.stop(shutdown_timeout=0)
    assert reasons == [AbortReason.WORKER_STOPPING] * 2
    assert len(harness.log.of(AttemptInterrupted)) == 2
    async with harness.worker(good_group):
        assert [await chain.result(WAIT) for chain in chains] == [0, 1, 2]
    jobs = [await harness.client.get_job(chain.id) for chain in chains]
    assert [(job.attempt, job.uncounted) for job in jobs] == [(2, 1), (2, 1), (1, 0)]


async def test_stopped_twice_and_started_once(harness: Harness) -> None:
    """P55, P66: a stop may be repeated; a worker is started once, and another one of its name goes on."""
    harness.handles(number, echo)
    worker = harness.worker()
    await worker.start()
    await worker.stop()
    await worker.stop()
    with pytest.raises(ClosedError):
        await worker.start()
    chain = await harness.client.start_chain(number, 5)
    async with harness.worker():
        assert await chain.result(WAIT) == 5


async def test_handlers_are_registered_before_the_worker_is_made(harness: Harness) -> None:
    """P58: in any order before its start; a client that is used before or after makes no difference."""
    chain = await harness.client.start_chain(text, "a")
    processors = harness.new_processors()
    processors.handles(text)(echo)
    worker = harness.worker(processors)
    processors.handles(number)(echo)
    async with worker:
        assert await chain.result(WAIT) == "a"
    assert harness.log.of(WorkerStarted)[0].types == ("text",)


# --- workers that can be seen -----------------------------------------------------------------------------------------


async def test_workers_are_listed_while_they_live(harness: Harness) -> None:
    """P36, P45, G30: by name, with what they run, from before the first claim until they have stopped."""
    gate = Gate()
    harness.handles(number, gate.pass_through)
    worker = harness.worker(name="mine", concurrency=4)
    assert await harness.client.list_workers() == []
    async with worker:
        await harness.client.start_chain(number, 1)
        attempt = await gate.next()
        [listed] = await harness.client.list_workers()
        assert (listed.name, listed.id, listed.job_types, listed.concurrency) == ("mine", worker.name, ("number",), 4)
        assert attempt.worker == listed.id
        assert listed.id.startswith("mine")
        await worker.stop(shutdown_timeout=0)
    assert await harness.client.list_workers() == []


Handle = Callable[[Attempt[Any, Any]], Any]


class Called:
    """A handler that is an object."""

    async def __call__(self, attempt: Attempt[Any, Any]) -> Any:
        return attempt.input


def plain(attempt: Attempt[Any, Any]) -> Any:
    """A handler that runs in a thread."""
    return attempt.input


@pytest.mark.parametrize("handler", [echo, plain, Called()], ids=["coroutine", "function", "object"])
async def test_forms_of_handlers(harness: Harness, handler: Handle) -> None:
    """P42: coroutines, plain functions, and objects that can be called; none takes a callback."""
    harness.handles(anything, handler)
    async with harness.worker():
        assert await harness.client.start_and_wait(anything, [1, None]) == [1, None]


async def test_one_client_serves_a_worker_and_its_producers(harness: Harness) -> None:
    """B01, B07, G01, G02: one of each a process, opened and closed together, in the order in which they nest."""
    processors = harness.new_processors()
    processors.handles(number)(echo)
    async with (
        AsyncClient(harness.state, JOB_TYPES, observability=harness.log) as client,
        InProcessWorker(client, processors, concurrency=3),
    ):
        assert await client.start_and_wait(number, 1) == 1
    with pytest.raises(ClosedError):
        await client.start_chain(number, 2)


async def check_closed(harness: Harness, measured: Measured, expected: dict[str, tuple[str, str]]) -> None:
    """Of each chain with its type and status: told once, counted and measured, from its start to its end."""
    closed = {event.chain_id: event for event in harness.log.of(ChainClosed)}
    assert {id: (event.type, event.status.value) for id, event in closed.items()} == expected
    assert len(harness.log.of(ChainClosed)) == len(expected)
    for id, event in closed.items():
        chain = await harness.client.get_chain(id)
        assert chain.closed_at is not None
        assert chain.created_at is not None
        assert event.duration is not None
        assert abs(event.duration - (chain.closed_at - chain.created_at).total_seconds()) < 1e-4
    counts = measured.count_jobs()
    for name, status in expected.values():
        assert counts["queuert.chain.closed", status, name] == 1
        assert counts["queuert.chain.duration", status, name] == 1


async def test_chains_that_a_client_closes_are_measured(harness: Harness, measured: Measured) -> None:
    """Of one job and of several, completed and cancelled; not those that were closed already."""
    client = harness.new_client(observability=[harness.log, measured.adapter])
    await client.start_chain(number, 1, id="done")
    await client.start_chain(text, "a", id="unwanted")
    await client.start_chain(relay, 1, id="long")
    await client.start_chain(loop, 1, id="looped")
    await client.complete_chain("done", 1)
    await client.continue_chain("long", number, 2)
    await client.complete_chain("long", 3)
    await client.continue_chain("looped", loop, 2)
    await client.cancel_chains(["done", "unwanted", "looped"])
    completed, cancelled = "completed", "cancelled"
    await check_closed(
        harness, measured, {"done": ("number", completed), "unwanted": ("text", cancelled),
                            "long": ("relay", completed), "looped": ("loop", cancelled)},
    )  # fmt: skip


async def test_chains_that_the_reaper_closes_are_counted_and_measured(harness: Harness, measured: Measured) -> None:
    """By the type of the chain, after the event of the job; not those whose job is tried again."""
    client = harness.new_client(observability=[harness.log, measured.adapter])
    await client.start_chain(text, "a", id="short")
    await client.start_chain(relay, 1, id="long")
    await client.continue_chain("long", number, 2)
    await client.start_chain(loop, 1, id="again")
    for job_type in (text, number, loop):
        await harness.claim_and_die(job_type)
    harness.handles(text, echo, lease=BRIEF, retry=RetryPolicy(max_attempts=1))
    harness.handles(number, echo, retry=RetryPolicy(max_attempts=1))
    harness.handles(loop, echo, retry=LATER)
    async with harness.worker(client=client):
        for job_type in (text, number, loop):
            await harness.log.wait_for(JobReaped, type=job_type.name)
        for id in ("short", "long"):
            await harness.log.wait_for(ChainClosed, chain_id=id)
    await check_closed(harness, measured, {"short": ("text", "failed"), "long": ("relay", "failed")})
    for id in ("short", "long"):
        of_chain = [event for event in harness.log.events if getattr(event, "chain_id", None) == id]
        assert [type(event) for event in of_chain][-2:] == [JobReaped, ChainClosed]
