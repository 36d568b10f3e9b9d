# Generated from queuert/state/redis/async_store.py, do not edit: see scripts/unasync.py
"""The Redis store. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queuert.jobs import AbortReason
from queuert.state.redis import decode, encode
from queuert.state.redis.sync_base import refuse_connection
from queuert.state.redis.sync_listing import RedisListing
from queuert.state.redis.sync_management import RedisManagement
from queuert.state.redis.sync_retention import RedisRetention
from queuert.state.redis.sync_schedules import RedisSchedules
from queuert.state.redis.sync_steps import RedisSteps
from queuert.state.redis.sync_transaction import RedisTransaction
from queuert.state.redis.sync_workers import RedisWorkers
from queuert.state.sync_store import NoEvents
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


class RedisStore(
    RedisManagement,
    RedisListing,
    RedisSchedules,
    RedisRetention,
    RedisWorkers,
    RedisSteps,
    NoEvents,
):
    """Jobs in Redis: see :class:`queuert.state.Store` for what each operation promises.

    Every operation is one script, which no other command interrupts. It checks everything before it writes anything.
    """

    # --- start --------------------------------------------------------------------------------------------------------

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, or return the chains of which they are duplicates."""
        refuse_connection(connection)
        if not jobs:
            return []
        return [decode.started(one) for one in decode.unpacked(self._commit("start", encode.start(jobs)))]

    def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains after the iterator has made all, since one script writes them."""
        return self.start_jobs([job for part in parts for job in part])

    # --- claim, renew, release ----------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        claimed: list[ClaimedJob] = []
        if request.limit < 1 or not request.leases:
            return claimed
        more = 1
        while more and len(claimed) < request.limit:
            # More dead entries were in the way than one script may drop.
            taken = sum(len(one.input) for one in claimed)
            params = encode.claim(request, request.limit - len(claimed), taken=taken)
            more, *found = decode.unpacked(self._run("claim", params))
            claimed += decode.best_first([decode.claimed(one, request) for one in found], request)
        return claimed

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases that are still held."""
        if not renewals:
            return []
        return [one == 1 for one in self._run("renew", encode.renewals(renewals))]

    def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were not started."""
        return int(self._run("release", encode.leases(leases))) if leases else 0

    def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost."""
        params = {"holder": request.holder, "token": request.token}
        return ReleasedClaim(int(self._run("release_claim", encode.plain(params))))

    # --- finish -------------------------------------------------------------------------------------------------------

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes, each only if its token has the job's lease. There are no locks to wait for."""
        if not finishes:
            return []
        return [decode.finished(one) for one in decode.unpacked(self._run("finish", encode.finish(finishes)))]

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost."""
        if not leases:
            return []
        return [decode.lost_reason(one) for one in self._run("lost_reasons", encode.leases(leases))]

    def why_lost(self, lease: Lease) -> AbortReason | None:
        """Return why a lease does not hold its job now, also if it has finished the job."""
        return decode.lost_reason(self._run("why_lost", encode.plain([lease.job_id, lease.token])))

    def transaction(self, job: ClaimedJob) -> RedisTransaction:
        """Return a block whose finish is written when it ends without an error, if the lease is valid then."""
        return RedisTransaction(self, job)

    # --- reap and read ------------------------------------------------------------------------------------------------

    def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts."""
        if not request.policies:
            return ReapResult((), None)
        return decode.reaped(self._run("reap", encode.reap(request)))

    def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job is due."""
        return decode.seconds(self._run("next_due", encode.plain(list(types))))
