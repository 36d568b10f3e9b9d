"""The contract of a store in its plainest form: a dictionary of jobs, one operation after the other.

It keeps a record of all that became of each job, for whoever judges a run. Its clock is a function, so that it can
live on simulated time. The state machine of ``tests/model/test_state_machine.py`` holds it to the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from queuert.errors import (
    ChainNotFoundError,
    JobIdConflictError,
)
from queuert.jobs import AbortReason, ChainRecord, ChainState, ChainStatus, JobError, JobStatus
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.state.types import (
    BlockerRecord,
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    FinishResult,
    Lease,
    NewJob,
    ReapedJob,
    ReapRequest,
    ReapResult,
    ReleasedClaim,
    Renewal,
    StartedJob,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_ENDED = {
    FinishKind.COMPLETE: JobStatus.COMPLETED,
    FinishKind.CONTINUE: JobStatus.CONTINUED,
    FinishKind.FAIL: JobStatus.FAILED,
    FinishKind.CANCEL: JobStatus.CANCELLED,
}
_RESTING = frozenset({JobStatus.READY, JobStatus.SCHEDULED, JobStatus.BLOCKED})
CLOSED = {
    JobStatus.COMPLETED: ChainStatus.COMPLETED,
    JobStatus.FAILED: ChainStatus.FAILED,
    JobStatus.CANCELLED: ChainStatus.CANCELLED,
}


class Entry(NamedTuple):
    """Something that became of a job, at a time."""

    at: float
    what: str
    job_id: str
    attempt: int
    token: str | None
    holder: str | None
    until: float
    """When the lease would have ended, or the job may be claimed."""


@dataclass(eq=False)
class Row:
    """A job."""

    id: str
    type: str
    chain: str
    index: int
    number: int
    input: str
    priority: int
    created_at: float
    due_at: float
    key: str | None = None
    status: JobStatus = JobStatus.READY
    blockers: list[str] = field(default_factory=list)
    waits_for: set[str] = field(default_factory=set)
    attempt: int = 0
    uncounted: int = 0
    expirations: int = 0
    token: str | None = None
    holder: str | None = None
    leased: bool = False
    lease_until: float = 0.0
    started_at: float = 0.0
    output: str | None = None
    error: JobError | None = None
    ended_by: FinishKind | None = None

    @property
    def rank(self) -> tuple[float, float, int]:
        """Best first."""
        return -(self.priority - (self.attempt - self.uncounted - self.expirations)), self.due_at, self.number


class PlainStore:
    """Jobs, by the rules of the contract. Rows of ``locked`` are in somebody's transaction."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.jobs: dict[str, Row] = {}
        self.chains: dict[str, ChainStatus] = {}
        self.record: list[Entry] = []
        self.locked: set[str] = set()
        self.heard: Callable[[Entry], object] = lambda entry: None
        """Told of each entry of the record."""

    def _note(self, what: str, row: Row, until: float = 0.0, holder: str | None = None) -> None:
        entry = Entry(self._clock(), what, row.id, row.attempt, row.token, holder or row.holder, until)
        self.record.append(entry)
        self.heard(entry)

    @staticmethod
    def _moment(at: float) -> datetime:
        return EPOCH + timedelta(seconds=at)

    def tail(self, chain: str) -> Row:
        """The last job of a chain."""
        return max((row for row in self.jobs.values() if row.chain == chain), key=lambda row: row.index)

    def _known(self, chains: Iterable[str]) -> list[str]:
        found = list(chains)
        for chain in found:
            if chain not in self.chains:
                raise ChainNotFoundError(chain)
        return found

    # --- start --------------------------------------------------------------------------------------------------------

    def start_jobs(self, jobs: Sequence[NewJob], **_: Any) -> list[StartedJob]:
        """Write the first jobs of new chains."""
        for job in jobs:
            if job.id in self.jobs:
                raise JobIdConflictError([job.id])
            self._known(job.blockers)
        return [self._start(job) for job in jobs]

    def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains, once all are made."""
        return self.start_jobs([job for part in parts for job in part])

    def _start(self, job: NewJob) -> StartedJob:
        standing = None if job.deduplication is None else self._standing_in(job)
        row = standing or self._write(job, None)
        return StartedJob(row.id, row.type, row.status, self._moment(row.created_at), existing=standing is not None)

    def _standing_in(self, job: NewJob) -> Row | None:
        requested = job.deduplication
        assert requested is not None
        same = [
            row for row in self.jobs.values()
            if row.index == 0 and (row.type, row.key) == (job.type, requested.key)
            and (requested.scope == "any" or self.chains[row.id] is ChainStatus.OPEN)
        ]  # fmt: skip
        return same[-1] if same else None

    def _write(self, job: NewJob, after: Row | None) -> Row:
        now = self._clock()
        row = Row(
            id=job.id,
            type=job.type,
            chain=job.id if after is None else after.chain,
            index=0 if after is None else after.index + 1,
            number=len(self.jobs),
            input=job.input,
            priority=job.priority,
            created_at=now,
            due_at=now + _delay(job.run_at),
            key=None if job.deduplication is None else job.deduplication.key,
        )
        self.jobs[row.id] = row
        if after is None:
            self.chains[row.id] = ChainStatus.OPEN
        self._await(row, job.blockers)
        self._rest(row)
        self._note("start", row, row.due_at)
        return row

    def _await(self, row: Row, chains: Iterable[str]) -> None:
        for chain in chains:
            if chain not in row.blockers:
                row.blockers.append(chain)
            if self.chains[chain] is ChainStatus.OPEN:
                row.waits_for.add(chain)

    def _rest(self, row: Row) -> None:
        """Let a job stand as it must: blocked, scheduled or ready."""
        if row.waits_for:
            row.status = JobStatus.BLOCKED
        else:
            row.status = JobStatus.SCHEDULED if row.due_at > self._clock() else JobStatus.READY

    # --- claim, renew, release ----------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first; of one rank, types take turns."""
        now = self._clock()
        due = [
            row for row in self.jobs.values()
            if row.type in request.leases and row.id not in self.locked
            and row.status in (JobStatus.READY, JobStatus.SCHEDULED) and row.due_at <= now
        ]  # fmt: skip
        worse = [row for row in due if request.after_rank is not None and row.rank[0] > request.after_rank]
        taken = self._in_turn(worse, request)[: request.limit]
        rest = [row for row in due if row not in taken]
        taken += self._in_turn(rest, request)[: request.limit - len(taken)]
        return [self._lease(row, request) for row in taken]

    @staticmethod
    def _in_turn(rows: Sequence[Row], request: ClaimRequest) -> list[Row]:
        positions = {type: position for position, type in enumerate(request.leases)}
        turns: Counter[tuple[str, float]] = Counter()
        found = []
        for row in sorted(rows, key=lambda row: row.rank):
            turns[row.type, row.rank[0]] += 1
            found.append((row.rank[0], turns[row.type, row.rank[0]], positions[row.type], row))
        return [row for *_, row in sorted(found, key=lambda one: one[:3])]

    def _lease(self, row: Row, request: ClaimRequest) -> ClaimedJob:
        now, seconds = self._clock(), request.leases[row.type]
        row.status, row.attempt = JobStatus.RUNNING, row.attempt + 1
        row.token, row.holder, row.leased = request.token, request.holder, True
        row.started_at, row.lease_until = now, now + seconds
        self._note("claim", row, row.lease_until)
        first = self.jobs[row.chain]
        return ClaimedJob(
            id=row.id, type=row.type, chain_id=row.chain, chain_type=first.type, chain_index=row.index,
            priority=row.priority, attempt=row.attempt, uncounted=row.uncounted, lease_expirations=row.expirations,
            blocker_count=len(row.blockers), input=row.input,
            has_dependents=any(row.chain in one.blockers for one in self.jobs.values()),
            created_at=self._moment(row.created_at), scheduled_at=self._moment(row.due_at),
            started_at=self._moment(now), lease_seconds=seconds, token=request.token,
        )  # fmt: skip

    def holds(self, lease: Lease) -> Row | None:
        """The job, if it is held by this lease."""
        row = self.jobs.get(lease.job_id)
        return row if row is not None and row.leased and row.token == lease.token else None

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases."""
        found = []
        for one in renewals:
            row = self.holds(one.lease)
            if row is not None and row.id not in self.locked:
                row.lease_until = self._clock() + one.seconds
                self._note("renew", row, row.lease_until)
                found.append(True)
            else:
                found.append(False)
        return found

    def release(self, leases: Sequence[Lease]) -> int:
        """Release what was not started."""
        rows = [row for lease in leases if (row := self.holds(lease)) is not None]
        for row in rows:
            row.attempt -= 1
            self._note("release", row)
            self._give_back(row, 0.0)
            row.token = None
        return len(rows)

    def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all that a claim took."""
        taken = [Lease(row.id, request.token) for row in self.jobs.values() if row.token == request.token]
        return ReleasedClaim(self.release(taken))

    def _give_back(self, row: Row, delay: float) -> None:
        row.leased, row.holder = False, None
        if delay > 0:
            row.due_at = self._clock() + delay
        else:
            row.due_at = min(row.due_at, self._clock())
        self._rest(row)

    # --- finish -------------------------------------------------------------------------------------------------------

    def finish(self, finishes: Sequence[Finish]) -> list[FinishResult]:
        """End attempts; rows that are locked are pending."""
        return [
            FinishResult(one.job.id, locked=True) if one.job.id in self.locked else self.finish_one(one)
            for one in finishes
        ]

    def finish_one(self, finish: Finish) -> FinishResult:
        """End an attempt if its token holds the job; say why not otherwise."""
        row = self.holds(finish.job.lease)
        if row is None:
            return FinishResult(finish.job.id, self.lost_reason(finish.job.lease, finish.kind))
        if finish.continuation is not None:
            if finish.continuation.id in self.jobs:
                raise JobIdConflictError([finish.continuation.id])
            self._known(finish.continuation.blockers)
        self._known(set(finish.blockers) - {one.id for one in finish.starts})
        row.error, row.ended_by = finish.error, finish.kind
        ended = _ENDED.get(finish.kind)
        if ended is None:
            return self._again(row, finish)
        self._note(f"end {finish.kind}", row)
        row.status, row.leased, row.holder = ended, False, None
        row.output = finish.output
        if finish.kind is FinishKind.COMPLETE and row.output is None:
            row.output = "null"
        row.expirations += finish.crashed
        if finish.continuation is not None:
            following = self._write(finish.continuation, row)
            return FinishResult(row.id, due_types=due([following]))
        return FinishResult(row.id, due_types=due(self._close(row.chain, CLOSED[ended])))

    def _again(self, row: Row, finish: Finish) -> FinishResult:
        kind = finish.kind
        row.uncounted += kind in (FinishKind.INTERRUPT, FinishKind.WAIT, FinishKind.SNOOZE)
        row.expirations += finish.crashed
        started = [self._write(one, None) for one in finish.starts]
        self._await(row, finish.blockers)
        holder = row.holder
        self._give_back(row, finish.delay if kind is FinishKind.RETRY else _delay(finish.run_at))
        self._note(f"end {kind}", row, row.due_at, holder)
        return FinishResult(row.id, due_types=due([*started, row]))

    def _close(self, chain: str, status: ChainStatus) -> list[Row]:
        self.chains[chain] = status
        waiting = [row for row in self.jobs.values() if chain in row.waits_for]
        for row in waiting:
            row.waits_for.discard(chain)
            if row.status is JobStatus.BLOCKED:
                self._rest(row)
        return waiting

    def lost_reason(self, lease: Lease, kind: FinishKind | None = None) -> AbortReason | None:
        """Why a lease does not hold its job; None where it does, or has written this kind of finish itself."""
        row = self.jobs.get(lease.job_id)
        if row is None:
            return AbortReason.NOT_FOUND
        if row.token == lease.token:
            if row.leased or kind is None or row.ended_by is kind or {row.ended_by, kind} <= RETURNING:
                return None
            return AbortReason.ALREADY_COMPLETED if row.status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER
        if row.status is JobStatus.CANCELLED:
            return AbortReason.CANCELLED
        return AbortReason.ALREADY_COMPLETED if row.status.final else AbortReason.TAKEN_BY_ANOTHER_WORKER

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Why each lease does not hold its job."""
        return [self.lost_reason(lease) for lease in leases]

    # --- reap, look ---------------------------------------------------------------------------------------------------

    def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts."""
        now = self._clock()
        running = [row for row in self.jobs.values() if row.leased and row.type in request.policies]
        expired = [row for row in running if row.lease_until <= now and row.id not in self.locked]
        reaped = [self._reap(row, request.policies[row.type]) for row in expired[: request.limit]]
        left = [row.lease_until for row in running if row.leased]
        return ReapResult(reaped, max(0.0, min(left) - now) if left else None)

    def _reap(self, row: Row, policy: RetryPolicy) -> ReapedJob:
        counted, holder = row.attempt - row.uncounted, row.holder
        row.expirations += 1
        row.error, row.ended_by = JobError("lease_expired", "the lease expired"), None
        self._note("reap", row, row.lease_until)
        row.token = None
        again = policy.allows_another(counted, row.expirations)
        if again:
            self._give_back(row, policy.delay(counted))
            due_types = due([row])
        else:
            row.status, row.leased, row.holder = JobStatus.FAILED, False, None
            due_types = due(self._close(row.chain, ChainStatus.FAILED))
        first = self.jobs[row.chain]
        return ReapedJob(row.id, row.type, row.chain, first.type, row.status, row.attempt, holder, due_types)

    def next_due(self, types: Sequence[str]) -> float | None:
        """Seconds until the next job is due."""
        waiting = (JobStatus.READY, JobStatus.SCHEDULED)
        due = [row.due_at for row in self.jobs.values() if row.type in types and row.status in waiting]
        return max(0.0, min(due) - self._clock()) if due else None

    def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        """What a job waited for."""
        found = []
        for chain in self.jobs[job_id].blockers:
            tail = self.tail(chain)
            found.append(
                BlockerRecord(chain, self.jobs[chain].type, self.chains[chain], tail.type, tail.output, tail.error)
            )
        return found

    def get_chains(self, ids: Sequence[str]) -> list[ChainRecord | None]:
        """Read chains."""
        return [self._chain(id) if id in self.chains else None for id in ids]

    def get_chain_states(self, ids: Sequence[str]) -> list[ChainState | None]:
        """Read chains and their last jobs."""
        return [self._state(id) if id in self.chains else None for id in ids]

    def _state(self, id: str) -> ChainState:
        first, tail = self.jobs[id], self.tail(id)
        return ChainState(
            id=id,
            type=first.type,
            status=self.chains[id],
            job_id=tail.id,
            job_type=tail.type,
            job_status=tail.status,
            attempt=tail.attempt,
            scheduled_at=self._moment(tail.due_at),
            open_blockers=sum(self.chains[one] is ChainStatus.OPEN for one in tail.blockers),
            last_error=tail.error,
            progress=None,
        )

    def closed_chains(self, ids: Sequence[str], *, portion: int = 0) -> list[ChainRecord | ChainStatus | None]:
        """Read chains that have closed, all of them."""
        found = self.get_chains(ids)
        return [chain.status if chain and chain.status is ChainStatus.OPEN else chain for chain in found]

    def _chain(self, id: str) -> ChainRecord:
        first, tail = self.jobs[id], self.tail(id)
        return ChainRecord(
            id=id,
            type=first.type,
            status=self.chains[id],
            input=first.input,
            output=tail.output if self.chains[id] is ChainStatus.COMPLETED else None,
            error=tail.error,
            tail_type=tail.type,
            created_at=self._moment(first.created_at),
            closed_at=None,
            tail_id=tail.id,
        )


RETURNING = {FinishKind.RETRY, FinishKind.INTERRUPT, FinishKind.WAIT, FinishKind.SNOOZE}
"""Finishes after which the job rests: they are not told apart by what they leave."""


def _delay(run_at: RunAt | None) -> float:
    assert run_at is None or run_at.moment is None
    return 0.0 if run_at is None else run_at.delay or 0.0


def due(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.type for row in rows if row.status in (JobStatus.READY, JobStatus.SCHEDULED)))
