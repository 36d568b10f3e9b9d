"""The arguments and results of a store's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from queuert.deduplication import Deduplicate
from queuert.errors import InvalidIdentifierError, JobIdConflictError, StateUnavailableError
from queuert.jobs import AbortReason, Attributes, ChainStatus, JobError, JobStatus
from queuert.limits import Limits
from queuert.policies import Retention, RetryPolicy
from queuert.run_at import RunAt
from queuert.schedules import MissedRuns, Overlap, TickSpec


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What a store's pool of connections is doing."""

    in_use: int
    """Connections that somebody has."""
    idle: int
    """Connections that nobody has."""
    waiting: int
    """Calls that wait for a connection."""


@dataclass(frozen=True, slots=True)
class StoreWarning:
    """A risk of a store's configuration: it may lose acknowledged jobs, or reveal their payloads."""

    name: str
    advice: str
    """The problem, and what to do about it, in one line."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be written: the first of a chain, or a continuation."""

    id: str
    type: str
    input: str = field(repr=False)
    """JSON text."""
    priority: int = 0
    """Higher priorities are claimed sooner; each failed attempt lowers it by one, except those that a crash ended."""
    run_at: RunAt | None = None
    blockers: tuple[str, ...] = ()
    """Ids of chains, without duplicates."""
    id_chosen: bool = False
    """Whether the caller chose the id, so that it may exist already."""
    trace_context: str | None = None
    """Of what creates it, as :mod:`queuert.trace_context` writes it."""
    deduplication: Deduplicate | None = None
    """For the first job of a chain."""
    attach: bool = False
    """Whether an existing chain of the chosen id is returned instead of raising."""
    limit_key: str | None = None
    result_ttl: float | None = None
    """For the first job of a chain: seconds that the chain is kept after it closed; None if it is kept without a
    limit."""
    attributes: Attributes | None = field(default=None, hash=False)
    """For the first job of a chain: its attributes. An existing chain keeps its own."""
    max_attempts: int | None = None
    """For the first job of a chain: attempts that may fail before the job has failed; None leaves it to the policy."""
    inherit_limit_key: bool = False
    """For a job that a finish creates: it has the limit key of the finished job, if it has none of its own."""
    inherit_attributes: bool = False
    """For the first job of a chain that a finish starts: it has the attributes of the finished job's chain, if it has
    none of its own."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that was written, or the existing one of which the start was a duplicate."""

    id: str
    type: str
    status: JobStatus
    created_at: datetime
    existing: bool = False
    """Whether the job existed already, by its deduplication key or its id."""
    chain_status: ChainStatus = ChainStatus.OPEN
    """The status of its chain: an existing one may have closed."""
    debounced: bool = False
    """Whether the existing job was waiting, and got the input and the due time of the start."""


