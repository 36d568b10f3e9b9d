"""This library, on Postgres or Redis as the address says: typed jobs, leases, fences, stored outputs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.child import Latencies, Meter, Request, is_shared, nap, now, pace_as_asked, ready, serve
from benchmarks.contestants import ours_filled
from benchmarks.contestants.support import remaining, unfinished, until_none
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
    migrations,
)
from queuert.observability.adapter import ObservabilityAdapter
from queuert.observability.events import AttemptCompleted, Event
from queuert.observability.log import LogObservability
from queuert.state.adapter import StateAdapter

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
_UNFINISHED = unfinished("queuert.job where status in ('ready', 'scheduled', 'running', 'blocked')")


def state(server: str) -> StateAdapter:
    """The store at an address."""
    if server.startswith("redis://"):
        from queuert.state.redis import RedisState

        return RedisState(server)
    return PostgresState(server)


class Completions:
    """Hears when so many chains have completed, which is when the store has said so."""

    def __init__(self, chains: int, job_type: str) -> None:
        self._left = chains
        self._type = job_type
        self.all = asyncio.Event()

    def wants(self, kind: type[Event]) -> bool:
        """Only completions, so that no other events are made for it."""
        return kind is AttemptCompleted

    def emit(self, event: Event) -> None:
        """Count the completions of one type."""
        if isinstance(event, AttemptCompleted) and event.type == self._type:
            self._left -= 1
            if self._left == 0:
                self.all.set()


# --- starting ---------------------------------------------------------------------------------------------------------


def prepare(request: Request) -> None:
    """The schema, and a table of the user's own."""
    if request.server.startswith("postgresql://"):
        migrations.upgrade(request.server)
        with psycopg.connect(request.server, autocommit=True) as connection:
            connection.execute(USER_TABLE)


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
    with Client(state(request.server), job_types) as client, Meter(request.jobs) as meter:
        _batches(client, noop, request.jobs, request.option("batch", 1000))
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """One chain a call, one call after the other."""
    with Client(state(request.server), job_types) as client:
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


def _processors(request: Request) -> Processors:
    processors = Processors(job_types)
    if request.option("sleep"):

        @processors.handles(noop)
        async def run_sleeping(attempt: Attempt[int, int]) -> Outcome[int]:
            await nap(request)
            return attempt.input

    else:

        @processors.handles(noop)
        async def run(attempt: Attempt[int, int]) -> Outcome[int]:
            return attempt.input

    @processors.handles(write)
    async def run_write(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute("insert into user_write (value) values (%s)", [attempt.input])
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
        return attempt.input

    @processors.handles(part)
    async def run_part(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input

    @processors.handles(whole)
    async def run_whole(attempt: Attempt[int, int]) -> Outcome[int]:
        return len(attempt.outputs_of(part))

    return processors


def drain(request: Request) -> dict[str, float]:
    """All no-op jobs."""
    return asyncio.run(_drain(request, "noop", request.jobs))


def drain_writes(request: Request) -> dict[str, float]:
    """Jobs that write a row of the user's in the transaction of their completion."""
    return asyncio.run(_drain(request, "write", request.jobs))


def drain_chains(request: Request) -> dict[str, float]:
    """Chains of five."""
    return asyncio.run(_drain(request, "last", request.jobs // 5))


def drain_join(request: Request) -> dict[str, float]:
    """Many chains, and the one that waits for them."""
    return asyncio.run(_drain(request, "whole", 1))


async def _drain(request: Request, job_type: str, chains: int) -> dict[str, float]:
    completions = Completions(chains, job_type)
    observability: list[ObservabilityAdapter] = [LogObservability(), completions]
    async with AsyncClient(state(request.server), job_types, observability=observability) as client:
        worker = InProcessWorker(client, _processors(request), **_worker_options(request))
        # As InProcessWorker.run() does once; here the worker shares its event loop with the measuring.
        gc.collect()
        gc.freeze()
        with Meter(request.jobs) as meter:
            await worker.start()
            await _all_done(request, completions)
        await worker.stop()
    _check_drained(request.server)
    return meter.answer()


async def _all_done(request: Request, completions: Completions) -> None:
    """One worker hears it; one of several has to ask."""
    if not is_shared(request):
        await completions.all.wait()
        return
    async with remaining(request.server, _UNFINISHED) as ask:
        await until_none(ask)


def start_and_drain(request: Request) -> dict[str, float]:
    """No-op jobs, started here beside what is there already."""
    load(request)
    return drain(request)


def _worker_options(request: Request) -> dict[str, Any]:
    concurrency = request.option("concurrency")
    return {} if concurrency is None else {"concurrency": concurrency}


def _check_drained(server: str) -> None:
    if not server.startswith("postgresql://"):
        return
    with psycopg.connect(server) as connection:
        row = connection.execute(_UNFINISHED.encode()).fetchone()
    if row is None or row[0] != 0:
        raise SystemExit(f"not all jobs have ended: {row}")


# --- latency ----------------------------------------------------------------------------------------------------------


def wait_for_jobs(request: Request) -> dict[str, float]:
    """A worker that is idle until a job comes."""
    return asyncio.run(_wait_for_jobs(request))


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
    asyncio.run(_pace(request))


async def _pace(request: Request) -> None:
    async with AsyncClient(state(request.server), job_types) as client:
        await client.open()
        await pace_as_asked(
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
