# Generated from queuert/state/postgres/async_claiming.py, do not edit: see scripts/unasync.py
"""Claims on Postgres. ``sync_claiming.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psycopg import Connection

from queuert.state.adapter import ClaimedJob, ClaimRequest
from queuert.state.postgres import limiting, parameters, rows
from queuert.state.postgres.head_bounds import HeadBounds, Place
from queuert.state.postgres.rows import Row
from queuert.state.postgres.settings import PostgresSettings
from queuert.state.postgres.statements import Statements
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_steps import fetch

_ADMISSIONS = 3
"""A choice is made again without the jobs of it that somebody else has locked; twice is already rare."""


class PostgresClaiming(PostgresBase):
    """Taking what is due."""

    def __init__(self, settings: PostgresSettings, statements: Statements, connections: int) -> None:
        super().__init__(settings, statements, connections)
        self._cursors: dict[str, str] = {}
        """Where the next walk over the keys of a job type begins, if it has too many for one."""
        self._bounds = HeadBounds()

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        if request.limit < 1 or not request.leases:
            return []
        if request.after_rank is None:
            return self._claim_best(request)
        found = self._claim_worse(request)
        if len(found) < request.limit:
            found += self._claim_best(replace(request, limit=request.limit - len(found), after_rank=None))
        return found

    def _claim_best(self, request: ClaimRequest) -> list[ClaimedJob]:
        if limiting.limits_of(request):
            return self._claimed(request, self._claim_limited(request))
        places = self._bounds.places(list(request.leases))
        if places is not None and (jobs := self._claim_from(request, places)):
            return jobs
        return self._claim_from(request, None)

    def _claim_worse(self, request: ClaimRequest) -> list[ClaimedJob]:
        # Where the look for the best begins has nothing to learn from these.
        if limiting.limits_of(request):
            return self._claimed(request, self._claim_limited(request))
        return self._claimed(request, self._fetch_claim(request, None))

    def _claim_from(self, request: ClaimRequest, places: Sequence[Place] | None) -> list[ClaimedJob]:
        found = self._fetch_claim(request, places)
        jobs = self._claimed(request, found)
        if found:
            self._bounds.note(jobs, found[0][rows.LOOK_SECONDS], at_head=places is None)
        return jobs

    def _fetch_claim(self, request: ClaimRequest, places: Sequence[Place] | None) -> list[Row]:
        return self._fetch(self._sql.named("claim"), parameters.claim(request, places), binary=True)

    @staticmethod
    def _claimed(request: ClaimRequest, found: Sequence[Row]) -> list[ClaimedJob]:
        return rows.best_first([rows.claimed_job(row, request.token) for row in found])

    def _claim_limited(self, request: ClaimRequest) -> list[Row]:
        with self._transaction() as connection:
            prepared = limiting.promote(request)
            fetch(connection, self._sql.lock_limits, prepared)
            fetch(connection, self._sql.promote_due, prepared)
            found, others = self._claim_admitted(connection, request)
            old = limiting.forget(request)
            if found and old["types"]:
                fetch(connection, self._sql.forget_starts, old)
            if others:
                rest = parameters.claim(limiting.unlimited(request, others))
                found += fetch(connection, self._sql.claim, rest)
            return found

    def _claim_admitted(self, connection: Connection[Any], request: ClaimRequest) -> tuple[list[Row], int]:
        """Claim what the limits let through, and say how many of the other types should be claimed."""
        found: list[Row] = []
        passed_over: list[str] = []
        others = 0
        for _ in range(_ADMISSIONS):
            asked = limiting.admit(request, request.limit - len(found), self._cursors, passed_over)
            admission = limiting.admission(fetch(connection, self._sql.admit, asked))
            others = admission.others
            if admission.ids:
                taken = limiting.claim_admitted(request, admission.ids)
                found += fetch(connection, self._sql.claim_admitted, taken)
            locked = set(admission.ids).difference(row[0] for row in found)
            if not locked:
                self._cursors.update(admission.cursors)
                break
            passed_over += locked
        return found, others

    def next_due(self, types: Sequence[str]) -> float | None:
        """Seconds until the next job is due."""
        found = self._fetch(self._sql.next_due, {"types": list(types)})
        return None if found[0][0] is None else float(found[0][0])
