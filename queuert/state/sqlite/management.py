"""Management operations, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from queuert.errors import (
    BlockerReferenceError,
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ChainNotRetriableError,
    EventLimitError,
    JobNotFoundError,
    JobNotTriggerableError,
)
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobError, JobStatus
from queuert.run_at import RunAt
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import execute, fetch_one, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.listing import delete_chain_rows, first_job
from queuert.state.sqlite.rows import Tail
from queuert.state.sqlite.steps import wake_receiver
from queuert.state.sqlite.writes import chain_seconds, close_chain, created_next, first_status, write_job
from queuert.state.steps import MAX_EVENT_BYTES, MAX_EVENTS, NewEvent, SendResult, event_limit
from queuert.state.types import ChainUpdate, DeleteResult, InputEdit, SweepResult, TriggeredJob, WorkerlessCompletion

Connection = sqlite3.Connection

_WAITING = (JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.READY)
_RETRIABLE = (ChainStatus.FAILED, ChainStatus.CANCELLED)


def _tail(connection: Connection, chain_id: str) -> Tail:
    return _tails(connection, [chain_id])[chain_id]


def _tails(connection: Connection, ids: Sequence[str]) -> dict[str, Tail]:
    """Return the last job of each chain, each chain once.

    Raises:
        ChainNotFoundError: some do not exist; it names them all.
    """
    rows = {chain_id: fetch_one(connection, "last_job", id=chain_id) for chain_id in dict.fromkeys(ids)}
    if missing := [chain_id for chain_id, row in rows.items() if row is None]:
        raise ChainNotFoundError(missing[0], ids=missing)
    return {chain_id: Tail(*row) for chain_id, row in rows.items() if row is not None}


def _met(
    chain_id: str, tail: Tail, status: ChainStatus, *, written: bool, due_types: Sequence[str] = ()
) -> ChainUpdate:
    return ChainUpdate(
        chain_id=chain_id,
        chain_type=tail.chain_type,
        status=status,
        job_id=tail.id,
        job_type=tail.type,
        previous_status=JobStatus(tail.status),
        written=written,
        due_types=tuple(due_types),
        trace_context=tail.trace_context,
    )


def _closed(connection: Connection, chain_id: str, tail: Tail, status: ChainStatus) -> ChainUpdate:
    """Close the chain of a last job that was finished."""
    due_types = close_chain(connection, chain_id, status.value)
    closed = _met(chain_id, tail, status, written=True, due_types=due_types)
    return replace(closed, chain_seconds=chain_seconds(connection, chain_id))


def _reported_once(results: Sequence[ChainUpdate]) -> list[ChainUpdate]:
    """Keep each due type only in the first result that names it."""
    reported: set[str] = set()
    once = []
    for one in results:
        once.append(replace(one, due_types=tuple(type for type in one.due_types if type not in reported)))
        reported.update(one.due_types)
    return once


def complete(
    connection: Connection, completions: Sequence[WorkerlessCompletion], cancelled: Sequence[str], reason: str
) -> list[ChainUpdate]:
    """Finish the last jobs of chains for a client, all or none, and cancel others with them."""
    tails = _tails(connection, [one.chain_id for one in completions])
    met = [(one, tails[one.chain_id]) for one in completions]
    fit = all(tail.id == one.tail_id and tail.chain_status == ChainStatus.OPEN for one, tail in met)
    if not fit:
        return [_met(one.chain_id, tail, ChainStatus(tail.chain_status), written=False) for one, tail in met]
    done = [_complete_one(connection, one, tail) for one, tail in met]
    done += [_cancel_one(connection, id, _tail(connection, id), reason) for id in dict.fromkeys(cancelled)]
    return _reported_once(done)


def _complete_one(connection: Connection, one: WorkerlessCompletion, tail: Tail) -> ChainUpdate:
    following = one.continuation
    status = JobStatus.COMPLETED if following is None else JobStatus.CONTINUED
    output = (one.output or "null") if following is None else one.output
    now = now_us()
    next_id = None if following is None else following.id
    params = {"status": status.value, "now": now, "output": output, "error": None, "continued_by": next_id}
    run(connection, "finish_workerless", id=tail.id, **params)
    add_event(connection, EventKind(status.value), tail.id)
    if following is None:
        return _closed(connection, one.chain_id, tail, ChainStatus.COMPLETED)
    created = created_next(connection, now)
    started = write_job(connection, following, now, created, after=(one.chain_id, tail.chain_type, tail.chain_index))
    due_types = [] if started.status is JobStatus.BLOCKED else [started.type]
    return _met(one.chain_id, tail, ChainStatus.OPEN, written=True, due_types=due_types)


def cancel(connection: Connection, ids: Sequence[str], reason: str) -> list[ChainUpdate]:
    """Close open chains as cancelled."""
    met = _tails(connection, ids)
    done = {chain_id: _cancel_one(connection, chain_id, tail, reason) for chain_id, tail in met.items()}
    return _reported_once([done[chain_id] for chain_id in ids])


def _cancel_one(connection: Connection, chain_id: str, tail: Tail, reason: str) -> ChainUpdate:
    if tail.chain_status != ChainStatus.OPEN:
        return _met(chain_id, tail, ChainStatus(tail.chain_status), written=False)
    error = rows.error_json(JobError("cancel", reason))
    params = {"status": "cancelled", "now": now_us(), "output": None, "error": error, "continued_by": None}
    run(connection, "finish_workerless", id=tail.id, **params)
    add_event(connection, EventKind.CANCELLED, tail.id)
    return _closed(connection, chain_id, tail, ChainStatus.CANCELLED)


def retry(connection: Connection, ids: Sequence[str], edit: InputEdit | None) -> list[ChainUpdate]:
    """Open failed and cancelled chains again."""
    met = list(_tails(connection, ids).items())
    refused = {chain_id: tail.chain_status for chain_id, tail in met if tail.chain_status not in _RETRIABLE}
    if refused:
        [(chain_id, status), *_] = refused.items()
        raise ChainNotRetriableError(chain_id, status, chain_ids=refused)
    if edit is not None:
        if edit.job_id not in [tail.id for _, tail in met]:
            raise JobNotFoundError(edit.job_id)
        run(connection, "change_input", id=edit.job_id, input=edit.input)
    for chain_id, _ in met:
        run(connection, "reopen_chain", id=chain_id)
        for job_id, still_open in run(connection, "blocked_by_closed", id=chain_id):
            run(connection, "reblock_job", job_id=job_id, id=chain_id)
            run(connection, "reblock_retried", job_id=job_id, open=still_open + 1)
    done = {chain_id: _retry_one(connection, chain_id, tail) for chain_id, tail in met}
    return [done[chain_id] for chain_id in ids]


def _retry_one(connection: Connection, chain_id: str, tail: Tail) -> ChainUpdate:
    run(connection, "reopen_blockers", id=tail.id)
    [(still_open,)] = run(connection, "count_open_blockers", id=tail.id)
    now = now_us()
    status = first_status(now, now, still_open)
    run(connection, "retry_job", id=tail.id, status=status.value, now=now, open=still_open)
    add_event(connection, EventKind.RETRIED_BY_HAND, tail.id, status=JobStatus.READY)
    if still_open:
        add_event(connection, EventKind.BLOCKED, tail.id)
    due_types = [] if still_open else [tail.type]
    return _met(chain_id, tail, ChainStatus.OPEN, written=True, due_types=due_types)


def change(
    connection: Connection,
    ids: Sequence[str],
    run_at: RunAt | None,
    priority: int | None,
    edit: InputEdit | None,
) -> list[ChainUpdate]:
    """Give the last jobs of chains another due time, priority or input, if they wait."""
    met = list(_tails(connection, ids).items())
    if edit is not None and edit.job_id not in [tail.id for _, tail in met]:
        raise JobNotFoundError(edit.job_id)
    now = now_us()
    due = None if run_at is None else rows.due_at(run_at, now)
    kind = EventKind.REPRIORITIZED if run_at is None else EventKind.RESCHEDULED
    done: dict[str, ChainUpdate] = {}
    for chain_id, tail in met:
        if tail.status in _WAITING:
            run(connection, "change_job", id=tail.id, due=due, now=now, priority=priority)
            if edit is not None and edit.job_id == tail.id:
                run(connection, "change_input", id=edit.job_id, input=edit.input)
            add_event(connection, kind if edit is None else EventKind.EDITED, tail.id)
            due_types = () if tail.status == JobStatus.BLOCKED else (tail.type,)
            done[chain_id] = _met(chain_id, tail, ChainStatus.OPEN, written=True, due_types=due_types)
        else:
            done[chain_id] = _met(chain_id, tail, ChainStatus(tail.chain_status), written=False)
    return [done[chain_id] for chain_id in ids]


def trigger(connection: Connection, ids: Sequence[str]) -> list[TriggeredJob]:
    """Make scheduled jobs due now."""
    found = []
    for job_id in ids:
        job = first_job(connection, job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        if job.status not in (JobStatus.SCHEDULED, JobStatus.READY):
            raise JobNotTriggerableError(job_id, job.status)
        found.append(TriggeredJob(job_id, job.type))
    for job_id in ids:
        if execute(connection, "trigger_job", id=job_id, now=now_us()):
            add_event(connection, EventKind.TRIGGERED, job_id)
    return found


def send_event(connection: Connection, chain_id: str, event: NewEvent) -> SendResult:
    """Keep an event for an open chain, and make its last job due if that waits for it."""
    tail = _tail(connection, chain_id)
    [(number, size, known)] = run(connection, "kept_events", chain=chain_id, id=event.id)
    if known:
        return SendResult(chain_id, tail.chain_type, written=False)
    if tail.chain_status != ChainStatus.OPEN:
        raise ChainAlreadyClosedError(chain_id, tail.chain_status)
    if number >= MAX_EVENTS or size + event.size > MAX_EVENT_BYTES:
        raise EventLimitError(chain_id, event_limit(number >= MAX_EVENTS))
    params = {"id": event.id, "name": event.name, "size": event.size, "payload": event.payload}
    run(connection, "send_event", chain=chain_id, now=now_us(), **params)
    woken = (TriggeredJob(tail.id, tail.type),) if wake_receiver(connection, tail.id) else ()
    return SendResult(chain_id, tail.chain_type, written=True, woken=woken)


def delete(connection: Connection, ids: Sequence[str], cascade: bool) -> DeleteResult:
    """Delete chains with all their jobs."""
    to_delete = _to_delete(connection, ids, cascade)
    references = [
        (chain_id, job_id)
        for chain_id in to_delete
        for job_id, of_chain, _ in run(connection, "references", id=chain_id)
        if of_chain not in to_delete
    ]
    if references:
        raise BlockerReferenceError(references)
    running = []
    for chain_id in to_delete:
        jobs = run(connection, "chain_jobs", id=chain_id)
        running += [job_id for job_id, status in jobs if status == JobStatus.RUNNING]
        for job_id, _ in jobs:
            add_event(connection, EventKind.DELETED, job_id)
        run(connection, "delete_blockers", id=chain_id)
    for chain_id in to_delete:
        delete_chain_rows(connection, chain_id)
    return DeleteResult(tuple(to_delete), tuple(running))


def _to_delete(connection: Connection, ids: Sequence[str], cascade: bool) -> dict[str, None]:
    jobs = [first_job(connection, id) for id in dict.fromkeys(ids)]
    params = [job.id for job in jobs if job is not None and job.chain_index == 0]
    found: set[str] = set()
    left = list(params)
    while left:
        chain_id = left.pop()
        if chain_id not in found:
            found.add(chain_id)
            left += [blocker for (blocker,) in run(connection, "blockers_of_chain", id=chain_id)] if cascade else []
    return dict.fromkeys([*params, *sorted(found.difference(params))])


def release_stranded(connection: Connection, cursor: str | None, limit: int) -> SweepResult:
    """Release blocked jobs all of whose blockers have closed."""
    found = run(connection, "stranded", cursor=cursor or "", limit=limit)
    released = []
    now = now_us()
    for job_id, job_type, scheduled_at, waits in found:
        if not waits:
            run(connection, "reopen_blockers", id=job_id)
            status = first_status(scheduled_at, now, 0)
            run(connection, "release_stranded", id=job_id, status=status.value, now=now)
            add_event(connection, EventKind.UNBLOCKED, job_id)
            released.append(TriggeredJob(job_id, job_type))
    following = None
    if len(found) == limit:
        following, _, _, _ = found[-1]
    return SweepResult(tuple(released), following)
