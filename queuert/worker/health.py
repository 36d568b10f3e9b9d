"""The health of a worker: a report for HTTP probes, and a small file for health checks of containers."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuert.errors import ConfigurationError, QueuertError, SchemaMissingError, StateUnavailableError
from queuert.observability.escaping import escape
from queuert.worker.leases import lease_time

if TYPE_CHECKING:
    from queuert.worker.runtime import WorkerRuntime

WRITE_INTERVAL = 5.0
"""Seconds between two writes of the file."""

STALE_AFTER = 30.0
"""Seconds. An older file was written by a worker that is dead, frozen, or whose event loop is blocked."""

_MAX_CHARACTERS = 65_536
_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is.

    Attributes:
        worker: its name.
        running: attempts that run now.
        stopping: whether it has been asked to stop: it is alive, but takes no more jobs.
        failing: the names of its loops that have only failed for half a minute.
    """

    worker: str
    running: int
    stopping: bool
    failing: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether it makes progress. A short outage of the store does not count, since a restart would not help."""
        return not self.failing


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Why a worker is not live, or not ready, in sentences; empty if it is.

    A worker that is not live makes no progress, and a restart is likely to help. One that is not ready cannot take jobs
    now: it is starting or stopping, the store cannot be reached, or its schema is too old; a restart does not help.
    """

    not_live: tuple[str, ...]
    not_ready: tuple[str, ...]
    """Includes ``not_live``, since a worker that is not live is not ready either."""


class UnhealthyError(QueuertError):
    """The worker that writes a health file is dead, stuck, or fails; the message says which. Restart it."""


async def keep_health_file(path: Path, health: Callable[[], Health], pause: Callable[[float], Any]) -> None:
    """Write the health to ``path`` once, in one step, and pause: the body of a supervised loop.

    It runs in the event loop: while that is blocked, the file becomes stale.

    Raises:
        ConfigurationError: the path is not a regular file of this user.
        OSError: the file cannot be written.
    """
    _require_ours(path)
    stamp = {"written_at": time.time(), "monotonic": time.monotonic(), "boot": _boot()}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    # Other users may write to the directory. A file or link of theirs under this name is removed, never written to.
    with suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps({**asdict(health()), **stamp}))
    temporary.replace(path)
    await pause(WRITE_INTERVAL)


def report_health(worker: WorkerRuntime, stale_after: float) -> HealthReport:
    """Why a started worker is not live, or not ready. From any thread."""
    not_live: list[str] = []
    unavailable = {_unavailable(worker.heartbeat.error)}
    blocked = worker.loop_watch.blocked_seconds()
    if blocked > stale_after:
        not_live.append(f"the event loop has been blocked for {blocked:.0f} seconds: a handler does not await")
    since = worker.claimer.claiming_since
    # Twice the time, since the store may take ``stale_after`` to answer or to time out.
    if since is not None and (waited := lease_time() - since) > 2 * stale_after:
        not_live.append(f"the claimer makes no progress: it sent a claim {waited:.0f} seconds ago")
    for name, part in worker.supervised.items():
        reason = _unavailable(part.error)
        unavailable.add(reason)
        if reason is None and part.failing_seconds > stale_after:
            error = escape(f"{type(part.error).__name__}: {part.error}")
            not_live.append(f"{name} has failed for {part.failing_seconds:.0f} seconds: {error}")
    stopping = ["the worker is stopping"] if worker.stopping else []
    reasons = sorted(reason for reason in unavailable if reason is not None)
    return HealthReport(tuple(not_live), (*not_live, *stopping, *reasons))


def _unavailable(error: Exception | None) -> str | None:
    """Return why an error of the store makes the worker not ready; None for errors where a restart may help."""
    if isinstance(error, SchemaMissingError):
        return f"the schema is missing or too old: {escape(str(error))}"
    if isinstance(error, StateUnavailableError):
        return f"the store cannot be reached: {escape(str(error))}"
    return None


def remove_health_file(path: Path) -> None:
    """Remove the file of a worker that has stopped, so that the check does not report a dead worker.

    A path that is not a regular file of this user stays.
    """
    with suppress(OSError, ConfigurationError):
        _require_ours(path)
        path.unlink()


def check_health_file(path: Path, *, stale_after: float = STALE_AFTER) -> Health:
    """Read what a worker wrote.

    Raises:
        UnhealthyError: there is no file, it is stale, the worker fails, or the path is not a regular file of this user.
    """
    try:
        stored = json.loads(_read(path))
        health = Health(stored["worker"], stored["running"], stored["stopping"], tuple(stored["failing"]))
        age = _age(stored)
    except FileNotFoundError:
        raise UnhealthyError(f"no worker has written {path}") from None
    except ConfigurationError as error:
        raise UnhealthyError(str(error)) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnhealthyError(f"{path} is not a worker's health file") from error
    if age is None:
        raise UnhealthyError(f"{path} was written before this machine started: no worker writes it now")
    if age > stale_after:
        raise UnhealthyError(f"{path} is {age:.0f} seconds old: the worker is dead, frozen, or its loop is blocked")
    if not health.live:
        raise UnhealthyError(f"loops that only fail: {', '.join(health.failing)}")
    return health


def _read(path: Path) -> str:
    """Read a regular file of this user. Opening anything else neither blocks nor follows a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        _check(path, os.fstat(descriptor))
        return file.read(_MAX_CHARACTERS)


def _require_ours(path: Path) -> None:
    with suppress(FileNotFoundError):
        _check(path, path.lstat())


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"the health file must be a regular file, and {path} is none: choose another path")
    # Root may check workers of other users.
    if status.st_uid != os.geteuid() != 0:
        raise ConfigurationError(f"the health file must belong to this user, and {path} does not: choose another path")


def _age(stored: Mapping[str, Any]) -> float | None:
    """Return seconds since it was written, also if the clock was set meanwhile; None if it was before the last boot."""
    if "monotonic" not in stored:
        return time.time() - float(stored["written_at"])  # By a worker of an older version.
    age = time.monotonic() - float(stored["monotonic"])
    return age if age >= 0 and stored["boot"] == _boot() else None


@cache
def _boot() -> str | None:
    """Return the id of this boot of the machine; None if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
