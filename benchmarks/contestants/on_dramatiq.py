"""dramatiq, on Redis. It keeps no results."""

from __future__ import annotations

import threading
import time
from typing import Any

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]

from benchmarks.child import Latencies, Meter, Request, now, ready, serve


def _broker(request: Request) -> Any:
    broker = RedisBroker(url=request.server)
    dramatiq.set_broker(broker)
    return broker


def _nothing(value: int) -> None:
    pass


def load(request: Request) -> None:
    """No-op jobs."""
    start_single(request)


def start_single(request: Request) -> dict[str, float]:
    """send."""
    broker = _broker(request)
    actor = dramatiq.actor(actor_name="noop", broker=broker)(_nothing)
    with Meter(request.jobs) as meter:
        for number in range(request.jobs):
            actor.send(number)
    broker.close()
    return meter.answer()


def drain(request: Request) -> dict[str, float]:
    """One worker; threads run the jobs."""
    broker = _broker(request)
    lock, done, left = threading.Lock(), threading.Event(), [request.jobs]

    def handle(value: int) -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                done.set()

    dramatiq.actor(actor_name="noop", broker=broker)(handle)
    worker = dramatiq.Worker(broker, worker_threads=request.option("threads", 8))
    with Meter(request.jobs) as meter:
        worker.start()
        done.wait()
        broker.join("default")
    worker.stop()
    broker.close()
    return meter.answer()


def wait_for_jobs(request: Request) -> dict[str, float]:
    """An idle worker."""
    broker = _broker(request)
    latencies = Latencies(request.jobs)
    dramatiq.actor(actor_name="noop", broker=broker)(latencies.arrived)
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    time.sleep(1.0)
    ready()
    while not latencies.all.is_set():
        time.sleep(0.01)
    worker.stop()
    broker.close()
    return latencies.answer()


def pace(request: Request) -> None:
    """Starts."""
    broker = _broker(request)
    actor = dramatiq.actor(actor_name="noop", broker=broker)(_nothing)
    for _ in range(request.jobs):
        actor.send(now())
        time.sleep(0.02)
    broker.close()


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
