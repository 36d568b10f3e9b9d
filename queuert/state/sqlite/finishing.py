"""Finishes of attempts, one at a time, inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queuert.attributes import attributes_of
from queuert.event_log import EventKind
from queuert.jobs import JobError, JobStatus
from queuert.policies import RetryPolicy
from queuert.state import records
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import fetch_one, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.steps import wake_receiver
from queuert.state.sqlite.writes import (
    add_blockers,
    chain_seconds,
    close_chain,
    created_next,
    open_among,
    write_job,
)
from queuert.state.types import (
    MAX_FAILURES,
    Finish,
    FinishKind,
    FinishResult,
    NewJob,
    ReapedJob,
    failure_error,
    inheriting,
)

Connection = sqlite3.Connection

_EVENTS = {
    FinishKind.COMPLETE: EventKind.COMPLETED,
    FinishKind.CONTINUE: EventKind.CONTINUED,
    FinishKind.RETRY: EventKind.RETRIED,
    FinishKind.FAIL: EventKind.FAILED,
    FinishKind.CANCEL: EventKind.CANCELLED,
    FinishKind.INTERRUPT: EventKind.INTERRUPTED,
    FinishKind.WAIT: EventKind.WAITING,
    FinishKind.SNOOZE: EventKind.SNOOZED,
}


def finish_one(connection: Connection, finish: Finish) -> FinishResult:
    """Write a finish if its token has the job's lease; otherwise return why the lease is lost."""
    job = finish.job
    state = fetch_one(connection, "lease_state", id=job.id)
    if not rows.holds(job.token, state):
        return FinishResult(job.id, rows.lost_reason(finish.kind, job.token, state))
    if finish.progress is not None:
        run(connection, "set_progress", id=job.id, progress=finish.progress)
        add_event(connection, EventKind.PROGRESSED, job.id, of_worker=True)
    if finish.kind is FinishKind.WAIT:
        return FinishResult(job.id, due_types=tuple(_wait(connection, finish)))
    ended = rows.ENDED.get(finish.kind)
    now = now_us()
    due_at = _due_again(finish, now)
    again = JobStatus.SCHEDULED if due_at is not None and due_at > now else JobStatus.READY
    _end(
        connection,
        finish,
        status=(ended or again).value,
        finished_at=None if ended is None else now,
        scheduled_at=due_at,
    )
    if finish.continuation is not None:
        created = created_next(connection, now)
        after = (job.chain_id, job.chain_type, job.chain_index)
        [new] = _with_inherited(connection, finish, [finish.continuation])
        following = write_job(connection, new, now, created, after=after)
        return FinishResult(job.id, due_types=() if following.status is JobStatus.BLOCKED else (following.type,))
    if finish.kind.closes_chain:
        assert ended is not None
        due_types = close_chain(connection, job.chain_id, ended.value, finish.result_ttl)
        seconds = None if job.chain_index == 0 else chain_seconds(connection, job.chain_id)
        return FinishResult(job.id, due_types=tuple(due_types), chain_seconds=seconds)
    if finish.waits_for_event:
        wake_receiver(connection, job.id)
    return FinishResult(job.id, due_types=(job.type,))


def _due_again(finish: Finish, now: int) -> int | None:
    """Return when the job is due again; None if the finish does not change that."""
    if finish.kind is FinishKind.SNOOZE:
        return rows.due_at(finish.run_at, now)
    return now + rows.microseconds_of(finish.delay) if finish.kind is FinishKind.RETRY else None


def _end(connection: Connection, finish: Finish, **values: Any) -> None:
    kind = finish.kind
    output = finish.output
    if kind is FinishKind.COMPLETE and output is None:
        output = "null"
    if kind in (FinishKind.RETRY, FinishKind.FAIL):
        _add_failure(connection, finish.job.id, rows.error_json(failure_error(finish.error)))
    run(
        connection,
        "finish_job",
        id=finish.job.id,
        uncounted=int(kind in (FinishKind.INTERRUPT, FinishKind.WAIT, FinishKind.SNOOZE)),
        crashed=int(finish.crashed),
        output=output,
        error=rows.error_json(finish.error),
        trace=finish.job.attempt_trace_context,
        continued_by=None if finish.continuation is None else finish.continuation.id,
        **values,
    )
    add_event(connection, _EVENTS[kind], finish.job.id, of_worker=True)


