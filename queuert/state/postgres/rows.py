"""Decodes rows of the statements into values of the contract. Pure functions.

A row may have values that cannot be decoded, such as times written by hand that Python does not support. The other rows
are decoded all the same, and what can be read of the row is enough to finish its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import DataError
from psycopg.adapt import AdaptersMap
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzBinaryLoader

from queuert.jobs import AbortReason, JobStatus
from queuert.state.types import (
    Finish,
    FinishKind,
    FinishResult,
    Lease,
    ReapedJob,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import AdaptContext, Loader
    from psycopg.pq.abc import PGresult

Row = tuple[Any, ...]


_TIMESTAMPTZ = 1184
"""The type ``timestamptz``, by its number in ``pg_type``."""


class _InUTC:
    """Makes the loader of times in binary form.

    psycopg's own gives times the time zone of the session, which a role or a database may set. Made without a
    connection, it gives them UTC, and takes no longer. A program may have registered another loader for all of its
    connections: a new map has none of the program's, and chooses psycopg's faster loader, if it is installed.
    """

    format = Format.BINARY

    def __init__(self) -> None:
        adapters = AdaptersMap()
        adapters.register_loader(_TIMESTAMPTZ, TimestamptzBinaryLoader)
        kind = adapters.get_loader(_TIMESTAMPTZ, Format.BINARY)
        assert kind is not None, "it was registered"
        self._kind = kind

    def __call__(self, oid: int, context: AdaptContext | None = None) -> Loader:
        return self._kind(oid)


_in_utc: Any = _InUTC()


def times_in_utc(adapters: AdaptersMap) -> AdaptersMap:
    """Let the times of rows be in UTC, whatever time zone the session has; return the adapters."""
    adapters.register_loader(_TIMESTAMPTZ, _in_utc)
    return adapters


@dataclass(frozen=True, slots=True)
class OwnAdapters:
    """Psycopg's context for the rows of the statements: the session's adapters, but for times."""

    adapters: AdaptersMap
    connection: Any

    @classmethod
    def of(cls, connection: AsyncConnection[Any] | Connection[Any]) -> OwnAdapters:
        """Return the context of a connection. What handlers read on it has the adapters of the connection itself."""
        return cls(times_in_utc(AdaptersMap(connection.adapters)), connection)


class LockedJob(NamedTuple):
    """A row of ``lock_chains``: its fields are the columns."""

    id: str
    chain_id: str
    chain_index: int
    type: str
    chain_type: str
    chain_status: str | None
    status: str
    trace_context: str | None


class CompletedChain(NamedTuple):
    """A row of ``complete_chains``, a chain as it was before: its fields are the columns."""

    chain_id: str
    chain_type: str
    chain_status: str
    tail_id: str
    tail_type: str
    tail_status: str
    trace_context: str | None
    completed: bool
    """Whether the chains of the call were completed: all, or none."""
    seconds: float | None
    due_types: Sequence[str]
    """The types of the jobs that became due by the call."""


class DeletedJob(NamedTuple):
    """A row of ``delete_chains`` and ``prune``: its fields are the columns."""

    id: str
    chain_id: str
    status: str
    type: str
    deduplication_key: str | None
    created_at: datetime | None
    """None without attributes."""
    attributes: str | None


class ExistingJob(NamedTuple):
    """A row of ``find_chains_by_id``, a chain or another job of its id: its fields are the columns."""

    id: str
    type: str
    status: str
    created_at: datetime
    chain_index: int
    has_expired: bool
    chain_status: str | None


class ExpiredLease(NamedTuple):
    """A row of ``reap``: its fields are the columns, besides the seconds until the next lease expires."""

    id: str
    type: str
    chain_id: str
    chain_type: str
    status: str | None
    """What the job has become; None if its chain must be locked before it fails."""
    attempt: int
    holder: str | None
    lease_token: str
    lease_expires_at: datetime

    @property
    def position(self) -> tuple[datetime, str]:
        """Its place among the jobs that are to fail, the longest expired first."""
        return self.lease_expires_at, self.id


def expired_leases(found: Sequence[Row]) -> tuple[list[ExpiredLease], float | None]:
    """Decode the rows of ``reap``: the expired leases, and the seconds until the next one expires."""
    *_, next_expiry = found[0]
    expired = [ExpiredLease(id, *others) for id, *others, _ in found if id is not None]
    return expired, next_expiry


def in_turn(spent: Iterable[ExpiredLease], after: tuple[datetime, str] | None) -> list[ExpiredLease]:
    """Sort jobs that are to fail: those after the one that was tried last, and then the others."""
    return sorted(spent, key=lambda lease: (after is not None and lease.position <= after, lease.position))


def reaped_job(lease: ExpiredLease, status: str) -> ReapedJob:
    """Return the job whose lease has expired, with the status that it has now."""
    due_types = () if status == JobStatus.FAILED else (lease.type,)
    return ReapedJob(
        id=lease.id,
        type=lease.type,
        chain_id=lease.chain_id,
        chain_type=lease.chain_type,
        status=JobStatus(status),
        attempt=lease.attempt,
        holder=lease.holder,
        due_types=due_types,
    )


def with_closed_chain(reaped: ReapedJob, seconds: float | None, due_types: tuple[str, ...]) -> ReapedJob:
    """Add how long its chain took, and the types of the jobs that became due because the chain failed."""
    return replace(reaped, due_types=due_types, chain_seconds=seconds)


class LeaseState(Enum):
    """The state of a job relative to one lease that it may have."""

    HELD = "held"
    ENDED = "ended"
    """The holder of the lease has finished the job: the token stays in the row as evidence."""


def lease_states(params: Sequence[Lease], rows: Sequence[Row]) -> list[LeaseState | AbortReason]:
    """Return the state of each lease, from the rows of ``lease_states``."""
    found = {id: (status, token, running) for id, status, token, running in rows}
    return [_lease_state(lease, found.get(lease.job_id)) for lease in params]


_WRITES = {
    FinishKind.COMPLETE: (JobStatus.COMPLETED,),
    FinishKind.CONTINUE: (JobStatus.CONTINUED,),
    FinishKind.FAIL: (JobStatus.FAILED,),
    FinishKind.CANCEL: (JobStatus.CANCELLED,),
    FinishKind.RETRY: (JobStatus.READY, JobStatus.SCHEDULED),
    FinishKind.INTERRUPT: (JobStatus.READY,),
    FinishKind.WAIT: (JobStatus.READY, JobStatus.BLOCKED),
    FinishKind.SNOOZE: (JobStatus.READY, JobStatus.SCHEDULED),
}


def settled(finish: Finish, state: LeaseState | AbortReason, found: Sequence[Row]) -> FinishResult:
    """Return the result of a finish whose lease does not hold: written before by this lease, or lost."""
    if not isinstance(state, LeaseState):
        return FinishResult(finish.job.id, state)
    status = next(status for id, status, _, _ in found if id == finish.job.id)
    if status in _WRITES[finish.kind]:
        return FinishResult(finish.job.id)
    # The lease finished the job, but with another outcome.
    final = JobStatus(status).final
    return FinishResult(finish.job.id, AbortReason.ALREADY_COMPLETED if final else AbortReason.TAKEN_BY_ANOTHER_WORKER)


def _lease_state(lease: Lease, known: tuple[str, str | None, bool] | None) -> LeaseState | AbortReason:
    if known is None:
        return AbortReason.NOT_FOUND
    status, token, running = known
    if token == lease.token:
        return LeaseState.HELD if running else LeaseState.ENDED
    if status == JobStatus.CANCELLED:
        return AbortReason.CANCELLED
    if status in (JobStatus.COMPLETED, JobStatus.CONTINUED, JobStatus.FAILED):
        return AbortReason.ALREADY_COMPLETED
    return AbortReason.TAKEN_BY_ANOTHER_WORKER


UNREADABLE = (DataError, ValueError, OverflowError)
"""Errors of decoding a value that this version of Python or psycopg does not support."""


_UNKNOWN_TYPE = 0
"""The type under which psycopg registers the loader for unknown types."""


class UnreadableRow(tuple[Any, ...]):
    """A row with None for each value that cannot be read."""

    fault: str = ""
    """The columns that cannot be read, and the reasons."""


def rows_one_by_one(connection: AsyncConnection[Any] | Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """Decode the rows of a result one by one, after decoding all of them at once has failed."""
    context = OwnAdapters.of(connection)
    loaders = [_loader(context, result, column) for column in range(result.nfields)]
    return [_row(loaders, result, at) for at in range(result.ntuples)]


def _loader(context: OwnAdapters, result: PGresult, column: int) -> Loader:
    """Return psycopg's loader for a column. Values of unknown types are read as text."""
    format = Format(result.fformat(column))
    adapters = context.adapters
    kind = adapters.get_loader(result.ftype(column), format) or adapters.get_loader(_UNKNOWN_TYPE, format)
    assert kind is not None, "psycopg has a loader for types that it does not know"
    return kind(result.ftype(column), context)


def _row(loaders: Sequence[Loader], result: PGresult, at: int) -> tuple[Any, ...]:
    values, faults = [], []
    for column, loader in enumerate(loaders):
        stored = result.get_value(at, column)
        try:
            values.append(None if stored is None else loader.load(stored))
        except UNREADABLE as error:
            values.append(None)
            faults.append(f"{(result.fname(column) or b'?').decode()}: {error}")
    if not faults:
        return tuple(values)
    unreadable = UnreadableRow(values)
    unreadable.fault = ", ".join(faults)
    return unreadable
