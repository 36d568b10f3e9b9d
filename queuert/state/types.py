"""The values of the contract between the engine and the stores: what operations take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from queuert.attributes import Attributes
from queuert.deduplication import Deduplicate
from queuert.errors import InvalidIdentifierError, JobIdConflictError
from queuert.jobs import AbortReason, ChainStatus, JobError, JobStatus
from queuert.limits import Limits
from queuert.policies import Retention, RetryPolicy
from queuert.run_at import RunAt
from queuert.schedules import MissedRuns, TickSpec


@dataclass(frozen=True, slots=True)
class StoreWarning:
    """A way in which a store may lose acknowledged jobs, or reveal their payloads."""

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
    """Chain ids, without repetitions."""
    id_chosen: bool = False
    """Whether the caller chose the id, so that it may exist already."""
    trace_context: str | None = None
    deduplication: Deduplicate | None = None
    """For the first job of a chain."""
    attach: bool = False
    """Whether an existing chain of the chosen id is returned instead of raising."""
    limit_key: str | None = None
    result_ttl: float | None = None
    """For the first job of a chain: seconds that the chain is kept after it closed; None if it has no TTL."""
    attributes: Attributes | None = field(default=None, hash=False)
    """For the first job of a chain: its attributes. An existing chain keeps its own."""


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


CLAIM_BYTES = 16 * 1024 * 1024
"""What the inputs that one claim takes may measure together, if a worker does not ask for less."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Ask for up to ``limit`` due jobs of the given types, with inputs of up to ``max_bytes`` together.

    The first job is taken whatever its size. What is not taken for its size, and all that is behind it, stays as it
    was. A store may measure what it keeps rather than what it hands out, if it learns how the one relates to the other.

    ``leases`` maps each type to the seconds of its lease, in the order in which the types take turns. ``token`` names
    this one claim: a fresh random UUID, known before the query is sent, so that a claim whose answer was lost can still
    be found.
    """

    leases: Mapping[str, float]
    limit: int
    holder: str
    token: str
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Of the types that have any."""
    max_bytes: int = CLAIM_BYTES
    """Of the inputs as JSON text."""
    after_rank: int | None = None
    """Jobs of worse rank than this go before all others: those that better ones would keep waiting."""


class Lease(NamedTuple):  # Several for each job: a dataclass takes three times as long to make, and twice to look up.
    """The right to finish a job: its id and the token of the claim."""

    job_id: str
    token: str


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class ClaimedJob:
    """A job under a fresh lease."""

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
    """Some job waits for this chain, as far as was known at the claim."""
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
    """What the chain was started with."""
    fault: str | None = None
    """Why the job cannot be run: its row could not be read. Then this is one failed attempt."""

    @property
    def lease(self) -> Lease:
        """What later writes of this attempt are fenced by."""
        return Lease(self.id, self.token)

    @property
    def own_failures(self) -> int:
        """Attempts that failed by the job's own doing, this one counted: each makes it give way to others by one."""
        return self.attempt - self.uncounted - self.lease_expirations

    @property
    def rank(self) -> int:
        """Where the job stood when it was claimed, less being better: attempts that had failed, less its priority."""
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


class FinishKind(StrEnum):
    """The kinds of finishes of an attempt."""

    COMPLETE = "complete"
    CONTINUE = "continue"
    RETRY = "retry"
    FAIL = "fail"
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """Released (the worker stops, or the lease was over too early): due at once, and the attempt does not count."""
    WAIT = "wait"
    """Run again when other chains have closed, some of them started by this finish; the attempt does not count."""

    @property
    def closes_chain(self) -> bool:
        """Whether the chain ends with the job."""
        return self in _CLOSING


_CLOSING = frozenset({FinishKind.COMPLETE, FinishKind.FAIL, FinishKind.CANCEL})


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class Finish:
    """The finish of an attempt. It is written only if its token has the job's lease."""

    job: ClaimedJob
    kind: FinishKind
    output: str | None = field(default=None, repr=False)
    """JSON text, for COMPLETE, and for CONTINUE if there is any."""
    error: JobError | None = None
    delay: float = 0.0
    """Seconds until the job is due again, for RETRY."""
    crashed: bool = False
    """The process that ran the handler died: counted with the expired leases. For RETRY and FAIL."""
    continuation: NewJob | None = None
    """For CONTINUE."""
    starts: tuple[NewJob, ...] = ()
    """New chains, for WAIT: they are among ``blockers``, by their ids. Without blockers of their own."""
    blockers: tuple[str, ...] = ()
    """Chain ids, for WAIT: they come after those that the job has. One that it has already is not added again."""
    result_ttl: float | None = None
    """For what closes the chain: seconds that it is kept this time, instead of what its start said."""


