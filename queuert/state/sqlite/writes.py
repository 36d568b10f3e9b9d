"""Writes that several operations share, inside a transaction that holds the write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from queuert.attributes import attributes_text
from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import execute, fetch_value, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.listing import add_entries, first_job
from queuert.state.types import ClaimedJob, NewJob, StartedJob

Connection = sqlite3.Connection


def first_status(scheduled_at: int, now: int, open_blockers: int) -> JobStatus:
    """Return the status of a job that is written or released now."""
    if open_blockers:
        return JobStatus.BLOCKED
    return JobStatus.SCHEDULED if scheduled_at > now else JobStatus.READY


def open_among(connection: Connection, chains: Sequence[str]) -> list[bool]:
    """Whether each of these chains is open.

    Raises:
        ChainNotFoundError: one of them does not exist.
    """
    found = []
    for chain_id in chains:
        first = first_job(connection, chain_id)
        if first is None or first.chain_index != 0:
            raise ChainNotFoundError(chain_id)
        found.append(first.chain_status == ChainStatus.OPEN)
    return found


def created_next(connection: Connection, now: int) -> int:
    """Return the creation time of a job that is written now: later than all others, even if the clock was set back."""
    [(last,)] = run(connection, "last_created")
    return now if last is None else max(now, last + 1)


def write_job(
    connection: Connection, job: NewJob, now: int, created: int, *, after: tuple[str, str, int] | None = None
) -> StartedJob:
    """Write a job: the first of a chain, or ``after`` (chain id, chain type, chain index) the next of one.

    Raises:
        JobIdConflictError: the id exists.
        ChainNotFoundError: a blocker does not exist.
    """
    opens = open_among(connection, job.blockers)
    scheduled_at = rows.due_at(job.run_at, now)
    status = first_status(scheduled_at, now, sum(opens))
    chain_id, chain_type, index_before = (job.id, job.type, -1) if after is None else after
    values: dict[str, Any] = {
        "id": job.id,
        "type": job.type,
        "chain_id": chain_id,
        "chain_type": chain_type,
        "chain_index": index_before + 1,
        "status": status.value,
        "chain_status": ChainStatus.OPEN.value if after is None else None,
        "priority": job.priority,
        "created_at": created,
        "scheduled_at": scheduled_at,
        "open_blockers": sum(opens),
        "blocker_count": len(opens),
        "input": job.input,
        "trace_context": job.trace_context,
        "deduplication_key": None if job.deduplication is None else job.deduplication.key,
        "limit_key": job.limit_key,
        "attributes": attributes_text(job.attributes or {}) if after is None else None,
        "max_attempts": job.max_attempts,
        "result_ttl": job.result_ttl,
    }
    if run(connection, "find_first_job", id=job.id):
        raise JobIdConflictError([job.id])
    run(connection, "insert_job", **values)
    if after is None:
        add_entries(connection, job.id, created, job.attributes)
    add_blockers(connection, job.id, 0, list(zip(job.blockers, opens, strict=True)))
    add_event(connection, EventKind.CREATED, job.id, status=first_status(scheduled_at, now, 0))
    if status is JobStatus.BLOCKED:
        add_event(connection, EventKind.BLOCKED, job.id)
    return StartedJob(job.id, job.type, status, rows.moment(created))


def add_blockers(
    connection: Connection, job_id: str, position: int, blockers: Sequence[tuple[str, bool]]
) -> tuple[int, int]:
    """Add blockers to a job, each with whether it is open. Returns how many were added, and how many the job must wait
    for."""
    added = waited_for = 0
    for chain_id, is_open in blockers:
        params = {"job_id": job_id, "chain_id": chain_id}
        if execute(connection, "insert_blocker", position=position + added, closed=int(not is_open), **params):
            added, waited_for = added + 1, waited_for + is_open
            run(connection, "mark_has_dependents", id=chain_id)
        elif is_open:
            # The job has waited for this chain before, which was reopened since.
            waited_for += execute(connection, "reblock_job", job_id=job_id, id=chain_id)
    return added, waited_for


def close_chain(connection: Connection, chain_id: str, status: str, ttl: float | None = None) -> list[str]:
    """Close a chain and release the jobs that waited for it; return the types of those that became due."""
    now = now_us()
    run(connection, "close_chain", id=chain_id, status=status, now=now, ttl=ttl)
    due_types = set()
    for job_id, job_type, held_as, open_blockers, scheduled_at in run(connection, "open_dependents", id=chain_id):
        last = open_blockers == 1
        due = max(scheduled_at, now) if last else scheduled_at
        after = first_status(due, now, 0).value if last and held_as == JobStatus.BLOCKED else held_as
        run(connection, "unblock_job", id=job_id, status=after, scheduled_at=due)
        if after != held_as:
            add_event(connection, EventKind.UNBLOCKED, job_id)
            due_types.add(job_type)
    run(connection, "close_blockers", id=chain_id)
    return sorted(due_types)


def chain_seconds(connection: Connection, chain_id: str) -> float | None:
    """Return how long a chain took that was closed."""
    took = fetch_value(connection, "chain_duration", id=chain_id)
    return None if took is None else took / 1_000_000


def tail_of(job: ClaimedJob) -> tuple[str, str, int]:
    """Return the position of a continuation: chain id, chain type and chain index of this job."""
    return job.chain_id, job.chain_type, job.chain_index
