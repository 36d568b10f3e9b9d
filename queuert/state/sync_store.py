# Generated from queuert/state/async_store.py, do not edit: see scripts/unasync.py
"""The contract of a store: what each operation promises. ``sync_store.py`` is generated from this module.

Operations take and return arrays, are atomic, and use the clock of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from queuert.activity import (
    HOURS_KEPT,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
)
from queuert.event_log import EventFilter, EventLevel, EventLog, EventLogEnd, EventLogMaintenance, JobEvent
from queuert.jobs import AbortReason, Attributes, ChainRecord, ChainState, ChainStatus, Job, JobStatus, TtlUpdate
from queuert.limits import PausedType, TypeTraits
from queuert.notify.adapter import PiggybackAdapter
from queuert.run_at import RunAt
from queuert.state.paging import CLOSED_PORTION, ChainFilter, JobFilter, Page, PageRequest
from queuert.state.steps import EventWait, NewEvent, NewStep, SendResult, StepRecord
from queuert.state.types import (
    COUNTED_DEMAND,
    BlockerLink,
    BlockerRecord,
    ChainUpdate,
    ClaimedJob,
    ClaimRequest,
    DeleteResult,
    DueSchedules,
    Finish,
    FinishResult,
    InputEdit,
    Lease,
    NewJob,
    PoolUse,
    PruneRequest,
    PruneResult,
    ReapRequest,
    ReapResult,
    ReleasedClaim,
    Renewal,
    ScheduleDelay,
    ScheduleRecord,
    StagingCleanup,
    StartedJob,
    StoreWarning,
    SweepResult,
    TriggeredJob,
    TypeCount,
    TypeDemand,
    WaitFacts,
    WorkerlessCompletion,
)
from queuert.state.webhooks import NewWebhookAttempt, WebhookAttempt, WebhookRecord, WebhookWrite
from queuert.workers import WorkerHeartbeat, WorkerRecord


class ListingStore(Protocol):
    """Reads pages. The cost of a page depends on its entries and the number of job types, not on the size of the table.

    All operations raise InvalidCursorError for a cursor that is not of this listing. With ``connection`` they read in
    the caller's transaction, and so what it has written and not committed.
    """

    def list_chains(
        self, filter: ChainFilter, page: PageRequest, *, payloads: bool = True, connection: Any = None
    ) -> Page[ChainRecord]:
        """List chains by the time of their start. ``payloads`` is that of ``get_chains``."""
        ...

    def list_jobs(self, filter: JobFilter, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List jobs by the time of their creation."""
        ...

    def chains_of_key(
        self, type: str, key: str, *, only_open: bool = True, limit: int = 100, connection: Any = None
    ) -> list[str]:
        """Return the ids of the chains of a deduplication key, the newest first; all that are stored, or open ones."""
        ...

    def list_chain_jobs(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs of one chain in order, the last first unless ``oldest_first``."""
        ...

    def list_dependents(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs that have this chain among their blockers, by id, whatever their status."""
        ...

    def get_blockers(self, job_id: str, *, outputs: bool = True, connection: Any = None) -> list[BlockerRecord]:
        """Return the chains that a job waits for or waited for, in the order in which they were passed.

        Without ``outputs`` their outputs, which may be large, and errors are not read, and None.
        """
        ...

    def get_blocker_links(self, chain_ids: Sequence[str], *, limit: int, connection: Any = None) -> list[BlockerLink]:
        """Return which chains the jobs of these chains wait for or waited for, the first ``limit`` of each chain.

        In the order of the given chains, each once, of their jobs, and within a job as the blockers were passed.
        """
        ...

    def get_dependent_links(
        self,
        chain_ids: Sequence[str],
        *,
        statuses: Collection[JobStatus],
        limit: int,
        excluding: Collection[str] = (),
        connection: Any = None,
    ) -> list[BlockerLink]:
        """Return which jobs of some statuses wait for these chains or waited for them, the first ``limit`` of each.

        In the order of the given chains, each once, and of the ids of the jobs. Jobs of the chains ``excluding`` are
        left out, and do not count. A scheduled job counts as SCHEDULED, whether it is due or not.
        """
        ...

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Count jobs by type and status, of all types or some; numbers above ``exact_up_to`` may be estimates."""
        ...

    def get_demand(
        self, types: Sequence[str] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Count, by type, the jobs that could be claimed now and those that run; types without any are left out.

        What limits and pauses hold back is counted apart. The limits are those that the last worker with a handler of
        the type recorded with its heartbeat. Of each status, counting ends at ``counted_up_to``; of a type with limits
        by key, as many keys are looked at.
        """
        ...

    def get_wait_facts(self, job_id: str) -> WaitFacts | None:
        """Return what decides whether a job can be claimed now; None if the job does not exist."""
        ...


class ManagementStore(Protocol):
    """Completes, cancels, retries, changes, triggers and deletes, many at a time, all or none; sends events.

    Redis writes more than 25 chains in several scripts: what others change meanwhile is left as it is, and reported as
    not written; if others delete one meanwhile, the call raises, and what was written before stays. So does it if the
    process dies between two: the same call then does the rest.

    With ``connection`` the operations are part of the caller's transaction, and the store sends the notifications (jobs
    that became due, chains that closed, leases that were lost) when it commits; otherwise the caller sends them from
    the results. The operations wait for rows that others have locked. A running job loses its lease with its status:
    the finish of its holder is rejected.
    """

    def complete_chains(
        self,
        completions: Sequence[WorkerlessCompletion],
        *,
        cancel: Sequence[str] = (),
        reason: str = "",
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Finish the last job of each chain with an output or a continuation, whatever its status.

        With it, the chains of ``cancel`` are cancelled, as by ``cancel_chains``; their results come after the others.
        If one of the first has closed, or has another last job than ``tail_id``, nothing is written: each result has
        ``written`` false and the status that was found, and those of ``cancel`` have none.

        Raises:
            ChainNotFoundError: one of them, or of ``cancel``, or a continuation's blocker, does not exist.
            JobIdConflictError: the chosen id of a continuation exists.
        """
        ...

    def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones are not changed.

        Jobs that waited for them are released. A store that changes many chains in several steps leaves out of its
        results, here and below, what is deleted between the check of all and its own step.

        Raises:
            ChainNotFoundError: some of them do not exist; it names them all.
        """
        ...

    def retry_chains(
        self, ids: Sequence[str], *, edit: InputEdit | None = None, connection: Any = None
    ) -> list[ChainUpdate]:
        """Retry failed and cancelled chains: their last job becomes due at once, and its earlier attempts do not count.

        If chains that it waited for are open again, it waits again. With ``edit`` one of the last jobs gets a new
        input.

        Raises:
            ChainNotFoundError: some of them do not exist; it names them all.
            ChainNotRetriableError: some of them are open or completed; it names them all.
            JobNotFoundError: the job of ``edit`` is not the last one of one of the chains.
        """
        ...

    def change_waiting_jobs(
        self,
        ids: Sequence[str],
        *,
        run_at: RunAt | None = None,
        priority: int | None = None,
        edit: InputEdit | None = None,
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Give the last jobs of chains another due time or priority, if they are BLOCKED, SCHEDULED or READY.

        ``ids`` are those of the chains. A blocked job keeps waiting, and is due no earlier than ``run_at``. The others
        (running, closed) are not changed: their results have ``written`` false. With ``edit`` one of the last jobs gets
        a new input, if it waits.

        Raises:
            ChainNotFoundError: some of them do not exist; it names them all.
            JobNotFoundError: the job of ``edit`` is not the last one of one of the chains.
        """
        ...

    def start_bulk_operation(self, job: NewJob) -> StartedJob:
        """Start the chain of a bulk operation, which needs the right to manage chains where the store has roles."""
        ...

    def is_bulk_operation(self, chain_id: str, *, connection: Any = None) -> bool:
        """Whether the chain was started by ``start_bulk_operation``; True where the store has no roles."""
        ...

    def bound_lock_waits(self, seconds: float | None, *, connection: Any) -> None:
        """Let no later statement of the caller's transaction wait longer for a lock, where there are locks of rows.

        What the login may wait is not lengthened; without ``seconds`` it is what counts again. An operation that would
        have to wait longer raises a StateUnavailableError that :func:`queuert.state.types.was_lock_timeout` knows, and
        the transaction can go on.
        """
        ...

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
        """Return those of the chains that cannot be changed now, since others have locked rows of theirs.

        It waits for no row, and locks the others for the caller's transaction: first and last jobs, with ``blockers``
        the open chains that the last jobs wait for, with ``dependents`` the jobs that wait for the chains; with
        ``members`` all jobs, as for a deletion. The writes that follow wait for locks as ``bound_lock_waits`` says. A
        chain that does not exist counts as held. Empty where there are no locks of rows.

        Only batches of bulk operations may call it: they take turns, and each holds its turn until its transaction
        ends. Otherwise one would leave out what another has locked, though it is free a moment later. So a call waits
        for the batch before it, and for nobody else.
        """
        ...

    def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now, results in the order of the ids. Ready jobs are not changed.

        Raises:
            JobNotFoundError: one of them does not exist.
            JobNotTriggerableError: one of them is blocked, running or finished.
        """
        ...

    def send_event(self, chain_id: str, event: NewEvent, *, connection: Any = None) -> SendResult:
        """Keep an event for an open chain until a job of it takes it, and make its last job due if that waits for it.

        An event whose id was sent to the chain before, and perhaps taken, is not written, also if the chain is closed.

        Raises:
            ChainNotFoundError: the chain does not exist.
            ChainAlreadyClosedError: the chain is closed.
            EventLimitError: the chain keeps 1,000 events, or 16 MiB of payloads with this one.
        """
        ...

    def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs, whatever their status; ids that do not exist are ignored.

        With ``cascade`` the blockers of their jobs are deleted as well, and the blockers of those, and so on.

        Raises:
            BlockerReferenceError: some of them are blockers of jobs that are not deleted; it names them all.
        """
        ...

    def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release stranded jobs: blocked jobs all of whose blockers have closed, because of a bug or a manual edit.

        It reads up to ``limit`` blocked jobs, from ``cursor`` on, and skips rows that others have locked.
        """
        ...


class ScheduleStore(Protocol):
    """Stores and fires schedules, without a leader: the first worker to see a tick writes its chain."""

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name. An existing one stays paused, and keeps its next tick if its times are the same.

        Raises:
            ScheduleOwnerError: a schedule of one of the names belongs to another owner, or to none where one is given;
                nothing was written.
        """
        ...

    def delete_schedules(self, names: Sequence[str], *, owner: str | None = None) -> int:
        """Delete schedules, with ``owner`` only those of the owner; return how many were. Their chains remain."""
        ...

    def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        ...

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist. Ticks during a pause count as missed."""
        ...

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules of these job types that are due and not paused, the longest due first."""
        ...

    def schedule_delays(self) -> list[ScheduleDelay]:
        """Return the schedules of all job types that are due and not paused, the longest due first.

        A schedule stays due for as long as no worker starts the chain of its tick. It reads no inputs, so that whoever
        only observes may call it.
        """
        ...

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it to ``next_at``, if its next tick still is ``tick``.

        Chains that exist (their ids are those of their ticks) are not changed. If a job of another type has the id, the
        chain of the tick is started under a new id. Returns one result for each of the jobs, in order; or None if
        another worker fired the tick, or the schedule was changed or deleted: then nothing was written.

        If the chain that the schedule started last is open and its ``overlap`` is SKIP, the schedule is advanced, and
        the list is empty. Ticks that come again, as the clock was set back, and whose chains all exist, only advance
        the schedule.

        Raises:
            ScheduleOverlapError: the ``overlap`` is CANCEL, that chain is open, and these jobs would start one. Nothing
                was written: cancel the chain, and call it again.
        """
        ...

    def run_schedule(self, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
        """Start chains of a schedule out of turn, paused or not; its ticks stay as they are.

        With ``overlap`` they are started whatever is open, and do not count as the chain that it started last. Without,
        its policy decides: with SKIP, the list is empty. Chains that exist are not changed. Returns None if the
        schedule does not exist or has another job type, or if the open chain must be cancelled first.
        """
        ...

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None, by: str | None = None) -> None:
        """Stop all claims of these job types. Running jobs keep running. Idempotent.

        A type that is paused already keeps its time and ``by``, and its reason unless a new one is given.
        """
        ...

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        ...

    def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        ...


class WorkerStore(Protocol):
    """Stores the heartbeats of workers, and what they did. No other operation may depend on either."""

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None = None) -> datetime:
        """Record a heartbeat, so that the worker is listed for ``ttl`` seconds from now, and return the store's time.

        The first heartbeat sets ``started_at`` to ``uptime`` seconds before now, and later ones keep it; ``seen_at`` is
        now. The limits of the job types replace those that are stored, and are kept when the worker is gone. The
        operation also deletes expired workers; one that sends a heartbeat again is listed again.

        ``activity`` is added to what is stored of the worker, minute and job type, unless its number is not above that
        of the last report that was added there: a report may be sent again. All of it is written, or nothing.
        """
        ...

    def remove_worker(self, worker_id: str, activity: ActivityReport | None = None) -> None:
        """Delete a worker that has stopped, if it is listed, and add its ``activity`` as ``record_heartbeat`` does."""
        ...

    def get_activity(self, filter: ActivityFilter) -> list[Activity]:
        """Return what workers did, by the begin of the minute or hour, then by type and worker.

        Minutes are returned as far as they are kept, and hours before them. Hours have no workers. What is summed is in
        one snapshot; on Redis, minutes that are added up to an hour meanwhile may be missing.
        """
        ...

    def maintain_activity(
        self, *, limit: int = 1_000, minutes_kept: float = MINUTES_KEPT, hours_kept: float = HOURS_KEPT
    ) -> ActivityMaintenance:
        """Add minutes up to hours, without their workers, and drop hours that are too old: ``limit`` rows at most.

        Minutes are added up when their hour is over for ``minutes_kept`` seconds. Hours are dropped ``hours_kept``
        seconds after they began. Calls of several workers at the same time do not wait for each other for long.
        """
        ...

    def list_type_traits(self, *, connection: Any = None) -> list[TypeTraits]:
        """Return what is particular to job types, by name, as workers have recorded it."""
        ...

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers whose last heartbeat is not older than its ttl, the longest running first, then by id."""
        ...

    def count_held(self, holders: Sequence[str]) -> dict[str, int]:
        """Return how many jobs each of these workers has leased now; those without any are left out.

        Batches of bulk operations do not count: a worker does them beside its slots.
        """
        ...


class RetentionStore(Protocol):
    """Expires and prunes closed chains, many at a time.

    A chain that closes with a ``result_ttl`` expires so many seconds later, by the store's clock. From then on
    ``get_chains``, ``update_result_ttl`` and starts treat it as deleted, whether its rows still exist or not.
    """

    def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now, results in the order of the ids.

        The TTL that a chain was started with does not change: it applies when an open chain closes, and again when a
        closed chain is retried and closes anew.

        Raises:
            ConfigurationError: ``seconds`` is not above 0, or more than a hundred years.
        """
        ...

    def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep.

        If the retention has a stale time, a chain that it does not keep first becomes stale (``ChainRecord.stale_at``),
        with an event ``stale``, and is deleted so many seconds later, with events ``deleted``. A retry ends that.

        All jobs of a chain are deleted with it, and its entries among the blockers of finished jobs. A chain that is a
        blocker of an unfinished job is kept until that job has finished. Chains that others have locked are skipped.

        Raises:
            InvalidCursorError: the cursor is not one of this operation.
        """
        ...

    def clean_staging(self) -> StagingCleanup:
        """Delete the staged rows of bulk writes whose drivers died, and the records of old bulk writes.

        A staging table that is being loaded is kept, and so is one that another role created.
        """
        ...


class EventStore(Protocol):
    """Reads and maintains the event log, in stores with the capability ``events``.

    Other stores raise :class:`~queuert.errors.CapabilityMissingError` from all of these operations.
    """

    def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """List events by ``(tx, seq)``; with ``oldest_first`` only those before which no other can be committed.

        A page may have fewer events than the limit, or none, and still have a cursor, which says how far the log was
        read.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
            EventsLostError: retention or a failover removed events after the cursor, or it is of another database.
            DatabaseMovedError: the log of Postgres has numbers of another cluster: run ``queuert migrate adopt``.
        """
        ...

    def event_log_end(self) -> EventLogEnd:
        """Return the end of the event log."""
        ...

    def get_event_log(self) -> EventLog:
        """Return the settings of the log, and its partitions, if the store has partitions."""
        ...

    def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or the default of all others; None removes the level of the types."""
        ...

    def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how many days events are kept, and how many at most; None changes nothing.

        Raises:
            ConfigurationError: one is out of range, or the store does not bound the number of events.
        """
        ...

    def maintain_event_log(self) -> EventLogMaintenance:
        """Create the partitions of the days to come and drop those that are too old, in a round of bounded work. A
        store without partitions deletes old events.

        It does not wait long for locks, and does nothing while another call is running. If the result has ``more`` set,
        call it again.
        """
        ...


class StoreTransaction(Protocol):
    """An open transaction of the store, in which the caller's writes and the finish of one job commit together."""

    @property
    def connection(self) -> Any:
        """The connection of the transaction, for the caller's writes (psycopg's, for Postgres).

        Raises:
            UnsupportedConnectionError: this store has no connection for writes of the caller.
        """
        ...

    @property
    def locks_job(self) -> bool:
        """Whether the transaction locks the job, so that its lease needs no renewal meanwhile."""
        ...

    def abort(self) -> None:
        """Close the transaction's connection, from any thread: calls that wait on it fail, and nothing is written."""
        ...

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction; it takes effect when the transaction commits.

        If it is the ``last`` operation of this transaction, the store may commit at once. The ``due_types`` of the
        result are complete only when the transaction has committed.
        """
        ...

    def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job inside the transaction; it takes effect when the transaction commits.

        Raises:
            LeaseLostError: the lease is lost.
            CapabilityMissingError: this store has no connection for writes of the caller.
        """
        ...


class StepStore(Protocol):
    """Stores the steps of jobs, and the events that are sent to chains until a step takes them.

    Steps are deleted with their job, and events with their chain. Both are kept when a chain is retried.
    """

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease, and return it.

        Raises:
            LeaseLostError: the lease is lost; nothing was written.
            StateError: the job has a step of this number; nothing was written.
        """
        ...

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job in the order of their numbers; none if the job does not exist."""
        ...

    def begin_phase(self, lease: Lease, progress: str) -> datetime:
        """Store the progress of a job whose phase begins, and return the time, if the token has the job's lease.

        With the capability ``events`` it writes the event ``phase_started``. A phase ends with ``record_step`` of a
        step that has ``started_at`` and ``progress``, which stores both, and writes ``phase_completed``.

        Raises:
            LeaseLostError: it does not; nothing was written.
        """
        ...

    def get_progress(self, job_id: str) -> str | None:
        """Return the progress of a job as it is stored, of whatever attempt; None if there is none, or no such job."""
        ...

    def wait_for_event(self, lease: Lease, wait: EventWait) -> StepRecord:
        """Record a wait as the next step of a job, if it is not recorded yet, and try to answer it.

        If events of the name were sent to the chain and not taken, the step takes the one that was sent first, and
        another step never takes it. Otherwise, if its timeout is over, the step ends without an event. Otherwise it is
        returned unanswered: finish the attempt with SNOOZE until ``wake_at`` and ``waits_for_event``. The job is then
        due at ``wake_at``, or as soon as an event of the name is sent, also if it was sent since this call.

        Raises:
            LeaseLostError: the lease is lost; nothing was written.
            StateError: the job has another step of this number; nothing was written.
        """
        ...


class WebhookStore(Protocol):
    """Stores the log of what was sent to webhooks, and records, which are texts whose meaning it does not know."""

    def get_webhook_records(self, kind: str, ids: Sequence[str] | None = None) -> list[WebhookRecord]:
        """Return the records of a kind that exist, by id; all of them without ``ids``."""
        ...

    def put_webhook_record(self, write: WebhookWrite) -> bool:
        """Write or delete a record, if its tag is the expected one. Return whether it was."""
        ...

    def record_webhook_attempts(self, attempts: Sequence[NewWebhookAttempt]) -> None:
        """Write attempts at deliveries, with the time of the store's clock."""
        ...

    def list_webhook_attempts(self, endpoint_id: str, page: PageRequest) -> Page[WebhookAttempt]:
        """Return attempts at deliveries to an endpoint, the newest first, whether or not the endpoint exists.

        Raises:
            InvalidCursorError: the cursor does not belong to this listing.
        """
        ...

    def prune_webhook_attempts(self, older_than: float, *, limit: int = 1_000) -> int:
        """Delete up to about ``limit`` attempts that were recorded longer than so many seconds ago; return how many."""
        ...

    def get_chain_attributes(self, ids: Sequence[str]) -> list[Attributes | None]:
        """Return the attributes of chains in the order of the ids, also of expired ones; None if one does not exist."""
        ...


class Store(
    ManagementStore,
    ListingStore,
    ScheduleStore,
    RetentionStore,
    WorkerStore,
    EventStore,
    WebhookStore,
    StepStore,
    Protocol,
):
    """Starts, claims and finishes jobs in a store, many at a time.

    Every method may raise :class:`~queuert.errors.StateUnavailableError` (the store cannot be reached, and it is
    unknown whether a write took effect; every operation can be repeated) and :class:`~queuert.errors.StateError` (the
    store refused it).
    """

    @property
    def pool_use(self) -> PoolUse | None:
        """What the pool of connections is doing now, read without I/O, from any thread.

        None if the store is not open, has no pool (SQLite), or its driver does not say (Redis).
        """
        ...

    @property
    def risks(self) -> Sequence[StoreWarning]:
        """The risks of the server's configuration for acknowledged jobs, as found when the store was opened."""
        ...

    def open(self) -> None:
        """Connect. Idempotent; raises SchemaMissingError if the schema does not exist or is out of date."""
        ...

    def close(self) -> None:
        """Close all connections; operations in progress fail. Idempotent."""
        ...

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains: all or none, results in the order of the jobs.

        With ``connection`` they are written in the caller's transaction and take effect when it commits. A job with
        open blockers is BLOCKED, one with a later ``run_at`` SCHEDULED, any other READY.

        A job with ``deduplication`` is not written if a chain matches: the newest match is returned instead. Starts of
        one key wait for each other's commit; within a batch the first of a key decides. With ``debounce``, the newest
        match whose first job is READY or SCHEDULED and was never claimed gets the input of the start and its due time,
        no later than ``max_delay`` after its creation; within a batch the last input of a key counts.

        A job with ``attach`` is not written if a chain of its id exists. A job that is not written does not need its
        blockers to exist, and its ``result_ttl`` changes nothing.

        A chain that has expired matches nothing; it is deleted when a chain with its id is started.

        Raises:
            JobIdConflictError: a chosen id exists, as a job that is not the first of its chain or without ``attach``,
                or as a chain that has expired and is a blocker of an unfinished job.
            JobTypeMismatchError: with ``attach``: the chain that exists is of another type.
            ChainNotFoundError: a blocker does not exist; one of the same batch does not exist yet.
        """
        ...

    def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains, part by part: all or none, results in the order of the jobs.

        A store may write one part while the iterator makes the next one. Errors of the iterator are raised, and then
        nothing is written. The jobs have no chosen ids, no blockers and no ``deduplication``, so they cannot conflict.
        """
        ...

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs: READY ones and SCHEDULED ones whose time has come, best first.

        The rank of a job is its priority, less one for each attempt that failed by the job's own doing (a worker's stop
        or death does not count). The best rank is claimed first. Within a rank, the types take turns in the order of
        ``request.leases``: each with its longest due job, then each with its next. With ``request.after_rank``, jobs of
        a worse rank than that go before all others, in the same order. Of scheduled jobs whose time has come, only the
        longest due are considered, and they count as of the first of these ranks at best. The result has the best job
        first, and within a rank the longest due first.

        With ``request.ready_only`` the SCHEDULED ones may be left out.

        Claimed jobs are RUNNING, and their attempt is counted. Jobs that another claim has locked are skipped. Fewer
        jobs than the limit means that no more of those that were requested could be claimed. The cost depends on the
        limit and the number of types, not on the backlog.

        No job of a paused type is claimed, and no more jobs of the types in ``request.limits`` than these allow,
        counted over all workers. A job that the limit of its key holds back does not hold back jobs of other keys.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases, also expired ones that were not reaped yet, and store the progress of those extended.

        Returns False for a lease that was not extended: it is lost, or another transaction has locked the job;
        ``lost_reasons`` says which.
        """
        ...

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes of attempts, of any kinds. Each is written if, and only if, its token has the job's lease.

        COMPLETE, FAIL and CANCEL close the chain and release the jobs that waited for it; CONTINUE creates the next job
        in the same step; RETRY, INTERRUPT and SNOOZE make the job due again; WAIT starts chains and blocks the job
        until they, and the others that it names, have closed. A finish whose lease is lost writes nothing and does not
        affect the others. If the store refuses one finish (the id of a continuation exists or occurs twice in the
        batch, or its blocker does not exist), the call raises and none of the batch is written: write them one by one.

        The operation waits for rows that another transaction has locked; with ``wait`` false, such finishes are
        ``locked``, and the others are written.

        Raises:
            JobIdConflictError: the chosen id of a continuation exists.
            ChainNotFoundError: a continuation's blocker does not exist.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> int:
        """Release claimed jobs that were not started: due at once, the attempt not counted. Returns how many.

        Jobs that another transaction has locked are skipped: if fewer were released than requested, ``lost_reasons``
        says which leases are still held; release those again.
        """
        ...

    def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost, as ``release`` does. Repeat the call while some are
        locked."""
        ...

    def reap(self, request: ReapRequest) -> ReapResult:
        """Turn expired leases into failed attempts: retried after a pause, or FAILED after the last attempt."""
        ...

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost; None for those that are valid, and for those that finished the job."""
        ...

    def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job of these types is due: 0 if one is, None if none is scheduled."""
        ...

    def get_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """Read jobs in the order of the ids; None for those that do not exist. ``connection`` is as in lists."""
        ...

    def get_chains(
        self, ids: Sequence[str], *, payloads: bool = True, connection: Any = None
    ) -> list[ChainRecord | None]:
        """Read chains in the order of the ids; None for those that do not exist. ``connection`` is as in lists.

        Without ``payloads`` their inputs and outputs, which may be large, are not read: an input is then the empty
        text, and an output None.
        """
        ...

    def get_chain_states(self, ids: Sequence[str]) -> list[ChainState | None]:
        """Read where chains are, without inputs and outputs, in the order of the ids; None for those that do not exist.

        An expired chain counts as deleted. A scheduled job whose time has come is shown as ready.
        """
        ...

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read closed chains, for callers that wait for them, in the order of the ids.

        For an open chain only its status is returned, and no payload is read. The same holds for a closed chain once
        the payloads of the chains before it reach ``portion``, in bytes as stored: read it again. If any chain has
        closed, at least one is read in full. None is returned for those that do not exist.
        """
        ...

    def transaction(self, job: ClaimedJob) -> AbstractContextManager[StoreTransaction]:
        """Open a transaction for the finish of a job and the writes of its handler. It commits when the block ends
        without an error.

        If the transaction locks the job (``locks_job``), it cannot be claimed, reaped or cancelled meanwhile. Otherwise
        the commit is refused if that happened. If the answer to the commit is lost, the store reads the job to find out
        whether the commit took effect.

        Raises:
            LeaseLostError: the lease is lost; the transaction was not begun.
        """
        ...


class NotifyingStore(Store, Protocol):
    """A store whose server carries notifications as well."""

    def start_and_notify(self, jobs: Sequence[NewJob], notify: PiggybackAdapter) -> tuple[list[StartedJob], bool]:
        """Write the first jobs of new chains as ``start_jobs``, and send a notification of their types once they are
        committed, if the adapter leaves that to the store.

        Returns also whether it was sent. A notification that fails does not affect the start; one may be sent though
        the start fails.
        """
        ...
