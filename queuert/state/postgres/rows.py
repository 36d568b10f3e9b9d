"""Rows of the statements, as the contract's values: pure functions.

A row may have values that cannot be read, as a rule times written by hand that Python does not know. The rows beside it
are read all the same, and what can be read of it is enough to finish its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.pq import Format

from queuert.attributes import attributes_of
from queuert.jobs import AbortReason, ChainRecord, ChainStatus, Job, JobStatus
from queuert.state.stored_json import job_error, job_progress, json_value
from queuert.state.types import (
    BlockerRecord,
    ClaimedJob,
    Finish,
    FinishKind,
    FinishResult,
    Lease,
    ReapedJob,
    StartedJob,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import Loader
    from psycopg.pq.abc import PGresult

Row = tuple[Any, ...]

_STATUSES = {status.value: status for status in JobStatus}
"""Looked up in a third of the time of a call of the enumeration."""


def started_jobs(found: Iterable[Row]) -> dict[str, StartedJob]:
    """Rows of ``start_jobs``, by id."""
    return {row[0]: StartedJob(row[0], row[1], _STATUSES[row[2]], row[3]) for row in found}


LOOK_SECONDS = 20
"""Where a row of ``claim`` says how long the look for ready jobs took."""

CUT = 20
"""Where a row of ``claim_admitted`` says whether some were left for their size."""


def claimed_job(row: Row, token: str) -> ClaimedJob:
    """A row of ``claim``, whose columns are in the order of the fields, but for the token."""
    if type(row) is not tuple:
        return _unreadable_job(row, token)
    fields: Row = (*row[:16], token, *row[16:19])
    return ClaimedJob(*fields)


_NUMBERS = (4, 5, 6, 7, 8, 9)
_TIMES = (12, 13, 14)
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def _unreadable_job(row: Row, token: str) -> ClaimedJob:
    """With something in the place of what cannot be read: its attempt does not get as far as to use it."""
    stand_ins: dict[int, Any] = {**dict.fromkeys(_NUMBERS, 0), **dict.fromkeys(_TIMES, _NO_TIME), 11: "", 15: 60.0}
    values: Row = tuple(stand_ins.get(at) if value is None else value for at, value in enumerate(row[:19]))
    fields: Row = (*values[:16], token, *values[16:], getattr(row, "fault", "?"))
    return ClaimedJob(*fields)


def best_first(jobs: list[ClaimedJob]) -> list[ClaimedJob]:
    """Claimed jobs in the order in which they should run; an UPDATE returns them in any."""
    # As ``own_failures`` says: spelled out, since it is asked for each job.
    jobs.sort(key=lambda job: (job.attempt - job.uncounted - job.lease_expirations - job.priority, job.scheduled_at))
    return jobs


def job(row: Row) -> Job:
    """A row of ``get_jobs``."""
    return Job(
        id=row[0],
        type=row[1],
        chain_id=row[2],
        chain_index=row[3],
        status=JobStatus(row[4]),
        priority=row[5],
        attempt=row[6],
        uncounted=row[7],
        lease_expirations=row[8],
        open_blockers=row[9],
        input=json_value(row[10]),
        output=json_value(row[11]),
        last_error=job_error(row[12]),
        created_at=row[13],
        scheduled_at=row[14],
        started_at=row[15],
        finished_at=row[16],
        holder=row[17],
        lease_expires_at=row[18],
        continued_by=row[19],
        deduplication_key=row[20],
        limit_key=row[21],
        progress=job_progress(row[22], row[6]),
    )


def chain(row: Row) -> ChainRecord:
    """A row of ``get_chains``."""
    return ChainRecord(
        id=row[0],
        type=row[1],
        status=ChainStatus(row[2]),
        input=row[3],
        output=row[4],
        error=job_error(row[5]),
        tail_type=row[6],
        created_at=row[7],
        closed_at=row[8],
        tail_id=row[9],
        expires_at=row[10],
        attributes=attributes_of(row[11]),
    )


def closed_chain(row: Row) -> ChainRecord | ChainStatus:
    """A row of ``closed_chains``: without an input, where the chain is open or its turn has not come."""
    return ChainStatus(row[2]) if row[3] is None else chain(row)


def blocker(row: Row) -> BlockerRecord:
    """A row of ``get_blockers``."""
    return BlockerRecord(row[0], row[1], ChainStatus(row[2]), row[3], row[4], job_error(row[5]), row[6])


def reaped_job(row: Row, *, status: str) -> ReapedJob:
    """A row of ``reap``, once it is known the result of the job."""
    again = status != JobStatus.FAILED
    return ReapedJob(row[0], row[1], row[2], JobStatus(status), row[4], row[5], (row[1],) if again else ())


def with_due_types(reaped: ReapedJob, types: tuple[str, ...]) -> ReapedJob:
    """The same, and the types of the jobs that it released."""
    return replace(reaped, due_types=types)


class LeaseState(Enum):
    """How a job stands to one lease."""

    HELD = "held"
    ENDED = "ended"
    """The lease's holder wrote the finish: the token is kept as evidence."""


def lease_states(params: Sequence[Lease], rows: Sequence[Row]) -> list[LeaseState | AbortReason]:
    """How each lease stands, from the rows of ``lease_states``."""
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
}


def settled(finish: Finish, state: LeaseState | AbortReason, found: Sequence[Row]) -> FinishResult:
    """The result of a finish whose lease does not hold: written before by this lease, or lost."""
    if not isinstance(state, LeaseState):
        return FinishResult(finish.job.id, state)
    status = next(row[1] for row in found if row[0] == finish.job.id)
    if status in _WRITES[finish.kind]:
        return FinishResult(finish.job.id)
    # The lease ended the job, but in another way.
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
"""What reading a value raises, if it can be read by nobody here."""


_UNKNOWN_TYPE = 0
"""The type under which psycopg keeps what reads values of types that it does not know."""


class UnreadableRow(tuple[Any, ...]):
    """A row with None for each value that cannot be read."""

    fault: str = ""
    """Which columns these are, and why."""


def rows_one_by_one(connection: AsyncConnection[Any] | Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result that cannot be read at once."""
    loaders = [_loader(connection, result, column) for column in range(result.nfields)]
    return [_row(loaders, result, at) for at in range(result.ntuples)]


def _loader(connection: AsyncConnection[Any] | Connection[Any], result: PGresult, column: int) -> Loader:
    """What psycopg reads the values of a column with; a type that it does not know is read as text."""
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
