# Generated from queuert/state/redis/async_store.py, do not edit: see scripts/unasync.py
"""The Redis store. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from queuert.activity import (
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    Activity,
    ActivityFilter,
    ActivityMaintenance,
    ActivityReport,
    summed,
)
from queuert.jobs import AbortReason, ChainRecord, ChainState, ChainStatus, Job, JobStatus, TtlUpdate
from queuert.limits import PausedType, TypeTraits
from queuert.policies import checked_ttl
from queuert.schedules import check_owners, tick_of
from queuert.state._asyncio import sync_turn
from queuert.state.paging import CLOSED_PORTION, ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.redis import decode, encode
from queuert.state.redis.by_time import ListByTime
from queuert.state.redis.connections import Connections
from queuert.state.redis.encode import Arguments
from queuert.state.redis.errors import mapped_errors, refuse_connection, right_missing
from queuert.state.redis.portions import READ, RENEWED, TYPES, WRITTEN, portions
from queuert.state.redis.server_check import sync_server_findings
from queuert.state.redis.settings import RedisSettings, address_warnings
from queuert.state.redis.sync_event_log import RedisEventLog
from queuert.state.redis.sync_management import RedisManagement
from queuert.state.redis.sync_transaction import RedisTransaction
from queuert.state.redis.sync_webhooks import RedisWebhooks
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.types import (
    COUNTED_DEMAND,
    COUNTED_WAIT,
    NAMED_HOLDERS,
    BlockerLink,
    BlockerRecord,
    ClaimedJob,
    ClaimRequest,
    DueSchedules,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    PoolUse,
    PruneRequest,
    PruneResult,
    ReapedJob,
    ReapRequest,
    ReapResult,
    ReleasedClaim,
    Renewal,
    ScheduleDelay,
    ScheduleRecord,
    StagingCleanup,
    StartedJob,
    StoreWarning,
    TypeCount,
    TypeDemand,
    WaitFacts,
    last_renewals,
)
from queuert.workers import WorkerHeartbeat, WorkerRecord

_PERIODS_AT_ONCE = 20
"""Minutes or hours that one script reads, so that it does not keep the server for long."""


class RedisStore(RedisManagement, RedisEventLog, RedisWebhooks):
    """Jobs in Redis: see :class:`queuert.state.Store` for what each operation promises.

    An operation is one script, which no other command interrupts and which checks everything before it writes anything;
    or several, if it is called for many jobs: see ``docs/design/redis.md``.
    """

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = Connections(settings, connections)
        self.risks: tuple[StoreWarning, ...] = ()
        """Of the server's configuration and of TLS; known once the store is open."""

    @property
    def pool_use(self) -> PoolUse | None:
        """None: the driver does not say what its pool is doing."""
        return None

    def open(self) -> None:
        """Connect, and check the server."""
        client = self._connections.open()
        try:
            waits = self._settings.wait_for_flush
            with mapped_errors(opening=True):
                findings = sync_server_findings(client, wait_for_flush=waits)
            findings.check(allow_eviction=self._settings.allow_eviction, wait_for_flush=waits)
            reported = (StoreWarning(str(risk), risk.advice) for risk in findings.risks)
            self.risks = (*reported, *address_warnings(self._settings))
            refused = decode.text(self._run("check_event_log", []))
            if refused:
                raise right_missing(refused, "ACL SETUSER NAME +xadd +xrange +xrevrange +xtrim, for the event log")
        except BaseException:
            self._connections.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _run(self, name: str, arguments: Arguments) -> Any:
        return self._connections.run(name, arguments)

    def _commit(self, name: str, arguments: Arguments) -> Any:
        """Run a script whose caller relies on the write; with ``wait_for_flush`` this waits until the write is
        flushed."""
        return self._connections.run(name, arguments, flushed=True)

    def _run_until_known(self, name: str, arguments: Arguments) -> list[Any]:
        """Run a script that reads waiting lists again while more dead entries are in its way than one may drop."""
        more, answer = 1, list[Any]()
        while more:
            more, *answer = self._run(name, arguments)
        return answer

    # --- start --------------------------------------------------------------------------------------------------------

    def start_bulk_operation(self, job: NewJob) -> StartedJob:
        """Start the chain of a bulk operation. Redis has no roles: who may start chains may manage them."""
        [started] = self.start_jobs([job])
        return started

    def is_bulk_operation(self, chain_id: str, *, connection: Any = None) -> bool:
        """Return True: see ``start_bulk_operation``."""
        return True

    def bound_lock_waits(self, seconds: float | None, *, connection: Any) -> None:
        """Do nothing: there are no locks."""

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
        """Return none: there are no locks."""
        return []

    def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        """Write the first jobs of new chains, or return the chains of which they are duplicates."""
        refuse_connection(connection)
        if not jobs:
            return []
        return [decode.started(one) for one in decode.unpacked(self._commit("start", encode.start(jobs)))]

    def start_pipelined(self, parts: Iterable[Sequence[NewJob]]) -> list[StartedJob]:
        """Write the first jobs of new chains after the iterator has made all, since one script writes them."""
        jobs = list[NewJob]()
        for part in parts:
            jobs += part
            sync_turn()
        return self.start_jobs(jobs)

    # --- claim, renew, release ----------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Lease due jobs, best first."""
        claimed: list[ClaimedJob] = []
        if request.limit < 1 or not request.leases:
            return claimed
        more = 1
        while more and len(claimed) < request.limit:
            # More dead entries were in the way than one script may drop.
            more, *found = decode.unpacked(self._run("claim", encode.claim(request, claimed)))
            claimed += [decode.claimed(one, request) for one in found]
        return decode.best_first(claimed, request) if len(request.leases) > 1 else claimed

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """Extend leases that are still held."""
        parts = portions(renewals, RENEWED)
        return [one == 1 for part in parts for one in self._run("renew", encode.renewals(part))]

    def release(self, leases: Sequence[Lease]) -> int:
        """Release jobs that were not started."""
        # The last one first: each goes to the front of its list.
        parts = reversed(list(portions(leases, READ)))
        return sum([int(self._run("release", encode.leases(part))) for part in parts])

    def release_claim(self, request: ClaimRequest) -> ReleasedClaim:
        """Release all jobs of a claim whose answer was lost."""
        params = {"holder": request.holder, "token": request.token}
        return ReleasedClaim(int(self._run("release_claim", encode.plain(params))))

    # --- finish -------------------------------------------------------------------------------------------------------

    def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        """Write finishes, each only if its token has the job's lease. There are no locks to wait for."""
        if not finishes:
            return []
        if renewals := last_renewals(finishes):
            self.renew(renewals)
        return [decode.finished(one) for one in decode.unpacked(self._run("finish", encode.finish(finishes)))]

    def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        """Return why each lease is lost."""
        parts = portions(leases, READ)
        return [decode.lost_reason(one) for part in parts for one in self._run("lost_reasons", encode.leases(part))]

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
        reaped: list[ReapedJob] = []
        next_expiry: float | None = None
        for part in portions(list(request.policies.items()), TYPES):
            while True:
                limit = min(WRITTEN, request.limit - len(reaped))
                found = decode.reaped(self._run("reap", encode.reap(dict(part), limit)))
                reaped += found.reaped
                if len(found.reaped) < limit or len(reaped) == request.limit:
                    break
            if found.next_expiry is not None:
                next_expiry = found.next_expiry if next_expiry is None else min(found.next_expiry, next_expiry)
        return ReapResult(reaped, next_expiry)

    def next_due(self, types: Sequence[str]) -> float | None:
        """Return the seconds until the next job is due."""
        return decode.seconds(self._run("next_due", encode.plain(list(types))))

    # --- read and list ------------------------------------------------------------------------------------------------

    def get_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """Read jobs in the order of the ids."""
        refuse_connection(connection)
        jobs: list[Job | None] = []
        for part in portions(ids, READ):
            now, flat, *found = self._run("get_jobs", encode.plain(list(part)))
            overdue_after = {one.type: one.overdue_after for one in decode.traits(flat)}
            jobs += [decode.job(one, int(now), overdue_after) for one in found]
        return jobs

    def get_chains(
        self, ids: Sequence[str], *, payloads: bool = True, connection: Any = None
    ) -> list[ChainRecord | None]:
        """Read chains in the order of the ids."""
        refuse_connection(connection)
        return self._chains(ids, payloads=payloads)

    def get_chain_states(self, ids: Sequence[str]) -> list[ChainState | None]:
        """Read where chains are, in the order of the ids."""
        found: list[ChainState | None] = []
        for part in portions(ids, READ):
            found += map(decode.chain_state, self._run("get_chain_states", encode.plain(list(part))))
        return found

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read closed chains up to a portion of bytes; for the others only the status."""
        chains: list[ChainRecord | ChainStatus | None] = []
        for part in portions(ids, READ):
            params = {"ids": list(part), "portion": max(0, portion)}
            *found, size = self._run("get_chains", encode.plain(params))
            chains += map(decode.closed_chain, found)
            portion -= size
        return chains

    def get_blockers(self, job_id: str, *, outputs: bool = True, connection: Any = None) -> list[BlockerRecord]:
        """Return the chains that a job waits for or waited for, in order."""
        refuse_connection(connection)
        return [decode.blocker(one) for one in self._run("get_blockers", encode.plain([job_id, outputs]))]

    def get_blocker_links(self, chain_ids: Sequence[str], *, limit: int, connection: Any = None) -> list[BlockerLink]:
        """Return which chains the jobs of chains wait for or waited for."""
        refuse_connection(connection)
        links: list[BlockerLink] = []
        for part in portions(list(dict.fromkeys(chain_ids)), READ):
            found = self._run("get_blocker_links", encode.plain({"ids": list(part), "limit": limit}))
            links += [BlockerLink(*map(decode.text, one)) for one in found]
        return links

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
        refuse_connection(connection)
        links: list[BlockerLink] = []
        for part in portions(list(dict.fromkeys(chain_ids)), READ):
            params = {"ids": list(part), "statuses": list(statuses), "excluding": list(excluding), "limit": limit}
            at, after, count = 1, "", 0
            while at:
                place = {"at": at, "after": after, "count": count}
                at, behind, count, found = self._run("get_dependent_links", encode.plain({**params, **place}))
                after = decode.text(behind)
                links += [BlockerLink(*map(decode.text, one)) for one in found]
        return links

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Count jobs by type and status. The numbers are kept by all scripts, so they are exact."""
        parts = self._parts_of_types(types)
        answers = [self._run_until_known("count_jobs", encode.plain(part)) for part in parts]
        return [decode.type_count(one) for answer in answers for one in answer]

    def get_demand(
        self, types: Sequence[str] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Jobs that could be claimed now, and those that run, by type."""
        found: list[TypeDemand] = []
        for part in self._parts_of_types(types):
            params = {"types": part, "most": counted_up_to}
            found += map(decode.type_demand, self._run_until_known("demand", encode.plain(params)))
        return found

    def _parts_of_types(self, types: Sequence[str] | None) -> list[Sequence[str]]:
        """Return these types, or all that have jobs, in order and in portions."""
        names = decode.texts(self._run("list_types", [])) if types is None else types
        return list(portions(sorted(set(names)), TYPES))

    def get_wait_facts(self, job_id: str) -> WaitFacts | None:
        """Read what decides whether a job can be claimed now."""
        params = {"id": job_id, "most": COUNTED_WAIT, "named": NAMED_HOLDERS}
        [facts] = self._run_until_known("wait_facts", encode.plain(params)) or [None]
        return decode.wait_facts(facts)

    def list_chains(
        self, filter: ChainFilter, page: PageRequest, *, payloads: bool = True, connection: Any = None
    ) -> Page[ChainRecord]:
        """List chains by the time of their start."""
        refuse_connection(connection)
        positions = self._positions(filter, page)
        if not positions:
            return page_of((), page.limit)
        records = self._chains([position.id for position in positions], expired=True, payloads=payloads)
        return page_of(zip(records, positions, strict=True), page.limit)

    def list_jobs(self, filter: JobFilter, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List jobs by the time of their creation."""
        refuse_connection(connection)
        return self._jobs(self._positions(filter, page), page)

    def chains_of_key(
        self, type: str, key: str, *, only_open: bool = True, limit: int = 100, connection: Any = None
    ) -> list[str]:
        """Return the ids of the chains of a deduplication key, the newest first."""
        refuse_connection(connection)
        params = {"type": type, "key": key, "limit": limit, **({} if only_open else {"any": True})}
        return [decode.text(id) for id in self._run("chains_of_key", encode.plain(params))]

    def list_chain_jobs(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs of one chain in order."""
        refuse_connection(connection)
        after = None if page.cursor is None else Position.decode_index(page.cursor)
        return self._jobs(self._members(chain_id, page, after), page)

    def list_dependents(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs that have a chain among their blockers."""
        refuse_connection(connection)
        after = None if page.cursor is None else Position.decode_id(page.cursor)
        return self._jobs(self._members(chain_id, page, after, blocked=True), page)

    def _positions(self, filter: ChainFilter | JobFilter, page: PageRequest) -> list[Position]:
        """Return the times and ids of the entries of a page, and of one more. Entries that do not match the filter are
        skipped."""
        listing = ListByTime(filter, page)
        while (params := listing.next_script()) is not None:
            listing.add(self._run("list_by_time", params))
        return listing.positions()

    def _chains(self, ids: Sequence[str], *, expired: bool = False, payloads: bool = True) -> list[ChainRecord | None]:
        chains: list[ChainRecord | None] = []
        flags = {name: True for name, is_set in (("expired", expired), ("bare", not payloads)) if is_set}
        for part in portions(ids, READ):
            *found, _ = self._run("get_chains", encode.plain({"ids": list(part), **flags}))
            chains += map(decode.chain, found)
        return chains

    def _members(
        self, chain_id: str, page: PageRequest, after: int | str | None, *, blocked: bool = False
    ) -> list[Position]:
        params: dict[str, Any] = {"chain": chain_id, "limit": page.limit + 1}
        params.update({"blocked": True} if blocked else {})
        params.update({"oldest_first": True} if page.oldest_first else {})
        params.update({"after": after} if after is not None else {})
        answer = self._run("list_members", encode.plain(params))
        return [Position(decode.text(key), decode.text(id)) for key, id in answer]

    def _jobs(self, positions: Sequence[Position], page: PageRequest) -> Page[Job]:
        found = self.get_jobs([position.id for position in positions])
        return page_of(zip(found, positions, strict=True), page.limit)

    # --- schedules and pauses -----------------------------------------------------------------------------------------

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Write schedules by name."""
        if schedules:
            now, *_ = self._run("list_schedules", [])
            refused = self._commit("put_schedules", encode.schedules(schedules, decode.moment(now)))
            owners = {schedule.name: schedule.owner for schedule in schedules}
            if refused:
                name, *owner = map(decode.text, refused)
                check_owners(owners, [(name, owner[0] if owner else None)])

    def delete_schedules(self, names: Sequence[str], *, owner: str | None = None) -> int:
        """Delete schedules, with ``owner`` only those of the owner; return how many were deleted."""
        params = {"names": list(names), **({} if owner is None else {"owner": owner})}
        return int(self._commit("delete_schedules", encode.plain(params)))

    def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, by name."""
        _, *found = self._run("list_schedules", [])
        return sorted(map(decode.schedule, found), key=lambda one: one.name)

    def set_schedules_paused(self, names: Sequence[str], paused: bool) -> int:
        """Pause or resume schedules and return how many exist."""
        params = {"names": list(dict.fromkeys(names)), "paused": paused}
        return int(self._commit("pause_schedules", encode.plain(params)))

    def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        """Return the schedules whose next tick has come."""
        return decode.due_schedules(self._run("list_schedules", []), types, limit)

    def schedule_delays(self) -> list[ScheduleDelay]:
        """The schedules of all types that are due, the longest due first."""
        return decode.schedule_delays(self._run("list_schedules", []))

    def fire_schedule(
        self, name: str, tick: datetime, next_at: datetime | None, jobs: Sequence[NewJob]
    ) -> list[StartedJob] | None:
        """Start the chains of a due schedule and advance it."""
        last_at = max((tick_of(job.id) for job in jobs), default=None)
        answer = self._run("fire_schedule", encode.fire(name, tick, next_at, last_at, jobs))
        return None if answer == 0 else [decode.started(one) for one in decode.unpacked(answer)]

    def run_schedule(self, name: str, jobs: Sequence[NewJob], *, overlap: bool) -> list[StartedJob] | None:
        """Start chains of a schedule out of turn."""
        answer = self._commit("fire_schedule", encode.run_schedule(name, jobs, overlap=overlap))
        return None if answer == 0 else [decode.started(one) for one in decode.unpacked(answer)]

    def pause_job_types(self, types: Sequence[str], *, reason: str | None = None, by: str | None = None) -> None:
        """Stop all claims of these job types."""
        self._commit("pause_job_types", encode.pause_types(types, reason, by))

    def resume_job_types(self, types: Sequence[str]) -> list[str]:
        """Allow claims of these job types again and return those that were paused."""
        return sorted(map(decode.text, self._commit("resume_job_types", encode.plain(list(types)))))

    def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types, by name."""
        flat = self._run("list_paused_job_types", [])
        found = [decode.paused_type(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]
        return sorted(found, key=lambda one: one.type)

    # --- retention ----------------------------------------------------------------------------------------------------

    def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now."""
        ttl, answer = encode.pause(checked_ttl("seconds", seconds)), []
        parts = list(portions(ids, READ))
        for part in parts:
            run = self._commit if part is parts[-1] else self._run
            answer += run("update_result_ttl", encode.plain({"ids": list(part), "ttl": ttl}))
        return [TtlUpdate(decode.text(one)) for one in answer]

    def prune(self, request: PruneRequest) -> PruneResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep."""
        pruned: list[str] = []
        stale: list[str] = []
        cursor = request.cursor
        for read in range(0, request.limit, WRITTEN):
            params = encode.prune(replace(request, cursor=cursor), min(WRITTEN, request.limit - read))
            following, gone, marked = self._run("prune", params)
            pruned += decode.texts(gone)
            stale += decode.texts(marked)
            if not following:
                cursor = None
                break
            phase, stayed = following
            cursor = f"{phase}:{stayed}"
        return PruneResult(tuple(pruned), cursor, tuple(stale))

    def clean_staging(self) -> StagingCleanup:
        """Do nothing: only Postgres has bulk writes."""
        return StagingCleanup()

    # --- workers ------------------------------------------------------------------------------------------------------

    def record_heartbeat(self, beat: WorkerHeartbeat, ttl: float, activity: ActivityReport | None = None) -> datetime:
        """Record that a worker is alive, its state, and what it did; return the store's time."""
        record = asdict(beat)
        del record["limits"], record["traits"], record["known_types"]
        uptime = encode.pause(record.pop("uptime"))
        params = {
            "ttl": encode.pause(ttl),
            "uptime": uptime,
            "record": record,
            "limits": {type: encode.limits_of_type(one) for type, one in beat.limits.items()},
            "traits": {one.type: encode.traits(one) for one in beat.traits},
            "known_types": [*beat.known_types, *beat.job_types, *(one.type for one in beat.traits)],
            **encode.activity_report(activity),
        }
        return decode.moment(self._run("record_heartbeat", encode.plain(params)))

    def remove_worker(self, worker_id: str, activity: ActivityReport | None = None) -> None:
        """Delete a worker that has stopped, and record the last of what it did."""
        params = {"id": worker_id, **encode.activity_report(activity)}
        self._run("remove_worker", encode.plain(params))

    def list_type_traits(self, *, connection: Any = None) -> list[TypeTraits]:
        """Return what is particular to job types, by name, as workers have recorded it."""
        refuse_connection(connection)
        return decode.traits(self._run("list_type_traits", []))

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive."""
        found = [decode.worker(one) for one in self._run("list_workers", [])]
        return sorted(found, key=lambda one: (one.started_at, one.id))

    def count_held(self, holders: Sequence[str]) -> dict[str, int]:
        """Return how many jobs each of these workers has leased now."""
        counts = self._run("count_held", encode.plain(list(holders)))
        return {holder: count for holder, count in zip(holders, counts, strict=True) if count}

    def get_activity(self, filter: ActivityFilter) -> list[Activity]:
        """Return what workers did, by minute or hour."""
        found: list[Activity] = []
        # Hours first, so that a minute that is added up meanwhile is not read twice.
        for seconds in (HOUR, MINUTE):
            after: str | None = encode.unix_time(filter.since, -seconds)
            while after is not None:
                params = encode.activity_filter(filter, seconds, after, _PERIODS_AT_ONCE)
                last, rows = self._run("get_activity", params)
                found += [decode.activity(row, seconds) for row in rows]
                after = decode.maybe_text(last)
        return summed((one for one in found if filter.selects(one)), filter.place)

    def maintain_activity(
        self, *, limit: int = 1_000, minutes_kept: float = MINUTES_KEPT, hours_kept: float = HOURS_KEPT
    ) -> ActivityMaintenance:
        """Add minutes up to hours, and drop hours that are too old, in one script."""
        params = {"limit": limit, "minutes_kept": minutes_kept, "hours_kept": hours_kept}
        folded, dropped, more = self._run("maintain_activity", encode.plain(params))
        return ActivityMaintenance(folded, dropped, bool(more))

    # --- steps --------------------------------------------------------------------------------------------------------

    def record_step(self, lease: Lease, step: NewStep) -> StepRecord:
        """Record a step of a job, if the token has the job's lease."""
        [recorded] = decode.steps(self._commit("record_step", encode.step(lease, step)), step.number)
        return recorded

    def get_steps(self, job_id: str) -> list[StepRecord]:
        """Return the steps of a job, in order."""
        return decode.steps(self._run("get_steps", encode.plain([job_id])), 1)

    def begin_phase(self, lease: Lease, progress: str) -> datetime:
        """Store the progress of a job whose phase begins, if the token has the job's lease."""
        params = [*encode.plain([lease.job_id, lease.token]), progress]
        return decode.moment(self._run("begin_phase", params))

    def get_progress(self, job_id: str) -> str | None:
        """Return the progress of a job as it is stored."""
        return decode.maybe_text(self._run("get_progress", encode.plain([job_id])))

    def wait_for_event(self, lease: Lease, wait: EventWait) -> StepRecord:
        """Record a wait as the next step of a job, if it is not recorded yet, and try to answer it."""
        [record] = decode.steps(self._commit("wait_for_event", encode.event_wait(lease, wait)), wait.number)
        return record
