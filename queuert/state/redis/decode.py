"""Decodes the answers of scripts into values of the contract. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.activity import Activity, numbers_of
from queuert.attributes import attributes_of
from queuert.jobs import AbortReason, ChainRecord, ChainState, ChainStatus, Job, JobStatus, overdue_at
from queuert.limits import Limits, PausedType, Rate, TypeTraits
from queuert.schedules import MissedRuns, Overlap
from queuert.state import records
from queuert.state.records import job_error, job_failures, job_progress, json_value
from queuert.state.redis.encode import EPOCH
from queuert.state.redis.encode import microseconds as encoded
from queuert.state.steps import StepRecord
from queuert.state.types import (
    BlockerRecord,
    ChainUpdate,
    ClaimedJob,
    ClaimRequest,
    DueSchedules,
    FinishResult,
    HeldJob,
    ReapedJob,
    ReapResult,
    ScheduleDelay,
    ScheduleRecord,
    StartedJob,
    TriggeredJob,
    TypeCount,
    TypeDemand,
    WaitFacts,
)
from queuert.trace_context import trace_id_of
from queuert.workers import WorkerRecord, WorkerState

Answer = Sequence[Any]


def text(value: bytes) -> str:
    """Decode text, also text that is not valid UTF-8 after a manual edit."""
    return value.decode("utf-8", "replace")


def unpacked(answer: bytes) -> list[Any]:
    """Decode an answer that is one JSON text."""
    found: list[Any] = json.loads(text(answer))
    return found


def maybe_text(value: bytes | None) -> str | None:
    """Decode text; None stays None."""
    return None if value is None else text(value)


_FIRST, _LAST = (end.replace(tzinfo=UTC) for end in (datetime.min, datetime.max))
_FIRST_STORED = encoded(_FIRST)
_LAST_STORED = 253_402_300_799_999_968
"""The last time that the scripts store: numbers as large as that of ``datetime.max`` are multiples of 32 in Lua."""


def moment(microseconds: bytes | str) -> datetime:
    """Decode a stored time. One at the end of the calendar, or beyond it, is the last or the first that there is.

    Raises:
        ValueError: it is no whole number, after a manual edit.
    """
    number = int(microseconds)
    # A listing must not fail for the time of one job.
    if number >= _LAST_STORED:
        return _LAST
    return EPOCH + timedelta(microseconds=number) if number > _FIRST_STORED else _FIRST


def _known_moment(microseconds: bytes | str) -> datetime:
    """Decode a time of an attempt, which fails of a damaged one, as on other stores.

    Raises:
        ValueError: it is no whole number.
        OverflowError: it is outside of the calendar. No job that can be claimed is due so late.
    """
    return EPOCH + timedelta(microseconds=int(microseconds))


def maybe_moment(microseconds: bytes | None) -> datetime | None:
    """Decode a stored time; None stays None."""
    return None if microseconds is None else moment(microseconds)


def seconds(microseconds: bytes) -> float | None:
    """Decode a stored duration; a negative one means None."""
    return None if int(microseconds) < 0 else int(microseconds) / 1_000_000


def took(microseconds: bytes | None) -> float | None:
    """Decode how long a chain took; None if it was not closed."""
    return None if microseconds is None else int(microseconds) / 1_000_000


def texts(values: Sequence[bytes]) -> tuple[str, ...]:
    """Decode several texts."""
    return tuple(map(text, values))


def started(one: Answer) -> StartedJob:
    """Decode an entry of ``start`` and ``fire_schedule``."""
    id, type, status, created_at, existing, chain_status, debounced = one
    return StartedJob(
        id, type, JobStatus(status), moment(created_at), bool(existing), ChainStatus(chain_status), bool(debounced)
    )


def claimed(one: Answer, request: ClaimRequest) -> ClaimedJob:
    """Decode an entry of ``claim``. If a manual edit damaged the job's hash, only its own attempt fails."""
    try:
        return _claimed(one, request)
    except (TypeError, ValueError, OverflowError) as error:
        *known, _created, _due, _started, trace, _ttl, attempt_trace, max_attempts = one
        readable = [*known, "0", "0", "0", trace, None, attempt_trace, max_attempts]
        return replace(_claimed(readable, request), fault=f"{type(error).__name__}: {error}")