def with_newest_inputs(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the starts of one call, where the first of each debounced key has the input and the times of the last."""
    if not any(map(is_debounced, jobs)):
        return jobs
    merged = list(jobs)
    first: dict[tuple[str, str], int] = {}
    for index, job in enumerate(jobs):
        if job.deduplication is None:
            continue
        deciding = first.setdefault((job.type, job.deduplication.key), index)
        if deciding != index and is_debounced(job) and is_debounced(merged[deciding]):
            newest = replace(merged[deciding], input=job.input, run_at=job.run_at, deduplication=job.deduplication)
            merged[deciding] = newest
    return merged


def inheriting(job: NewJob, limit_key: str | None, attributes: Attributes | None) -> NewJob:
    """Return a new job with the limit key of the job that creates it, and the attributes of that job's chain."""
    return replace(
        job,
        limit_key=job.limit_key or (limit_key if job.inherit_limit_key else None),
        attributes=job.attributes or (attributes or None if job.inherit_attributes else None),
    )


def is_debounced(job: NewJob) -> bool:
    """Whether the start replaces the input of a waiting job with the same key."""
    return job.deduplication is not None and job.deduplication.debounce is not None


CLAIM_BYTES = 16 * 1024 * 1024
"""The limit of the total size of the inputs of one claim, unless a worker sets a lower one."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Requests up to ``limit`` due jobs of the given types, whose inputs have up to ``max_bytes`` together.

    The first job is claimed whatever its size. A job that exceeds ``max_bytes``, and all jobs after it, are not
    changed. A store may measure the inputs as stored (perhaps compressed) and estimate the length of their text.

    ``leases`` maps each type to the seconds of its lease, in the order in which the types take turns. ``token`` names
    this one claim. It is a fresh random UUID that is known before the statement is sent, so that a claim whose answer
    was lost can still be found.
    """

    leases: Mapping[str, float]
    limit: int
    holder: str
    token: str
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """The limits of those types that have any."""
    max_bytes: int = CLAIM_BYTES
    """The limit of the total size of the inputs, in bytes of JSON text."""
    after_rank: int | None = None
    """Jobs of a worse rank than this are claimed before all others, so that better jobs cannot starve them."""
    ready_only: bool = False
    """Whether jobs that are due, but were scheduled, may be left out; ``next_due`` still tells of them."""


class Lease(NamedTuple):  # Several for each job: a dataclass takes three times as long to make, and twice to look up.
    """The right to finish a job: its id and the token of the claim."""

    job_id: str
    token: str


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class ClaimedJob:
    """A claimed job, with its lease."""

    id: str
    type: str
    chain_id: str
    chain_type: str
    chain_index: int
    priority: int
    attempt: int
    """1 for the first."""
    uncounted: int
    lease_expirations: int
    blocker_count: int
    has_dependents: bool
    """Whether some job waited for this chain at the time of the claim."""
    input: str = field(repr=False)
    """JSON text."""
    created_at: datetime
    scheduled_at: datetime
    """When it became due."""
    started_at: datetime
    """When it was claimed."""
    lease_seconds: float
    token: str
    trace_context: str | None = None
    result_ttl: float | None = None
    """The ``result_ttl`` of the start of its chain."""
    attempt_trace_context: str | None = field(default=None, hash=False)
    """The trace context of the newest traced attempt: an earlier one's, until this attempt sets its own."""
    max_attempts: int | None = None
    """Attempts that may fail, if the start of the job said so instead of the retry policy."""
    fault: str | None = None
    """Why the job cannot be run: its row has values that cannot be read. The attempt then fails."""

    @property
    def lease(self) -> Lease:
        """The lease that fences the later writes of this attempt."""
        return Lease(self.id, self.token)

    @property
    def own_failures(self) -> int:
        """The attempts that failed by the job's own doing, including this one. Each lowers its rank by one."""
        return self.attempt - self.uncounted - self.lease_expirations

    @property
    def rank(self) -> int:
        """The rank of the job when it was claimed (lower is claimed sooner): its failed attempts less its priority."""
        return self.own_failures - 1 - self.priority

    @property
    def counted_attempts(self) -> int:
        """Attempts that count against the retry policy, this one included."""
        return self.attempt - self.uncounted


@dataclass(frozen=True, slots=True)
class Renewal:
    """Extends a lease to ``seconds`` from now, by the store's clock."""

    lease: Lease
    seconds: float
    progress: str | None = field(default=None, repr=False)
    """New progress of the attempt, JSON text; None keeps the stored one."""
    logs_progress: bool = False
    """Whether the progress is written to the event log as well, in stores that have one."""


class FinishKind(StrEnum):
    """What the finish of an attempt does to its job."""

    COMPLETE = "complete"
    CONTINUE = "continue"
    RETRY = "retry"
    FAIL = "fail"
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """Released, since the worker stops or the lease ended too early: due at once, and the attempt does not count."""
    WAIT = "wait"
    """Blocked until other chains have closed, some of them started by this finish. The attempt does not count."""
    SNOOZE = "snooze"
    """Due again at a time. The attempt does not count."""

    @property
    def closes_chain(self) -> bool:
        """Whether this finish closes the chain."""
        return self in _CLOSING


_CLOSING = frozenset({FinishKind.COMPLETE, FinishKind.FAIL, FinishKind.CANCEL})


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class Finish:
    """The finish of an attempt. It is written only if its token has the job's lease."""

    job: ClaimedJob
    kind: FinishKind
    output: str | None = field(default=None, repr=False)
    """JSON text. For COMPLETE, and optional for CONTINUE."""
    error: JobError | None = None
    delay: float = 0.0
    """Seconds until the job is due again, for RETRY."""
    crashed: bool = False
    """The process that ran the handler died: counted like an expired lease. For RETRY and FAIL."""
    continuation: NewJob | None = None
    """For CONTINUE."""
    starts: tuple[NewJob, ...] = ()
    """New chains, for WAIT. Their ids are among ``blockers``; they have no blockers of their own."""
    blockers: tuple[str, ...] = ()
    """Chain ids, for WAIT. They are added after the blockers that the job has; existing ones are not added again."""
    result_ttl: float | None = None
    """For a finish that closes the chain: seconds that the chain is kept, instead of the ``result_ttl`` of its
    start."""
    run_at: RunAt | None = None
    """When the job is due again, for SNOOZE."""
    waits_for_event: str | None = None
    """For SNOOZE until the end of the job's last step, a wait: the event's name. The job is due at once if it is
    there."""
    progress: str | None = field(default=None, repr=False)
    """The last progress of the attempt, JSON text, if no renewal has written it, or it is not in the event log."""


def last_renewals(finishes: Sequence[Finish]) -> list[Renewal]:
    """Return the renewals that write the last progress of attempts; a store makes them before the finishes."""
    return [
        Renewal(one.job.lease, one.job.lease_seconds, one.progress, logs_progress=True)
        for one in finishes
        if one.progress is not None
    ]


MAX_FAILURES = 20
"""The failures that are kept of a job: the first one and the newest. Lua has the same number."""

_FAILURE_MESSAGE = 1_000
_FAILURE_TRACEBACK = 2_000
"""Characters that are kept of each: with 20 failures some 64 kB of usual text in the row of a job."""


def failure_error(error: JobError | None) -> JobError | None:
    """Return an error as it is kept among the failures of a job: the same object, unless it is too long."""
    if error is None:
        return None
    message, traceback = error.message, error.traceback
    if len(message) <= _FAILURE_MESSAGE and (traceback is None or len(traceback) <= _FAILURE_TRACEBACK):
        return error
    if len(message) > _FAILURE_MESSAGE:
        message = f"{message[: _FAILURE_MESSAGE - 4]} ..."
    if traceback is not None and len(traceback) > _FAILURE_TRACEBACK:
        # The end says where it happened.
        traceback = f"... {traceback[4 - _FAILURE_TRACEBACK :]}"
    return JobError(error.kind, message, error.type, traceback)


def check_finishes(finishes: Sequence[Finish]) -> None:
    """Check finishes that are to be written together.

    Raises:
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    for finish in finishes:
        if finish.continuation is not None and finish.continuation.id == finish.job.chain_id:
            raise JobIdConflictError([finish.job.chain_id])


def payload_characters(finish: Finish) -> int:
    """Return the number of characters of the payloads in a finish: most of its part of a statement."""
    length = len(finish.output) if finish.output is not None else 0
    if finish.kind is FinishKind.COMPLETE:
        return length
    if finish.error is not None:
        length += len(finish.error.message) + len(finish.error.traceback or "")
    if finish.continuation is not None:
        length += len(finish.continuation.input)
    if finish.starts:
        length += sum(len(one.input) for one in finish.starts)
    return length


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class FinishResult:
    """The result of a finish. Writing a finish again that this lease has already written succeeds."""

    job_id: str
    lost: AbortReason | None = None
    """Why the finish was rejected and nothing was written; None if it was written."""
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due: a continuation, dependents, or the job itself."""
    locked: bool = False
    """Another transaction has locked its rows, and the caller does not wait for locks: write the finish again."""
    chain_seconds: float | None = field(default=None, compare=False)
    """By the store's clock, the seconds from the start of the chain to its end: of a finish that closed a chain, of a
    job that is not its first. The age of a first job is known from its claim. None if it was written before already."""

    @property
    def written(self) -> bool:
        """Whether the finish was written."""
        return self.lost is None and not self.locked


@dataclass(frozen=True, slots=True)
class ReapRequest:
    """Turn up to ``limit`` expired leases of the given types into failed attempts, by each type's retry policy."""

    policies: Mapping[str, RetryPolicy]
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ReapedJob:
    """A job whose lease had expired."""

    id: str
    type: str
    chain_id: str
    chain_type: str
    """The type of the chain's first job."""
    status: JobStatus
    """SCHEDULED or READY for another attempt; FAILED if it was the last one."""
    attempt: int
    holder: str | None
    """The worker that held the lease."""
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due because the chain failed."""
    chain_seconds: float | None = field(default=None, compare=False)
    """By the store's clock, the seconds from the start of the chain to its end; None if it is still open."""


class ReleasedClaim(NamedTuple):
    """The number of jobs of a claim that were released, and the number that were not because they were locked."""

    released: int
    locked: int = 0


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The reaped jobs, and when the next lease expires."""

    reaped: Sequence[ReapedJob]
    next_expiry: float | None
    """Seconds until the earliest lease of these types expires unless renewed; None if no job of them is running."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The number of jobs of one type and status."""

    type: str
    status: JobStatus
    count: int
    oldest_seconds: float | None
    """Seconds since the oldest of them became due, or, on Postgres, finished; None where that would be costly to read:
    other stores have it only for ready and scheduled jobs. On Redis see :class:`TypeDemand` for ready jobs."""
    estimated: bool = False
    """Whether the count is the estimate of Postgres's planner, because there are too many jobs to count."""


COUNTED_DEMAND = 1_000
"""Jobs of a type and status at which the counting of demand ends, and keys of a type that it looks at."""


@dataclass(frozen=True, slots=True)
class TypeDemand:
    """What there is to do of one job type now, as an autoscaler wants to know it.

    Numbers end at ``counted_up_to`` of the call: there may be more.

    Attributes:
        type: the name of the job type.
        ready: ready jobs that a worker could claim now.
        due: scheduled jobs whose time has come, and that a worker could claim now.
        running: jobs with a lease.
        held_back: due jobs that cannot be claimed now, as limits or a pause of the type hold them back,
            or clients complete them.
        oldest_seconds: seconds since the longest due of the jobs that were counted became due; None if none is due. On
            Redis a job that was due before younger ones, but was triggered or given its priority after them, is left
            out until it is the first of its priority.
    """

    type: str
    ready: int
    due: int
    running: int
    held_back: int
    oldest_seconds: float | None

    @property
    def wanted(self) -> int:
        """The slots that could be in use now: those of running jobs, and one for each job that could be claimed."""
        return self.ready + self.due + self.running


COUNTED_WAIT = 10_000
"""Where counting ends in ``get_wait_facts``."""


NAMED_HOLDERS = 3
"""How many of the jobs that use up a limit are named, and of the events that no job has taken."""


class HeldJob(NamedTuple):
    """A running job, and the worker that has its lease."""

    id: str
    holder: str


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """What decides whether a job can be claimed now, besides its own row.

    Counts end at ``COUNTED_WAIT``: there may be more.

    Attributes:
        now: the store's clock, UTC.
        limits: the limits of the job type, as the last worker with a handler of it recorded them.
        running: running jobs of the type.
        running_of_key: those of them with the limit key of the job; 0 if it has none.
        begun: attempts that the rate counts for the limit key of the job, or for jobs without a key.
        rate_free_at: when the rate admits another attempt; None if it does now, or if there is none.
        ahead: ready jobs of the type that are claimed before this one; if its keys take turns, those of the same key.
        behind_chain: the chain of the same key that this one waits for, if the type has an order.
        event: the name of the event that the job waits for; None if its last step is no wait, or has its answer.
        sleep: the name of the job's last step if that is a sleep that is not over yet; None otherwise.
        held: some running jobs of the type, ``NAMED_HOLDERS`` at most.
        held_of_key: some of those with the limit key of the job.
        kept_events: the names of events that were sent to the chain and that no job has taken, of the newest
            ``NAMED_HOLDERS``, sorted.
    """

    now: datetime
    limits: Limits | None
    running: int
    running_of_key: int
    begun: int
    rate_free_at: datetime | None
    ahead: int
    behind_chain: str | None = None
    event: str | None = None
    sleep: str | None = None
    held: tuple[HeldJob, ...] = ()
    held_of_key: tuple[HeldJob, ...] = ()
    kept_events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockerRecord:
    """A chain that a job waited for, as stored."""

    chain_id: str
    type: str
    """The type of the chain's first job."""
    status: ChainStatus
    tail_type: str
    output: str | None
    error: JobError | None
    attempt_trace_context: str | None = None
    """Of the newest traced attempt of the chain's last job."""


class BlockerLink(NamedTuple):
    """That a job of a chain waits for another chain, or waited for it."""

    chain_id: str
    job_id: str
    blocker_id: str


@dataclass(frozen=True, slots=True)
class WorkerlessCompletion:
    """Closes or continues the last job of a chain from a client. One that continues it may keep an output as well."""

    chain_id: str
    tail_id: str
    """The last job that the caller read. If the chain has another last job by then, nothing is written."""
    output: str | None = field(default=None, repr=False)
    """JSON text."""
    continuation: NewJob | None = None


def check_completions(completions: Sequence[WorkerlessCompletion], cancelled: Sequence[str] = ()) -> None:
    """Check workerless completions that are to be written together, and chains that are to be cancelled with them.

    Raises:
        InvalidIdentifierError: two completions are of the same chain, or one is of a chain that is to be cancelled.
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    ids = [one.chain_id for one in completions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InvalidIdentifierError(f"chains of a batch of completions must be unique, got {twice!r} twice")
    if both := set(ids).intersection(cancelled):
        raise InvalidIdentifierError(f"a chain must be completed or cancelled, got {min(both)!r} for both")
    own = [one.chain_id for one in completions if one.continuation is not None and one.continuation.id == one.chain_id]
    if own:
        raise JobIdConflictError(own)


@dataclass(frozen=True, slots=True)
class ChainUpdate:
    """The result of a management operation for one chain."""

    chain_id: str
    chain_type: str
    """The type of the chain's first job."""
    status: ChainStatus
    """The status of the chain after the operation."""
    job_id: str
    """The last job of the chain, as read under its lock."""
    job_type: str
    previous_status: JobStatus
    """The status of that job before the operation. If it was RUNNING, notify its worker."""
    written: bool
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due by this or another update of the same call."""
    chain_seconds: float | None = field(default=None, compare=False)
    """By the store's clock, the seconds from the start of the chain to its end; None if this update did not close
    it."""
    trace_context: str | None = field(default=None, compare=False)
    """The trace context of the newest traced attempt of the last job; without one, of what created that job."""


@dataclass(frozen=True, slots=True)
class InputEdit:
    """A new input of the last job of a chain that is retried, or that waits."""

    job_id: str
    """The last job, as the caller read it."""
    input: str = field(repr=False)
    """JSON text."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The deleted chains: first those of the request in its order, then those of the cascade. Unknown ids are left
    out."""

    chain_ids: Sequence[str]
    running_job_ids: Sequence[str]
    """Jobs that were running: notify their workers."""


@dataclass(frozen=True, slots=True)
class TriggeredJob:
    """A job that was made due."""

    id: str
    type: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The stranded jobs that were released, and the cursor of the next page."""

    released: Sequence[TriggeredJob]
    cursor: str | None
    """Pass it to the next call; None at the end."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A recurring schedule, as stored. Times are UTC."""

    name: str
    type: str
    input: str = field(repr=False)
    """JSON text."""
    cron: str | None
    every: float | None
    """The interval in seconds, for a schedule without a cron expression."""
    time_zone: str
    missed: MissedRuns
    priority: int = 0
    limit_key: str | None = None
    paused: bool = False
    next_at: datetime | None = None
    """The next tick; None if there is none."""
    last_at: datetime | None = None
    """The latest tick that started a chain."""
    owner: str | None = None
    """Whose code has the schedule; None if a client stored it without an owner."""
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    """Seconds."""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    attributes: Attributes = field(default_factory=dict, hash=False)
    """Of its chains."""
    result_ttl: float | None = None
    """Seconds that its chains are kept after they closed."""
    last_chain_id: str | None = None
    """The chain that it started last, by a tick or by ``run_schedules``."""

    @property
    def spec(self) -> TickSpec:
        """The times of its ticks."""
        return TickSpec(
            cron=self.cron,
            every=self.every,
            time_zone=self.time_zone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )


@dataclass(frozen=True, slots=True)
class ScheduleDelay:
    """A schedule that is due, not paused, and whose tick has no chain yet."""

    name: str
    type: str
    seconds: float
    """Since its tick, by the store's clock."""


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules that are due, and the time by the store's clock."""

    now: datetime
    due: Sequence[ScheduleRecord]
    next_in: float | None
    """Seconds until the next of the other schedules is due; None if there is none."""


STAGING_KEPT = 86_400.0
"""Seconds after which staged rows that nothing has touched count as left by a driver that died, unless their write says
otherwise."""

WRITES_KEPT = 30 * 86_400.0
"""Seconds for which a bulk write is remembered at least, so that it can be repeated. It is kept longer while any of its
chains exists."""


@dataclass(frozen=True, slots=True)
class StagingCleanup:
    """What a cleanup of staging removed."""

    dropped: tuple[str, ...] = ()
    """Names of the staging tables that were dropped."""
    forgotten: int = 0
    """Number of records of bulk writes that were deleted: committed long ago, and without any chain left."""


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Requests to delete chains that have expired, and those that the policies of their types do not keep."""

    policies: Mapping[str, Retention] = field(default_factory=dict)
    """Retention by chain type. It applies to chains without a ``result_ttl`` of their own."""
    limit: int = 1_000
    """The largest number of chains to read."""
    cursor: str | None = None
    """The cursor of the previous result; None starts from the beginning."""
    closed_before: datetime | None = None
    """Delete no chain that closed, or became stale, at this time or later: a reader of the event log still needs it.
    None: no reader does."""
    preview: bool = False
    """Change nothing, and return what would be done by the policies; no chains that have expired."""
    only: PruneResult | None = None
    """Do only what is in here, of what the policies say: chains to delete and chains to mark as stale, as in the result
    of a preview. Chains that have expired are left alone. None: do all."""

    @property
    def expired(self) -> bool:
        """Whether chains that have expired are deleted as well."""
        return not self.preview and self.only is None

    def includes(self, chain_id: str, action: str) -> bool:
        """Whether it asks for an action, ``delete`` or ``mark``, if the policies say so."""
        if self.only is None:
            return True
        return chain_id in (self.only.chain_ids if action == "delete" else self.only.stale_ids)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The chains that were deleted or became stale, and the cursor of the next round."""

    chain_ids: Sequence[str]
    """The chains that were deleted."""
    cursor: str | None
    """Pass it to the next call; None at the end."""
    stale_ids: Sequence[str] = ()
    """The chains that became stale."""


def was_locked(error: StateUnavailableError) -> bool:
    """Whether an operation gave up since others hold what it changes: a lock timeout, or a deadlock (40P01)."""
    return was_lock_timeout(error) or getattr(error.__cause__, "sqlstate", None) == "40P01"


def was_lock_timeout(error: StateUnavailableError) -> bool:
    """Whether an operation would have had to wait too long for a lock (SQLSTATE 55P03): others hold what it changes."""
    return getattr(error.__cause__, "sqlstate", None) == "55P03"
