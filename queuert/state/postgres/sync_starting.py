# Generated from queuert/state/postgres/async_starting.py, do not edit: see scripts/unasync.py
"""Starting chains on Postgres. ``sync_starting.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from queuert.errors import StateUnavailableError
from queuert.notify.adapter import Topic
from queuert.state.adapter import NewJob, StartedJob
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.failures import mapped_errors, was_deadlock
from queuert.state.postgres.finishing import needs_transaction, with_status
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_steps import (
    add_blockers,
    begin_callers_transaction,
    callers_connection,
    fetch,
    lock_rows,
)

_DEADLOCK_ROUNDS = 3


class PostgresStarting(PostgresBase):
    """``start_jobs``."""

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, in the caller's transaction if there is one."""
        if not jobs:
            return []
        chunks = list(parameters.start_chunks(jobs))
        several = len(chunks) > 1
        if connection is None:
            return self._start_on_own(jobs, chunks, in_transaction=several or needs_transaction(jobs))
        callers = callers_connection(connection)
        with mapped_errors():
            # A chosen id may conflict, and that must not spoil the caller's transaction: a savepoint holds it apart.
            apart = several or needs_transaction(jobs, callers=True)
            if apart:
                begin_callers_transaction(callers)
            started = self._start(callers, jobs, chunks, in_transaction=apart)
            self._hint(callers, {Topic.JOBS: sorted({job.type for job in jobs})})
            return started

    def _start_on_own(
        self, jobs: Sequence[NewJob], chunks: Sequence[parameters.Parameters], *, in_transaction: bool
    ) -> list[StartedJob]:
        for left in reversed(range(_DEADLOCK_ROUNDS)):
            try:
                with self._connections.connection() as own:
                    return self._start(own, jobs, chunks, in_transaction=in_transaction)
            except StateUnavailableError as error:
                # Its victim was rolled back, so it can be repeated: the other one has gone on meanwhile.
                if not left or not was_deadlock(error):
                    raise
        raise AssertionError("the last round returns or raises")

    def _start(
        self,
        connection: Connection[Any],
        jobs: Sequence[NewJob],
        chunks: Sequence[parameters.Parameters],
        *,
        in_transaction: bool,
    ) -> list[StartedJob]:
        if not in_transaction:
            return self._insert(connection, jobs, chunks)
        with connection.transaction():
            waiting = [job for job in jobs if job.blockers]
            lock_rows(connection, self._sql, (), waiting)
            started = self._insert(connection, jobs, chunks)
            if waiting:
                started = with_status(started, add_blockers(connection, self._sql, waiting))
            return started

    def _insert(
        self, connection: Connection[Any], jobs: Sequence[NewJob], chunks: Sequence[parameters.Parameters]
    ) -> list[StartedJob]:
        written: dict[str, StartedJob] = {}
        for chunk in chunks:
            for row in fetch(connection, self._sql.start_jobs, chunk):
                written[row[0]] = rows.started_job(row)
        return [written[job.id] for job in jobs]