def _add_failure(connection: Connection, job_id: str, error: str | None) -> None:
    """Append the attempt that fails now to the failures of its job, of which the first one and the newest are kept."""
    [(attempt, started_at, holder, stored)] = run(connection, "failures", id=job_id)
    found = records.json_value(stored)
    failures = found if isinstance(found, list) else []
    if len(failures) >= MAX_FAILURES:
        del failures[1]
    failures.append(
        {
            "attempt": attempt,
            "started_at": started_at,
            "failed_at": now_us(),
            "worker": holder,
            "error": None if error is None else json.loads(error),
        }
    )
    run(connection, "set_failures", id=job_id, failures=json.dumps(failures))


def _with_inherited(connection: Connection, finish: Finish, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs that a finish creates, with what they inherit of its job."""
    if not any(job.inherit_limit_key or job.inherit_attributes for job in jobs):
        return jobs
    [(limit_key, attributes)] = run(connection, "read_inherited", id=finish.job.id)
    return [inheriting(job, limit_key, attributes_of(attributes) if attributes else None) for job in jobs]


def _wait(connection: Connection, finish: Finish) -> list[str]:
    job, now = finish.job, now_us()
    created = created_next(connection, now)
    starts = _with_inherited(connection, finish, finish.starts)
    started = [write_job(connection, one, now, created + index) for index, one in enumerate(starts)]
    opens = open_among(connection, finish.blockers)
    _end(connection, finish, status=JobStatus.READY.value, finished_at=None, scheduled_at=now)
    count = job.blocker_count
    added, waited_for = add_blockers(connection, job.id, count, list(zip(finish.blockers, opens, strict=True)))
    status = JobStatus.BLOCKED if waited_for else JobStatus.READY
    run(connection, "block_job", id=job.id, status=status.value, added=added, open=waited_for)
    if status is JobStatus.BLOCKED:
        add_event(connection, EventKind.BLOCKED, job.id)
    due_types = dict.fromkeys(one.type for one in started if one.status is not JobStatus.BLOCKED)
    return [*due_types, job.type] if status is JobStatus.READY else [*due_types]


def reap_one(connection: Connection, row: rows.Row, policy: RetryPolicy) -> ReapedJob:
    """Turn an expired lease into a failed attempt."""
    id, job_type, chain_id, chain_type, attempt, uncounted, expirations, holder, max_attempts = row
    counted = attempt - uncounted
    now = now_us()
    again = policy.allows_another(counted, expirations + 1, max_attempts=max_attempts)
    delay = policy.delay(counted) if again else 0.0
    status = (JobStatus.SCHEDULED if delay > 0 else JobStatus.READY) if again else JobStatus.FAILED
    error = json.dumps({"kind": "lease_expired", "message": _why(holder, again, expirations + 1, policy)})
    _add_failure(connection, id, error)
    run(
        connection,
        "reap_job",
        id=id,
        status=status.value,
        scheduled_at=now + rows.microseconds_of(delay) if delay > 0 else None,
        finished_at=None if again else now,
        error=error,
    )
    add_event(connection, EventKind.LEASE_EXPIRED, id, of_worker=True)
    reaped = ReapedJob(id, job_type, chain_id, chain_type, status, attempt, holder, (job_type,))
    if again:
        return reaped
    due_types = tuple(close_chain(connection, chain_id, JobStatus.FAILED.value))
    return replace(reaped, due_types=due_types, chain_seconds=chain_seconds(connection, chain_id))


def _why(holder: str | None, again: bool, expirations: int, policy: RetryPolicy) -> str:
    said = JobError("lease_expired", f"the lease of worker {holder or '?'} expired").message
    if again:
        return f"{said}: it crashed, froze or lost the database"
    if expirations >= policy.max_crashes:
        return f"{said}, for the {expirations}. time: the job may be what kills its workers"
    return f"{said} on the last attempt"
