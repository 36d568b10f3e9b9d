"""What processes take up: resident memory and open files, as Linux tells of each process under ``/proc``."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one process takes up at a moment."""

    resident: int
    """Bytes of memory."""
    files: int
    """Open ones, sockets and pipes among them."""
    threads: int
    kinds: dict[str, int]
    """The open ones by what they are: the file, or the kind of thing."""

    def fields(self) -> dict[str, Any]:
        """As they are written down."""
        return asdict(self)


def can_be_measured() -> bool:
    """Whether the system tells; elsewhere than on Linux it does not."""
    return taken_by(os.getpid()) is not None


def taken_by(pid: int) -> Taken | None:
    """What a process takes up; None if it is gone, or the system does not tell."""
    own = _PROCESSES / str(pid)
    try:
        pages = int((own / "statm").read_text(encoding="ascii").split()[1])
        files = list((own / "fd").iterdir())
        threads = len(list((own / "task").iterdir()))
    except (OSError, IndexError):
        return None
    kinds: Counter[str] = Counter()
    for file in files:
        with suppress(OSError):  # It was closed meanwhile.
            # Sockets and pipes have their number behind a colon.
            kinds[str(file.readlink()).split(":[", 1)[0]] += 1
    return Taken(pages * resource.getpagesize(), kinds.total(), threads, dict(kinds))


def tidy() -> None:
    """Release what this process does not use: garbage, and the memory that the allocator keeps for later."""
    gc.collect()
    with suppress(OSError, AttributeError):  # Only glibc has it.
        ctypes.CDLL(None).malloc_trim(0)
