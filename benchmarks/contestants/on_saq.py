"""SAQ, on Redis."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Queue, Worker  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, now, paced, ready, serve
from benchmarks.contestants.support import run


def load(request: Request) -> None:
    """No-op jobs."""
    start_single(request)


def start_single(request: Request) -> dict[str, float]:
    """enqueue."""
    return run(request, _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    queue = Queue.from_url(request.server)
    await queue.connect()
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            await queue.enqueue("noop", value=number)
    await queue.disconnect()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    asking = Queue.from_url(request.server)

    async def handle(ctx: Any, *, value: int) -> int:
        countdown.one()
        return value

    async def ask() -> int:
        return int(await asking.count("incomplete"))

    worker = _worker(request, handle)
    with Meter(request.jobs) as meter:
        running = asyncio.create_task(worker.start())
        await countdown.drained(ask)
    await _stop(worker, running)
    await asking.disconnect()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)

    async def handle(ctx: Any, *, value: int) -> None:
        latencies.arrived(value)

    worker = _worker(request, handle)
    running = asyncio.create_task(worker.start())
    await asyncio.sleep(1.0)  # There is no telling when it looks.
    ready()
    await latencies.all.wait()
    await _stop(worker, running)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    queue = Queue.from_url(request.server)
    await queue.connect()
    await paced(request.jobs, lambda: queue.enqueue("noop", value=now()))
    await queue.disconnect()


def _worker(request: Request, handle: Any) -> Any:
    queue = Queue.from_url(request.server)
    return Worker(queue, [("noop", handle)], concurrency=request.option("concurrency", 10))


async def _stop(worker: Any, running: asyncio.Task[None]) -> None:
    await worker.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


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
