"""DBOS: a workflow without steps, put in a queue; on SQLAlchemy."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import USER_TABLE, remaining, run, unfinished

_UNFINISHED = unfinished("dbos.workflow_status where status not in ('SUCCESS', 'ERROR')")
_ENQUEUE = {"queue_name": "default", "workflow_name": "noop", "app_version": "1"}


def _launch(request: Request) -> None:
    settings: dict[str, Any] = {
        "name": "benchmark",
        "system_database_url": request.server,
        "application_version": "1",
        "log_level": "ERROR",
    }
    DBOS(config=settings)


def prepare(request: Request) -> None:
    """The schema, and the queue."""
    _launch(request)
    DBOS.launch()
    DBOS.register_queue("default", polling_interval_sec=request.option("polling", 1.0))
    DBOS.destroy()
    with psycopg.connect(request.server, autocommit=True) as connection:
        connection.execute(USER_TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    start_single(request)


def start_single(request: Request) -> dict[str, float]:
    """client.enqueue."""
    client = DBOSClient(system_database_url=request.server)
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            client.enqueue(_ENQUEUE, number)
    client.destroy()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)

    async def handle(value: int) -> int:
        await nap(request)
        countdown.one_in_thread()
        return value

    _launch(request)
    DBOS.workflow(name="noop")(handle)
    async with remaining(request.server, _UNFINISHED) as ask:
        with Meter(request.jobs) as meter:
            await asyncio.to_thread(DBOS.launch)
            await countdown.drained(ask)
        await asyncio.to_thread(DBOS.destroy)
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    latencies = Latencies(request.jobs)

    def handle(value: int) -> None:
        latencies.arrived(value)

    _launch(request)
    DBOS.workflow(name="noop")(handle)
    DBOS.launch()
    ready()
    while not latencies.all.is_set():
        time.sleep(0.01)
    DBOS.destroy()
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    client = await asyncio.to_thread(DBOSClient, system_database_url=request.server)

    async def start_many(moments: list[int]) -> None:
        await asyncio.gather(*(client.enqueue_async(_ENQUEUE, moment) for moment in moments))

    await pace_as_requested(request, lambda: client.enqueue_async(_ENQUEUE, now()), start_many)
    await asyncio.to_thread(client.destroy)


if __name__ == "__main__":
    serve(
        {
            "prepare": prepare,
            "load": load,
            "start_single": start_single,
            "start_batches": start_single,
            "drain": drain,
            "wait_for_jobs": wait_for_jobs,
            "pace": pace,
        }
    )
