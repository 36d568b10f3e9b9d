"""chancy, on psycopg."""

from __future__ import annotations

from typing import Any

import psycopg
from chancy import Chancy, Job, Queue, Worker  # type: ignore[import-not-found]
from psycopg.rows import dict_row

from benchmarks.child import Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import BATCH, USER_TABLE, WRITE, batches, remaining, run, unfinished, until_none

_UNFINISHED = unfinished("chancy_jobs where state not in ('succeeded', 'failed')")
_FASTER = {"uvloop": True}
_latencies: list[Latencies] = []


_requests: list[Request] = []


async def noop(*, value: int) -> None:
    """The job; it is found by its name."""
    if _requests:
        await nap(_requests[0])


async def arrive(*, value: int) -> None:
    """The job of the latency."""
    _latencies[0].arrived(value)


def _job(function: str, value: int) -> Any:
    return Job(func=f"benchmarks.contestants.on_chancy.{function}", kwargs={"value": value}, queue="default")


def prepare(request: Request) -> None:
    """The schema."""
    run(request, _prepare(request))


async def _prepare(request: Request) -> None:
    async with Chancy(request.server) as chancy:
        await chancy.migrate()
    async with await psycopg.AsyncConnection.connect(request.server, autocommit=True) as connection:
        await connection.execute(USER_TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """push_many."""
    return run(_quick(request), _start_batches(request))


async def _start_batches(request: Request) -> dict[str, float]:
    async with Chancy(request.server) as chancy:
        with Meter(request.jobs) as meter:
            for numbers in batches(request.jobs, request.option("batch_size", BATCH)):
                async for _ in chancy.push_many([_job("noop", number) for number in numbers]):
                    pass
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """push."""
    return run(_quick(request), _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    async with Chancy(request.server) as chancy:
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                await chancy.push(_job("noop", number))
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """push_many_ex on a cursor of the user's."""
    return run(_quick(request), _start_in_transaction(request))


async def _start_in_transaction(request: Request) -> dict[str, float]:
    async with (
        Chancy(request.server) as chancy,
        await psycopg.AsyncConnection.connect(request.server) as connection,
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                await cursor.execute(WRITE, [number])
                await chancy.push_many_ex(cursor, [_job("noop", number)])
                await connection.commit()
    return meter.answer()


def _queue(request: Request) -> Any:
    settings = {"concurrency": request.option("concurrency"), "eager_polling": request.option("eager", False)}
    return Queue("default", executor=Chancy.Executor.Async, **settings)


def drain(request: Request) -> dict[str, float]:
    """One worker. Completions are written once a second, so the handlers are not what is waited for."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    # The worker imports the module by its name: that copy of it is the one that runs.
    from benchmarks.contestants import on_chancy

    if request.option("sleep"):
        on_chancy._requests.append(request)
    async with Chancy(request.server) as chancy, remaining(request.server, _UNFINISHED) as ask:
        await chancy.declare(_queue(request))
        with Meter(request.jobs) as meter:
            async with Worker(chancy, register_signal_handlers=False):
                await until_none(ask)
                meter.stop()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    # The worker imports the module by its name: that copy of it is the one that counts.
    from benchmarks.contestants import on_chancy

    latencies = Latencies(request.jobs)
    on_chancy._latencies.append(latencies)
    async with Chancy(request.server) as chancy:
        await chancy.declare(_queue(request))
        async with Worker(chancy, register_signal_handlers=False) as worker:
            await worker.hub.wait_for("worker.queue.started", timeout=10)
            ready()
            await latencies.all.wait()
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    async with Chancy(request.server) as chancy:

        async def start_many(moments: list[int]) -> None:
            async for _ in chancy.push_many([_job("arrive", moment) for moment in moments]):
                pass

        await pace_as_requested(request, lambda: chancy.push(_job("arrive", now())), start_many)


def _quick(request: Request) -> Request:
    return Request(request.action, request.server, request.jobs, {**request.options, **_FASTER})


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
