"""Starts of chains: which of them are duplicates, and writing the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import starmap

from queuert.errors import ChainNotFoundError, JobIdConflictError, JobTypeMismatchError
from queuert.event_log import EventKind
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.listing import first_job
from queuert.state.sqlite.retention import delete_expired
from queuert.state.sqlite.rows import FirstJob
from queuert.state.sqlite.writes import created_next, first_status, write_job
from queuert.state.types import NewJob, StartedJob, is_debounced, with_newest_inputs

Connection = sqlite3.Connection


def start(connection: Connection, jobs: Sequence[NewJob]) -> list[StartedJob]:
    """Write the first jobs of new chains, or return the chains of which they are duplicates."""
    now = now_us()
    created = created_next(connection, now)
    _reject_batch_blockers(connection, jobs)
    jobs = with_newest_inputs(jobs)
    taken: dict[tuple[str, str], tuple[NewJob, StartedJob]] = {}
    started = []
    for index, job in enumerate(jobs):
        slot = None if job.deduplication is None else (job.type, job.deduplication.key)
        if slot is not None and slot in taken:
            first, one = taken[slot]
            started.append(replace(one, existing=True, debounced=is_debounced(job) and is_debounced(first)))
            continue
        one = _existing(connection, job, now) or write_job(connection, job, now, created + index)
        started.append(one)
        if slot is not None:
            taken[slot] = job, one
    return started


def _reject_batch_blockers(connection: Connection, jobs: Sequence[NewJob]) -> None:
    """Reject jobs whose blockers are in their own batch: these did not exist when the batch was made."""
    new = {job.id for job in jobs}
    for job in jobs:
        for chain_id in new.intersection(job.blockers):
            if first_job(connection, chain_id) is None:
                raise ChainNotFoundError(chain_id)


def _existing(connection: Connection, job: NewJob, now: int) -> StartedJob | None:
    """Return the chain of which a new job is a duplicate, by its key or its id.

    Raises:
        JobIdConflictError: its id exists, and it does not or cannot attach to that chain.
        JobTypeMismatchError: the chain to attach to is of another type.
    """
    if is_debounced(job):
        debounced = _debounced(connection, job, now)
        if debounced is not None:
            return debounced
    found = None if is_debounced(job) else _duplicate(connection, job, now)
    if found is None and job.id_chosen:
        found = _of_its_id(connection, job, now)
    return None if found is None else rows.existing_job(found)


def _duplicate(connection: Connection, job: NewJob, now: int) -> FirstJob | None:
    key = job.deduplication
    if key is None:
        return None
    excluding = frozenset(key.excluding)
    since = 0 if key.window is None else now - rows.microseconds_of(float(key.window))  # type: ignore[arg-type]
    params = {"type": job.type, "key": key.key, "since": since, "limit": len(excluding) + 1}
    if key.scope == "open":
        found = run(connection, "find_open_duplicates", **params)
    else:
        found = run(connection, "find_duplicates", now=now, **params)
    return _first_besides(found, excluding)


def _first_besides(found: Sequence[Row], excluding: Container[str]) -> FirstJob | None:
    """Return the first chain of those that a statement has found, but for those which the start excludes."""
    return next((first for first in starmap(FirstJob, found) if first.id not in excluding), None)


def _debounced(connection: Connection, job: NewJob, now: int) -> StartedJob | None:
    """Give the waiting job of the key the input and the due time of this start; None if there is none."""
    key = job.deduplication
    assert key is not None
    excluding = frozenset(key.excluding)
    waiting = run(connection, "find_waiting_duplicates", type=job.type, key=key.key, limit=len(excluding) + 1)
    found = _first_besides(waiting, excluding)
    if found is None:
        return None
    due = now + rows.microseconds_of(float(key.debounce))  # type: ignore[arg-type]
    if key.max_delay is not None:
        due = min(due, found.created_at + rows.microseconds_of(float(key.max_delay)))  # type: ignore[arg-type]
    status = first_status(due, now, 0)
    run(connection, "debounce", id=found.id, input=job.input, scheduled_at=due, status=status.value)
    add_event(connection, EventKind.DEBOUNCED, found.id)
    return replace(rows.existing_job(found), status=status, debounced=True)


def _of_its_id(connection: Connection, job: NewJob, now: int) -> FirstJob | None:
    found = first_job(connection, job.id)
    if found is None:
        return None
    if found.expires_at is not None and found.expires_at <= now:
        if delete_expired(connection, job.id):
            return None
        raise JobIdConflictError([job.id])
    if not job.attach or found.chain_index != 0:
        raise JobIdConflictError([job.id])
    if found.type != job.type:
        raise JobTypeMismatchError(job.id, job.type, found.type)
    return found
