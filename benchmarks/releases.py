"""How long a released job waits for an idle worker: `python -m benchmarks.releases`.

A worker with one slot claims a job behind one that does not end. It releases that job, since it has waited for a
second, or since the worker stops; an idle worker in another process runs it. Measured is the time from the decision to
release it to the start of its handler, on each store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.servers import postgres, valkey
from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Outcome, Processors, migrations
from queuert.worker.releases import ReleaseQueue

TARGET = 50.0
"""Milliseconds, at most."""

hold = JobType("hold", input=int, output=int)
note = JobType("note", input=int, output=float)
JOB_TYPES = JobTypes(hold, note)
idle = Processors(JOB_TYPES)
"""Of the idle worker."""

_QUICK = 20
_SETTLE = 0.3
"""Seconds after which the other worker has seen that nothing is due."""
_PAUSE = 0.005
_TIMEOUT = 30.0
_ROOT = Path(__file__).parents[1]


@idle.handles(note)
async def begin(attempt: Attempt[int, float]) -> Outcome[float]:
    """Return when it began, by a clock that all processes of a machine share."""
    return time.monotonic()


class Holding:
    """The slot of the worker that releases is taken until `done` is set."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.done = asyncio.Event()
        self.processors = Processors(JOB_TYPES)
        self.processors.handles(hold)(self._hold)
        self.processors.handles(note)(begin)

    async def _hold(self, attempt: Attempt[int, int]) -> Outcome[int]:
        self.began.set()
        await self.done.wait()
        return attempt.input


@contextmanager
def _decisions() -> Iterator[list[float]]:
    """When jobs were put into the queue of releases."""
    decided: list[float] = []
    put = ReleaseQueue.put

    def noted(queue: ReleaseQueue, *job: Any) -> None:
        decided.append(time.monotonic())
        put(queue, *job)

    with patch.object(ReleaseQueue, "put", noted):
        yield decided


@contextmanager
def _other_worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", "worker", "benchmarks.releases:idle", "--name", "idle"],
        cwd=_ROOT,
        env={**os.environ, "QUEUERT_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


async def released(client: AsyncClient, other: subprocess.Popen[bytes], *, stops: bool) -> float:
    """Seconds from one release to the start."""
    holding = Holding()
    worker = InProcessWorker(client, holding.processors, name="releasing", poll_interval=3600.0)
    # Frozen, it cannot claim what this one is to claim; but first it ends what it writes, under a lock on SQLite.
    await asyncio.sleep(_SETTLE)
    other.send_signal(signal.SIGSTOP)
    quick = [NewChain(note, number, priority=1) for number in range(_QUICK)]
    chains = await client.start_chains([*quick, NewChain(hold, 0), NewChain(note, 0, priority=-1)])
    with _decisions() as decided:
        await worker.start()
        async with asyncio.timeout(_TIMEOUT):
            await holding.began.wait()
            while not ((seen := worker.snapshot()) and seen.prefetched):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(_PAUSE)
        other.send_signal(signal.SIGCONT)
        await asyncio.sleep(_SETTLE)
        stopping = asyncio.create_task(worker.stop()) if stops else None
        began_at = await chains[-1].result(timeout=_TIMEOUT)
    holding.done.set()
    await (stopping or worker.stop())
    return float(began_at) - decided[0]


async def measure(url: str, rounds: int, *, stops: bool) -> list[float]:
    """Milliseconds of each release; the first, which warms the processes, is left out."""
    with _other_worker(url) as other:
        async with AsyncClient.from_url(url, JOB_TYPES) as client:
            async with asyncio.timeout(_TIMEOUT):
                while not await client.list_workers():  # noqa: ASYNC110 - only the store knows it
                    await asyncio.sleep(_PAUSE)
            found = [await released(client, other, stops=stops) for _ in range(rounds + 1)]
    return [seconds * 1000 for seconds in found[1:]]


@contextmanager
def _on_postgres() -> Iterator[str]:
    with postgres() as server, server.copy(server.template("empty", migrations.upgrade)) as dsn:
        yield dsn


@contextmanager
def _on_redis() -> Iterator[str]:
    with valkey() as server, server.emptied() as url:
        yield url


@contextmanager
def _on_sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="queuert-benchmarks-") as folder:
        yield f"sqlite:///{folder}/jobs.db"


STORES: dict[str, Callable[[], Any]] = {"postgres": _on_postgres, "redis": _on_redis, "sqlite": _on_sqlite}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--store", choices=STORES, action="append")
    args = parser.parse_args()
    reached = True
    for store in args.store or STORES:
        with STORES[store]() as url:
            for reason in ("stopped", "stale"):
                found = asyncio.run(measure(url, args.rounds, stops=reason == "stopped"))
                reached &= max(found) <= TARGET
                print(f"{store:<10}{reason:<10}{median(found):>8.1f} ms{max(found):>8.1f} ms at most", flush=True)
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
