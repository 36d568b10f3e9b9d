"""The contract of a state adapter: the values that go in and come out.

The operations themselves are the methods of :class:`~queuert.state.AsyncStore` and its generated twin ``Store``. They
take and return arrays, are atomic, use the store's clock, and cost one round trip however many jobs they are given.
``queuert.testing.conformance`` holds what they promise, for every store alike.

Everything that a handler or a caller wrote is JSON **text** here: encoded before it comes in, decoded after it went
out, so that one bad row is one failed attempt and never a dead loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from queuert.attributes import Attributes
from queuert.deduplication import Deduplicate
from queuert.jobs import AbortReason, ChainStatus, JobError, JobStatus
from queuert.limits import Limits
from queuert.policies import RetryPolicy
from queuert.run_at import Schedule

if TYPE_CHECKING:
    from queuert.notify.adapter import NotifyAdapter
    from queuert.state.async_store import AsyncStore
    from queuert.state.sync_store import Store


class Capability(StrEnum):
    """What a store can do beyond the common contract; asking for what it cannot is a typed error."""

    USER_TRANSACTIONS = "user_transactions"
    """Starts and completions can join the caller's own transaction."""
    ROW_LOCKS = "row_locks"
    """A transaction that holds one job keeps nobody from the others."""
    MULTI_PROCESS = "multi_process"
    """Several processes can share the store."""
    EVENTS = "events"
    """What happens to jobs is kept in a log that can be read."""


class StateAdapter(Protocol):
    """Where jobs live. One object, shared by clients and workers; it makes a store in either colour for each."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do beyond the common contract."""
        ...

    def sync_store(self, *, connections: int = 4, answer_timeout: float | None = None) -> Store:
        """A new, unopened synchronous store of at most this many connections.

        ``answer_timeout`` shortens the seconds after which an operation gives up waiting for an answer.
        """
        ...

    def async_store(self, *, connections: int = 4) -> AsyncStore:
        """A new, unopened asynchronous store of at most this many connections."""
        ...

    def default_notify(self) -> NotifyAdapter:
        """The notify adapter that suits this store when the user names none."""
        ...


@dataclass(frozen=True, slots=True)
class StoreRisk:
    """A way in which a store may lose what it acknowledged, or give it away."""

    name: str
    advice: str
    """What is wrong, and what to do about it, in one line."""


# --- start -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be written: the first of a chain, or a continuation."""

    id: str
    type: str
    input: str = field(repr=False)
    """JSON text."""
    priority: int = 0
    """Higher is claimed sooner; each failed attempt costs one, but for those that a worker's death ended."""
    schedule: Schedule | None = None
    blockers: tuple[str, ...] = ()
    """Chain ids, without repetitions."""
    id_chosen: bool = False
    """The caller chose the id, so it may exist already."""
    trace_context: str | None = None
    deduplication: Deduplicate | None = None
    """For the first job of a chain."""
    attach: bool = False
    """A chain of the chosen id may exist already: then it is what is wanted."""
    limit_key: str | None = None
    result_ttl: float | None = None
    """For the first job of a chain: seconds that the chain is kept after it closed; None: no end of its own."""
    attributes: Attributes | None = field(default=None, hash=False)
    """For the first job of a chain: what the chain can be found by. One that is there already keeps its own."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job as it was written, or one that was there and stands in for it."""

    id: str
    type: str
    status: JobStatus
    created_at: datetime
    existing: bool = False
    """It was there: another start of its deduplication key, or of its id, came before."""
    chain_status: ChainStatus = ChainStatus.OPEN
    """Of the chain that it is the first job of: one that was there may have closed."""


# --- claim, renew, release -------------------------------------------------------------------------------------------


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
    """Extend a lease to ``seconds`` from now, by the store's clock."""

    lease: Lease
    seconds: float
    progress: str | None = field(default=None, repr=False)
    """What the attempt tells of its progress, JSON text; None: nothing new, and what it told before stays."""


# --- finish ----------------------------------------------------------------------------------------------------------


class FinishKind(StrEnum):
    """How an attempt ends."""

    COMPLETE = "complete"
    CONTINUE = "continue"
    RETRY = "retry"
    FAIL = "fail"
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """Given back (the worker stops, or the lease was over too early): due at once, and the attempt does not count."""
    WAIT = "wait"
    """Run again when other chains have closed, some of them started by this ending; the attempt does not count."""

    @property
    def closes_chain(self) -> bool:
        """Whether the chain ends with the job."""
        return self in _CLOSING


_CLOSING = frozenset({FinishKind.COMPLETE, FinishKind.FAIL, FinishKind.CANCEL})


@dataclass(slots=True, unsafe_hash=True)  # One for each job: a frozen one takes three times as long to make.
class Finish:
    """One guarded ending of an attempt. It is written only while the lease is held by its token."""

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


def payload_characters(finish: Finish) -> int:
    """How long the texts are that an ending brings: how much of a statement it takes."""
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
    """Whether the ending was written. Asking again for an ending that this lease has written already says yes."""

    job_id: str
    lost: AbortReason | None = None
    """None: written. Otherwise nothing was written, and this is why."""
    readied: tuple[str, ...] = ()
    """Types of the jobs that became due by it: a continuation, dependents, the job itself."""
    pending: bool = False
    """Not decided: another transaction has rows of it locked, and the caller would not wait. Ask again."""

    @property
    def written(self) -> bool:
        """Whether the ending stands in the store."""
        return self.lost is None and not self.pending


# --- reap, look ------------------------------------------------------------------------------------------------------


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
    readied: tuple[str, ...] = ()
    """Types of the jobs that became due by it."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """What was reaped, and when to come again."""

    reaped: Sequence[ReapedJob]
    next_expiry: float | None
    """Seconds until the earliest lease of these types expires, as things stand; None without running jobs."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """Jobs of one type and status."""

    type: str
    status: JobStatus
    count: int
    oldest_seconds: float | None
    """Seconds since the oldest of them became due (finished ones: since it finished); None where that is costly."""
    estimated: bool = False
    """The planner's estimate: there are too many to count."""


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
