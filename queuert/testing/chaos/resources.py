"""The resources of processes: resident memory and open files, from ``/proc`` on Linux."""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import resource
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Taken:
    """The resources of one process at a moment."""

    resident: int
    """Bytes of memory."""
    files: int
    """The number of open files, including sockets and pipes."""
    threads: int
    kinds: dict[str, int]
    """The open files by name: the path, or the kind of descriptor."""

    def fields(self) -> dict[str, Any]:
        """Return the resources as data for the records."""
        return asdict(self)


def can_be_measured() -> bool:
    """Whether the system has this data; only Linux does."""
    return taken_by(os.getpid()) is not None


def taken_by(pid: int) -> Taken | None:
    """Return the resources of a process; None if it has ended, or the system has no data."""
    own = _PROCESSES / str(pid)
    try:
        pages = int((own / "statm").read_text(encoding="ascii").split()[1])
        files = list((own / "fd").iterdir())
        threads = len(list((own / "task").iterdir()))
    except (OSError, IndexError):
        return None
    kinds: Counter[str] = Counter()
    for file in files:
        with suppress(OSError):  # The descriptor was closed meanwhile.
            # Sockets and pipes have their number after a colon.
            kinds[str(file.readlink()).split(":[", 1)[0]] += 1
    return Taken(pages * resource.getpagesize(), kinds.total(), threads, dict(kinds))


def tidy() -> None:
    """Release what this process does not use: garbage, the sources that tracebacks have read, and memory that the
    allocator keeps for later."""
    linecache.clearcache()
    gc.collect()
    with suppress(OSError, AttributeError):  # Only glibc has this function.
        ctypes.CDLL(None).malloc_trim(0)


async def use_all_connections() -> None:
    """Connect all connections of the pools for Redis in this process. How many of them jobs use at once is chance, and
    none is held for long, as connections to Postgres are by transactions: so a pool may fill at any time."""
    if "redis" not in sys.modules:
        return
    import redis.asyncio

    fill_pools_of_threads()
    for pool in _instances(redis.asyncio.BlockingConnectionPool):
        taken = []
        with suppress(redis.RedisError):  # A fault: the next exercise comes after it.
            for _ in range(pool.max_connections):
                taken.append(await pool.get_connection())  # noqa: PERF401  (what was taken is released)
        for connection in taken:
            await pool.release(connection)


def fill_pools_of_threads() -> None:
    """:func:`use_all_connections` for the pools of threads alone."""
    if "redis" not in sys.modules:
        return
    import redis

    for pool in _instances(redis.BlockingConnectionPool):
        taken = []
        with suppress(redis.RedisError):
            for _ in range(pool.max_connections):
                taken.append(pool.get_connection())  # noqa: PERF401
        for connection in taken:
            pool.release(connection)


def _instances(kind: type) -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]
