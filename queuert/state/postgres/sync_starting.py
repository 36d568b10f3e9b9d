# Generated from queuert/state/postgres/async_starting.py, do not edit: see scripts/unasync.py
"""Starting chains on Postgres. ``sync_starting.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg import Connection

from queuert.errors import JobIdConflictError, StateError, StateUnavailableError
from queuert.notify.adapter import Topic
from queuert.state.postgres.bounds import sync_bounded
from queuert.state.postgres.errors import mapped_errors, was_deadlock
from queuert.state.postgres.external_connections import sync_callers_connection
from queuert.state.postgres.finishing import with_status
from queuert.state.postgres.pool import ROUNDS
from queuert.state.postgres.starting import StartBatch, needs_transaction, reject_batch_blockers
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_retention import delete_expired
from queuert.state.postgres.sync_statements import (
    add_blockers,
    begin_callers_transaction,
    fetch,
    insert_jobs,
    insert_parts,
    lock_in_order,
)
from queuert.state.types import NewJob, StartedJob

_ATTACH_ROUNDS = 5
"""A chain can be deleted between the failure to write its id and the look at it; more than once is already rare."""


class PostgresStarting(PostgresBase):
    """``start_jobs`` and ``start_parts``."""

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, in the caller's transaction if there is one."""
        if not jobs:
            return []
        if connection is not None:
            with sync_callers_connection(connection) as callers:
                return self._start_in_callers(callers, jobs)
        in_transaction = needs_transaction(jobs)
        for left in reversed(range(ROUNDS)):
            try:
                with self._connections.connection() as own:
                    return self._start(own, jobs, in_transaction=in_transaction)
            except JobIdConflictError:
                with self._connections.connection() as own:
                    if not left or not self._delete_expired_conflicts(own, jobs):
                        raise
            except StateUnavailableError as error:
                # Its victim was rolled back, so it can be repeated: the other one has gone on meanwhile.
                if not left or not was_deadlock(error):
                    raise
        raise AssertionError("the last round returns or raises")

    def start_parts(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains; the server writes one part while the next is being made."""
        with self._connections.connection() as own:
            return insert_parts(own, self._sql, self._made(parts, own))

    def _made(self, parts: Iterable[Sequence[NewJob]], own: Connection[Any]) -> Iterator[Sequence[NewJob]]:
        for part in parts:
            self._connections.restart_timeout(own)
            yield part

    def _start_in_callers(self, callers: Connection[Any], jobs: Sequence[NewJob]) -> list[StartedJob]:
        with mapped_errors():
            # What may be refused must not spoil the caller's transaction: a savepoint holds it apart.
            apart = needs_transaction(jobs, callers=True)
            if apart:
                begin_callers_transaction(callers)
            try:
                with mapped_errors():
                    started = self._start(callers, jobs, in_transaction=apart)
            except JobIdConflictError:
                if not apart or not self._delete_expired_conflicts(callers, jobs):
                    raise
                started = self._start(callers, jobs, in_transaction=apart)
            self._notification(callers, {Topic.JOBS: sorted({job.type for job in started if not job.existing})})
            return started

    def _delete_expired_conflicts(self, connection: Connection[Any], jobs: Sequence[NewJob]) -> bool:
        """Whether some of the chosen ids were those of chains that have expired: they are free now."""
        chosen = [job.id for job in jobs if job.id_chosen]
        return bool(chosen and delete_expired(connection, self._sql, chosen))

    def _start(self, connection: Connection[Any], jobs: Sequence[NewJob], *, in_transaction: bool) -> list[StartedJob]:
        if not in_transaction:
            written = insert_jobs(connection, self._sql, self._sql.start_jobs, jobs)
            return [written[job.id] for job in jobs]
        with sync_bounded(connection):
            starts = StartBatch(jobs)
            if starts.first:
                fetch(connection, self._sql.lock_deduplication_keys, starts.slots)
                starts.record_duplicates(fetch(connection, self._sql.find_duplicates, starts.keys))
            self._attach(connection, starts, starts.left())
            self._write(connection, starts)
            return starts.results()

    def _write(self, connection: Connection[Any], starts: StartBatch) -> None:
        """Write the starts that nothing is a duplicate of."""
        certain = [job for job in starts.left() if not job.attach]
        lock_in_order(connection, self._sql, (), certain)
        written = insert_jobs(connection, self._sql, self._sql.start_jobs, certain)
        for _ in range(_ATTACH_ROUNDS):
            attaching = [job for job in starts.left() if job.id not in written]
            if not attaching:
                break
            # Somebody else may have been about to write the same id: by now it stands, or was rolled back.
            written |= insert_jobs(connection, self._sql, self._sql.start_if_absent, attaching)
            self._attach(connection, starts, [job for job in attaching if job.id not in written])
        else:
            raise StateError("chains of these ids come and go: they could neither be written nor attached to")
        # Only now is it known which of those need their blockers.
        late = [job for job in starts.left() if job.attach]
        reject_batch_blockers(late, written)
        lock_in_order(connection, self._sql, (), late)
        waiting = [job for job in starts.left() if job.blockers]
        starts.written(with_status(written, add_blockers(connection, self._sql, waiting)))

    def _attach(self, connection: Connection[Any], starts: StartBatch, jobs: Sequence[NewJob]) -> None:
        """Find the chains that exist already for those who would attach to them."""
        params = {"ids": [job.id for job in jobs if job.attach]}
        if not params["ids"]:
            return
        found = fetch(connection, self._sql.find_chains_by_id, params)
        expired = [row[0] for row in found if row[5]]
        if expired:
            delete_expired(connection, self._sql, expired)
            found = fetch(connection, self._sql.find_chains_by_id, params)
        starts.record_existing(found)
