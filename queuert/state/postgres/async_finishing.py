"""Finishes and reaped leases on Postgres. ``sync_finishing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, Error
from psycopg.errors import LockNotAvailable
from psycopg.pq.abc import PGresult

from queuert.errors import StateError
from queuert.jobs import AbortReason, JobStatus
from queuert.state.postgres import parameters, rows
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch, finish_and_release, lock_in_order
from queuert.state.postgres.bounds import LOCK_SOON, async_bounded
from queuert.state.postgres.finishing import (
    CLAIMABLE,
    all_simple,
    all_simple_completions,
    closes_only,
    closing_results,
    closing_steps,
    completed,
    finish_results,
    parted_by_progress,
    releases_dependents,
)
from queuert.state.postgres.protocol import BEGIN, AsyncPooledConnection, Step, async_begin_with
from queuert.state.postgres.rows import ExpiredLease, LeaseState
from queuert.state.types import (
    Finish,
    FinishResult,
    Lease,
    ReapedJob,
    ReapRequest,
    ReapResult,
    check_finishes,
)

_FINISH_ROUNDS = 4
"""A finish is repeated if a dependent was added to its chain meanwhile; more than one repetition is already rare."""


_HELD = 10
"""Of the jobs that a round cannot fail, since others hold their chains or what waits for these, so many are tried: each
takes as long as LOCK_SOON, and expired leases of other jobs wait meanwhile."""


class AsyncPostgresFinishing(AsyncPostgresBase):
    """``finish``, ``lost_reasons`` and ``reap``."""

    _failed_up_to: tuple[datetime, str] | None = None
    """Where the last round of ``reap`` ended among the jobs that are to fail; None: at their end."""

    async def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes, each only if its token has the job's lease."""
        check_finishes(finishes)
        results: dict[Lease, FinishResult] = {}
        left = list(finishes)
        plain = all_simple_completions(left)
        if not plain and len(parts := parted_by_progress(left)) > 1:
            written = {
                one.job.lease: result
                for part in parts
                for one, result in zip(part, await self.finish(part, wait=wait), strict=True)
            }
            return [written[one.job.lease] for one in finishes]
        release_dependents = not plain and any(releases_dependents(one) for one in left)
        for _ in range(_FINISH_ROUNDS):
            if not left:
                break
            async with self._connections.connection() as connection:
                if release_dependents:
                    # A call that waits for locks must not wait for the new holder of a lost job, so the skipped leases
                    # are checked first.
                    if wait or not closes_only(left):
                        left = await self._settle(connection, left, results)
                    results |= await self._release_round(connection, left, wait=wait)
                elif plain:
                    found = await fetch(connection, self._sql.prepared["complete"], parameters.complete(left))
                    if len(found) == len(left):
                        return [FinishResult(one.job.id) for one in finishes]
                    results |= completed(left, found)
                elif all_simple(left):
                    found = await fetch(connection, self._sql.prepared["finish_simple"], parameters.finish_simple(left))
                    results |= finish_results(left, found)
                else:
                    found = await fetch(
                        connection, self._sql.prepared["finish"], parameters.finish(left, closes_awaited=False)
                    )
                    results |= finish_results(left, found)
                missed = [one for one in left if one.job.lease not in results]
                left = await self._settle(connection, missed, results)
            release_dependents = True
        if left:
            raise StateError(
                f"jobs {[one.job.id for one in left]!r} were neither finished nor had lost their leases after "
                f"{_FINISH_ROUNDS} rounds: repeat the call"
            )
        return [results[one.job.lease] for one in finishes]

    async def _release_round(
        self, connection: AsyncPooledConnection, finishes: Sequence[Finish], *, wait: bool
    ) -> dict[Lease, FinishResult]:
        if not finishes:
            return {}
        try:
            if closes_only(finishes):
                steps = closing_steps(self._sql, finishes, connection.bounds, wait=wait)
                return closing_results(finishes, await self._exchanged(connection, steps))
            async with async_bounded(connection, lock=None if wait else LOCK_SOON):
                return await finish_and_release(connection, self._sql, finishes)
        except LockNotAvailable:
            if wait:
                raise
            # Perhaps another worker that has claimed the job has locked it: that is no reason to wait.
            results: dict[Lease, FinishResult] = {}
            held = await self._settle(connection, finishes, results)
            return results | {one.job.lease: FinishResult(one.job.id, locked=True) for one in held}

    async def _exchanged(self, connection: AsyncPooledConnection, steps: Sequence[Step]) -> list[PGresult]:
        """Run a transaction in one round trip, so that its locks are not held while the server waits for the client."""
        try:
            return await async_begin_with(connection, BEGIN, steps, prepare=self._connections.prepares)
        except Error:
            with suppress(Error):
                await connection.rollback()
            raise

    async def _settle(
        self, connection: AsyncConnection[Any], missed: Sequence[Finish], results: dict[Lease, FinishResult]
    ) -> list[Finish]:
        """Record the result of each finish whose lease is lost; return the other finishes, which must be written
        again."""
        if not missed:
            return []
        params = parameters.leases([one.job.lease for one in missed])
        found = await fetch(connection, self._sql.lease_states, params)
        again = []
        for one, state in zip(missed, rows.lease_states([one.job.lease for one in missed], found), strict=True):
            if state is LeaseState.HELD:
                again.append(one)
            else:
                results[one.job.lease] = rows.settled(one, state, found)
        return again

    async def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost."""
        found = await self._fetch(self._sql.lease_states, parameters.leases(leases))
        return [None if isinstance(state, LeaseState) else state for state in rows.lease_states(leases, found)]

    async def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts."""
        if not request.policies:
            return ReapResult((), None)
        failure: Exception | None = None
        async with self._connections.connection() as connection:
            found = await fetch(connection, self._sql.reap, parameters.reap(request, self._failed_up_to))
            expired, next_expiry = rows.expired_leases(found)
            reaped = [rows.reaped_job(lease, lease.status) for lease in expired if lease.status is not None]
            left = rows.in_turn((lease for lease in expired if lease.status is None), self._failed_up_to)
            held = 0
            while left and held < _HELD:
                lease = left.pop(0)
                self._failed_up_to = lease.position
                try:
                    failed = await self._fail_expired(connection, lease)
                except Exception as error:
                    failure, failed = error, []
                    if connection.closed:
                        break
                held += not failed
                reaped += failed
            if not left and len(expired) < request.limit:
                self._failed_up_to = None  # All have had their turn.
            if failure is not None and not reaped:
                raise failure
        # What was reaped is to be reported. A later round raises the failure, if it is still so.
        unfinished = len(expired) >= request.limit or len(reaped) < len(expired)
        return ReapResult(reaped, 0.0 if unfinished else next_expiry)

    async def _fail_expired(self, connection: AsyncConnection[Any], lease: ExpiredLease) -> list[ReapedJob]:
        """Fail a job after its last attempt and close its chain. It is skipped if another transaction has locked it."""
        job_id, chain_id = lease.id, lease.chain_id
        try:
            async with async_bounded(connection, lock=LOCK_SOON):
                await lock_in_order(connection, self._sql, [job_id, chain_id], (), closing=[chain_id])
                params = {"ids": [job_id], "tokens": [lease.lease_token]}
                failed = await fetch(connection, self._sql.fail_expired, params)
                if not failed:
                    return []
                released = await fetch(connection, self._sql.release_dependents, parameters.closed_chains([chain_id]))
        except LockNotAvailable:
            return []
        due_types = tuple(sorted({type for type, status in released if status in CLAIMABLE}))
        reaped = rows.reaped_job(lease, JobStatus.FAILED)
        return [rows.with_closed_chain(reaped, seconds, due_types) for (seconds,) in failed]
