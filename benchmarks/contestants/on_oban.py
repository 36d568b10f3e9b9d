"""oban (oban-py), on psycopg. Its syntax needs Python 3.12."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from oban import Oban, worker  # type: ignore[import-not-found]
from oban.schema import install  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import BATCH, USER_TABLE, WRITE, batches, remaining, run, unfinished

_UNFINISHED = unfinished("oban_jobs where state in ('available', 'executing', 'scheduled', 'retryable')")
_FASTER = {"uvloop": True}
_on_job: list[Any] = []
_requests: list[Request] = []


class Noop:
    """The job; what it does is decided by whoever runs it."""

    async def process(self, job: Any) -> None:
        """Tell whoever counts."""
        if _requests:
            await nap(_requests[0])
        if _on_job:
            _on_job[0](job.args["value"])


_Noop: Any = worker(queue="default")(Noop)


def prepare(request: Request) -> None:
    """The schema."""
    run(request, _prepare(request))


async def _prepare(request: Request) -> None:
    pool = await Oban.create_pool(request.server)
    await install(pool)
    await pool.close()
    async with await psycopg.AsyncConnection.connect(request.server, autocommit=True) as connection:
        await connection.execute(USER_TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """enqueue_many."""
    return run(_quick(request), _start_batches(request))


async def _start_batches(request: Request) -> dict[str, float]:
    pool = await Oban.create_pool(request.server)
    oban = Oban(pool=pool)
    with Meter(request.jobs) as meter:
        for numbers in batches(request.jobs, request.option("batch_size", BATCH)):
            await oban.enqueue_many([_Noop.new({"value": number}) for number in numbers])
    await pool.close()
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """enqueue."""
    return run(_quick(request), _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    pool = await Oban.create_pool(request.server)
    oban = Oban(pool=pool)
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            await oban.enqueue(_Noop.new({"value": number}))
    await pool.close()
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """enqueue on a connection of the user's."""
    return run(_quick(request), _start_in_transaction(request))


async def _start_in_transaction(request: Request) -> dict[str, float]:
    pool = await Oban.create_pool(request.server)
    oban = Oban(pool=pool)
    async with await psycopg.AsyncConnection.connect(request.server) as connection:
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                await connection.execute(WRITE, [number])
                await oban.enqueue(_Noop.new({"value": number}), conn=connection)
                await connection.commit()
    await pool.close()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    if request.option("sleep"):
        _requests.append(request)
    _on_job.append(lambda _: countdown.one())
    pool = await Oban.create_pool(request.server)
    async with remaining(request.server, _UNFINISHED) as ask:
        oban = _server(pool, request)
        with Meter(request.jobs) as meter:
            await oban.start()
            await countdown.drained(ask)
        await oban.stop()
    await pool.close()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)
    _on_job.append(latencies.arrived)
    pool = await Oban.create_pool(request.server)
    async with _server(pool, request):
        await asyncio.sleep(1.0)  # There is no telling when it listens.
        ready()
        await latencies.all.wait()
    await pool.close()
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    pool = await Oban.create_pool(request.server)
    async with Oban(pool=pool) as oban:
        await pace_as_requested(
            request,
            lambda: oban.enqueue(_Noop.new({"value": now()})),
            lambda moments: oban.enqueue_many([_Noop.new({"value": moment}) for moment in moments]),
        )
    await pool.close()


def _server(pool: Any, request: Request) -> Any:
    return Oban(pool=pool, queues={"default": request.option("limit", 10)})


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
