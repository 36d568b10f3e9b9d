"""The contestant's half of a measurement: it reads one request, does it, and answers with one line of JSON.

Only the standard library is imported here: this module runs in the environments of the peers.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

MARK = "\x1ebenchmark "
_POLL_SECONDS = 0.005
_SHARED_POLL_SECONDS = 0.03
_TICK_SECONDS = 0.01


@dataclass(frozen=True)
class Request:
    """What to do.

    Attributes:
        action: the name of one of the contestant's functions: ``prepare``, ``load``, ``drain``...
        server: a connection string or address.
        jobs: how many.
        options: settings of this entry, such as ``concurrency``.
    """

    action: str
    server: str
    jobs: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def option(self, name: str, default: Any = None) -> Any:
        """A setting of this entry."""
        return self.options.get(name, default)


Answer: TypeAlias = Mapping[str, Any] | None
Actions: TypeAlias = Mapping[str, Callable[[Request], Answer]]


class Meter:
    """Time and processor time of a ``with`` block, and the process' largest memory at its end.

    Of several workers that share the jobs, each says at the block's begin that it is ready, and waits for the others.
    """

    gated = False

    def __init__(self, jobs: int, *, children: bool = False) -> None:
        self._jobs = jobs
        self._who = [resource.RUSAGE_SELF, *([resource.RUSAGE_CHILDREN] if children else [])]
        self._begin()

    def __enter__(self) -> Meter:
        if Meter.gated:
            ready()
            sys.stdin.readline()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.seconds:
            self.stop()

    def stop(self) -> None:
        """What follows in the block does not count."""
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = self._cpu() - self._cpu_began

    def _begin(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self._cpu_began: float = self._cpu()
        self._began: float = time.perf_counter()

    def _cpu(self) -> float:
        used = [resource.getrusage(who) for who in self._who]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def answer(self) -> dict[str, float]:
        """Jobs a second, microseconds of processor a job, and mebibytes."""
        return {
            "rate": self._jobs / self.seconds,
            "seconds": self.seconds,
            "cpu_us": self.cpu_seconds / self._jobs * 1e6,
            "rss_mib": _largest_memory(),
        }


def _largest_memory() -> float:
    """Mebibytes. Linux counts the parent's memory at the fork into what getrusage tells, so it is asked otherwise."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


class Countdown:
    """Counts the handled jobs; say :meth:`one` in the handler, which is to cost nothing.

    A worker that shares the jobs with others cannot count them: it asks the store alone.
    """

    def __init__(self, request: Request, jobs: int | None = None) -> None:
        """``jobs``: how many will say that they were handled, if not all do."""
        self.left = request.jobs if jobs is None else jobs
        self._shared = is_shared(request)
        self._loop = asyncio.get_running_loop()
        self._all = asyncio.Event()

    def one(self) -> None:
        """Another job was handled, in the thread of the event loop."""
        self.left -= 1
        if self.left == 0:
            self._all.set()

    def one_in_thread(self) -> None:
        """The same, in another thread; the caller holds a lock or is alone."""
        self.left -= 1
        if self.left == 0:
            self._loop.call_soon_threadsafe(self._all.set)

    async def drained(self, remaining: Callable[[], Awaitable[int]]) -> None:
        """Wait until all were handled and the store says that none remains."""
        if not self._shared:
            await self._all.wait()
        while await remaining() > 0:  # noqa: ASYNC110 - no store tells of it
            await asyncio.sleep(_SHARED_POLL_SECONDS if self._shared else _POLL_SECONDS)


class Latencies:
    """Times from a start to its handler: a job's payload is the moment of its start, on the machine's own clock."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._milliseconds: list[float] = []
        self.all = asyncio.Event()

    def arrived(self, started: int) -> None:
        """A handler has begun."""
        self._milliseconds.append((time.monotonic_ns() - started) / 1e6)
        if len(self._milliseconds) == self._jobs:
            self.all.set()

    def answer(self) -> dict[str, float]:
        """The middle and the slow end, in milliseconds."""
        ordered = sorted(self._milliseconds)
        return {
            "p50_ms": ordered[(len(ordered) - 1) // 2],
            "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        }


def is_shared(request: Request) -> bool:
    """Whether other processes work on the same jobs."""
    return int(request.option("processes", 1)) > 1


def now() -> int:
    """The moment that goes into a payload: nanoseconds, comparable between processes of one machine."""
    return time.monotonic_ns()


async def paced(jobs: int, start: Callable[[], Awaitable[object]], seconds: float = 0.02) -> None:
    """Start one job after the other, so far apart that the worker is idle in between."""
    for _ in range(jobs):
        await start()
        await asyncio.sleep(seconds)


async def offered(jobs: int, rate: float, start_many: Callable[[list[int]], Awaitable[object]]) -> None:
    """Start so many jobs a second, whether the worker keeps up or not.

    Each tick starts what has become due in one call. A job's moment is the one at which it was due, so that a start
    that comes late counts as a part of the wait.
    """
    began, done = now(), 0
    while done < jobs:
        due = min(jobs, int((now() - began) / 1e9 * rate))
        if due > done:
            await start_many([began + int(number / rate * 1e9) for number in range(done, due)])
            done = due
        await asyncio.sleep(_TICK_SECONDS)


async def pace_as_requested(
    request: Request,
    start: Callable[[], Awaitable[object]],
    start_many: Callable[[list[int]], Awaitable[object]],
) -> None:
    """Start the jobs of a latency: one by one, or at the rate that the request names."""
    rate = request.option("rate")
    if rate is None:
        await paced(request.jobs, start)
    else:
        await offered(request.jobs, rate, start_many)


async def nap(request: Request) -> None:
    """What a handler does that is not a no-op: sleep for as many seconds as the entry's option says."""
    seconds = request.option("sleep")
    if seconds:
        await asyncio.sleep(seconds)


def tell(text: str) -> None:
    """Say how far a long step is."""
    say("progress", text=text)


def say(what: str, **more: Any) -> None:
    """Tell the harness something: ``ready``, or ``answer``."""
    sys.stdout.write(f"\n{MARK}{json.dumps({'say': what, **more})}\n")
    sys.stdout.flush()


def ready() -> None:
    """Tell the harness that the worker waits for jobs."""
    say("ready")


_ALONE = ("prepare", "load")


def serve(actions: Actions) -> None:
    """Read a request from standard input, do it, and answer. What fails, fails with its traceback."""
    request = Request(**json.loads(sys.stdin.readline()))
    Meter.gated = is_shared(request) and request.action not in _ALONE
    answer = actions[request.action](request)
    say("answer", answer=dict(answer or {}))
