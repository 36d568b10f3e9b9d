"""Count what one job touches: files, functions and calls of the library, from its start to its result.

    python -m benchmarks.trace_job

A client starts one job of a plain type on Postgres, a worker of the same process runs it, and the client waits for the
result. One job warms everything up; the next is traced with ``sys.setprofile`` in every thread. Counted are calls of
Python functions in the package ``queuert``; a function is its file, name and first line. Work that a clock causes
(a heartbeat, a renewal, a reap, a prune) falls into the traced window by chance, so the least of several jobs counts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import queuert
from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Processors, migrations
from queuert.embedded import EmbeddedPostgres
from queuert.notify.postgres import PostgresNotify
from queuert.state.postgres import PostgresState

PACKAGE = str(Path(queuert.__file__).parent) + "/"

number = JobType("number", input=int, output=int)


@dataclass
class Trace:
    """The calls of functions of the library, in all threads, while it is recording."""

    recording: bool = False
    calls: Counter[CodeType] = field(default_factory=Counter)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """What ``sys.setprofile`` calls."""
        if self.recording and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[frame.f_code] += 1

    def __str__(self) -> str:
        """Each function with its number of calls."""
        found = sorted((code.co_filename.removeprefix(PACKAGE), code.co_name, n) for code, n in self.calls.items())
        return "\n".join(f"{file} {name} {n}" for file, name, n in found)

    @property
    def files(self) -> set[str]:
        """The modules that were entered, relative to the package."""
        return {code.co_filename.removeprefix(PACKAGE) for code in self.calls}

    @property
    def size(self) -> tuple[int, int, int]:
        """Files, functions, calls."""
        return len(self.files), len(self.calls), self.calls.total()


def make_processors() -> Processors:
    """One handler, as plain as there is."""
    processors = Processors(JobTypes(number))

    @processors.handles(number)
    async def add_one(attempt: Attempt[int, int]) -> int:
        return attempt.input + 1

    return processors


async def trace_jobs(dsn: str, jobs: int = 5, enough: tuple[int, int, int] = (0, 0, 0)) -> Trace:
    """The least of so many jobs, each alone on a warm client and worker.

    It ends with the first job of no more files, functions and calls than ``enough``: on a busy machine most jobs fall
    together with the work of a clock.
    """
    trace = Trace()
    # Before the threads of the client and the worker begin, since each takes the function that is set then.
    threading.setprofile(trace)
    sys.setprofile(trace)
    state, notify = PostgresState(dsn), PostgresNotify(dsn)
    least: Trace | None = None
    async with (
        AsyncClient(state, JobTypes(number), notify=notify) as client,
        InProcessWorker(client, make_processors()),
    ):
        for n in range(jobs + 1):
            trace.calls, trace.recording = Counter(), True
            chain = await client.start_chain(number, n)
            result = await chain.result(timeout=30)
            trace.recording = False
            assert result == n + 1
            found = Trace(calls=trace.calls)
            if n and (least is None or found.size < least.size):
                least = found
                if all(size <= most for size, most in zip(found.size, enough, strict=True)):
                    break
            await asyncio.sleep(0.1)  # What the worker does behind its answer belongs to no job.
    sys.setprofile(None)
    threading.setprofile(None)
    assert least is not None
    return least


def main() -> None:
    """Trace, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="print each function with its number of calls")
    arguments = parser.parse_args()
    with EmbeddedPostgres() as server:
        migrations.upgrade(server.dsn())
        trace = asyncio.run(trace_jobs(server.dsn(), arguments.jobs))
    files, functions, calls = trace.size
    print(f"one job: {files} files, {functions} functions, {calls} calls")
    if arguments.list:
        print(trace)


if __name__ == "__main__":
    main()
