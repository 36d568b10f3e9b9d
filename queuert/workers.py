"""Workers and their heartbeats, by which running workers are listed.

This is informational: only leases decide whether a job may run or is taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from queuert.job_types import BULK_OPERATION_TYPE
from queuert.limits import Limits, TypeTraits

HEARTBEAT_SECONDS = 20.0
"""Seconds between two heartbeats of a worker."""

EVERY_WORKER_HANDLES = frozenset({BULK_OPERATION_TYPE})
"""The job types that each worker handles, beside those of its processors."""

_NAMED = 3
"""The most workers that a sentence names."""


class WorkerState(StrEnum):
    """Whether a worker is running or stopping.

    Example:
        >>> WorkerState("stopping") is WorkerState.STOPPING
        True
    """

    RUNNING = "running"
    STOPPING = "stopping"
    """The worker claims no more jobs, and stops when its running attempts have ended."""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """The heartbeat that a worker writes about every 20 seconds."""

    id: str
    """The name that the worker writes into the jobs that it claims: ``Job.holder``."""
    name: str
    """The configured name of the worker."""
    host: str
    pid: int
    version: str
    """The version of Queuert."""
    job_types: tuple[str, ...]
    concurrency: int
    """The number of slots."""
    running: int
    """The number of jobs that the worker has leased now."""
    uptime: float
    """Seconds since the worker started, by its monotonic clock; the store computes the time by its own clock."""
    state: WorkerState = WorkerState.RUNNING
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """The limits of those of the job types that have any; the store keeps them when the worker is gone."""
    traits: tuple[TypeTraits, ...] = ()
    """Of those job types that have any, of all that the worker knows. The store keeps them, too."""
    known_types: tuple[str, ...] = ()
    """All job types that the worker knows. The store forgets the traits of those that are not in ``traits``."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, as of its last heartbeat. Times are UTC, by the store's clock.

    Example::

        for worker in client.list_workers():
            print(worker.id, worker.host, worker.running, "of", worker.concurrency)
    """

    id: str
    """The name that the worker writes into the jobs that it claims: ``Job.holder``."""
    name: str
    """The configured name of the worker."""
    host: str
    pid: int
    version: str
    """The version of Queuert."""
    job_types: tuple[str, ...]
    concurrency: int
    """The number of slots: how many handlers it runs at once, at most."""
    running: int
    """The number of jobs that it had leased."""
    state: WorkerState
    started_at: datetime
    seen_at: datetime
    """When it wrote its last heartbeat."""

    @property
    def handled_types(self) -> frozenset[str]:
        """The job types that it handles, also while it is stopping."""
        return EVERY_WORKER_HANDLES.union(self.job_types)

    @property
    def claimed_types(self) -> frozenset[str]:
        """The job types whose jobs it claims: none once it is stopping."""
        return self.handled_types if self.state is WorkerState.RUNNING else frozenset()


def claimed_types(workers: Iterable[WorkerRecord]) -> frozenset[str]:
    """Return the job types that any of the workers claims: whatever says that nobody handles a type looks here."""
    return frozenset[str]().union(*(one.claimed_types for one in workers))


def stopping_workers(workers: Iterable[WorkerRecord], type: str) -> str:
    """Return which workers handle a type and are stopping, in words; an empty text if none is."""
    ids = [one.id for one in workers if type in one.handled_types and type not in one.claimed_types]
    if not ids:
        return ""
    if len(ids) == 1:
        return f"1 worker that handles it is stopping ({ids[0]})"
    return f"{len(ids)} workers that handle it are stopping ({named(ids)})"


def named(workers: Iterable[str]) -> str:
    """Return some of the workers, and how many more there are."""
    all = list(workers)
    return ", ".join(all[:_NAMED]) + (f" and {len(all) - _NAMED} more" if len(all) > _NAMED else "")
