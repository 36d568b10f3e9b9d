"""rq."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis
from rq import Queue, SimpleWorker, Worker  # type: ignore[import-not-found]

from benchmarks.child import Latencies, Meter, Request, now, ready, serve
from benchmarks.contestants.support import batches

_latencies: list[Latencies] = []


def noop(value: int) -> int:
    """The job; it is found by its name."""
    return value


def arrive(value: int) -> None:
    """The job of the latency."""
    _latencies[0].arrived(value)


_NOOP = "benchmarks.contestants.on_rq.noop"
_ARRIVE = "benchmarks.contestants.on_rq.arrive"


def _queue(request: Request) -> Any:
    logging.disable(logging.WARNING)
    return Queue(connection=redis.Redis.from_url(request.server))


def load(request: Request) -> None:
    """No-op jobs."""
    start_batches(request)


def start_single(request: Request) -> dict[str, float]:
    """enqueue."""
    queue = _queue(request)
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            queue.enqueue(_NOOP, number)
    return meter.answer()


def start_batches(request: Request) -> dict[str, float]:
    """enqueue_many."""
    queue = _queue(request)
    with Meter(request.jobs) as meter:
        for numbers in batches(request.jobs):
            queue.enqueue_many([Queue.prepare_data(_NOOP, (number,)) for number in numbers])
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker, until the queue is empty; it runs one job at a time."""
    queue = _queue(request)
    kind = SimpleWorker if request.option("simple") else Worker
    worker = kind([queue], connection=queue.connection)
    with Meter(request.jobs, children=True) as meter:
        worker.work(burst=True, logging_level="CRITICAL")
    if queue.count or queue.finished_job_registry.count < request.jobs:
        raise SystemExit(f"only {queue.finished_job_registry.count} jobs were finished")
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker in this process."""
    # The worker imports the module by its name: that copy of it is the one that counts.
    from benchmarks.contestants import on_rq

    latencies = Latencies(request.jobs)
    on_rq._latencies.append(latencies)
    queue = _queue(request)
    worker = SimpleWorker([queue], connection=queue.connection)
    threading.Timer(1.0, ready).start()  # There is no telling when it waits.
    worker.work(logging_level="CRITICAL", max_jobs=request.jobs)
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    queue = _queue(request)
    for _ in range(request.jobs):
        queue.enqueue(_ARRIVE, now())
        time.sleep(0.02)


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
