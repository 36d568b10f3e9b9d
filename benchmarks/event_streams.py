"""How late events are in streams of many subscribers: `python -m benchmarks.event_streams --subscribers 500`.

One `queuert web` serves `GET /events` to all of them, from a process of its own. First chains are started at a steady
rate, which gives the lag: the seconds from the event's time in the log (clock of the server, on the same machine) until
a subscriber has read it. Then chains are started all at once, which gives the events that are sent in a second. At the
end each subscriber must have got each event once. All parts share the processors of one machine: the server, the web
process, and the subscribers, which take a good part of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from queuert import AsyncClient, JobType, JobTypes, NewChain, PostgresState
from queuert.cli import main as queuert
from queuert.embedded import EmbeddedPostgres
from queuert.web import READ_ACCESS, Access

watched = JobType("watched", input=int, output=int)
JOB_TYPES = JobTypes(watched)

_ROOT = Path(__file__).parents[1]
_BURST = 100
_DATA = re.compile(rb'"happened_at":"([^"]+)".*?"job_id":"([^"]+)"')


def everybody(request: object) -> Access:
    """Let every request read."""
    return READ_ACCESS


class Subscriber:
    """A connection that reads a stream."""

    def __init__(self) -> None:
        self.jobs: Counter[bytes] = Counter()
        self.lags: list[float] = []
        self.last = 0.0
        self._grew = asyncio.Event()

    async def read(self, port: int, connected: asyncio.Semaphore) -> None:
        """Read until cancelled; release the semaphore once the stream has begun."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
            head = await reader.readuntil(b"retry: 3000")
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(head.decode(errors="replace"))
            connected.release()
            while line := await reader.readline():
                if line.startswith(b"data: ") and (found := _DATA.search(line)):
                    self.last = time.time()
                    self.lags.append(self.last - datetime.fromisoformat(found[1].decode()).timestamp())
                    self.jobs[found[2]] += 1
                    self._grew.set()
            raise RuntimeError("a stream has ended")
        finally:
            writer.close()

    async def received(self, events: int) -> None:
        """Wait until it has got so many events."""
        while self.jobs.total() < events:
            self._grew.clear()
            await self._grew.wait()


@contextmanager
def web(dsn: str) -> Iterator[int]:
    """A `queuert web` on that database; yields its port."""
    command = [sys.executable, "-m", "queuert", "web", "benchmarks.event_streams:JOB_TYPES", "--port", "0"]
    started = subprocess.Popen(
        [*command, "--access", "benchmarks.event_streams:everybody"],
        cwd=_ROOT,
        env={**os.environ, "QUEUERT_URL": dsn},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stderr is not None
        for line in started.stderr:
            if found := re.search(r"serving on 127.0.0.1, port (\d+)", line):
                break
        else:
            raise RuntimeError("queuert web did not begin")
        yield int(found[1])
    finally:
        started.send_signal(signal.SIGKILL)
        started.communicate()


async def measure(dsn: str, port: int, subscribers: int, rate: float, seconds: float, burst: int) -> dict[str, Any]:
    """Subscribe, start chains, and return what was seen."""
    connected = asyncio.Semaphore(0)
    readers = [Subscriber() for _ in range(subscribers)]
    tasks = [asyncio.create_task(one.read(port, connected)) for one in readers]
    for _ in readers:
        await _or_error(asyncio.create_task(connected.acquire()), tasks)
    async with AsyncClient(PostgresState(dsn), JOB_TYPES) as client:
        steady = max(1, int(rate * seconds))
        began = time.monotonic()
        for number in range(steady):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            await client.start_chain(watched, number)
        await _or_error(asyncio.gather(*(one.received(steady) for one in readers)), tasks)
        lags = sorted(lag for one in readers for lag in one.lags)
        burst_began = time.time()
        for first in range(0, burst, _BURST):
            await client.start_chains(
                [NewChain(watched, number) for number in range(first, min(burst, first + _BURST))]
            )
        await _or_error(asyncio.gather(*(one.received(steady + burst) for one in readers)), tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    taken = max(one.last for one in readers) - burst_began
    return {
        "subscribers": subscribers,
        "lag_p50_seconds": round(lags[len(lags) // 2], 3),
        "lag_p99_seconds": round(lags[int(len(lags) * 0.99)], 3),
        "burst_events": burst * subscribers,
        "burst_seconds": round(taken, 2),
        "events_per_second": round(burst * subscribers / taken),
        "skipped": sum(steady + burst - len(one.jobs) for one in readers),
        "twice": sum(count - 1 for one in readers for count in one.jobs.values()),
    }


async def _or_error(wanted: asyncio.Future[Any], tasks: list[asyncio.Task[None]]) -> None:
    """Wait for something, or raise the error of the first subscriber that fails."""
    await asyncio.wait([wanted, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            wanted.cancel()
            task.result()


def main() -> int:
    """Run it on a Postgres of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subscribers", type=int, default=500)
    parser.add_argument("--rate", type=float, default=5.0, help="chains a second in the steady part")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the steady part")
    parser.add_argument("--burst", type=int, default=200, help="chains that are started at once")
    args = parser.parse_args()
    with EmbeddedPostgres() as server:
        os.environ["QUEUERT_URL"] = server.dsn()
        if queuert(["migrate", "up"]):
            return 1
        with web(server.dsn()) as port:
            found = asyncio.run(measure(server.dsn(), port, args.subscribers, args.rate, args.seconds, args.burst))
    print(json.dumps(found, indent=2))
    return 1 if found["skipped"] or found["twice"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
