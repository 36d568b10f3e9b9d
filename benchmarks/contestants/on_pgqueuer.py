"""pgqueuer, on asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import BATCH, USER_TABLE, batches, run, unfinished

_UNFINISHED = unfinished("pgqueuer")
_FASTER = {"uvloop": True}


def prepare(request: Request) -> None:
    """The schema, durable as it is by default."""
    run(request, _prepare(request))


async def _prepare(request: Request) -> None:
    connection = await asyncpg.connect(request.server)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.execute(USER_TABLE)
    await connection.close()


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """enqueue of lists."""
    return run(_quick(request), _start_batches(request))


async def _start_batches(request: Request) -> dict[str, float]:
    connection = await asyncpg.connect(request.server)
    queries = Queries(AsyncpgDriver(connection))
    with Meter(request.jobs) as meter:
        for numbers in batches(request.jobs, request.option("batch_size", BATCH)):
            payloads = [b"%d" % number for number in numbers]
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
    await connection.close()
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """enqueue."""
    return run(_quick(request), _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    connection = await asyncpg.connect(request.server)
    queries = Queries(AsyncpgDriver(connection))
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            await queries.enqueue("noop", b"%d" % number)
    await connection.close()
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """enqueue in a transaction of the user's."""
    return run(_quick(request), _start_in_transaction(request))


async def _start_in_transaction(request: Request) -> dict[str, float]:
    connection = await asyncpg.connect(request.server)
    queries = Queries(AsyncpgDriver(connection))
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            async with connection.transaction():
                await connection.execute("insert into user_write (value) values ($1)", number)
                await queries.enqueue("noop", b"%d" % number)
    await connection.close()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    asking = await asyncpg.connect(request.server)

    async def handle(job: Any) -> None:
        await nap(request)
        countdown.one()

    async def ask() -> int:
        return int(await asking.fetchval(_UNFINISHED))

    connection, queue = await _queue(request, handle)
    with Meter(request.jobs) as meter:
        worker = _worker(queue, request)
        await countdown.drained(ask)
    await _stop(queue, worker, connection)
    await asking.close()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)

    async def handle(job: Any) -> None:
        latencies.arrived(int(job.payload))

    connection, queue = await _queue(request, handle)
    worker = _worker(queue, request)
    await asyncio.sleep(1.0)  # There is no telling when it listens.
    ready()
    await latencies.all.wait()
    await _stop(queue, worker, connection)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    connection = await asyncpg.connect(request.server)
    queries = Queries(AsyncpgDriver(connection))

    async def start_many(moments: list[int]) -> None:
        await queries.enqueue(["noop"] * len(moments), [b"%d" % moment for moment in moments], [0] * len(moments))

    await pace_as_requested(request, lambda: queries.enqueue("noop", b"%d" % now()), start_many)
    await connection.close()


async def _queue(request: Request, handle: Callable[[Any], Awaitable[None]]) -> tuple[Any, Any]:
    connection = await asyncpg.connect(request.server)
    queue = PgQueuer.from_asyncpg_connection(connection)
    queue.entrypoint("noop")(handle)
    return connection, queue


def _worker(queue: Any, request: Request) -> asyncio.Task[None]:
    return asyncio.create_task(queue.run(batch_size=request.option("batch", 10)))


async def _stop(queue: Any, worker: asyncio.Task[None], connection: Any) -> None:
    queue.shutdown.set()
    await worker
    await connection.close()


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