def _claimed(one: Answer, request: ClaimRequest) -> ClaimedJob:
    id, type, chain, chain_type, *numbers, awaited, input, created, due, started, trace, ttl, attempt_trace, most = one
    index, priority, attempt, uncounted, expired, blockers = map(int, numbers)
    return ClaimedJob(
        id=id,
        type=type,
        chain_id=chain,
        chain_type=chain_type,
        chain_index=index,
        priority=priority,
        attempt=attempt,
        uncounted=uncounted,
        lease_expirations=expired,
        blocker_count=blockers,
        has_dependents=awaited,
        # If the payload was deleted, the attempt fails: no JSON text is empty.
        input=input or "",
        created_at=_known_moment(created),
        scheduled_at=_known_moment(due),
        started_at=_known_moment(started),
        lease_seconds=request.leases[type],
        token=request.token,
        trace_context=trace or None,
        result_ttl=int(ttl) / 1_000_000 if ttl else None,
        attempt_trace_context=attempt_trace or None,
        max_attempts=most or None,
    )


def best_first(jobs: list[ClaimedJob], request: ClaimRequest) -> list[ClaimedJob]:
    """Sort jobs that were claimed of several types, or by several scripts, in the order in which they should run."""
    after = request.after_rank
    return sorted(jobs, key=lambda job: (after is not None and job.rank <= after, job.rank, job.scheduled_at))


def finished(one: Answer) -> FinishResult:
    """Decode an entry of ``finish``."""
    job_id, lost, due_types, chain_took = one
    reason = AbortReason(lost) if lost else None
    # Lua has no empty list: it arrives as an object.
    return FinishResult(job_id, reason, tuple(due_types), chain_seconds=took(chain_took or None))


def reaped(answer: Answer) -> ReapResult:
    """Decode the answer of ``reap``."""
    next_expiry, entries = answer
    jobs = [
        ReapedJob(
            id=text(id),
            type=text(type),
            chain_id=text(chain),
            chain_type=text(chain_type),
            status=JobStatus(text(status)),
            attempt=attempt,
            holder=maybe_text(holder),
            due_types=texts(due_types),
            chain_seconds=took(chain_took),
        )
        for id, type, chain, chain_type, status, attempt, holder, due_types, chain_took in entries
    ]
    return ReapResult(jobs, seconds(next_expiry))


def lost_reason(value: bytes) -> AbortReason | None:
    """Decode an entry of ``lost_reasons``."""
    return AbortReason(text(value)) if value else None


def job(one: Any, now: int, overdue_after: Mapping[str, float | None]) -> Job | None:
    """Decode an entry of ``get_jobs``; by job type, the seconds after which jobs that wait are overdue."""
    if not one:
        return None
    stored_id, flat, input, output, error, failures = one
    fields: Mapping[str, str] = {text(flat[at]): text(flat[at + 1]) for at in range(0, len(flat), 2)}

    def number(name: str) -> int:
        return int(fields.get(name, 0))

    def when(name: str) -> datetime | None:
        return moment(fields[name]) if name in fields else None

    id, status = text(stored_id), JobStatus(fields["status"])
    if status is JobStatus.SCHEDULED and number("due") <= now:
        status = JobStatus.READY
    return Job(
        id=id,
        type=fields["type"],
        chain_id=fields.get("chain", id),
        chain_index=number("index"),
        status=status,
        priority=number("priority"),
        attempt=number("attempt"),
        uncounted=number("uncounted"),
        lease_expirations=number("expired"),
        open_blockers=number("open"),
        input=json_value(maybe_text(input)),
        output=json_value(maybe_text(output)),
        last_error=job_error(maybe_text(error)),
        created_at=moment(fields["created"]),
        scheduled_at=moment(fields["due"]),
        started_at=when("started"),
        finished_at=when("finished"),
        holder=fields.get("holder"),
        lease_expires_at=when("leased"),
        continued_by=fields.get("next"),
        deduplication_key=fields.get("dedup"),
        limit_key=fields.get("limit"),
        progress=job_progress(fields.get("progress"), number("attempt")),
        failures=job_failures([json_value(text(failure)) for failure in failures]),
        max_attempts=number("max_attempts") or None,
        trace_id=trace_id_of(fields.get("trace")),
        attempt_trace_id=trace_id_of(fields.get("atrace")),
        overdue_at=overdue_at(status, moment(fields["due"]), overdue_after.get(fields["type"])),
    )


_CHAIN_TIMES = records.places(records.CHAIN, "created_at", "closed_at", "expires_at", "stale_at")
(_INPUT,) = records.places(records.CHAIN, "input")
(_DUE,) = records.places(records.CHAIN_STATE, "scheduled_at")


