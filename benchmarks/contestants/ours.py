"""This library, on Postgres or Redis as the address says: typed jobs, leases, fences, stored outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants import ours_filled
from benchmarks.contestants.support import Remaining, remaining, run, some_of
from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
    migrations,
)
from queuert.jobs import JobStatus
from queuert.observability.otel_tracing import OTelMiddleware
from queuert.state.adapter import StateAdapter
from queuert.worker.run import tuned_gc

noop = JobType("noop", input=int, output=int)
arrive = JobType("arrive", input=int, output=int)
write = JobType("write", input=int, output=int)
last = JobType("last", input=int, output=int)
fourth = JobType("fourth", input=int, continues_with=last)
third = JobType("third", input=int, continues_with=fourth)
second = JobType("second", input=int, continues_with=third)
first = JobType("first", input=int, continues_with=second)
part = JobType("part", input=int, output=int)
whole = JobType("whole", input=int, output=int, blockers=(part, ...))
job_types = JobTypes(noop, arrive, write, first, second, third, fourth, last, part, whole)

USER_TABLE = "create table user_write (id bigint generated always as identity primary key, value bigint not null)"
_OPEN = (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.RUNNING, JobStatus.BLOCKED)
_UNFINISHED = some_of(*(f"queuert.job where status = '{status.value}'" for status in _OPEN))


def state(server: str) -> StateAdapter:
    """The store at an address."""
    if server.startswith("redis://"):
        from queuert.state.redis import RedisState

        return RedisState(server)
    return PostgresState(server)


def _middlewares(request: Request) -> list[OTelMiddleware]:
    """None, or one that samples nothing or everything, with a batch exporter that throws all away."""
    sampling = request.option("sampling")
    if sampling is None:
        return []
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1.0 if sampling == "in" else 0.0)))
    provider.add_span_processor(BatchSpanProcessor(_Discarding()))
    ratio = 0.0 if sampling == "ratio" else 1.0
    return [OTelMiddleware(tracer_provider=provider, attempt_ratio=ratio, send_ratio=ratio)]


class _Discarding(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _client(request: Request) -> Client:
    return Client(state(request.server), job_types, middlewares=_middlewares(request))


# --- starting ---------------------------------------------------------------------------------------------------------


def prepare(request: Request) -> None:
    """The schema, and a table of the user's own."""
    if request.server.startswith("postgresql://"):
        migrations.upgrade(request.server)
        with psycopg.connect(request.server, autocommit=True) as connection:
            connection.execute(USER_TABLE)
            if request.option("prepare") == "no log":
                connection.execute("update queuert.event_log set level = 'off'")


def load(request: Request) -> None:
    """No-op jobs."""
    _start_batches(request, noop)


def load_writes(request: Request) -> None:
    """Jobs whose handlers write."""
    _start_batches(request, write)


