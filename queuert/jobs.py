"""Jobs and chains as read from a store: plain, frozen values. All times are UTC, by the store's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

AttributeValue: TypeAlias = str | tuple[str, ...]
"""The value of an attribute of a chain: text, or several texts, each of which finds the chain."""

Attributes: TypeAlias = Mapping[str, AttributeValue]
"""The attributes of a chain as they are stored, by name."""


class JobStatus(StrEnum):
    """The status of a job. The last four are final.

    Example:
        >>> JobStatus.FAILED.final, JobStatus.SCHEDULED.final
        (True, False)
    """

    BLOCKED = "blocked"
    """The job waits for other chains to close."""
    SCHEDULED = "scheduled"
    """The job waits for a time: its ``run_at``, or the end of the pause before a retry."""
    READY = "ready"
    """The job may be claimed now."""
    RUNNING = "running"
    """A worker has claimed the job under a lease."""
    CONTINUED = "continued"
    """The job is done, and the next job of the chain continues it."""
    COMPLETED = "completed"
    """The job is done, and its output is the chain's."""
    FAILED = "failed"
    """The job used up its attempts, or its handler gave up: a dead letter."""
    CANCELLED = "cancelled"
    """The handler, a client or the command line cancelled the job."""

    @property
    def final(self) -> bool:
        """Whether a job of this status is never run again, unless a client or the command line retries it."""
        return self in _FINAL


_FINAL = frozenset({JobStatus.CONTINUED, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})


class ChainStatus(StrEnum):
    """The status of a chain: open, or closed in one of three ways.

    Example:
        >>> ChainStatus("completed") is ChainStatus.COMPLETED
        True
    """

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TtlUpdate(StrEnum):
    """The result of ``update_result_ttl`` for one chain.

    Example:
        >>> TtlUpdate("not_found")
        <TtlUpdate.NOT_FOUND: 'not_found'>
    """

    UPDATED = "updated"
    """The chain is kept for the new time."""
    NOT_FOUND = "not_found"
    """The chain was never committed, was deleted, or has expired."""
    OPEN = "open"
    """The chain is open, so the TTL of its start remains."""


class AbortReason(StrEnum):
    """Why an attempt must stop, as ``attempt.abort.reason`` says.

    Example::

        if attempt.abort.reason is AbortReason.CANCELLED:
            return attempt.cancel("nobody wants it any more")
        return 1
    """

    TAKEN_BY_ANOTHER_WORKER = "taken_by_another_worker"
    """The lease expired and the job was reaped, or claimed again."""
    ALREADY_COMPLETED = "already_completed"
    """A client or another attempt has finished the job."""
    NOT_FOUND = "not_found"
    """The job was deleted."""
    LEASE_NOT_RENEWED = "lease_not_renewed"
    """The lease could not be renewed in time, because the store could not be reached."""
    CANCELLED = "cancelled"
    """The chain was cancelled."""
    TIMEOUT = "timeout"
    """The handler ran for longer than its job type allows."""
    WORKER_STOPPING = "worker_stopping"
    """The worker stops and its shutdown timeout is over; the job is released, and a handler that does not end now has
    crashed."""


