"""The SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from queuert.event_log import EventKind
from queuert.jobs import AbortReason, ChainRecord, ChainState, ChainStatus, Job
from queuert.notify.results import start_notifications
from queuert.state.paging import CLOSED_PORTION
from queuert.state.sqlite import finishing, rows
from queuert.state.sqlite.claiming import claim
from queuert.state.sqlite.connection import execute, fetch_one, fetch_value, now_us, run
from queuert.state.sqlite.event_log import add_event
from queuert.state.sqlite.operations import SQLiteOperating
from queuert.state.sqlite.starting import start
from queuert.state.sqlite.transaction import SQLiteTransaction
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    ReapedJob,
    ReapRequest,
    ReapResult,
    ReleasedClaim,
    Renewal,
    StartedJob,
    check_finishes,
)

Connection = sqlite3.Connection


class SQLiteStore(SQLiteOperating):
    """Jobs in SQLite: see :class:`queuert.state.Store` for what each operation promises."""

    # --- start --------------------------------------------------------------------------------------------------------

    def start_bulk_operation(self, job: NewJob) -> StartedJob:
        """Start the chain of a bulk operation. SQLite has no roles: who may start chains may manage them."""
        [started] = self.start_jobs([job])
        return started

    def is_bulk_operation(self, chain_id: str, *, connection: Any = None) -> bool:
        """Return True: see ``start_bulk_operation``."""
        return True

    def bound_lock_waits(self, seconds: float | None, *, connection: Any) -> None:
        """Do nothing: who has begun a transaction waits for nobody."""

    def held_chains(
        self,
        ids: Sequence[str],
        *,
        lock_timeout: float,
        blockers: bool = False,
        dependents: bool = False,
        members: bool = False,
        connection: Any,
    ) -> list[str]:
        """Return none: while a transaction writes, nobody else does."""
        return []

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, or return the chains of which they are duplicates."""
        if not jobs:
            return []
        return self._outside(connection, lambda given: start(given, jobs), start_notifications)

    def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains after the iterator has made all, since nobody else can write meanwhile."""
        return self.start_jobs([job for part in parts for job in part])

    # --- claim, renew, release ----------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        if request.limit < 1 or not request.leases:
            return []
        with self._writing() as connection:
            return claim(connection, request, self._rounds)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases that are still held."""
        if not renewals:
            return []
        with self._writing() as connection:
            return [_renew(connection, one) for one in renewals]

    def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were not started."""
        if not leases:
            return 0
        with self._writing() as connection:
            return sum(_release(connection, one) for one in leases)

    def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost."""
        with self._writing() as connection:
            found = [run(connection, "release_claim", type=type, token=request.token) for type in request.leases]
            released = [job_id for rows_of_type in found for (job_id,) in rows_of_type]
            for job_id in released:
                add_event(connection, EventKind.RELEASED, job_id, of_worker=True)
            return ReleasedClaim(len(released))

    # --- finish -------------------------------------------------------------------------------------------------------

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes, each only if its token has the job's lease. There are no row locks, only the lock of the
        database."""
        check_finishes(finishes)
        if not finishes:
            return []
        with self._writing() as connection:
            return [finishing.finish_one(connection, one) for one in finishes]

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost."""
        with self._reading() as connection:
            states = [fetch_one(connection, "lease_state", id=one.job_id) for one in leases]
        return [rows.lost_reason(None, one.token, state) for one, state in zip(leases, states, strict=True)]

    @contextmanager
    def transaction(self, job: ClaimedJob) -> Iterator[SQLiteTransaction]:
        """Open a transaction for the block of an attempt."""
        with self._links.for_transaction() as link, link.taken(), SQLiteTransaction(link, job) as transaction:
            yield transaction
        if transaction.committed:
            self._links.after_commit()

    # --- reap ---------------------------------------------------------------------------------------------------------

    def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts."""
        if not request.policies:
            return ReapResult((), None)
        reaped: list[ReapedJob] = []
        expiries: list[int] = []
        with self._writing() as connection:
            now = now_us()
            for type, policy in request.policies.items():
                params = {"type": type, "now": now, "limit": request.limit - len(reaped)}
                expired = run(connection, "expired_leases", **params)
                reaped += [finishing.reap_one(connection, row, policy) for row in expired]
                [(expiry,)] = run(connection, "next_expiry", type=type)
                if expiry is not None:
                    expiries.append(expiry)
        following = min(expiries, default=None)
        return ReapResult(reaped, None if following is None else max(0, following - now) / 1_000_000)

    # --- read ---------------------------------------------------------------------------------------------------------

    def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job is due."""
        moments = []
        with self._reading() as connection:
            now = now_us()
            for type in types:
                if run(connection, "is_paused", type=type):
                    continue
                if run(connection, "any_ready", type=type):
                    return 0.0
                [(moment,)] = run(connection, "next_scheduled", type=type)
                if moment is not None:
                    moments.append(max(0, moment - now) / 1_000_000)
        return min(moments, default=None)

    def get_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """Read jobs in the order of the ids."""
        with self._reading(connection) as reader:
            now = now_us()
            found = [fetch_one(reader, "get_job", id=one, now=now) for one in ids]
        return [None if row is None else rows.job(row) for row in found]

    def get_chains(
        self, ids: Sequence[str], *, payloads: bool = True, connection: Any = None
    ) -> list[ChainRecord | None]:
        """Read chains in the order of the ids."""
        with self._reading(connection) as reader:
            now = now_us()
            found = [fetch_one(reader, "get_chain", id=one, now=now, payloads=payloads) for one in ids]
        return [None if row is None else rows.chain(row) for row in found]

    def get_chain_states(self, ids: Sequence[str]) -> list[ChainState | None]:
        """Read where chains are, in the order of the ids."""
        with self._reading() as connection:
            now = now_us()
            found = [fetch_one(connection, "get_chain_state", id=one, now=now) for one in ids]
        return [None if row is None else rows.chain_state(row) for row in found]

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read closed chains up to a portion of bytes; for the others only the status."""
        found: list[ChainRecord | ChainStatus | None] = []
        size = 0
        with self._reading() as connection:
            now = now_us()
            for id in ids:
                status = fetch_value(connection, "chain_status", id=id, now=now)
                if status is None or status == ChainStatus.OPEN or size >= portion:
                    found.append(None if status is None else ChainStatus(status))
                    continue
                row = fetch_one(connection, "get_chain", id=id, now=now, payloads=True)
                chain = None if row is None else rows.chain(row)
                size += 0 if chain is None else len(chain.input) + len(chain.output or "")
                found.append(chain)
        return found


def _renew(connection: Connection, renewal: Renewal) -> bool:
    expires = now_us() + rows.microseconds_of(renewal.seconds)
    lease = renewal.lease
    reported = {"expires": expires, "progress": renewal.progress}
    held = execute(connection, "renew", id=lease.job_id, token=lease.token, **reported) > 0
    if held and renewal.logs_progress:
        add_event(connection, EventKind.PROGRESSED, lease.job_id, of_worker=True)
    return held


def _release(connection: Connection, lease: Lease) -> bool:
    held = execute(connection, "release", id=lease.job_id, token=lease.token) > 0
    if held:
        add_event(connection, EventKind.RELEASED, lease.job_id, of_worker=True)
    return held
