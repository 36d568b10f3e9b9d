"""Starts of chains on Postgres. ``sync_starting.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any

from psycopg import AsyncConnection

from queuert.errors import JobIdConflictError, StateError, StateUnavailableError
from queuert.notify.adapter import PiggybackAdapter, Topic
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_retention import delete_expired
from queuert.state.postgres.async_statements import (
    add_blockers,
    begin_callers_transaction,
    fetch,
    insert_and_notify,
    insert_jobs,
    insert_parts,
    lock_in_order,
)
from queuert.state.postgres.bounds import async_bounded
from queuert.state.postgres.errors import mapped_errors, was_deadlock
from queuert.state.postgres.finishing import with_status
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.pool import ROUNDS
from queuert.state.postgres.rows import ExistingJob
from queuert.state.postgres.starting import StartBatch, needs_transaction, reject_batch_blockers
from queuert.state.types import NewJob, StartedJob

_ATTACH_ROUNDS = 5
"""A chain can be deleted between the failed insert of its id and the read; more than one retry is already rare."""


class AsyncPostgresStarting(AsyncPostgresBase):
    """``start_jobs``, ``start_and_notify`` and ``start_pipelined``."""

    async def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, in the caller's transaction if there is one."""
        if not jobs:
            return []
        if connection is not None:
            async with self._callers_connection(connection) as callers:
                return await self._start_in_callers(callers, jobs)
        return (await self.start_and_notify(jobs, None))[0]

    async def start_and_notify(
        self, jobs: Sequence[NewJob], notify: PiggybackAdapter | None
    ) -> tuple[list[StartedJob], bool]:
        """Write the first jobs of new chains. If one prepared statement writes them, send a notification behind it."""
        in_transaction = needs_transaction(jobs)
        for left in reversed(range(ROUNDS)):
            try:
                async with self._connections.connection() as own:
                    if notify is None or in_transaction:
                        return await self._start(own, jobs, in_transaction=in_transaction), False
                    written, notified = await insert_and_notify(own, self._sql, jobs, notify, self._address)
                    return [written[job.id] for job in jobs], notified
            except JobIdConflictError:
                async with self._connections.connection() as own:
                    if not left or not await self._delete_expired_conflicts(own, jobs):
                        raise
            except StateUnavailableError as error:
                # The victim of a deadlock was rolled back and can be repeated: the other transaction can proceed
                # meanwhile.
                if not left or not was_deadlock(error):
                    raise
        raise AssertionError("the last round returns or raises")

    async def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains. The server writes one part while the iterator makes the next."""
        async with self._connections.connection() as own:
            return await insert_parts(own, self._sql, self._made(parts, own))

    def _made(self, parts: Iterable[Sequence[NewJob]], own: AsyncConnection[Any]) -> Iterator[Sequence[NewJob]]:
        for part in parts:
            self._connections.restart_timeout(own)
            yield part

    async def _start_in_callers(self, callers: AsyncAnyConnection, jobs: Sequence[NewJob]) -> list[StartedJob]:
        with mapped_errors(self._settings.schema):
            # An error of these statements must not abort the caller's transaction, so they run in a savepoint.
            apart = needs_transaction(jobs, callers=True)
            if apart:
                await begin_callers_transaction(callers)
            try:
                with mapped_errors(self._settings.schema):
                    started = await self._start(callers, jobs, in_transaction=apart)
            except JobIdConflictError:
                if not apart or not await self._delete_expired_conflicts(callers, jobs):
                    raise
                started = await self._start(callers, jobs, in_transaction=apart)
            due_types = {job.type for job in started if not job.existing or job.debounced}
            await self._notification(callers, {Topic.JOBS: sorted(due_types)})
            return started

    async def _delete_expired_conflicts(self, connection: AsyncAnyConnection, jobs: Sequence[NewJob]) -> bool:
        """Delete chosen ids of expired chains, so that they can be used again. Returns whether there were any."""
        chosen = [job.id for job in jobs if job.id_chosen]
        return bool(chosen and await delete_expired(connection, self._sql, chosen))

    async def _start(
        self, connection: AsyncAnyConnection, jobs: Sequence[NewJob], *, in_transaction: bool
    ) -> list[StartedJob]:
        if not in_transaction:
            written = await insert_jobs(connection, self._sql, self._sql.start_jobs, jobs)
            return [written[job.id] for job in jobs]
        async with async_bounded(connection):
            starts = StartBatch(jobs)
            if starts.first:
                await fetch(connection, self._sql.lock_deduplication_keys, starts.deduplication_keys)
                starts.record_duplicates(await fetch(connection, self._sql.find_duplicates, starts.keys))
                for params in starts.debounces():
                    starts.record_debounced(await fetch(connection, self._sql.debounce, params))
            await self._attach(connection, starts, starts.remaining())
            await self._write(connection, starts)
            return starts.results()

    async def _write(self, connection: AsyncAnyConnection, starts: StartBatch) -> None:
        """Write the starts that are not duplicates."""
        certain = [job for job in starts.remaining() if not job.attach]
        await lock_in_order(connection, self._sql, (), certain)
        written = await insert_jobs(connection, self._sql, self._sql.start_jobs, certain)
        for _ in range(_ATTACH_ROUNDS):
            attaching = [job for job in starts.remaining() if job.id not in written]
            if not attaching:
                break
            # Another transaction may have been writing the same id: by now it has committed or rolled back.
            written |= await insert_jobs(connection, self._sql, self._sql.start_if_absent, attaching)
            await self._attach(connection, starts, [job for job in attaching if job.id not in written])
        else:
            raise StateError(
                "could neither write nor attach to chains after {_ATTACH_ROUNDS} attempts: others create and "
                "delete chains of these ids: repeat the call"
            )
        # Only now is it known which of these are written and need their blockers.
        late = [job for job in starts.remaining() if job.attach]
        reject_batch_blockers(late, written)
        await lock_in_order(connection, self._sql, (), late)
        waiting = [job for job in starts.remaining() if job.blockers]
        starts.record_written(with_status(written, await add_blockers(connection, self._sql, waiting)))

    async def _attach(self, connection: AsyncAnyConnection, starts: StartBatch, jobs: Sequence[NewJob]) -> None:
        """Find the existing chains of starts with ``attach``."""
        ids = [job.id for job in jobs if job.attach]
        if not ids:
            return
        found = await self._existing(connection, ids)
        expired = [one.id for one in found if one.has_expired]
        if expired:
            await delete_expired(connection, self._sql, expired)
            found = await self._existing(connection, ids)
        starts.record_existing(found)

    async def _existing(self, connection: AsyncAnyConnection, ids: Sequence[str]) -> list[ExistingJob]:
        rows = await fetch(connection, self._sql.find_chains_by_id, {"ids": list(ids)})
        return list(starmap(ExistingJob, rows))