@dataclass(frozen=True, slots=True)
class JobError:
    """Why the last attempt of a job did not complete it."""

    kind: str
    """``handler`` (the handler raised), ``retry``, ``fail`` or ``cancel`` (the handler returned it), ``lease_expired``,
    ``programming`` (the handler contradicts its job type, or uses its attempt wrongly: a programming error),
    ``decode`` (the input could not be read), ``store`` (the store refused an operation, or could not execute it),
    ``blocker_failed``, ``worker_stopping``, ``late`` (the lease expired before the attempt began),
    ``batch_interrupted`` (another attempt of the call lost its lease), ``timeout`` or
    ``crashed`` (the process that ran the attempt died)."""
    message: str
    type: str | None = None
    """Qualified name of the exception's class, if there was an exception."""
    traceback: str | None = None
    """The traceback of the exception, if there was one."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.type else self.message

    @property
    def summary(self) -> str:
        """The class of the exception, or the kind, and the first line of the message: what failures are grouped by.

        A line of more than 200 characters is cut. It has no white space at its ends and no control of lines, so that it
        is the same after a form has sent it, or a command line: bulk operations select chains by it.

        >>> JobError("handler", "no answer" + chr(10) + "after 3 s", "app.GatewayTimeout").summary
        'app.GatewayTimeout: no answer'
        """
        name, line = (self.type or self.kind).strip(), first_line(self.message)
        return f"{name}: {line}" if line else name


@dataclass(frozen=True, slots=True)
class JobFailure:
    """An attempt of a job that failed: its handler raised or gave up, or its lease expired.

    Attributes:
        attempt: the number of the attempt.
        started_at: when the attempt was claimed, by the store's clock, UTC.
        failed_at: when the failure was written, by the store's clock, UTC.
        worker: id of the worker whose attempt it was.
        error: why. Of long errors the beginning of the message (1,000 characters) and the end of the traceback (2,000)
            are kept; ``last_error`` has more of the newest one.
    """

    attempt: int
    started_at: datetime | None
    failed_at: datetime
    worker: str | None
    error: JobError

    def __str__(self) -> str:
        return f"attempt {self.attempt}: {self.error.kind}: {self.error}"


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """The phase that a job with phases has begun last.

    Attributes:
        name: its name.
        number: 1 for the first phase that the job type declares.
        count: how many phases the job type declares.
        fraction: how much of this phase is done, between 0 and 1.
        attempt: the number of the attempt that began it last.
        started_at: when that attempt began it, by the clock of its worker, UTC.
    """

    name: str
    number: int
    count: int
    fraction: float
    attempt: int
    started_at: datetime

    def __str__(self) -> str:
        return f"{self.name} ({self.number} of {self.count})"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of the newest attempt of a job, or its progress when it ended.

    Attributes:
        fraction: between 0 and 1; None if the total is not known. Of a job with phases it is that of all phases
            together, and never decreases.
        done: how much is done, in units that the handler chooses; of a job with phases, in this phase.
        total: how much there is to do, in the same units.
        message: text; the stored value if the format of the job type cannot be read here.
        at: when the handler recorded it, by the clock of its worker, UTC.
        phase: of a job with phases: the one that was begun last.
    """

    fraction: float | None
    done: float | None
    total: float | None
    message: Any
    at: datetime
    phase: PhaseProgress | None = None

    def __str__(self) -> str:
        share = "" if self.fraction is None else f"{self.fraction:.0%}"
        phase = "" if self.phase is None else str(self.phase)
        count = "" if self.done is None else f"{self.done:g}" + ("" if self.total is None else f" of {self.total:g}")
        text = "" if self.message is None else str(self.message)
        return ", ".join(part for part in (share, phase, count, text) if part)


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step of a job that an attempt has recorded.

    Attributes:
        number: 1 for the first step of the job.
        name: its name, with its key in brackets if it has one.
        attempt: the number of the attempt that recorded it.
        recorded_at: when, by the store's clock, UTC.
        result: decoded JSON; for a job type with a format, decoded by it. The stored value if it cannot be read here.
        wake_at: when a sleep ends, or a wait for an event times out, UTC; None for any other step.
        event: of a wait: the name of the event. ``result`` is its payload.
        answered_at: of a wait: when it took an event or timed out, UTC; None while it waits.
        started_at: of a phase: when the attempt began it, by the store's clock, UTC; None for any other step.
    """

    number: int
    name: str
    attempt: int
    recorded_at: datetime
    result: Any
    wake_at: datetime | None = None
    event: str | None = None
    answered_at: datetime | None = None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One durable unit of work, as it was when it was read.

    Example::

        job = await client.get_job(chain.id)
        print(job.status, job.attempt, job.last_error)
    """

    id: str
    type: str
    chain_id: str
    chain_index: int
    """The position in the chain: 0 for the first job, then 1, 2, ..."""
    status: JobStatus
    priority: int
    attempt: int
    """The number of attempts so far, with the running one: 0 before the first."""
    uncounted: int
    """The number of attempts that do not count against the retry policy: those that a worker released, that ended in
    order to wait for other chains or for a time, or that were made before the chain was retried by a client."""
    lease_expirations: int
    """The number of crashes: attempts whose lease expired, whose process died, or that outlasted the worker's stop."""
    open_blockers: int
    """The number of blockers that have not closed."""
    input: Any
    """Decoded JSON; for a job type with a format, decoded by it. The stored value if it cannot be read here."""
    output: Any
    """As ``input``; None until the job is completed. For a continued job, the ``output`` of ``continue_with``."""
    last_error: JobError | None
    """Why the last attempt did not complete the job; None once it is completed. ``failures`` has earlier ones too."""
    created_at: datetime
    scheduled_at: datetime
    """When the job is due, or became due: since when a ready job is ready."""
    started_at: datetime | None
    """When the last attempt was claimed."""
    finished_at: datetime | None
    holder: str | None
    """Name of the worker that has the lease, or had it last."""
    lease_expires_at: datetime | None
    continued_by: str | None
    """Id of the job that continues the chain after this one."""
    deduplication_key: str | None = None
    limit_key: str | None = None
    progress: JobProgress | None = None
    """What the newest attempt has recorded with ``record_progress``; kept after it has ended, until the next one. Of a
    job with phases it is kept until the next attempt has begun a phase."""
    failures: tuple[JobFailure, ...] = ()
    """The attempts that failed, oldest first: the first one and the newest nineteen. They stay when the job completes,
    and when its chain is retried."""
    max_attempts: int | None = None
    """The attempts that its start allows, instead of the retry policy; None if the policy says."""
    trace_id: str | None = None
    """The trace in which the job was created; None if that was not traced."""
    attempt_trace_id: str | None = None
    """The trace of the newest traced attempt; None if no attempt was."""
    overdue_at: datetime | None = None
    """Of a job that is ready or scheduled, and that a client completes: when it has waited for the ``overdue_after`` of
    its type, as workers have recorded that. None of other jobs, and if the type has none."""


