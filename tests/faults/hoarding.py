"""Handlers that take all memory, and a worker for them: ``python -m tests.faults.hoarding``.

The handlers limit the memory of their own process themselves, just before they take it: the limit counts addresses, of
which threads that start later need many.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.worker import leases
from tests.faults.application import AT_ONCE, LEASE, TWICE
from tests.faults.child import EventPipe

ROOM = 64 * 1024 * 1024
PIECES = (1024 * 1024, 64 * 1024, 4096, 256)
"""Sizes that become smaller, until not even the smallest can be allocated."""

hoard = JobType("hoard", input=str, output=int)
frugal = JobType("frugal", input=int, output=int)
JOB_TYPES = JobTypes(hoard, frugal)

_kept: list[bytes] = []


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, most))


def take_all(how: str) -> int:
    """Allocate until there is no memory left: ``released`` when the handler ends, ``kept`` for good, or ``fatal``.

    With the last the process aborts, as a library in C does whose allocation fails.
    """
    _limit()
    held = _kept if how == "kept" else []
    for size in PIECES:
        try:
            while True:
                held.append(bytes(size))
        except MemoryError:
            continue
    if how == "fatal":
        os.abort()
    raise MemoryError(how)


async def hoards(attempt: Attempt[str, int]) -> Outcome[int]:
    """Run in the worker's own process."""
    return take_all(attempt.input)


def hoards_elsewhere(attempt: Attempt[str, int]) -> Outcome[int]:
    """Run in a child process for handlers."""
    return take_all(attempt.input)


async def count(attempt: Attempt[int, int]) -> Outcome[int]:
    """A handler that needs almost no memory."""
    return attempt.input


def processors(*, elsewhere: bool) -> Processors:
    """Register handlers that take all memory of the worker's process, or of a child process, for two attempts."""
    made = Processors(JOB_TYPES, retry=TWICE, lease=LEASE)
    if elsewhere:
        made.handles(hoard, executor="process")(hoards_elsewhere)
    else:
        made.handles(hoard)(hoards)
    made.handles(frugal, retry=AT_ONCE)(count)
    return made


def main() -> int:
    """Run a worker until it is asked to stop."""
    # The default of a minute would be long for a test.
    leases.FINISH_SECONDS = 0.0
    client = AsyncClient(PostgresState(os.environ["QUEUERT_URL"]), JOB_TYPES, observability=EventPipe())
    return InProcessWorker(client, processors(elsewhere=False), name="hoarder", concurrency=2).run()


if __name__ == "__main__":
    sys.exit(main())