def chain(one: Any) -> ChainRecord | None:
    """Decode an entry of ``get_chains``."""
    if not one:
        return None
    row = [maybe_moment(value) if at in _CHAIN_TIMES else maybe_text(value) for at, value in enumerate(one)]
    row[_INPUT] = row[_INPUT] or ""
    return records.chain(row)


def chain_state(one: Any) -> ChainState | None:
    """Decode an entry of ``get_chain_states``."""
    if not one:
        return None
    row: list[Any] = [text(value) if isinstance(value, bytes) else value for value in one]
    row[_DUE] = moment(row[_DUE])
    return records.chain_state(row)


def closed_chain(one: Any) -> ChainRecord | ChainStatus | None:
    """Decode an entry of ``get_chains`` with a portion: a status, if the chain is open or beyond the portion."""
    if isinstance(one, bytes | str):
        return ChainStatus(one if isinstance(one, str) else text(one))
    return chain(one)


def blocker(one: Answer) -> BlockerRecord:
    """Decode an entry of ``get_blockers``."""
    chain_id, type, status, tail_type, output, error, attempt_trace = one
    return BlockerRecord(
        chain_id=text(chain_id),
        type=text(type),
        status=ChainStatus(text(status)),
        tail_type=text(tail_type),
        output=maybe_text(output),
        error=job_error(maybe_text(error)),
        attempt_trace_context=maybe_text(attempt_trace),
    )


def steps(answer: Answer, first: int) -> list[StepRecord]:
    """Decode the answer of steps: that of ``get_steps`` begins with number 1, others have the step ``first``."""
    now, entries = answer
    return [_step(entry, number, moment(now)) for number, entry in enumerate(entries, first)]


def _step(entry: bytes, number: int, now: datetime) -> StepRecord:
    header, _, result = text(entry).partition("\n")
    name, attempt, recorded_at, wake_at, *others = json.loads(header)
    event, answered_at, started_at = (*others, None, None, None)[:3]
    ends, answered, started = (moment(one) if one else None for one in (wake_at, answered_at, started_at))
    left = 0.0 if ends is None else max(0.0, (ends - now).total_seconds())
    return StepRecord(
        number, name, attempt, moment(recorded_at), result or None, ends, left, event or None, answered, started
    )


def type_count(one: Answer) -> TypeCount:
    """Decode an entry of ``count_jobs``."""
    type, status, count, since_oldest = one
    return TypeCount(text(type), JobStatus(text(status)), count, seconds(since_oldest))


def type_demand(one: Answer) -> TypeDemand:
    """Of ``demand``."""
    type, ready, due, running, held_back, since_oldest = one
    return TypeDemand(text(type), ready, due, running, held_back, seconds(since_oldest))


def wait_facts(one: Answer) -> WaitFacts | None:
    """Decode the answer of ``wait_facts``."""
    if not one:
        return None
    now, limits, running, running_of_key, begun, rate_free_at, ahead, event, sleep, held, held_of_key, kept = one
    return WaitFacts(
        now=moment(now),
        limits=limits_of(json.loads(limits)) if limits else None,
        running=running,
        running_of_key=running_of_key,
        begun=begun,
        rate_free_at=moment(rate_free_at) if rate_free_at else None,
        ahead=ahead,
        event=maybe_text(event),
        sleep=maybe_text(sleep),
        held=tuple(HeldJob(text(id), text(holder)) for id, holder in held),
        held_of_key=tuple(HeldJob(text(id), text(holder)) for id, holder in held_of_key),
        kept_events=tuple(sorted({text(name) for name in kept})),
    )


def traits(flat: Answer) -> list[TypeTraits]:
    """Decode the answer of ``list_type_traits``."""
    found = {text(flat[at]): json.loads(flat[at + 1]) for at in range(0, len(flat), 2)}
    return [
        TypeTraits(
            type,
            completed_by_client=bool(one.get("client")),
            overdue_after=int(one["overdue"]) / 1_000_000 if "overdue" in one else None,
            closes_with_parent=bool(one.get("closes")),
        )
        for type, one in sorted(found.items())
    ]


def limits_of(stored: Mapping[str, Any]) -> Limits:
    """The limits of a job type, as scripts keep them."""
    rate = None if stored.get("rate") is None else Rate(stored["rate"], per=int(stored["window"]) / 1_000_000)
    return Limits(stored.get("concurrency"), stored.get("per_key"), rate, fair=bool(stored.get("fair")))