def load_chains(request: Request) -> None:
    """The first jobs of chains of five."""
    _start_batches(request, first, jobs=request.jobs // 5)


def load_join(request: Request) -> None:
    """A job that waits for all others."""
    with Client(state(request.server), job_types) as client:
        parts = client.start_chains([NewChain(part, number) for number in range(request.jobs)])
        client.start_chain(whole, 0, blockers=parts)


def start_batches(request: Request) -> dict[str, float]:
    """Many chains a call, their ids back."""
    with _client(request) as client, Meter(request.jobs) as meter:
        _batches(client, noop, request.jobs, request.option("batch", 1000))
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """One chain a call, one call after the other."""
    with _client(request) as client:
        client.open()
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                client.start_chain(noop, number)
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """One chain and a row of the user's in a transaction."""
    with Client(state(request.server), job_types) as client, psycopg.connect(request.server) as connection:
        client.open()
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                connection.execute("insert into user_write (value) values (%s)", [number])
                client.start_chain(noop, number, connection=connection)
                connection.commit()
    return meter.answer()


def start_copy(request: Request) -> dict[str, float]:
    """The client's quickest way to start very many."""
    with Client(state(request.server), job_types) as client, Meter(request.jobs) as meter:
        _batches(client, noop, request.jobs, 10_000)
    return meter.answer()


def _start_batches(request: Request, job_type: JobType[int, Any], jobs: int | None = None) -> None:
    with Client(state(request.server), job_types) as client:
        _batches(client, job_type, request.jobs if jobs is None else jobs, 1000)


def _batches(client: Client, job_type: JobType[int, Any], jobs: int, batch: int) -> None:
    for begin in range(0, jobs, batch):
        client.start_chains([NewChain(job_type, number) for number in range(begin, min(begin + batch, jobs))])


# --- running ----------------------------------------------------------------------------------------------------------


def _processors(request: Request, ended: Callable[[], None]) -> Processors:
    processors = Processors(job_types, retry=RetryPolicy(initial_delay=0.0, jitter=0.0))
    failures = request.option("failures", 0)
    if failures:

        @processors.handles(noop)
        async def run_failing(attempt: Attempt[int, int]) -> Outcome[int]:
            if attempt.number <= failures:
                raise ValueError(f"attempt {attempt.number}")
            ended()
            return attempt.input

    elif request.option("sleep"):

        @processors.handles(noop)
        async def run_sleeping(attempt: Attempt[int, int]) -> Outcome[int]:
            await nap(request)
            ended()
            return attempt.input

    else:

        @processors.handles(noop)
        async def run(attempt: Attempt[int, int]) -> Outcome[int]:
            ended()
            return attempt.input

    @processors.handles(write)
    async def run_write(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into user_write (value) values (%s)", [attempt.input])
            ended()
            return tx.finish(attempt.input)

    @processors.handles(first)
    async def run_first(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(second, attempt.input)

    @processors.handles(second)
    async def run_second(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(third, attempt.input)

    @processors.handles(third)
    async def run_third(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(fourth, attempt.input)

    @processors.handles(fourth)
    async def run_fourth(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(last, attempt.input)

    @processors.handles(last)
    async def run_last(attempt: Attempt[int, int]) -> Outcome[int]:
        ended()
        return attempt.input

    @processors.handles(part)
    async def run_part(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    @processors.handles(whole)
    async def run_whole(attempt: Attempt[int, int]) -> Outcome[int]:
        ended()
        return len(attempt.outputs_of(part))

    return processors


def drain(request: Request) -> dict[str, float]:
    """All no-op jobs."""
    return asyncio.run(_drain(request, request.jobs))


def drain_writes(request: Request) -> dict[str, float]:
    """Jobs that write a row of the user's in the transaction of their completion."""
    return asyncio.run(_drain(request, request.jobs))


def drain_chains(request: Request) -> dict[str, float]:
    """Chains of five."""
    return asyncio.run(_drain(request, request.jobs // 5))


def drain_join(request: Request) -> dict[str, float]:
    """Many chains, and the one that waits for them."""
    return asyncio.run(_drain(request, 1))


async def _drain(request: Request, chains: int) -> dict[str, float]:
    countdown = Countdown(request, chains)
    client = AsyncClient(state(request.server), job_types, middlewares=_middlewares(request))
    async with client, _asking(request, client) as ask:
        worker = InProcessWorker(client, _processors(request, countdown.one), **_worker_options(request))
        # As InProcessWorker.run() does; here the worker shares its event loop with the measuring.
        with tuned_gc(), Meter(request.jobs) as meter:
            await worker.start()
            await countdown.drained(ask)
        await worker.stop()
    return meter.answer()


@asynccontextmanager
async def _asking(request: Request, client: AsyncClient) -> AsyncIterator[Remaining]:
    """Asks how many jobs have not ended."""

    async def count() -> int:
        return sum(one.count for one in await client.count_jobs() if one.status in _OPEN)

    if request.server.startswith("postgresql://"):
        async with remaining(request.server, _UNFINISHED) as ask:
            yield ask
    else:
        yield count


def start_and_drain(request: Request) -> dict[str, float]:
    """No-op jobs, started here beside what is there already."""
    load(request)
    return drain(request)


def _worker_options(request: Request) -> dict[str, Any]:
    concurrency = request.option("concurrency")
    return {} if concurrency is None else {"concurrency": concurrency}


# --- latency ----------------------------------------------------------------------------------------------------------


def wait_for_jobs(request: Request) -> dict[str, float]:
    """A worker that is idle until a job comes."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)
    processors = Processors(job_types)

    @processors.handles(arrive)
    async def run(attempt: Attempt[int, int]) -> Outcome[int]:
        latencies.arrived(attempt.input)
        return 0

    async with (
        AsyncClient(state(request.server), job_types) as client,
        InProcessWorker(client, processors, **_worker_options(request)),
    ):
        ready()
        await latencies.all.wait()
    return latencies.answer()


def pace(request: Request) -> None:
    """The starts of these jobs."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    async with AsyncClient(state(request.server), job_types) as client:
        await client.open()
        await pace_as_requested(
            request,
            lambda: client.start_chain(arrive, now()),
            lambda moments: client.start_chains([NewChain(arrive, moment) for moment in moments]),
        )


ACTIONS: dict[str, Callable[[Request], dict[str, float] | None]] = {
    "prepare": prepare,
    "load": load,
    "load_writes": load_writes,
    "load_chains": load_chains,
    "load_join": load_join,
    "load_rows": ours_filled.load_rows,
    "load_finished": ours_filled.load_finished,
    "claim": ours_filled.claim,
    "start_and_drain": start_and_drain,
    "start_copy": start_copy,
    "start_single": start_single,
    "start_batches": start_batches,
    "start_in_transaction": start_in_transaction,
    "drain": drain,
    "drain_writes": drain_writes,
    "drain_chains": drain_chains,
    "drain_join": drain_join,
    "wait_for_jobs": wait_for_jobs,
    "pace": pace,
}

if __name__ == "__main__":
    serve(ACTIONS)
