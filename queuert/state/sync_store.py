# Generated from queuert/state/async_store.py, do not edit: see scripts/unasync.py
"""The contract of a store: what each operation promises. ``sync_store.py`` is generated from this module.

Operations take and return arrays, are atomic, and use the clock of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NoReturn, Protocol

from queuert.errors import CapabilityMissingError
from queuert.event_log import EventFilter, EventLevel, EventLog, EventLogMaintenance, JobEvent
from queuert.jobs import AbortReason, ChainRecord, ChainStatus, Job, TtlUpdate
from queuert.notify.adapter import PiggybackNotification
from queuert.state.paging import CLOSED_PORTION, ChainFilter, JobFilter, Page, PageRequest
from queuert.state.types import (
    BlockerRecord,
    ChainUpdate,
    ClaimedJob,
    ClaimRequest,
    DeleteResult,
    DueSchedules,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    PausedType,
    PruneRequest,
    PruneResult,
    ReapRequest,
    ReapResult,
    Renewal,
    ScheduleRecord,
    StagingCleanup,
    StartedJob,
    StoreWarning,
    SweepResult,
    TriggeredJob,
    TypeCount,
    WorkerlessCompletion,
)
from queuert.workers import WorkerHeartbeat, WorkerRecord


class ListingStore(Protocol):
    """Read pages. A page costs as much as its entries and the types it looks through, not as much as the table.

    All raise InvalidCursorError for a cursor that is not of this listing.
    """

    def list_chains(self, filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
        """Chains by the time they were started."""
        ...

    def list_jobs(self, filter: JobFilter, page: PageRequest) -> Page[Job]:
        """Jobs by the time they were created."""
        ...

    def list_chain_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs of one chain in their order; the last first unless ``oldest_first``."""
        ...

    def list_dependents(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs that have this chain among their blockers, by id, whatever their status."""
        ...

    def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        """The chains that a job waits for or waited for, in the order in which they were given."""
        ...

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Jobs by type and status, of all types or of some; numbers above ``exact_up_to`` may be estimates."""
        ...


class ManagementStore(Protocol):
    """Complete, cancel, retry, trigger and delete, many at a time.

    All are all-or-nothing. With ``connection`` they are part of the caller's transaction, and the store sends the
    notifications
    (jobs that became due, chains that closed, leases that were taken away) when it commits; otherwise the caller sends
    them from the results. Rows that others have locked are waited for. A running job loses its lease with its status:
    its holder's finish is refused.
    """

    def complete_chains(
        self, completions: Sequence[WorkerlessCompletion], *, connection: Any = None
    ) -> list[ChainUpdate]:
        """End the last job of each chain with an output or a continuation, whatever it was waiting for.

        If one of the chains has closed, or has gone on to another last job than ``tail_id``, nothing is written for any
        of them: the results say how each was met, ``written`` false.

        Raises:
            ChainNotFoundError: one of them, or a continuation's blocker, does not exist.
            JobIdConflictError: the chosen id of a continuation exists.
        """
        ...

    def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones stay as they are.

        Jobs that waited for them are released.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        ...

    def retry_chains(self, ids: Sequence[str], *, connection: Any = None) -> list[ChainUpdate]:
        """Open failed and cancelled chains again: their last job is due at once, with all its attempts before it.

        Its attempts so far do not count any more. Where chains that it waited for are open again, it waits again.

        Raises:
            ChainNotFoundError: one of them does not exist.
            ChainNotRetriableError: one of them is open or completed.
        """
        ...

    def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now, results in the order asked. Ready ones stay as they are.

        Raises:
            JobNotFoundError: one of them does not exist.
            JobNotTriggerableError: one of them is blocked, running, or has ended.
        """
        ...

    def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs, whatever their status; those that do not exist are passed over.

        With ``cascade`` the chains that any of their jobs waited for go with them, and so on down.

        Raises:
            BlockerReferenceError: a job that is not deleted with them has one of them as its blocker.
        """
        ...

    def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed: what a bug or a statement by hand left behind.

        Looks at up to ``limit`` blocked jobs, from ``cursor`` on; passes over rows that others have locked.
        """
        ...


class ScheduleStore(Protocol):
    """Schedules have no leader: whoever sees a tick first writes its chain, and the others find it written."""

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. One that is there keeps its pause; if its times are the same, also its next tick."""
        ...

    def delete_schedules(self, names: Sequence[str]) -> int:
        """Delete schedules; how many there were. Their chains stay."""
        ...

    def list_schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        ...

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause schedules, or let them go on; how many there are of these names. Ticks meanwhile count as missed."""
        ...

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """The schedules of these job types whose next tick has come, and is not paused, the longest due first."""
        ...

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and move it on, if its next tick still is ``tick``.

        Chains that exist (their ids are those of their ticks) are left as they are. But a job of another type that has
        the id does not stand for the tick: its chain is started under a new id. One answer for each of the jobs, in
        their order. None: somebody else fired it, it was changed or deleted; nothing was written.
        """
        ...

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None) -> None:
        """Claim no more jobs of these types, anywhere. Running ones go on. Idempotent."""
        ...

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Claim jobs of these types again; those that were paused."""
        ...

    def list_paused_job_types(self) -> list[PausedType]:
        """The paused types, by name."""
        ...


class WorkerStore(Protocol):
    """Who is at work. Informational: no other operation may depend on what is here."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float) -> None:
        """Note that a worker is alive, and what it is at: it is listed for ``ttl`` seconds from now.

        Its ``started_at`` is set by the first beat, ``uptime`` seconds before now, and kept by those that follow; its
        ``seen_at`` is now. Workers whose time is over are forgotten by the way; one of them that beats again is there
        again.
        """
        ...

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker that has stopped. One that is not there is no error."""
        ...

    def list_workers(self) -> list[WorkerRecord]:
        """The workers whose last beat is not older than its ttl, the longest running first, then by id."""
        ...


class RetentionStore(Protocol):
    """Ends of closed chains, many at a time.

    A chain that closes with a ``result_ttl`` expires so many seconds later, by the store's clock. From then on it is
    gone for ``get_chains``, for ``update_result_ttl`` and for starts, whether its rows are there or not.
    """

    def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now instead, results in the order asked.

        Open chains keep the TTL that they were started with, and so does a closed one for when it is retried.

        Raises:
            ConfigurationError: ``seconds`` is not above 0, or more than a hundred years.
        """
        ...

    def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep.

        With a chain go all its jobs, and its entries among the blockers of jobs that have ended. One that a job which
        has not ended has as a blocker stays until that job has. Chains that others hold are passed over, never waited
        for.

        Raises:
            InvalidCursorError: the cursor is not one of this operation.
        """
        ...

    def clean_staging(self) -> StagingCleanup:
        """Remove what bulk writes have staged whose drivers died, and forget those that nobody can ask for any more.

        A staging table that is being loaded stays, and so does one that another role made.
        """
        ...


class EventStore(Protocol):
    """What happened to jobs, for stores with the capability ``events``.

    Other stores raise :class:`~queuert.errors.CapabilityMissingError` from all of these.
    """

    def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """Events by ``(tx, seq)``. With ``oldest_first`` only those before which no other can come in any more.

        A page may hold fewer than were asked for, or none, and still name where the next begins: that is how far was
        looked.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
            EventsLostError: the log does not go on from the cursor: retention, or a failover, took events.
            DatabaseMovedError: the log has numbers of another cluster: run ``queuert migrate adopt``.
        """
        ...

    def get_event_log(self) -> EventLog:
        """What is written to the log, and how long it is kept."""
        ...

    def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or of all that have none of their own; None takes away that of the types."""
        ...

    def set_event_retention(self, days: int) -> None:
        """Set for how many days events are kept."""
        ...

    def maintain_event_log(self) -> EventLogMaintenance:
        """Make room for the days to come and drop what is too old, a bounded amount of it; wait for nobody for long.

        If the result says ``more``, something is left: call it again.

        Whoever comes while another is at it does nothing.
        """
        ...