def check_finishes(finishes: Sequence[Finish]) -> None:
    """Check finishes that are to be written together.

    Raises:
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    for finish in finishes:
        if finish.continuation is not None and finish.continuation.id == finish.job.chain_id:
            raise JobIdConflictError([finish.job.chain_id])


def payload_characters(finish: Finish) -> int:
    """How long the texts are that a finish brings: how much of a statement it takes."""
    length = len(finish.output) if finish.output is not None else 0
    if finish.error is not None:
        length += len(finish.error.message) + len(finish.error.traceback or "")
    if finish.continuation is not None:
        length += len(finish.continuation.input)
    if finish.starts:
        length += sum(len(one.input) for one in finish.starts)
    return length


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class FinishResult:
    """The result of a finish. Repeating a finish that this lease has written already succeeds."""

    job_id: str
    lost: AbortReason | None = None
    """None: written. Otherwise nothing was written, and this is why."""
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due by it: a continuation, dependents, the job itself."""
    pending: bool = False
    """Whether another transaction has locked its rows, and the caller does not wait: write it again."""

    @property
    def written(self) -> bool:
        """Whether the finish was written."""
        return self.lost is None and not self.pending


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
    status: JobStatus
    """SCHEDULED or READY for another attempt, FAILED at the cap."""
    attempt: int
    holder: str | None
    """Who had held it."""
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due by it."""


class ReleasedClaim(NamedTuple):
    """How many jobs of a claim were released, and how many were not, because another transaction has locked them."""

    released: int
    locked: int = 0


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The reaped jobs, and when the next lease expires."""

    reaped: Sequence[ReapedJob]
    next_expiry: float | None
    """Seconds until the earliest lease of these types expires, unless renewed; None without running jobs."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The number of jobs of one type and status."""

    type: str
    status: JobStatus
    count: int
    oldest_seconds: float | None
    """Seconds since the oldest of them became due (finished ones: since it finished); None where that is costly."""
    estimated: bool = False
    """Whether the count is the planner's estimate, as there are too many to count."""


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
        held_back: due jobs that cannot be claimed now, as limits or a pause of the type hold them back.
        oldest_seconds: seconds since the longest due of the jobs that were counted became due; None if none is due.
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


@dataclass(frozen=True, slots=True)
class BlockerRecord:
    """A chain that a job waited for, as stored."""

    chain_id: str
    type: str
    """Of the chain's first job."""
    status: ChainStatus
    tail_type: str
    output: str | None
    error: JobError | None


@dataclass(frozen=True, slots=True)
class WorkerlessCompletion:
    """End the last job of a chain from a client: with an output, or by a continuation. Exactly one of them is set."""

    chain_id: str
    tail_id: str
    """The last job that the caller saw: if the chain has gone on meanwhile, nothing is written."""
    output: str | None = field(default=None, repr=False)
    """JSON text."""
    continuation: NewJob | None = None


def check_completions(completions: Sequence[WorkerlessCompletion]) -> None:
    """Check workerless completions that are to be written together.

    Raises:
        InvalidIdentifierError: two completions are of the same chain.
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    ids = [one.chain_id for one in completions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InvalidIdentifierError(f"chains of a batch of completions must be unique, got {twice!r} twice")
    own = [one.chain_id for one in completions if one.continuation is not None and one.continuation.id == one.chain_id]
    if own:
        raise JobIdConflictError(own)


@dataclass(frozen=True, slots=True)
class ChainUpdate:
    """The result of one chain. Written, unless ``met`` is final, or, for a completion, ``job_id`` is another tail."""

    chain_id: str
    chain_type: str
    """Type of its first job."""
    status: ChainStatus
    """Of the chain now."""
    job_id: str
    """Its last job, as it was met."""
    job_type: str
    met: JobStatus
    """How that job stood before. RUNNING: its holder must be told."""
    written: bool
    due_types: tuple[str, ...] = ()
    """Types of the jobs that became due by it, or by another of the same call."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The chains that were deleted, in the order asked and then those of the cascade; unknown ones are left out."""

    chain_ids: Sequence[str]
    running_job_ids: Sequence[str]
    """Jobs that were running: their holders must be told."""


@dataclass(frozen=True, slots=True)
class TriggeredJob:
    """A job that was made due."""

    id: str
    type: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Jobs that waited for nothing any more and were released, and where the next sweep begins."""

    released: Sequence[TriggeredJob]
    cursor: str | None
    """Give it to the next call; None when the end was reached."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A recurring schedule. Times are UTC."""

    name: str
    type: str
    input: str = field(repr=False)
    """JSON text."""
    cron: str | None
    every: float | None
    """Seconds."""
    time_zone: str
    missed: MissedRuns
    priority: int = 0
    limit_key: str | None = None
    paused: bool = False
    next_at: datetime | None = None
    """The next tick; None if none will come."""
    last_at: datetime | None = None
    """The latest tick that got a chain."""

    @property
    def spec(self) -> TickSpec:
        """When it ticks."""
        return TickSpec(cron=self.cron, every=self.every, time_zone=self.time_zone)


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules that are due, and the time by the store's clock."""

    now: datetime
    due: Sequence[ScheduleRecord]
    next_in: float | None
    """Seconds until the next one of the others is due; None without any."""


@dataclass(frozen=True, slots=True)
class PausedType:
    """A job type whose jobs are not claimed."""

    type: str
    paused_at: datetime
    reason: str | None


STAGING_KEPT = 86_400.0
"""Seconds after which rows that were staged for a bulk write, and not touched since, are a dead driver's."""

WRITES_KEPT = 30 * 86_400.0
"""Seconds for which a bulk write is remembered at least, so that it can be repeated; and while any of its chains is."""


@dataclass(frozen=True, slots=True)
class StagingCleanup:
    """What of bulk writes was removed."""

    dropped: tuple[str, ...] = ()
    """Names of staging tables."""
    forgotten: int = 0
    """Bulk writes that were committed long ago, and none of whose chains is left."""


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Delete chains that have expired, and those that the policies of their types do not keep."""

    policies: Mapping[str, Retention] = field(default_factory=dict)
    """By chain type. They concern chains without an end of their own."""
    limit: int = 1_000
    """How many chains are read, at most."""
    cursor: str | None = None
    """The cursor of the previous result; None starts from the beginning."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The chains that were deleted, and the cursor of the next round."""

    chain_ids: Sequence[str]
    cursor: str | None
    """Give it to the next call; None when the end was reached."""
