"""The worker registry: who is at work, as the workers themselves tell it every now and then. Informational.

Whether a job may run, or is lost, is decided by its lease alone; nothing that is here has a say in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class WorkerState(StrEnum):
    """What a worker is at.

    Example:
        >>> WorkerState("stopping") is WorkerState.STOPPING
        True
    """

    RUNNING = "running"
    STOPPING = "stopping"
    """It claims no more, and ends when what it runs has ended."""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """What a worker tells of itself."""

    id: str
    """The name that it writes into the jobs that it holds: ``Job.holder``."""
    name: str
    """The name that it was given."""
    host: str
    pid: int
    version: str
    """Of Queuert."""
    job_types: tuple[str, ...]
    concurrency: int
    running: int
    """Jobs that it holds now."""
    uptime: float
    """Seconds since it was started, by its own monotonic clock: the store needs no clock but its own."""
    state: WorkerState = WorkerState.RUNNING


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, as it last told of itself. Times are UTC, by the store's clock.

    Example::

        for worker in client.list_workers():
            print(worker.id, worker.host, worker.running, "of", worker.concurrency)
    """

    id: str
    """The name that it writes into the jobs that it holds: ``Job.holder``."""
    name: str
    """The name that it was given."""
    host: str
    pid: int
    version: str
    """Of Queuert."""
    job_types: tuple[str, ...]
    concurrency: int
    """Handlers that it runs at once, at most."""
    running: int
    """Jobs that it held when it was last seen."""
    state: WorkerState
    started_at: datetime
    seen_at: datetime
    """When it last told of itself."""