class StoreTransaction(Protocol):
    """An open transaction of the store that holds one job: the caller's writes and the job's finish commit together."""

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
        """Write the finish inside the transaction. It stands when the transaction commits.

        If it is the ``last`` that is asked of this transaction, the store may commit at once.
        What the result says of jobs that became due is complete when the transaction has committed, not before.
        """
        ...


class Store(
    ManagementStore,
    ListingStore,
    ScheduleStore,
    RetentionStore,
    WorkerStore,
    EventStore,
    Protocol,
):
    """Jobs in a store, many at a time.

    Every method may raise :class:`~queuert.errors.StateUnavailableError` (the store is out of reach: the outcome of a
    write is unknown, repeat it, all of them can be) and :class:`~queuert.errors.StateError` (it refused).
    """

    @property
    def risks(self) -> Sequence[StoreWarning]:
        """What may become of jobs that were acknowledged, as the server is set; as was seen when it was opened."""
        ...

    def open(self) -> None:
        """Connect. Idempotent; raises SchemaMissingError when the schema is not there."""
        ...

    def close(self) -> None:
        """Let go of all connections; what is under way on them fails. Idempotent."""
        ...

    def start_jobs(
        self, jobs: Sequence[NewJob], *, connection: Any = None, notification: PiggybackNotification | None = None
    ) -> list[StartedJob]:
        """Write the first jobs of new chains: all or none, results in the order asked.

        With ``connection`` they are written in the caller's transaction and stand when it commits. A job with blockers
        that are open is BLOCKED, one scheduled for later SCHEDULED, any other READY.

        A job with ``deduplication`` is not written if a chain is a duplicate of it: the newest that matches, which is
        returned instead. Starts of one key wait for each other's outcome; within a batch the first of a key decides.
        One with ``attach`` is not written if a chain of its id exists. A job that is not written needs none of its
        blockers, and its ``result_ttl`` changes nothing.

        A chain that has expired is a duplicate of nothing; it is deleted where its id is wanted anew.

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

        Rows that another transaction has locked are waited for, unless ``wait`` is false: such finishes are ``pending``
        then, and the others are written.

        Raises:
            JobIdConflictError: the chosen id of a continuation exists.
            ChainNotFoundError: a continuation's blocker does not exist.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were claimed and not started: due at once, the attempt not counted. Returns how many."""
        ...

    def release_claim(self, request: ClaimRequest) -> int:
        """Release all that a claim took, when its answer was lost. As ``release``; returns how many there were."""
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


def _refuse() -> NoReturn:
    raise CapabilityMissingError("events", "keep the jobs in Postgres, which has an event log")


class NoEvents:
    """The operations on the event log, each of which says that there is none."""

    def list_events(self, filter: EventFilter, page: PageRequest) -> NoReturn:
        """Refused."""
        _refuse()

    def get_event_log(self) -> NoReturn:
        """Refused."""
        _refuse()

    def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> NoReturn:
        """Refused."""
        _refuse()

    def set_event_retention(self, days: int) -> NoReturn:
        """Refused."""
        _refuse()

    def maintain_event_log(self) -> NoReturn:
        """Refused."""
        _refuse()
