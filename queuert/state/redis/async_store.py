"""The Redis store. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queuert.jobs import AbortReason
from queuert.state.async_store import AsyncNoEvents
from queuert.state.redis import decode, encode
from queuert.state.redis.async_base import refuse_connection
from queuert.state.redis.async_listing import AsyncRedisListing
from queuert.state.redis.async_management import AsyncRedisManagement
from queuert.state.redis.async_retention import AsyncRedisRetention
from queuert.state.redis.async_schedules import AsyncRedisSchedules
from queuert.state.redis.async_steps import AsyncRedisSteps
from queuert.state.redis.async_transaction import AsyncRedisTransaction
from queuert.state.redis.async_workers import AsyncRedisWorkers
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    ReapRequest,
    ReapResult,
    ReleasedClaim,
    Renewal,
    StartedJob,
)


class AsyncRedisStore(
    AsyncRedisManagement,
    AsyncRedisListing,
    AsyncRedisSchedules,
    AsyncRedisRetention,
    AsyncRedisWorkers,
    AsyncRedisSteps,
    AsyncNoEvents,
):
    """Jobs in Redis: see :class:`queuert.state.AsyncStore` for what each operation promises.

    Every operation is one script, which no other command interrupts. It checks everything before it writes anything.
    """

    # --- start --------------------------------------------------------------------------------------------------------

    async def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, or return the chains of which they are duplicates."""
        refuse_connection(connection)
        if not jobs:
            return []
        return [decode.started(one) for one in decode.unpacked(await self._commit("start", encode.start(jobs)))]

    async def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains after the iterator has made all, since one script writes them."""
        return await self.start_jobs([job for part in parts for job in part])

    # --- claim, renew, release ----------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        claimed: list[ClaimedJob] = []
        if request.limit < 1 or not request.leases:
            return claimed
        more = 1
        while more and len(claimed) < request.limit:
            # More dead entries were in the way than one script may drop.
            taken = sum(len(one.input) for one in claimed)
            params = encode.claim(request, request.limit - len(claimed), taken=taken)
            more, *found = decode.unpacked(await self._run("claim", params))
            claimed += decode.best_first([decode.claimed(one, request) for one in found], request)
        return claimed

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases that are still held."""
        if not renewals:
            return []
        return [one == 1 for one in await self._run("renew", encode.renewals(renewals))]

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were not started."""
        return int(await self._run("release", encode.leases(leases))) if leases else 0

    async def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost."""
        params = {"holder": request.holder, "token": request.token}
        return ReleasedClaim(int(await self._run("release_claim", encode.plain(params))))

    # --- finish -------------------------------------------------------------------------------------------------------

    async def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes, each only if its token has the job's lease. There are no locks to wait for."""
        if not finishes:
            return []
        return [decode.finished(one) for one in decode.unpacked(await self._run("finish", encode.finish(finishes)))]

    async def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost."""
        if not leases:
            return []
        return [decode.lost_reason(one) for one in await self._run("lost_reasons", encode.leases(leases))]

    async def why_lost(self, lease: Lease) -> AbortReason | None:
        """Return why a lease does not hold its job now, also if it has finished the job."""
        return decode.lost_reason(await self._run("why_lost", encode.plain([lease.job_id, lease.token])))

    def transaction(self, job: ClaimedJob) -> AsyncRedisTransaction:
        """Return a block whose finish is written when it ends without an error, if the lease is valid then."""
        return AsyncRedisTransaction(self, job)

    # --- reap and read ------------------------------------------------------------------------------------------------

    async def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts."""
        if not request.policies:
            return ReapResult((), None)
        return decode.reaped(await self._run("reap", encode.reap(request)))

    async def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job is due."""
        return decode.seconds(await self._run("next_due", encode.plain(list(types))))
