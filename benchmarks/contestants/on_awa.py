"""awa, whose core is Rust: it brings its own driver."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import awa  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import BATCH, USER_TABLE, batches, run


@dataclass
class Noop:
    """A job's input."""

    value: int


def prepare(request: Request) -> None:
    """The schema."""
    run(request, _prepare(request))


async def _prepare(request: Request) -> None:
    async with awa.AsyncClient(request.server) as client:
        await client.migrate()
        async with await client.transaction() as tx:
            await tx.execute(USER_TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """insert_many_copy, which gives the jobs back."""
    return run(request, _start_batches(request))


async def _start_batches(request: Request) -> dict[str, float]:
    async with awa.AsyncClient(request.server) as client:
        with Meter(request.jobs) as meter:
            for numbers in batches(request.jobs, request.option("batch_size", BATCH)):
                await client.insert_many_copy([Noop(number) for number in numbers])
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """insert."""
    return run(request, _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    async with awa.AsyncClient(request.server) as client:
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                await client.insert(Noop(number))
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """insert in a transaction of its own client's."""
    return run(request, _start_in_transaction(request))


async def _start_in_transaction(request: Request) -> dict[str, float]:
    async with awa.AsyncClient(request.server) as client:
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                async with await client.transaction() as tx:
                    await tx.execute("insert into user_write (value) values ($1)", number)
                    await tx.insert(Noop(number))
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    async with awa.AsyncClient(request.server) as client:

        async def handle(job: Any) -> None:
            await nap(request)
            countdown.one()

        async def ask() -> int:
            return sum(one.total_queued + one.running for one in await client.queue_stats())

        client.task(Noop, queue="default")(handle)
        with Meter(request.jobs) as meter:
            await client.start(_queues(request))
            await countdown.drained(ask)
        await client.shutdown()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)
    async with awa.AsyncClient(request.server) as client:

        async def handle(job: Any) -> None:
            latencies.arrived(job.args.value)

        client.task(Noop, queue="default")(handle)
        await client.start(_queues(request))
        await asyncio.sleep(1.0)  # There is no telling when it listens.
        ready()
        await latencies.all.wait()
        await client.shutdown()
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    async with awa.AsyncClient(request.server) as client:
        await pace_as_requested(
            request,
            lambda: client.insert(Noop(now())),
            lambda moments: client.insert_many_copy([Noop(moment) for moment in moments]),
        )


def _queues(request: Request) -> list[tuple[str, int]]:
    return [("default", request.option("workers", 50))]


if __name__ == "__main__":
    serve(
        {
            "prepare": prepare,
            "load": load,
            "start_single": start_single,
            "start_batches": start_batches,
            "start_copy": start_batches,
            "start_in_transaction": start_in_transaction,
            "drain": drain,
            "wait_for_jobs": wait_for_jobs,
            "pace": pace,
        }
    )