def overdue_at(status: JobStatus, scheduled_at: datetime, overdue_after: float | None) -> datetime | None:
    """Return when a job will have waited for so many seconds; None if it does not wait, or may wait for ever."""
    if overdue_after is None or status not in (JobStatus.READY, JobStatus.SCHEDULED):
        return None
    try:
        return scheduled_at + timedelta(seconds=overdue_after)
    except OverflowError:
        return None  # In the year 10,000.


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """One chain, as it was when it was read: id and input of its first job, result of its last one."""

    id: str
    type: str
    """Job type of the first job."""
    status: ChainStatus
    input: str
    """Input of the first job, JSON text."""
    output: str | None
    """Output of the last job, JSON text; None unless the chain is completed."""
    error: JobError | None
    """Error of the last job."""
    tail_type: str
    """Job type of the last job."""
    created_at: datetime
    closed_at: datetime | None
    tail_id: str
    """Id of the last job."""
    expires_at: datetime | None = None
    """When the chain will be pruned; None while it is open, and if it has no TTL."""
    attributes: Attributes = field(default_factory=dict, hash=False)
    """The attributes that it was started with, by name: text, or several texts."""
    stale_at: datetime | None = None
    """When its retention found that it is no longer kept; None if it has not, or if it deletes without a stale time."""


@dataclass(frozen=True, slots=True)
class ChainState:
    """Where a chain is, without its input and output: its status, and its last job, as they were when it was read.

    Example::

        async for state in chain.watch():
            print(state.status, state.job_type, state.job_status, state.progress)
    """

    id: str
    type: str
    """Job type of the first job."""
    status: ChainStatus
    job_id: str
    """Id of the last job."""
    job_type: str
    """Job type of the last job."""
    job_status: JobStatus
    """Status of the last job."""
    attempt: int
    """The number of attempts of the last job so far, with the running one."""
    scheduled_at: datetime
    """When the last job is due, or became due."""
    open_blockers: int
    """The number of blockers of the last job that have not closed."""
    last_error: JobError | None
    """Why the last attempt of the last job did not complete it; None if there was none, or once it is completed."""
    progress: JobProgress | None
    """What the newest attempt of the last job has recorded with ``record_progress``."""

    def __str__(self) -> str:
        if self.status is not ChainStatus.OPEN:
            return str(self.status)
        parts = [f"job of type {self.job_type!r} is {self.job_status}"]
        if self.job_status is JobStatus.BLOCKED:
            parts[0] += f" by {self.open_blockers} open chain(s)"
        if self.job_status is JobStatus.SCHEDULED:
            parts[0] += f" for {self.scheduled_at:%Y-%m-%d %H:%M:%S} UTC"
        if self.attempt:
            parts.append(f"attempt {self.attempt}")
        if self.last_error is not None:
            parts.append(f"last error: {first_line(str(self.last_error))}")
        return ", ".join(parts)


_SHOWN_ERROR = 200


def first_line(text: str) -> str:
    """Return the first line of a text, cut if it has more than 200 characters."""
    line = next(iter(text.strip().splitlines()), "").strip()
    return line if len(line) <= _SHOWN_ERROR else f"{line[:_SHOWN_ERROR]}..."


@dataclass(frozen=True, slots=True)
class Blocker:
    """A chain that a job waits for, or waited for, with its result."""

    chain_id: str
    type: str
    """Job type of the chain's first job."""
    status: ChainStatus
    output: Any
    """The chain's output, in the model of the job type that completed it; None unless completed."""
    error: JobError | None
