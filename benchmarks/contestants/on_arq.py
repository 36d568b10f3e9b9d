"""arq."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from arq import create_pool, func  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import Worker  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, now, paced, ready, serve
from benchmarks.contestants.support import run


def _settings(request: Request) -> Any:
    return RedisSettings.from_dsn(request.server)


def load(request: Request) -> None:
    """No-op jobs."""
    start_single(request)


def start_single(request: Request) -> dict[str, float]:
    """enqueue_job."""
    return run(request, _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    pool = await create_pool(_settings(request))
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            await pool.enqueue_job("noop", number)
    await pool.aclose()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    pool = await create_pool(_settings(request))

    async def handle(ctx: Any, value: int) -> int:
        countdown.one()
        return value

    async def ask() -> int:
        return int(await pool.zcard(pool.default_queue_name))

    worker = _worker(request, handle)
    with Meter(request.jobs) as meter:
        running = asyncio.create_task(worker.async_run())
        await countdown.drained(ask)
    await _stop(worker, running)
    await pool.aclose()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)

    async def handle(ctx: Any, value: int) -> None:
        latencies.arrived(value)

    worker = _worker(request, handle)
    running = asyncio.create_task(worker.async_run())
    await asyncio.sleep(1.0)  # There is no telling when it looks.
    ready()
    await latencies.all.wait()
    await _stop(worker, running)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    pool = await create_pool(_settings(request))
    await paced(request.jobs, lambda: pool.enqueue_job("noop", now()))
    await pool.aclose()


def _worker(request: Request, handle: Any) -> Any:
    chosen = {name: request.options[name] for name in ("max_jobs", "poll_delay") if name in request.options}
    return Worker([func(handle, name="noop")], redis_settings=_settings(request), handle_signals=False, **chosen)


async def _stop(worker: Any, running: asyncio.Task[None]) -> None:
    """A job that is finish is not waited for: what it was measured for has been noted."""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        await worker.close()


if __name__ == "__main__":
    serve(
        {
            "load": load,
            "start_single": start_single,
            "start_batches": start_single,
            "drain": drain,
            "wait_for_jobs": wait_for_jobs,
            "pace": pace,
        }
    )
