"""Management operations on Postgres. ``sync_management.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from queuert.errors import BlockerReferenceError, ChainNotRetriableError, StateError, StateUnavailableError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.notifications import Notifications, delete_notifications, trigger_notifications, update_notifications
from queuert.state.postgres import management, parameters
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import add_blockers, fetch, forget_deleted
from queuert.state.postgres.errors import was_deadlock
from queuert.state.postgres.management import FAILED_OR_CANCELLED, LockedChain
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.pool import ROUNDS, AsyncWork
from queuert.state.postgres.rows import Row
from queuert.state.types import (
    ChainUpdate,
    DeleteResult,
    NewJob,
    SweepResult,
    TriggeredJob,
    WorkerlessCompletion,
    check_completions,
)

T = TypeVar("T")

_LOCK_ROUNDS = 20
"""A chain can continue while its last job is being locked. Its first job is locked then, so one retry is already
rare."""


class AsyncPostgresManagement(AsyncPostgresBase):
    """``complete_chains``, ``cancel_chains``, ``retry_chains``, ``trigger_jobs``, ``delete_chains``,
    ``release_stranded``."""

    # --- complete -----------------------------------------------------------------------------------------------------

    async def complete_chains(
        self, completions: Sequence[WorkerlessCompletion], *, connection: Any = None
    ) -> list[ChainUpdate]:
        """Finish the last job of each chain with an output or a continuation, whatever its status."""
        check_completions(completions)
        if not completions:
            return []
        return await self._repeated(connection, lambda given: self._complete(given, completions), update_notifications)

    async def _complete(
        self, connection: AsyncAnyConnection, completions: Sequence[WorkerlessCompletion]
    ) -> list[ChainUpdate]:
        waiting = management.completion_blockers(completions)
        met, _ = await self._lock_chains(connection, [one.chain_id for one in completions], waiting)
        if not all(management.can_complete(one, met[one.chain_id]) for one in completions):
            return [met[one.chain_id].update() for one in completions]
        await fetch(connection, self._sql.complete_chains, management.completions(completions))
        statuses = await add_blockers(connection, self._sql, waiting) if waiting else {}
        blocked = frozenset(id for id, status in statuses.items() if status == JobStatus.BLOCKED)
        closing = [one.chain_id for one in completions if one.continuation is None]
        released = await self._release_dependents(connection, closing)
        return management.completed(completions, met, blocked, released)

    # --- cancel -------------------------------------------------------------------------------------------------------

    async def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones are not changed."""
        if not ids:
            return []
        results = await self._repeated(connection, lambda given: self._cancel(given, ids, reason), update_notifications)
        return management.for_each(ids, results)

    async def _cancel(self, connection: AsyncAnyConnection, ids: Sequence[str], reason: str) -> list[ChainUpdate]:
        met, _ = await self._lock_chains(connection, ids)
        open_chains = [chain for chain in met.values() if chain.status is ChainStatus.OPEN]
        if not open_chains:
            return [chain.update() for chain in met.values()]
        tails = [chain.tail_id for chain in open_chains]
        await fetch(connection, self._sql.cancel_chains, {"tails": tails, "reason": reason})
        released = await self._release_dependents(connection, [chain.id for chain in open_chains])
        results = [
            chain.update(status=ChainStatus.CANCELLED if chain.status is ChainStatus.OPEN else None)
            for chain in met.values()
        ]
        return management.with_released(results, released)

    # --- retry --------------------------------------------------------------------------------------------------------

    async def retry_chains(self, ids: Sequence[str], *, connection: Any = None) -> list[ChainUpdate]:
        """Open failed and cancelled chains again: their last job is due at once, and its earlier attempts do not
        count."""
        if not ids:
            return []
        results = await self._repeated(connection, lambda given: self._retry(given, ids), update_notifications)
        return management.for_each(ids, results)

    async def _retry(self, connection: AsyncAnyConnection, ids: Sequence[str]) -> list[ChainUpdate]:
        met, locked = await self._lock_chains(connection, ids, again=True)
        for chain in met.values():
            if chain.status not in FAILED_OR_CANCELLED:
                raise ChainNotRetriableError(chain.id, chain.status)
        tails = [chain.tail_id for chain in met.values()]
        with_blockers = await fetch(connection, self._sql.retry_chains, {"tails": tails})
        blocked: set[str] = set()
        if with_blockers:
            params = {"tails": [row[0] for row in with_blockers], "locked": sorted(locked)}
            blocked = {row[0] for row in await fetch(connection, self._sql.reblock_job, params)}
        await fetch(connection, self._sql.reblock_dependents, {"chains": list(met)})
        return [
            chain.update(status=ChainStatus.OPEN, due_types=() if chain.tail_id in blocked else (chain.tail_type,))
            for chain in met.values()
        ]

    # --- trigger ------------------------------------------------------------------------------------------------------

    async def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now, results in the order of the ids. Ready jobs are not changed."""
        if not ids:
            return []
        return await self._repeated(connection, lambda given: self._trigger(given, ids), trigger_notifications)

    async def _trigger(self, connection: AsyncAnyConnection, ids: Sequence[str]) -> list[TriggeredJob]:
        params = {"ids": list(ids)}
        jobs = management.triggered(ids, await fetch(connection, self._sql.lock_jobs, params))
        await fetch(connection, self._sql.trigger_jobs, params)
        return jobs

    # --- delete -------------------------------------------------------------------------------------------------------

    async def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs, whatever their status; ids that do not exist are ignored."""
        if not ids:
            return DeleteResult((), ())
        return await self._repeated(
            connection, lambda given: self._delete(given, ids, cascade=cascade), delete_notifications
        )

    async def _delete(self, connection: AsyncAnyConnection, ids: Sequence[str], *, cascade: bool) -> DeleteResult:
        to_delete = await self._lock_to_delete(connection, ids, cascade=cascade)
        if not to_delete:
            return DeleteResult((), ())
        chains = sorted(set(to_delete.values()))
        references = await fetch(connection, self._sql.external_references, {"chains": chains})
        if references:
            raise BlockerReferenceError([(row[0], row[1]) for row in references])
        rows = await fetch(connection, self._sql.delete_chains, {"jobs": list(to_delete)})
        await forget_deleted(connection, self._sql, rows)
        return management.deleted(ids, rows)

    async def _lock_to_delete(
        self, connection: AsyncAnyConnection, ids: Sequence[str], *, cascade: bool
    ) -> dict[str, str]:
        """Lock all jobs that are to be deleted, each with its chain, until a read finds no more of them."""
        params = {"ids": list(ids), "cascade": cascade}
        locked: dict[str, str] = {}
        for _ in range(_LOCK_ROUNDS):
            found = {row[0]: row[1] for row in await fetch(connection, self._sql.lock_chains_for_delete, params)}
            if found.keys() == locked.keys():
                return locked
            locked = found
        raise StateError(f"chains {sorted(ids)!r} get new jobs faster than these can be locked: repeat the call")

    # --- stranded jobs ------------------------------------------------------------------------------------------------

    async def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed: a bug or a manual edit left them."""
        page = await self._fetch(self._sql.find_stranded, {"cursor": cursor, "limit": limit})
        stranded = [row[0] for row in page if row[1]]
        released: list[Row] = []
        if stranded:
            released = await self._repeated(None, lambda given: self._release_stranded(given, stranded), None)
        following = page[-1][0] if len(page) >= limit else None
        return SweepResult([TriggeredJob(row[0], row[1]) for row in sorted(released)], following)

    async def _release_stranded(self, connection: AsyncAnyConnection, ids: Sequence[str]) -> list[Row]:
        held = [row[0] for row in await fetch(connection, self._sql.lock_stranded, {"ids": list(ids)})]
        return await fetch(connection, self._sql.release_stranded, {"ids": held}) if held else []

    # --- shared -------------------------------------------------------------------------------------------------------

    async def _repeated(
        self, callers: Any, work: AsyncWork[T], notifications: Callable[[T], Notifications] | None
    ) -> T:
        """Run ``work`` in a transaction, or in a savepoint of the caller's; repeat it if it was the victim of a
        deadlock.

        In the caller's transaction the notifications are sent with its commit; otherwise the caller sends them.
        """
        for left in reversed(range(ROUNDS)):
            try:
                async with self._transaction(callers) as connection:
                    result = await work(connection)
                    if callers is not None and notifications is not None:
                        await self._notification(connection, notifications(result))
                    return result
            except StateUnavailableError as error:
                if not left or not was_deadlock(error):
                    raise
        raise AssertionError("the last round returns or raises")

    async def _lock_chains(
        self,
        connection: AsyncAnyConnection,
        ids: Sequence[str],
        waiting: Sequence[NewJob] = (),
        *,
        again: bool = False,
    ) -> tuple[dict[str, LockedChain], set[str]]:
        """Lock the first and last jobs of chains, and the chains that jobs will wait for. Returns the state of the
        chains under their locks, and the ids of all locked rows.

        Raises:
            ChainNotFoundError: one of them, or of those that ``waiting`` jobs name, does not exist.
        """
        awaited = sorted({chain_id for job in waiting for chain_id in job.blockers})
        params = {"ids": list(ids), "awaited": awaited, "again": again}
        locked: set[str] = set()
        for _ in range(_LOCK_ROUNDS):
            rows = await fetch(connection, self._sql.lock_chains, params)
            locked.update(row[0] for row in rows)
            found = management.met_chains(rows)
            management.all_found(awaited, found)
            met = management.all_found(ids, found)
            if all(chain.tail_status is not JobStatus.CONTINUED for chain in met.values()):
                return met, locked
        raise StateError(f"chains {sorted(ids)!r} continue faster than their last jobs can be locked: repeat the call")

    async def _release_dependents(self, connection: AsyncAnyConnection, closed: Sequence[str]) -> list[Row]:
        return await fetch(connection, self._sql.release_dependents, parameters.closed_chains(closed)) if closed else []
