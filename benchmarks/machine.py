"""What is told of the machine: what bears on the figures, and nothing that names it."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from typing import Any

_FLUSHES = 50


def machine() -> dict[str, Any]:
    """Cores, memory, load, what a flush to the disk costs, and the interpreter."""
    return {
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "disk_flush_us": round(flush_seconds() * 1e6),
    }


def flush_seconds() -> float:
    """The median time of writing a page to a file and flushing it to the disk: what a commit waits for."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            file.seek(0)
            file.write(b"\0" * 8192)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)
