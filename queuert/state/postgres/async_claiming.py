"""Claims, renewals and releases on Postgres. ``sync_claiming.py`` is generated from this module."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from psycopg.errors import LockNotAvailable

from queuert.state.postgres import claiming, parameters
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_statements import fetch
from queuert.state.postgres.claiming import ClaimCursors, Expansion, IndexPosition, Space
from queuert.state.postgres.other_drivers import AsyncAnyConnection
from queuert.state.postgres.rows import Row
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimedJob, ClaimRequest, Lease, ReleasedClaim, Renewal

_ADMISSIONS = 3
"""Attempts to admit jobs. Jobs that another claim has locked are left out of the next one; two are rarely needed."""


_LIMITS_TIMEOUT = 0.5
"""Seconds that a claim waits for other claims of the same limited types, each of which takes some milliseconds."""

_LIMITS_PAUSE = 1.0
"""Seconds without claims of limited types after that timeout: the transaction that has locked the limits is stuck."""


class AsyncPostgresClaiming(AsyncPostgresBase):
    """``claim``, ``next_due``, ``renew``, ``release`` and ``release_claim``."""

    def __init__(self, settings: PostgresSettings, statements: Statements, connections: int) -> None:
        super().__init__(settings, statements, connections)
        self._cursors: dict[str, str] = {}
        """The key after which the next walk over the keys of a job type begins: for types with too many keys for one
        walk, and for those whose keys take turns."""
        self._worse_cursors: dict[str, str] = {}
        """The same for claims that begin with worse ranks, so that they come to each key, too."""
        self._keys: dict[str, int] = {}
        """The number of keys with ready jobs of types whose keys take turns, or less, as a claim last saw it. While it
        is too small for a claim, ``claim_fair`` comes first, which counts them again."""
        self._large: set[str] = set()
        """Those of which the last claim left a job for its size: ``claim_fair`` comes first as well."""
        self._bounds = ClaimCursors()
        self._limits_held_until = 0.0
        self._expansion = Expansion()

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        if request.limit < 1 or not request.leases:
            return []
        space = Space(request.max_bytes)
        found = await self._claim_ranked(request, space)
        if request.after_rank is None or space.full or len(found) >= request.limit:
            return found
        rest = replace(request, limit=request.limit - len(found), after_rank=None)
        return found + await self._claim_ranked(rest, space)

    async def _claim_ranked(self, request: ClaimRequest, space: Space) -> list[ClaimedJob]:
        """Claim the best jobs of all ranks, or of those that the request names."""
        if request.limits and (limits := claiming.limits_of(request)):
            if not any(one.bounded for one in limits.values()):
                return await self._claim_fair(request, space)
            found = await self._claim_limited(request, space)
            if found is not None:
                return claiming.claimed_jobs(found, request.token)
            # The other types are claimed without waiting for the lock of the limits.
            request = claiming.unbounded(request)
            if not request.leases:
                return []
            if claiming.limits_of(request):
                return await self._claim_fair(request, space)
        positions = None if request.after_rank is not None else self._bounds.positions(list(request.leases))
        if positions is not None and (jobs := await self._claim_from(request, positions, space)):
            return jobs
        return await self._claim_from(request, None, space)

    async def _claim_from(
        self, request: ClaimRequest, positions: Sequence[IndexPosition] | None, space: Space
    ) -> list[ClaimedJob]:
        one_type = request.ready_only and len(request.leases) == 1 and positions is None
        if one_type:
            params = claiming.claim_one_type(request, expansion=self._expansion.factor, space=space)
            statement = self._sql.prepared["claim_one_type"]
        else:
            params = claiming.claim(request, positions, expansion=self._expansion.factor, space=space)
            statement = self._sql.prepared["claim" if request.limit < claiming.MANY else "claim_many"]
        answer = await self._fetch(statement, params)
        found = answer if answer[0][claiming.ID] is not None else []
        missing = answer[0][claiming.MISSING]
        if missing or request.after_rank is not None:  # Otherwise no other statement follows.
            space.note(found)
        if missing and not space.full:
            limit = request.limit if missing == claiming.TOO_LARGE else missing
            params = claiming.claim(
                replace(request, limit=limit), positions, expansion=self._expansion.factor, space=space
            )
            rest = await self._fetch(self._sql.prepared["claim_rest"], params)
            more = [row for row in rest if row[claiming.ID] is not None]
            space.note(more, cut=rest[0][claiming.MISSING] == claiming.TOO_LARGE)
            found = found + more
        self._expansion.note(found)
        jobs = claiming.claimed_jobs(found, request.token)
        # Where the look for the best begins has nothing to learn from jobs of worse ranks, nor from a look that locks
        # many.
        if found and request.after_rank is None and not (one_type and len(found) >= claiming.MANY):
            self._bounds.note(jobs, answer[0][claiming.LOOK_SECONDS], at_head=positions is None)
        return jobs

    async def _claim_fair(self, request: ClaimRequest, space: Space) -> list[ClaimedJob]:
        """Claim jobs of types whose keys take turns, and of types without limits."""
        cursors = self._cursors if request.after_rank is None else self._worse_cursors
        jobs: list[ClaimedJob] = []
        for _ in range(_ADMISSIONS):
            rest = replace(request, limit=request.limit - len(jobs))
            found = None
            if len(rest.leases) == 1 and rest.after_rank is None and not space.begun:
                found = await self._claim_next_keys(rest, space)
            if found is None:
                params = claiming.claim_fair(rest, cursors, expansion=self._expansion.factor, space=space)
                found = await self._fetch(self._sql.prepared["claim_fair"], params)
                counted = claiming.fair_claim(found, 0)
                self._keys.update(counted.keys)
                if not counted.cut:
                    self._large.difference_update(counted.keys)
            claimed = [row for row in found if row[claiming.ID] is not None]
            self._expansion.note(claimed)
            summary = claiming.fair_claim(found, len(claimed))
            cursors.update(summary.claimed if request.after_rank is None else summary.walked)
            jobs += claiming.claimed_jobs(claimed, request.token)
            space.note(claimed, cut=summary.cut)
            if not summary.incomplete or len(jobs) >= request.limit or space.full:
                break
        return jobs

    async def _claim_next_keys(self, request: ClaimRequest, space: Space) -> list[Row] | None:
        """Claim one job of each of the next keys of the only type. None if ``claim_fair`` has to."""
        if request.limit == 1:
            params = claiming.claim_next_key(request, self._cursors)
            return await self._fetch(self._sql.prepared["claim_next_key"], params)
        [type] = request.leases
        if type in self._large or self._keys.get(type, request.limit) < request.limit:
            return None
        params = claiming.claim_next_keys(request, self._cursors, expansion=self._expansion.factor, space=space)
        found = await self._fetch(self._sql.prepared["claim_next_keys"], params)
        summary = claiming.fair_claim(found, 0)
        if 0 < summary.keys[type] < request.limit:
            self._keys.update(summary.keys)
            return None
        if summary.cut:
            self._large.add(type)
            return None
        return found

    async def _claim_limited(self, request: ClaimRequest, space: Space) -> list[Row] | None:
        """Claim jobs that the limits admit, and jobs of the other types. None if the limits stay locked for too
        long."""
        if time.monotonic() < self._limits_held_until:
            return None
        async with self._transaction(lock=_LIMITS_TIMEOUT) as connection:
            prepared = claiming.promote(request)
            try:
                await fetch(connection, self._sql.lock_limits, prepared)
            except LockNotAvailable:
                self._limits_held_until = time.monotonic() + _LIMITS_PAUSE
                return None
            await fetch(connection, self._sql.promote_due, prepared)
            found, others = await self._claim_admitted(connection, request, space)
            old = claiming.forget(request)
            if found and old["types"]:
                await fetch(connection, self._sql.prune_rate_window, old)
            if others:
                # One at least, even if it does not fit beside the others, which may be of a worse rank: jobs of these
                # types would wait behind large ones.
                rest = claiming.claim(
                    claiming.unlimited(request, others), expansion=self._expansion.factor, space=space
                )
                rest["begun"] = False
                answer = await fetch(connection, self._sql.claim_rest, rest, lenient=True)
                more = [row for row in answer if row[claiming.ID] is not None]
                space.note(more, cut=answer[0][claiming.MISSING] == claiming.TOO_LARGE)
                found += more
            self._expansion.note(found)
            return found

    async def _claim_admitted(
        self, connection: AsyncAnyConnection, request: ClaimRequest, space: Space
    ) -> tuple[list[Row], int]:
        """Claim the jobs that the limits admit. Also returns how many jobs of the other types should be claimed."""
        found: list[Row] = []
        passed_over: list[str] = []
        others = 0
        for _ in range(_ADMISSIONS):
            params = claiming.select_admissible(request, request.limit - len(found), self._cursors, passed_over)
            admission = claiming.admission(await fetch(connection, self._sql.select_admissible, params))
            others = admission.others
            if admission.ids:
                params = claiming.claim_admitted(request, admission.ids, expansion=self._expansion.factor, space=space)
                answer = await fetch(connection, self._sql.claim_admitted, params, lenient=True)
                claimed = [row for row in answer if row[claiming.ID] is not None]
                found += claimed
                space.note(claimed, cut=answer[0][claiming.CUT])
                if space.full:
                    # A job that was left for its size goes before the jobs that could be claimed instead.
                    break
            locked = set(admission.ids).difference(row[claiming.ID] for row in found)
            if not locked:
                self._cursors.update(admission.cursors)
                break
            passed_over += locked
        return found, others

    async def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job is due."""
        [(seconds,)] = await self._fetch(self._sql.next_due, {"types": list(types)})
        return None if seconds is None else float(seconds)

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases that are still held."""
        if not renewals:
            return []
        params = parameters.renewals(renewals)
        statement = self._sql.renew_with_events if "logged" in params else self._sql.renew
        found = await self._fetch(statement, params)
        held = {Lease(job_id, token) for job_id, token in found}
        return [renewal.lease in held for renewal in renewals]

    async def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were not started."""
        return len(await self._fetch(self._sql.release, parameters.leases(leases))) if leases else 0

    async def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost."""
        taken = {"types": list(request.leases), "token": request.token}
        [counts] = await self._fetch(self._sql.release_claim, taken)
        return ReleasedClaim(*counts)
