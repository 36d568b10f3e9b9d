"""Jobs and chains as they were read from a store: plain, frozen values. All times are UTC, by the store's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from queuert.attributes import Attributes


class JobStatus(StrEnum):
    """Where a job is. The last four are final.

    Example:
        >>> JobStatus.FAILED.final, JobStatus.SCHEDULED.final
        (True, False)
    """

    BLOCKED = "blocked"
    """Waits for other chains to close."""
    SCHEDULED = "scheduled"
    """Waits for a time: a first run in the future, or the pause before a retry."""
    READY = "ready"
    """May be claimed now."""
    RUNNING = "running"
    """Claimed, under a lease."""
    CONTINUED = "continued"
    """Done; the chain went on with the next job."""
    COMPLETED = "completed"
    """Done; its output is the chain's."""
    FAILED = "failed"
    """Gave up: the dead letters."""
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether a job of this status never runs again by itself."""
        return self in _FINAL


_FINAL = frozenset({JobStatus.CONTINUED, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})


class ChainStatus(StrEnum):
    """How a chain stands: open, or closed in one of three ways.

    Example:
        >>> ChainStatus("completed") is ChainStatus.COMPLETED
        True
    """

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TtlUpdate(StrEnum):
    """The result of the wish to keep a closed chain for longer or shorter.

    Example:
        >>> TtlUpdate("not_found")
        <TtlUpdate.NOT_FOUND: 'not_found'>
    """

    UPDATED = "updated"
    NOT_FOUND = "not_found"
    """It was never committed, has been deleted, or has expired."""
    OPEN = "open"
    """It has not closed: what its start said stands."""


class AbortReason(StrEnum):
    """Why an attempt must stop: what ``attempt.abort.reason`` says.

    Example::

        if attempt.abort.reason is AbortReason.CANCELLED:
            return attempt.cancel("nobody wants it any more")
        return 1
    """

    TAKEN_BY_ANOTHER_WORKER = "taken_by_another_worker"
    """The lease expired and the job was reaped, or claimed again."""
    ALREADY_COMPLETED = "already_completed"
    """The job was finished by somebody else."""
    NOT_FOUND = "not_found"
    """The job was deleted."""
    LEASE_NOT_RENEWED = "lease_not_renewed"
    """The lease could not be renewed in time: the store was out of reach."""
    CANCELLED = "cancelled"
    """The chain was cancelled."""
    TIMEOUT = "timeout"
    """The handler ran for longer than its job type allows."""
    WORKER_STOPPING = "worker_stopping"
    """The worker stops and its grace is over; the job goes back to the queue."""


@dataclass(frozen=True, slots=True)
class JobError:
    """Why the last attempt of a job did not complete it."""

    kind: str
    """``handler`` (it raised), ``retry``, ``fail`` or ``cancel`` (it asked for it), ``lease_expired``, ``decode``,
    ``store`` (what it asked of the store was refused, or could not be done), ``blocker_failed``, ``worker_stopping``,
    ``late`` (its lease was over before it began), ``timeout``, ``crashed`` (the process that ran it died)."""
    message: str
    type: str | None = None
    """Qualified name of the exception's class, if there was one."""
    traceback: str | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.type else self.message


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far the newest attempt of a job is, or was when it ended.

    Attributes:
        fraction: between 0 and 1; None where nobody knows how much there is.
        done: how much is done, in units of the handler's own.
        total: of how much.
        message: text. Of a job type with a format that cannot be read here, what is stored.
        at: when the handler told it, by the clock of its worker, UTC.
    """

    fraction: float | None
    done: float | None
    total: float | None
    message: Any
    at: datetime

    def __str__(self) -> str:
        share = "" if self.fraction is None else f"{self.fraction:.0%}"
        count = "" if self.done is None else f"{self.done:g}" + ("" if self.total is None else f" of {self.total:g}")
        text = "" if self.message is None else str(self.message)
        return ", ".join(part for part in (share, count, text) if part)


@dataclass(frozen=True, slots=True)
class Job:
    """One durable unit of work, as it was when read.

    Example::

        job = await client.get_job(chain.id)
        print(job.status, job.attempt, job.last_error)
    """

    id: str
    type: str
    chain_id: str
    chain_index: int
    """0 for the first job of the chain, then 1, 2, ..."""
    status: JobStatus
    priority: int
    attempt: int
    """Claims so far that ran, or are running: 0 before the first."""
    uncounted: int
    """Attempts that do not count against the retry policy: released by a worker, ended by waiting for other
    chains, or made before the chain was retried from outside."""
    lease_expirations: int
    """Attempts that ended because nobody renewed their lease: crashed or frozen workers."""
    open_blockers: int
    input: Any
    """Decoded JSON. Of a job type with a format, what the format reads; as it is stored where it cannot be read."""
    output: Any
    """As ``input``; None until completed (and where the output is null). Of a continued job, what ``continue_with`` was
    told to keep."""
    last_error: JobError | None
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    """When the last attempt was claimed."""
    finished_at: datetime | None
    holder: str | None
    """Name of the worker that holds the lease, or held it last."""
    lease_expires_at: datetime | None
    continued_by: str | None
    """Id of the job that continues the chain after this one."""
    deduplication_key: str | None = None
    limit_key: str | None = None
    progress: JobProgress | None = None
    """What the last attempt told by ``record_progress``, for as long as it is the last; kept when it has ended."""


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """One chain, as it was when read: its first job's identity, its last job's result."""

    id: str
    type: str
    status: ChainStatus
    input: str
    """The first job's, JSON text."""
    output: str | None
    """The last job's, JSON text; None unless the chain is completed."""
    error: JobError | None
    tail_type: str
    """Job type of the last job."""
    created_at: datetime
    closed_at: datetime | None
    tail_id: str
    """Id of the last job."""
    expires_at: datetime | None = None
    """When it will be gone; None while open, and where it has no end of its own."""
    attributes: Attributes = field(default_factory=dict, hash=False)
    """What it can be found by, as it was started with: text, or several texts, by name."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A chain that a job waits for, or waited for, with its result."""

    chain_id: str
    type: str
    """Of the chain's first job, as that of a ``Chain``."""
    status: ChainStatus
    output: Any
    """Decoded into the model of the job type that closed the chain; None unless completed."""
    error: JobError | None
