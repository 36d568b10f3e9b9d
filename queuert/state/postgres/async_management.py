"""Management operations on Postgres. ``sync_management.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import starmap
from typing import Any, TypeVar

from queuert.errors import (
    BlockerReferenceError,
    ChainAlreadyClosedError,
    EventLimitError,
    JobNotFoundError,
    StateError,
    StateUnavailableError,
)
from queuert.jobs import ChainStatus, JobStatus
from queuert.notify.results import Notifications, delete_notifications, trigger_notifications, update_notifications
from queuert.run_at import RunAt
from queuert.state.postgres import management, parameters
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import add_blockers, fetch, forget_deleted
from queuert.state.postgres.errors import naming_cancelled, was_deadlock
from queuert.state.postgres.management import LockedChain
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.pool import ROUNDS, AsyncWork
from queuert.state.postgres.rows import DeletedJob, LockedJob, Row
from queuert.state.steps import NewEvent, SendResult, event_limit
from queuert.state.types import (
    ChainUpdate,
    DeleteResult,
    InputEdit,
    NewJob,
    StartedJob,
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
    """``complete_chains``, ``cancel_chains``, ``retry_chains``, ``trigger_jobs``, ``send_event``, ``delete_chains``,
    ``change_waiting_jobs``, ``release_stranded``."""

    # --- complete -----------------------------------------------------------------------------------------------------

    async def complete_chains(
        self,
        completions: Sequence[WorkerlessCompletion],
        *,
        cancel: Sequence[str] = (),
        reason: str = "",
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Finish the last job of each chain with an output or a continuation, whatever its status."""
        check_completions(completions, cancel)
        if not completions:
            return []
        return await self._repeated(
            connection, lambda given: self._complete(given, completions, cancel, reason), update_notifications
        )

    async def _complete(
        self,
        connection: AsyncAnyConnection,
        completions: Sequence[WorkerlessCompletion],
        cancel: Sequence[str],
        reason: str,
    ) -> list[ChainUpdate]:
        ids = [one.chain_id for one in completions]
        closing = [one for one in completions if one.continuation is None]
        met: Mapping[str, LockedChain] = {}
        results: list[ChainUpdate] = []
        waiting = management.completion_blockers(completions)
        if cancel or len(closing) < len(completions):
            with naming_cancelled(self._settings.schema) if cancel else nullcontext():
                closed = [*(one.chain_id for one in closing), *cancel]
                met, _ = await self._lock_chains(connection, [*ids, *cancel], waiting, closing=closed)
            if not all(management.can_complete(one, met[one.chain_id]) for one in completions):
                return [met[id].update() for id in ids]
        if len(closing) < len(completions):
            await fetch(connection, self._sql.continue_chains, management.continuations(completions))
            statuses = await add_blockers(connection, self._sql, waiting) if waiting else {}
            blocked = frozenset(id for id, status in statuses.items() if status == JobStatus.BLOCKED)
            results += management.continued(completions, met, blocked)
        if closing:
            rows = await fetch(connection, self._sql.complete_chains, management.completions(closing))
            results += management.completed(closing, rows)
        cancelled = await self._cancel_locked(connection, [met[id] for id in dict.fromkeys(cancel)], reason)
        return [*management.for_each(ids, results), *cancelled]

    # --- cancel -------------------------------------------------------------------------------------------------------

    async def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones are not changed."""
        if not ids:
            return []
        results = await self._repeated(connection, lambda given: self._cancel(given, ids, reason), update_notifications)
        return management.for_each(ids, results)

    async def _cancel(self, connection: AsyncAnyConnection, ids: Sequence[str], reason: str) -> list[ChainUpdate]:
        met, _ = await self._lock_chains(connection, ids, closing=ids)
        return await self._cancel_locked(connection, list(met.values()), reason)

    async def _cancel_locked(
        self, connection: AsyncAnyConnection, met: Sequence[LockedChain], reason: str
    ) -> list[ChainUpdate]:
        open_chains = [chain for chain in met if chain.status is ChainStatus.OPEN]
        if not open_chains:
            return [chain.update() for chain in met]
        tails = [chain.tail_id for chain in open_chains]
        written = await fetch(connection, self._sql.cancel_chains, {"tails": tails, "reason": reason})
        released = await self._release_dependents(connection, [chain.id for chain in open_chains])
        return management.cancelled(met, written, released)

    # --- retry --------------------------------------------------------------------------------------------------------

    async def retry_chains(
        self, ids: Sequence[str], *, edit: InputEdit | None = None, connection: Any = None
    ) -> list[ChainUpdate]:
        """Open failed and cancelled chains again: their last job is due at once, and its earlier attempts do not
        count."""
        if not ids:
            return []
        results = await self._repeated(connection, lambda given: self._retry(given, ids, edit), update_notifications)
        return management.for_each(ids, results)

    async def _retry(
        self, connection: AsyncAnyConnection, ids: Sequence[str], edit: InputEdit | None
    ) -> list[ChainUpdate]:
        met, locked = await self._lock_chains(connection, ids, again=True)
        management.check_retriable(met.values())
        tails = [chain.tail_id for chain in met.values()]
        if edit is not None:
            if edit.job_id not in tails:
                raise JobNotFoundError(edit.job_id)
            # A statement of its own: a role without the right to change inputs can still retry.
            await fetch(connection, self._sql.change_input, {"id": edit.job_id, "input": edit.input})
        with_blockers = await fetch(connection, self._sql.retry_chains, {"tails": tails})
        blocked: set[str] = set()
        if with_blockers:
            params = {"tails": [id for (id,) in with_blockers], "locked": sorted(locked)}
            blocked = {id for (id,) in await fetch(connection, self._sql.reblock_job, params)}
        await fetch(connection, self._sql.reblock_dependents, {"chains": list(met)})
        return [
            chain.update(status=ChainStatus.OPEN, due_types=() if chain.tail_id in blocked else (chain.tail_type,))
            for chain in met.values()
        ]

    # --- change -------------------------------------------------------------------------------------------------------

    async def change_waiting_jobs(
        self,
        ids: Sequence[str],
        *,
        run_at: RunAt | None = None,
        priority: int | None = None,
        edit: InputEdit | None = None,
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Give the last jobs of chains another due time, priority or input, if they wait; others are not changed."""
        if not ids:
            return []
        changes = management.changes(run_at, priority, edit)
        results = await self._repeated(
            connection, lambda given: self._change(given, ids, changes, edit), update_notifications
        )
        return management.for_each(ids, results)

    async def _change(
        self,
        connection: AsyncAnyConnection,
        ids: Sequence[str],
        changes: parameters.Parameters,
        edit: InputEdit | None,
    ) -> list[ChainUpdate]:
        met, _ = await self._lock_chains(connection, ids)
        if edit is not None and edit.job_id not in {chain.tail_id for chain in met.values()}:
            raise JobNotFoundError(edit.job_id)
        tails = [chain.tail_id for chain in met.values() if chain.tail_status in management.WAITING]
        changed = {id for (id,) in await fetch(connection, self._sql.change_jobs, {"tails": tails, **changes})}
        if edit is not None and edit.job_id in changed:
            await fetch(connection, self._sql.change_input, {"id": edit.job_id, "input": edit.input})
        return [management.changed(chain) if chain.tail_id in changed else chain.update() for chain in met.values()]

    # --- bulk operations ----------------------------------------------------------------------------------------------

    async def start_bulk_operation(self, job: NewJob) -> StartedJob:
        """Start the chain of a bulk operation, by a function that only operators may call."""
        params = {"id": job.id, "input": job.input}
        [(id, type, status, created_at)] = await self._fetch(self._sql.start_bulk_operation, params)
        return StartedJob(id, type, JobStatus(status), created_at)

    async def is_bulk_operation(self, chain_id: str, *, connection: Any = None) -> bool:
        """Whether the chain was started by ``start_bulk_operation``."""
        return bool(await self._read(connection, self._sql.is_bulk_operation, {"id": chain_id}))

    async def bound_lock_waits(self, seconds: float | None, *, connection: Any) -> None:
        """Let no later statement of the caller's transaction wait longer for a lock; without ``seconds``, as before."""
        await self._read(connection, self._sql.bound_lock_waits, {"timeout": management.lock_timeout(seconds)})

    async def held_chains(
        self,
        ids: Sequence[str],
        *,
        lock_timeout: float,
        blockers: bool = False,
        dependents: bool = False,
        members: bool = False,
        connection: Any,
    ) -> list[str]:
        """Return those of the chains of which others have locked rows, and lock the rows of the others.

        Batches take turns: what another one holds is free when it has committed, and would be left out without need.
        """
        await self._read(connection, self._sql.take_turn_of_batches, {})
        params = {"ids": list(ids), "timeout": management.lock_timeout(lock_timeout)}
        if members:
            rows = await self._read(connection, self._sql.held_for_delete, params)
        else:
            with_others = {"with_blockers": blockers, "with_dependents": dependents}
            rows = await self._read(connection, self._sql.held_chains, {**params, **with_others})
        return [id for id, _ in rows if id is not None]

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

    # --- send an event ------------------------------------------------------------------------------------------------

    async def send_event(self, chain_id: str, event: NewEvent, *, connection: Any = None) -> SendResult:
        """Keep an event for an open chain until a job of it takes it, and make its last job due if that waits for
        it."""
        return await self._repeated(
            connection, lambda given: self._send(given, chain_id, event), lambda sent: trigger_notifications(sent.woken)
        )

    async def _send(self, connection: AsyncAnyConnection, chain_id: str, event: NewEvent) -> SendResult:
        # The job is locked, also for a finish that makes it wait: see lock_waiting_job.
        met, _ = await self._lock_chains(connection, [chain_id])
        chain = met[chain_id]
        if chain.status is not ChainStatus.OPEN:
            if await fetch(connection, self._sql.find_sent_event, {"chain": chain_id, "id": event.id}):
                return SendResult(chain_id, chain.type, written=False)
            raise ChainAlreadyClosedError(chain_id, chain.status)
        params = parameters.sent_event(chain_id, chain.tail_id, event)
        [row] = await fetch(connection, self._sql.send_event, params)
        known, written, too_many = row
        if not known and not written:
            raise EventLimitError(chain_id, event_limit(too_many))
        woken = await fetch(connection, self._sql.wake_receivers, {"ids": [chain.tail_id]}) if written else []
        return SendResult(chain_id, chain.type, bool(written), tuple(TriggeredJob(id, type) for id, type in woken))

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
            raise BlockerReferenceError(references)
        rows = await fetch(connection, self._sql.delete_chains, {"jobs": list(to_delete)})
        jobs = list(starmap(DeletedJob, rows))
        await forget_deleted(connection, self._sql, jobs)
        return management.deleted(ids, jobs)

    async def _lock_to_delete(
        self, connection: AsyncAnyConnection, ids: Sequence[str], *, cascade: bool
    ) -> dict[str, str]:
        """Lock all jobs that are to be deleted, each with its chain, until a read finds no more of them."""
        params = {"ids": list(ids), "cascade": cascade}
        locked: dict[str, str] = {}
        for _ in range(_LOCK_ROUNDS):
            found: dict[str, str] = dict(await fetch(connection, self._sql.lock_chains_for_delete, params))
            if found.keys() == locked.keys():
                return locked
            locked = found
        raise StateError(f"chains {sorted(ids)!r} get new jobs faster than these can be locked: repeat the call")

    # --- stranded jobs ------------------------------------------------------------------------------------------------

    async def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed: a bug or a manual edit left them."""
        page = await self._fetch(self._sql.find_stranded, {"cursor": cursor, "limit": limit})
        stranded = [id for id, is_stranded in page if is_stranded]
        released: list[Row] = []
        if stranded:
            released = await self._repeated(None, lambda given: self._release_stranded(given, stranded), None)
        following = None
        if len(page) >= limit:
            following, _ = page[-1]
        return SweepResult([TriggeredJob(id, type) for id, type in sorted(released)], following)

    async def _release_stranded(self, connection: AsyncAnyConnection, ids: Sequence[str]) -> list[Row]:
        held = [id for (id,) in await fetch(connection, self._sql.lock_stranded, {"ids": list(ids)})]
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
        closing: Sequence[str] = (),
    ) -> tuple[dict[str, LockedChain], set[str]]:
        """Lock the first and last jobs of chains, the chains that jobs will wait for, and the jobs that wait for those
        which are ``closing``. Returns the state of the chains under their locks, and the ids of their locked rows.

        Raises:
            ChainNotFoundError: one of them, or of those that ``waiting`` jobs name, does not exist.
        """
        awaited = sorted({chain_id for job in waiting for chain_id in job.blockers})
        params = {"ids": list(ids), "awaited": awaited, "again": again, "closing": list(closing)}
        locked: set[str] = set()
        for _ in range(_LOCK_ROUNDS):
            rows = await fetch(connection, self._sql.lock_chains, params)
            jobs = list(starmap(LockedJob, rows))
            locked.update(job.id for job in jobs)
            found = management.met_chains(jobs)
            management.all_found(awaited, found)
            met = management.all_found(ids, found)
            if all(chain.tail_status is not JobStatus.CONTINUED for chain in met.values()):
                return met, locked
        raise StateError(f"chains {sorted(ids)!r} continue faster than their last jobs can be locked: repeat the call")

    async def _release_dependents(self, connection: AsyncAnyConnection, closed: Sequence[str]) -> list[Row]:
        return await fetch(connection, self._sql.release_dependents, parameters.closed_chains(closed)) if closed else []
