"""Operations on SQLite besides starting, claiming and finishing: lists, management, retention, workers, schedules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from queuert.activity import (
    HOURS_KEPT,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
)
from queuert.jobs import ChainRecord, Job, JobStatus, TtlUpdate
from queuert.limits import PausedType, TypeTraits
from queuert.notify.results import delete_notifications, trigger_notifications, update_notifications
from queuert.run_at import RunAt
from queuert.state import records
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.sqlite import listing, management, retention, steps, workers
from queuert.state.sqlite import schedules as schedule_rows
from queuert.state.sqlite.connection import now_us, run
from queuert.state.sqlite.event_log import SQLiteEventLog
from queuert.state.sqlite.listing import demand, wait_facts
from queuert.state.sqlite.webhooks import SQLiteWebhooks
from queuert.state.steps import EventWait, NewEvent, NewStep, SendResult, StepRecord
from queuert.state.types import (
    COUNTED_DEMAND,
    BlockerLink,
    BlockerRecord,
    ChainUpdate,
    DeleteResult,
    DueSchedules,
    InputEdit,
    Lease,
    NewJob,
    PruneRequest,
    PruneResult,
    ScheduleDelay,
    ScheduleRecord,
    StagingCleanup,
    StartedJob,
    SweepResult,
    TriggeredJob,
    TypeCount,
    TypeDemand,
    WaitFacts,
    WorkerlessCompletion,
    check_completions,
)
from queuert.workers import WorkerHeartbeat, WorkerRecord


class SQLiteOperating(SQLiteEventLog, SQLiteWebhooks):
    """The operations of clients, of maintenance and of the command line."""

    # --- steps --------------------------------------------------------------------------------------------------------

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        with self._writing() as connection:
            return steps.record_step(connection, lease, step)

    def begin_phase(self, lease: Lease, progress: str) -> datetime:
        """Store the progress of a job whose phase begins, if the token has the job's lease."""
        with self._writing() as connection:
            return steps.begin_phase(connection, lease, progress)

    def get_progress(self, job_id: str) -> str | None:
        """Return the progress of a job as it is stored."""
        with self._reading() as connection:
            return steps.get_progress(connection, job_id)

    def wait_for_event(self, lease: Lease, wait: EventWait) -> StepRecord:
        """Record a wait as the next step of a job, if it is not recorded yet, and try to answer it."""
        with self._writing() as connection:
            return steps.wait_for_event(connection, lease, wait)

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        with self._reading() as connection:
            return steps.get_steps(connection, job_id)

    # --- lists --------------------------------------------------------------------------------------------------------

    def get_blockers(self, job_id: str, *, outputs: bool = True, connection: Any = None) -> list[BlockerRecord]:
        """Return the chains that a job waits for or waited for, in order."""
        with self._reading(connection) as reader:
            return [records.blocker(row) for row in run(reader, "get_blockers", id=job_id, outputs=outputs)]

    def get_blocker_links(self, chain_ids: Sequence[str], *, limit: int, connection: Any = None) -> list[BlockerLink]:
        """Return which chains the jobs of chains wait for or waited for."""
        with self._reading(connection) as reader:
            found = [run(reader, "get_blocker_links", id=id, limit=limit) for id in dict.fromkeys(chain_ids)]
        return [BlockerLink(*row) for links in found for row in links]

    def get_dependent_links(
        self,
        chain_ids: Sequence[str],
        *,
        statuses: Collection[JobStatus],
        limit: int,
        excluding: Collection[str] = (),
        connection: Any = None,
    ) -> list[BlockerLink]:
        """Return which jobs of some statuses wait for chains or waited for them."""
        wanted, left_out = set(statuses), set(excluding)
        with self._reading(connection) as reader:
            return [
                link
                for id in dict.fromkeys(chain_ids)
                for link in islice(listing.dependent_links(reader, id, wanted, left_out), limit)
            ]

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Count jobs by type and status; the counts are exact."""
        with self._reading() as connection:
            return listing.counts(connection, types)

    def get_demand(
        self, types: Sequence[str] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Jobs that could be claimed now, and those that run, by type."""
        with self._reading() as connection:
            return demand(connection, types, counted_up_to)

    def get_wait_facts(self, job_id: str) -> WaitFacts | None:
        """Read what decides whether a job can be claimed now."""
        with self._reading() as connection:
            return wait_facts(connection, job_id)

    def list_chains(
        self, filter: ChainFilter, page: PageRequest, *, payloads: bool = True, connection: Any = None
    ) -> Page[ChainRecord]:
        """List chains by the time of their start."""
        with self._reading(connection) as reader:
            return listing.list_chains(reader, filter, page, payloads=payloads)

    def list_jobs(self, filter: JobFilter, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List jobs by the time of their creation."""
        with self._reading(connection) as reader:
            return listing.list_jobs(reader, filter, page)

    def chains_of_key(
        self, type: str, key: str, *, only_open: bool = True, limit: int = 100, connection: Any = None
    ) -> list[str]:
        """Return the ids of the chains of a deduplication key, the newest first."""
        params = {"type": type, "key": key, "since": 0, "limit": limit}
        with self._reading(connection) as reader:
            if only_open:
                return [id for id, *_ in run(reader, "find_open_duplicates", **params)]
            return [id for id, *_ in run(reader, "find_duplicates", now=now_us(), **params)]

    def list_chain_jobs(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs of one chain in order."""
        with self._reading(connection) as reader:
            return listing.list_chain_jobs(reader, chain_id, page)

    def list_dependents(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs that have a chain among their blockers."""
        with self._reading(connection) as reader:
            return listing.list_dependents(reader, chain_id, page)

    # --- management ---------------------------------------------------------------------------------------------------

    def complete_chains(
        self,
        completions: Sequence[WorkerlessCompletion],
        *,
        cancel: Sequence[str] = (),
        reason: str = "",
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Finish the last job of each chain for a client."""
        check_completions(completions, cancel)
        if not completions:
            return []
        return self._outside(
            connection, lambda given: management.complete(given, completions, cancel, reason), update_notifications
        )

    def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[ChainUpdate]:
        """Close open chains as cancelled."""
        if not ids:
            return []
        return self._outside(connection, lambda given: management.cancel(given, ids, reason), update_notifications)

    def retry_chains(
        self, ids: Sequence[str], *, edit: InputEdit | None = None, connection: Any = None
    ) -> list[ChainUpdate]:
        """Open failed and cancelled chains again."""
        if not ids:
            return []
        return self._outside(connection, lambda given: management.retry(given, ids, edit), update_notifications)

    def change_waiting_jobs(
        self,
        ids: Sequence[str],
        *,
        run_at: RunAt | None = None,
        priority: int | None = None,
        edit: InputEdit | None = None,
        connection: Any = None,
    ) -> list[ChainUpdate]:
        """Give the last jobs of chains another due time, priority or input, if they wait."""
        if not ids:
            return []
        return self._outside(
            connection, lambda given: management.change(given, ids, run_at, priority, edit), update_notifications
        )

    def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now."""
        if not ids:
            return []
        return self._outside(connection, lambda given: management.trigger(given, ids), trigger_notifications)

    def send_event(self, chain_id: str, event: NewEvent, *, connection: Any = None) -> SendResult:
        """Keep an event for an open chain, and make its last job due if that waits for it."""
        return self._outside(
            connection,
            lambda given: management.send_event(given, chain_id, event),
            lambda sent: trigger_notifications(sent.woken),
        )

    def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs."""
        if not ids:
            return DeleteResult((), ())
        return self._outside(connection, lambda given: management.delete(given, ids, cascade), delete_notifications)

    def release_stranded(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed."""
        with self._writing() as connection:
            return management.release_stranded(connection, cursor, limit)

    # --- retention ----------------------------------------------------------------------------------------------------

    def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now."""
        with self._writing() as connection:
            return retention.update_ttl(connection, ids, seconds)

    def clean_staging(self) -> StagingCleanup:
        """Do nothing: only Postgres has bulk writes."""
        return StagingCleanup()

    def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep."""
        with self._reading() if request.preview else self._writing() as connection:
            return retention.prune(connection, request)

    # --- workers ------------------------------------------------------------------------------------------------------

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None = None) -> datetime:
        """Record that a worker is alive, its state, and what it did; return the store's time."""
        with self._writing() as connection:
            if activity is not None:
                workers.record_activity(connection, beat.id, activity)
            return workers.beat(connection, beat, ttl)

    def remove_worker(self, worker_id: str, activity: ActivityReport | None = None) -> None:
        """Delete a worker that has stopped, and record the last of what it did."""
        with self._writing() as connection:
            if activity is not None:
                workers.record_activity(connection, worker_id, activity)
            run(connection, "remove_worker", id=worker_id)

    def list_type_traits(self, *, connection: Any = None) -> list[TypeTraits]:
        """Return what is particular to job types, by name, as workers have recorded it."""
        with self._reading(connection) as reader:
            return workers.type_traits(reader)

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers whose heartbeat has not expired, the longest running first."""
        with self._reading() as connection:
            return workers.workers(connection)

    def count_held(self, holders: Sequence[str]) -> dict[str, int]:
        """Return how many jobs each of these workers has leased now."""
        with self._reading() as connection:
            return workers.held(connection, holders)

    def get_activity(self, filter: ActivityFilter) -> list[Activity]:
        """Return what workers did, by minute or hour."""
        with self._reading() as connection:
            return workers.activity(connection, filter)

    def maintain_activity(
        self, *, limit: int = 1_000, minutes_kept: float = MINUTES_KEPT, hours_kept: float = HOURS_KEPT
    ) -> ActivityMaintenance:
        """Add minutes up to hours, and drop hours that are too old."""
        with self._writing() as connection:
            return workers.maintain_activity(connection, limit, minutes_kept, hours_kept)

    # --- schedules and pauses -----------------------------------------------------------------------------------------

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name."""
        with self._writing() as connection:
            schedule_rows.put(connection, schedules)

    def delete_schedules(self, names: Sequence[str], *, owner: str | None = None) -> int:
        """Delete schedules, with ``owner`` only those of the owner; return how many were deleted."""
        with self._writing() as connection:
            return schedule_rows.delete(connection, names, owner)

    def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        with self._reading() as connection:
            return schedule_rows.listed(connection)

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist."""
        with self._writing() as connection:
            return schedule_rows.set_paused(connection, names, paused)

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules whose next tick has come."""
        with self._reading() as connection:
            return schedule_rows.due(connection, types, limit)

    def schedule_delays(self) -> list[ScheduleDelay]:
        """The schedules of all types that are due, the longest due first."""
        with self._reading() as connection:
            return schedule_rows.delays(connection)

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it."""
        with self._writing() as connection:
            return schedule_rows.fire(connection, name, tick, next_at, jobs)

    def run_schedule(self, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
        """Start chains of a schedule out of turn."""
        with self._writing() as connection:
            return schedule_rows.run_now(connection, name, jobs, overlap=overlap)

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None, by: str | None = None) -> None:
        """Stop all claims of these job types."""
        with self._writing() as connection:
            schedule_rows.pause(connection, types, reason, by)

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        with self._writing() as connection:
            return schedule_rows.resume(connection, types)

    def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        with self._reading() as connection:
            return schedule_rows.paused(connection)
