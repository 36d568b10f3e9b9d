# Generated from queuert/state/async_store.py, do not edit: see scripts/unasync.py
"""The operations of a store. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from queuert.jobs import AbortReason, ChainRecord, ChainStatus, Job
from queuert.notify.adapter import Announcement
from queuert.state.adapter import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    ReapRequest,
    ReapResult,
    Renewal,
    StartedJob,
    StoreRisk,
)
from queuert.state.paging import CLOSED_PORTION
from queuert.state.sync_events import EventStore
from queuert.state.sync_listing import ListingStore
from queuert.state.sync_outside import OutsideStore
from queuert.state.sync_recurrence import RecurrenceStore
from queuert.state.sync_registry import RegistryStore
from queuert.state.sync_retention import RetentionStore


class StoreTransaction(Protocol):
    """An open transaction of the store that holds one job: the caller's writes and the job's ending commit together."""

    @property
    def connection(self) -> Any:
        """The store's own connection, for the caller's writes (psycopg's, for Postgres).

        Raises:
            UnsupportedConnectionError: this store has none that such writes could be made on.
        """
        ...

    @property
    def holds(self) -> bool:
        """Whether nobody else can take the job while the block is open. If not, its lease must be renewed meanwhile."""
        ...

    def cut(self) -> None:
        """End the transaction's connection, from any thread: whoever waits on it fails, nothing of it is written."""
        ...

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the ending inside the transaction. It stands when the transaction commits.

        If it is the ``last`` that is asked of this transaction, the store may commit at once.
        What the result says of jobs that became due is complete when the transaction has committed, not before.
        """
        ...


class Store(
    OutsideStore,
    ListingStore,
    RecurrenceStore,
    RetentionStore,
    RegistryStore,
    EventStore,
    Protocol,
):
    """Jobs in a store, many at a time.

    Every method may raise :class:`~queuert.errors.StateUnavailableError` (the store is out of reach: the outcome of a
    write is unknown, repeat it, all of them can be) and :class:`~queuert.errors.StateError` (it refused).
    """

    @property
    def risks(self) -> Sequence[StoreRisk]:
        """What may become of jobs that were acknowledged, as the server is set; as was seen when it was opened."""
        ...

    def open(self) -> None:
        """Connect. Idempotent; raises SchemaMissingError when the schema is not there."""
        ...

    def close(self) -> None:
        """Let go of all connections; what is under way on them fails. Idempotent."""
        ...

    def start_jobs(
        self, jobs: Sequence[NewJob], *, connection: Any = None, announcement: Announcement | None = None
    ) -> list[StartedJob]:
        """Write the first jobs of new chains: all or none, results in the order asked.

        With ``connection`` they are written in the caller's transaction and stand when it commits. A job with blockers
        that are open is BLOCKED, one scheduled for later SCHEDULED, any other READY.

        A job with ``deduplication`` is not written if a chain stands in for it: the newest that matches, which is
        returned instead. Starts of one key wait for each other's outcome; within a batch the first of a key decides.
        One with ``attach`` is not written if a chain of its id exists. A job that is not written needs none of its
        blockers, and its ``result_ttl`` changes nothing.

        A chain that has expired stands in for nothing; it is deleted where its id is wanted anew.

        The ``announcement`` is of the types of all these jobs. The store may send it behind the write; if that fails,
        or the store leaves it alone, the jobs stand all the same, and the announcement says that it has not arrived.

        Raises:
            JobIdConflictError: a chosen id exists, as a job that is not the first of its chain or without ``attach``,
                or as a chain that has expired and is a blocker of a job that has not ended.
            JobTypeMismatchError: with ``attach``: the chain that exists is of another type.
            ChainNotFoundError: a blocker does not exist; one of the same batch does not exist yet.
        """
        ...

    def start_parts(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains as they are made: all or none, results in the order given.

        A store may write one part while the next is being made. What making one raises is raised here, and nothing
        stands then. They have no ids of their own choice, no blockers and no ``deduplication``, so that nothing of
        what is there can stand in their way.
        """
        ...

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs: READY ones and SCHEDULED ones whose time has come, best first.

        Best is the highest priority, less one for each attempt that failed by the job's own doing (a worker's stop or
        death is not): the rank. Of one rank, the types take turns, in the order of ``request.leases``: each with its
        longest due, then each with its next. With ``request.after_rank``, jobs of worse rank than that go before all
        others, in the same order. Of scheduled jobs whose time has come, the longest due are looked at, and there they
        count as of the first of these ranks at best. The answer has the best first, of one rank the longest due.

        Claimed jobs are RUNNING, their attempt
        counted. Jobs that another claim holds are skipped, never waited for. Fewer than asked means that no more were
        to be had. The cost depends on the limit and the number of types, not on the backlog.

        Nothing is claimed of paused types, and no more than ``request.limits`` allow of the types that they name, by
        all holders together; a job that its key holds back does not hold back those of other keys.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases. An expired one that was not reaped is saved. Progress is kept where the lease is extended.

        False where it was not extended: the lease is lost, or another transaction has the job locked just now;
        ``lost_reasons`` tells which.
        """
        ...

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """End attempts of many kinds. Each is written if, and only if, its token still holds the job.

        COMPLETE, FAIL and CANCEL close the chain and release the jobs that waited for it; CONTINUE creates the next job
        in the same step; RETRY and INTERRUPT make the job due again; WAIT starts chains and blocks the job until they,
        and the others that it names, have closed. A lost one writes nothing and does not disturb the
        others. What the store refuses (a continuation's id exists, also as that of another one of the batch, or its
        blocker does not) raises for the whole batch, of which nothing is written then: ask again one by one.

        Rows that another transaction has locked are waited for, unless ``wait`` is false: such endings are ``pending``
        then, and the others are written.

        Raises:
            JobIdConflictError: the chosen id of a continuation exists.
            ChainNotFoundError: a continuation's blocker does not exist.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> int:
        """Give back jobs that were claimed and not started: due at once, the attempt not counted. Returns how many."""
        ...

    def release_claim(self, request: ClaimRequest) -> int:
        """Give back all that a claim took, when its answer was lost. As ``release``; returns how many there were."""
        ...

    def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts: backed off, counted, FAILED at the cap. Renewed ones are let be."""
        ...

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Why each lease does not hold its job; None for those that do, and for those that ended it themselves."""
        ...

    def next_due(self, types: Sequence[str]) -> float | None:
        """Seconds until the next job of these types is due: 0 when one is, None when none is scheduled."""
        ...

    def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs in the order asked; None for those that do not exist."""
        ...

    def get_chains(self, ids: Sequence[str]) -> list[ChainRecord | None]:
        """Read chains in the order asked; None for those that do not exist."""
        ...

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read chains that have closed, for whoever waits for them, in the order asked.

        Of one that is open the answer is its status: nothing of its payloads is read. So it is of one that has closed
        when those before it fill the ``portion``, in bytes of inputs, outputs and errors as they are stored; ask for it
        again. One at least is read if any has closed. None for those that do not exist.
        """
        ...

    def transaction(self, job: ClaimedJob) -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that holds the job by its lease until it ends. It commits when the block ends well.

        Where the transaction ``holds``, nobody else can take, reap or cancel the job meanwhile; otherwise the commit is
        refused if somebody did. When the answer to the commit is lost, the outcome is
        resolved by reading.

        Raises:
            LeaseLostError: the lease does not hold the job any more; nothing was begun.
        """
        ...