def update(one: Answer) -> ChainUpdate:
    """Decode an entry of ``complete_chains``, ``cancel_chains`` and ``retry_chains``."""
    chain, chain_type, status, job_id, job_type, previous_status, written, due_types, chain_took, trace = one
    return ChainUpdate(
        chain_id=text(chain),
        chain_type=text(chain_type),
        status=ChainStatus(text(status)),
        job_id=text(job_id),
        job_type=text(job_type),
        previous_status=JobStatus(text(previous_status)),
        written=bool(written),
        due_types=texts(due_types),
        chain_seconds=took(chain_took),
        trace_context=maybe_text(trace),
    )


def triggered(one: Answer) -> TriggeredJob:
    """Decode an entry of ``trigger_jobs`` and ``release_stranded``."""
    id, type = one
    return TriggeredJob(text(id), text(type))


def schedule(stored: bytes) -> ScheduleRecord:
    """Decode an entry of ``list_schedules``."""
    fields = json.loads(stored)
    return ScheduleRecord(
        name=fields["name"],
        type=fields["type"],
        input=fields["input"],
        cron=fields.get("cron"),
        every=None if fields.get("every") is None else float(fields["every"]),
        time_zone=fields["time_zone"],
        missed=MissedRuns(fields["missed"]),
        priority=int(fields["priority"]),
        limit_key=fields.get("limit_key"),
        paused=bool(fields.get("paused")),
        next_at=maybe_moment(fields.get("next_at")),
        last_at=maybe_moment(fields.get("last_at")),
        owner=fields.get("owner"),
        overlap=Overlap(fields.get("overlap", "allow")),
        jitter=float(fields.get("jitter", 0.0)),
        starts_at=maybe_moment(fields.get("starts_at")),
        ends_at=maybe_moment(fields.get("ends_at")),
        attributes=attributes_of(fields.get("attributes")),
        result_ttl=None if fields.get("result_ttl") is None else float(fields["result_ttl"]),
        last_chain_id=fields.get("last_chain_id"),
    )


def due_schedules(answer: Answer, types: Sequence[str], limit: int) -> DueSchedules:
    """Return the due schedules among the entries of ``list_schedules``."""
    time, *stored = answer
    now = moment(time)
    waiting = [(one.next_at, one.name, one) for one in map(schedule, stored) if one.type in types and not one.paused]
    ticks = sorted(((at, name, one) for at, name, one in waiting if at is not None), key=lambda tick: tick[:2])
    due = [one for at, _, one in ticks if at <= now]
    later = [(at - now).total_seconds() for at, _, _ in ticks if at > now]
    return DueSchedules(now, due[:limit], 0.0 if len(due) >= limit else min(later, default=None))


def schedule_delays(answer: Answer) -> list[ScheduleDelay]:
    """The due ones among those of ``list_schedules``, the longest due first."""
    time, *stored = answer
    now = moment(time)
    waiting = [one for one in map(schedule, stored) if not one.paused]
    due = sorted((one.next_at, one.name, one.type) for one in waiting if one.next_at is not None and one.next_at <= now)
    return [ScheduleDelay(name, type, (now - tick).total_seconds()) for tick, name, type in due]


def worker(stored: bytes) -> WorkerRecord:
    """Decode an entry of ``list_workers``."""
    fields = json.loads(stored)
    return WorkerRecord(
        id=fields["id"],
        name=fields["name"],
        host=fields["host"],
        pid=fields["pid"],
        version=fields["version"],
        job_types=tuple(fields["job_types"]),
        concurrency=fields["concurrency"],
        running=fields["running"],
        state=WorkerState(fields["state"]),
        started_at=moment(fields["started_at"]),
        seen_at=moment(fields["seen_at"]),
    )


def activity(row: Answer, seconds: int) -> Activity:
    """Decode an entry of ``get_activity``."""
    begin, type, worker_id, stored = texts(row)
    _, _, numbers = stored.partition(" ")
    return Activity.of(EPOCH + timedelta(seconds=int(begin)), seconds, type, worker_id or None, numbers_of(numbers))


def paused_type(name: bytes, stored: bytes) -> PausedType:
    """Decode an entry of ``list_paused_job_types``."""
    fields = json.loads(stored)
    return PausedType(text(name), moment(fields["at"]), fields.get("reason"), fields.get("by"))
