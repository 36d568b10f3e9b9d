"""Decodes rows of the statements into values of the contract. Pure functions.

A row may have values that cannot be decoded, such as times written by hand that Python does not support. The other rows
are decoded all the same, and what can be read of the row is enough to finish its attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.pq import Format

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
    from psycopg.abc import Loader
    from psycopg.pq.abc import PGresult

Row = tuple[Any, ...]


def in_utc(row: Row) -> Row:
    """Return a row of a caller's connection, whose session may have another time zone, with its times in UTC."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)


def reaped_job(row: Row, *, status: str) -> ReapedJob:
    """Decode a row of ``reap``, with the status that the job has now."""
    again = status != JobStatus.FAILED
    due_types = (row[1],) if again else ()
    return ReapedJob(row[0], row[1], row[2], row[3], JobStatus(status), row[5], row[6], due_types)


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
    found: Mapping[str, Row] = {row[0]: row for row in rows}
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
    status = next(row[1] for row in found if row[0] == finish.job.id)
    if status in _WRITES[finish.kind]:
        return FinishResult(finish.job.id)
    # The lease finished the job, but with another outcome.
    final = JobStatus(status).final
    return FinishResult(finish.job.id, AbortReason.ALREADY_COMPLETED if final else AbortReason.TAKEN_BY_ANOTHER_WORKER)


def _lease_state(lease: Lease, row: Row | None) -> LeaseState | AbortReason:
    if row is None:
        return AbortReason.NOT_FOUND
    _, status, token, running = row
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
    loaders = [_loader(connection, result, column) for column in range(result.nfields)]
    return [_row(loaders, result, at) for at in range(result.ntuples)]


def _loader(connection: AsyncConnection[Any] | Connection[Any], result: PGresult, column: int) -> Loader:
    """Return psycopg's loader for a column. Values of unknown types are read as text."""
    format = Format(result.fformat(column))
    adapters = connection.adapters
    kind = adapters.get_loader(result.ftype(column), format) or adapters.get_loader(_UNKNOWN_TYPE, format)
    assert kind is not None, "psycopg has a loader for types that it does not know"
    return kind(result.ftype(column), connection)


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
