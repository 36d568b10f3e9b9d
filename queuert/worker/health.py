"""Whether a worker makes progress, and how a container's health check learns it without a port: a small file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from queuert.errors import QueuertError

WRITTEN_EVERY = 5.0
STALE_AFTER = 30.0
"""Seconds. A file that is older was left by a worker that is dead, frozen, or whose event loop is blocked."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is.

    Attributes:
        worker: its name.
        running: attempts that run now.
        stopping: it has been asked to stop: alive, but not ready for more.
        failing: its loops that have done nothing but fail for half a minute.
    """

    worker: str
    running: int
    stopping: bool
    failing: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether it makes progress; a restart will not help one that merely waits for its database for a moment."""
        return not self.failing


class UnhealthyError(QueuertError):
    """The worker that writes a health file is dead, stuck, or fails; the message says which. Restart it."""


async def keep_health_file(path: Path, health: Callable[[], Health], pause: Callable[[float], Any]) -> None:
    """Write the health to ``path`` once, in one step, and pause: the body of a supervised loop.

    It runs in the event loop, so that a blocked one shows.
    """
    now = health()
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps({**asdict(now), "written_at": time.time()}), encoding="utf-8")
    beside.replace(path)
    await pause(WRITTEN_EVERY)


def remove_health_file(path: Path) -> None:
    """Remove the file of a worker that has stopped: it is not alive, and not dead either."""
    with suppress(OSError):
        path.unlink()


def check_health_file(path: Path, *, stale_after: float = STALE_AFTER) -> Health:
    """Read what a worker wrote.

    Raises:
        UnhealthyError: there is no file, it is stale, or the worker fails.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        health = Health(stored["worker"], stored["running"], stored["stopping"], tuple(stored["failing"]))
        age = time.time() - stored["written_at"]
    except FileNotFoundError:
        raise UnhealthyError(f"no worker has written {path}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnhealthyError(f"{path} is not a worker's health file") from error
    if age > stale_after:
        raise UnhealthyError(f"{path} is {age:.0f} seconds old: the worker is dead, frozen, or its loop is blocked")
    if not health.live:
        raise UnhealthyError(f"loops that only fail: {', '.join(health.failing)}")
    return health
