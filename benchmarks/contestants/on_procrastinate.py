"""procrastinate, on psycopg."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import procrastinate  # type: ignore[import-not-found]
import psycopg

from benchmarks.child import Countdown, Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.support import BATCH, USER_TABLE, WRITE, batches, remaining, run, unfinished

_UNFINISHED = unfinished("procrastinate_jobs where status in ('todo', 'doing')")


def _app(request: Request) -> Any:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=request.server))


def _sync_app(request: Request) -> Any:
    return procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=request.server))


def _task(app: Any, handler: Any) -> Any:
    return app.task(name="noop")(handler)


async def _nothing(value: int) -> int:
    return value


def prepare(request: Request) -> None:
    """The schema."""
    with _sync_app(request).open() as app:
        app.schema_manager.apply_schema()
    with psycopg.connect(request.server, autocommit=True) as connection:
        connection.execute(USER_TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_batches(request: Request) -> dict[str, float]:
    """batch_defer."""
    with _sync_app(request).open() as app:
        task = _task(app, _nothing)
        with Meter(request.jobs) as meter:
            for numbers in batches(request.jobs, request.option("batch_size", BATCH)):
                task.batch_defer(*({"value": number} for number in numbers))
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """defer."""
    with _sync_app(request).open() as app:
        task = _task(app, _nothing)
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                task.defer(value=number)
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """defer on a connection of the user's."""
    with _sync_app(request).open() as app, psycopg.connect(request.server) as connection:
        task = _task(app, _nothing)
        with Meter(request.jobs) as meter:
            for number in range(request.jobs):
                connection.execute(WRITE, [number])
                task.configure(connection=connection).defer(value=number)
                connection.commit()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)

    async def handle(value: int) -> int:
        await nap(request)
        countdown.one()
        return value

    async with _app(request).open_async() as app, remaining(request.server, _UNFINISHED) as ask:
        _task(app, handle)
        with Meter(request.jobs) as meter:
            worker = _worker(app, request)
            await countdown.drained(ask)
        await _stop(worker)
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)

    async def handle(value: int) -> None:
        latencies.arrived(value)

    async with _app(request).open_async() as app:
        _task(app, handle)
        worker = _worker(app, request)
        await asyncio.sleep(1.0)  # There is no telling when it listens.
        ready()
        await latencies.all.wait()
        await _stop(worker)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    async with _app(request).open_async() as app:
        task = _task(app, _nothing)
        await pace_as_requested(
            request,
            lambda: task.defer_async(value=now()),
            lambda moments: task.batch_defer_async(*({"value": moment} for moment in moments)),
        )


def _worker(app: Any, request: Request) -> asyncio.Task[None]:
    settings = {"concurrency": request.option("concurrency", 1), "install_signal_handlers": False}
    return asyncio.create_task(app.run_worker_async(**settings))


async def _stop(worker: asyncio.Task[None]) -> None:
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker


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
