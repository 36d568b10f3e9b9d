"""BullMQ for Python."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from bullmq import Queue, Worker  # type: ignore[import-not-found]

from benchmarks.child import Countdown, Latencies, Meter, Request, now, paced, ready, serve
from benchmarks.contestants.support import batches, run


def _queue(request: Request) -> Any:
    return Queue("noop", {"connection": request.server})


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_single(request: Request) -> dict[str, float]:
    """add."""
    return run(request, _start_single(request))


async def _start_single(request: Request) -> dict[str, float]:
    queue = _queue(request)
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            await queue.add("noop", {"value": number})
    await queue.close()
    return meter.answer()


def start_batches(request: Request) -> dict[str, float]:
    """addBulk."""
    return run(request, _start_batches(request))


async def _start_batches(request: Request) -> dict[str, float]:
    queue = _queue(request)
    with Meter(request.jobs) as meter:
        for numbers in batches(request.jobs):
            await queue.addBulk([{"name": "noop", "data": {"value": number}, "opts": {}} for number in numbers])
    await queue.close()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker."""
    return run(request, _drain(request))


async def _drain(request: Request) -> dict[str, float]:
    countdown = Countdown(request)
    queue = _queue(request)

    async def handle(job: Any, token: str) -> int:
        countdown.one()
        return int(job.data["value"])

    async def ask() -> int:
        counts = await queue.getJobCounts("active", "waiting")
        return int(sum(counts.values()))

    with Meter(request.jobs) as meter:
        worker = _worker(request, handle)
        await countdown.drained(ask)
    await _stop(worker)
    await queue.close()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    return run(request, _wait_for_jobs(request))


async def _wait_for_jobs(request: Request) -> dict[str, float]:
    latencies = Latencies(request.jobs)

    async def handle(job: Any, token: str) -> None:
        latencies.arrived(int(job.data["value"]))

    worker = _worker(request, handle)
    await asyncio.sleep(1.0)  # There is no telling when it looks.
    ready()
    await latencies.all.wait()
    await _stop(worker)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    run(request, _pace(request))


async def _pace(request: Request) -> None:
    queue = _queue(request)
    await paced(request.jobs, lambda: queue.add("noop", {"value": now()}))
    await queue.close()


def _worker(request: Request, handle: Any) -> Any:
    settings = {"connection": request.server, "concurrency": request.option("concurrency", 1)}
    return Worker("noop", handle, settings)


async def _stop(worker: Any) -> None:
    """It may wait long for its blocking command."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(worker.close(force=True), 2)


if __name__ == "__main__":
    serve(
        {
            "load": load,
            "start_single": start_single,
            "start_batches": start_batches,
            "drain": drain,
            "wait_for_jobs": wait_for_jobs,
            "pace": pace,
        }
    )
