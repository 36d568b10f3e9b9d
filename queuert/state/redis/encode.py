"""Encodes the arguments of scripts: one argument of JSON, and the payloads after it. Pure functions.

Times and durations are whole microseconds. Each payload is an argument of its own, and the JSON contains its position,
so that Lua neither parses nor rounds anything that a handler wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import randrange
from typing import Any, TypeAlias

from queuert.activity import ActivityFilter, ActivityReport, shown_numbers
from queuert.attributes import attributes_text
from queuert.errors import InvalidCursorError
from queuert.ids import new_id
from queuert.jobs import JobError
from queuert.limits import Limits, TypeTraits
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.state.paging import ChainFilter, JobFilter
from queuert.state.steps import EventWait, NewStep
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    InputEdit,
    Lease,
    NewJob,
    PruneRequest,
    Renewal,
    ScheduleRecord,
    WorkerlessCompletion,
    failure_error,
    with_newest_inputs,
)

Arguments: TypeAlias = list[str]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(\d{1,9}):(\d{1,15})", re.ASCII)


def microseconds(value: datetime) -> int:
    """Encode a time."""
    return (value - EPOCH) // timedelta(microseconds=1)


def pause(seconds: float) -> int:
    """Encode seconds as whole microseconds."""
    return round(seconds * 1_000_000)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def plain(value: Any) -> Arguments:
    """Return the arguments of a script without payloads."""
    return [_text(value)]


def _set(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value: an absent field is nil in Lua, but a null is not."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}


class _Payloads:
    """The arguments after the first."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def put(self, text: str | None) -> int | None:
        """Append a payload and return its position."""
        if text is None:
            return None
        self.texts.append(text)
        return len(self.texts) + 1

    def behind(self, request: Any) -> Arguments:
        return [_text(request), *self.texts]


def error_text(error: JobError | None) -> str | None:
    """Return the error of a job as it is stored."""
    if error is None:
        return None
    return _text(_set(kind=error.kind, message=error.message, type=error.type, traceback=error.traceback))


def _when(run_at: RunAt | None) -> dict[str, Any]:
    if run_at is None:
        return {}
    if run_at.moment is not None:
        return {"moment": str(microseconds(run_at.moment))}
    return {"delay": pause(run_at.delay or 0.0)}


def _new_job(job: NewJob, payloads: _Payloads) -> dict[str, Any]:
    key = job.deduplication
    deduplication = None
    if key is not None:
        deduplication = _set(
            key=key.key,
            any=key.scope == "any" or None,
            window=None if key.window is None else pause(float(key.window)),  # type: ignore[arg-type]
            excluding=list(key.excluding),
            debounce=None if key.debounce is None else pause(float(key.debounce)),  # type: ignore[arg-type]
            max_delay=None if key.max_delay is None else pause(float(key.max_delay)),  # type: ignore[arg-type]
        )
    return _set(
        id=job.id,
        type=job.type,
        input=payloads.put(job.input),
        priority=job.priority or None,
        blockers=job.blockers,
        chosen=job.id_chosen or None,
        attach=job.attach or None,
        trace=job.trace_context,
        deduplication=deduplication,
        limit_key=job.limit_key,
        ttl=None if job.result_ttl is None else pause(job.result_ttl),
        attributes=attributes_text(job.attributes or {}),
        max_attempts=job.max_attempts,
        inherit_limit_key=job.inherit_limit_key or None,
        inherit_attributes=job.inherit_attributes or None,
        **_when(job.run_at),
    )


def start(jobs: Sequence[NewJob]) -> Arguments:
    """Return the arguments of ``start``."""
    payloads = _Payloads()
    return payloads.behind([_new_job(job, payloads) for job in with_newest_inputs(jobs)])


def limits_of_type(limits: Limits) -> dict[str, Any]:
    """The limits of one job type, as scripts take and keep them."""
    rate = limits.rate
    return _set(
        concurrency=limits.concurrency,
        per_key=limits.per_key,
        rate=None if rate is None else rate.count,
        window=None if rate is None else pause(rate.seconds),
        fair=limits.fair or None,
    )


def traits(one: TypeTraits) -> dict[str, Any]:
    """What is kept of what is particular to a job type."""
    overdue = None if one.overdue_after is None else pause(one.overdue_after)
    return _set(client=one.completed_by_client or None, overdue=overdue, closes=one.closes_with_parent or None)


def activity_report(report: ActivityReport | None) -> dict[str, Any]:
    """The parameter ``activity`` of a script, if there is a report."""
    if report is None:
        return {}
    minutes = [[unix_time(one.begins_at), one.type, shown_numbers(one.numbers)] for one in report.minutes]
    return {"activity": {"number": report.number, "minutes": minutes}}


def activity_filter(filter: ActivityFilter, seconds: int, after: str, most: int) -> Arguments:
    """Return the arguments of ``get_activity``."""
    return plain(
        _set(
            seconds=str(seconds),
            after=after,
            before="+inf" if filter.until is None else unix_time(filter.until),
            types=None if filter.types is None else list(filter.types),
            most=most,
        )
    )


def unix_time(value: datetime, later: int = 0) -> str:
    """Encode a time, so many seconds later, as seconds since 1970, exactly."""
    whole, rest = divmod(microseconds(value), 1_000_000)
    return f"{whole + later}.{rest:06d}" if rest else str(whole + later)


def claim(request: ClaimRequest, claimed: Sequence[ClaimedJob]) -> Arguments:
    """Return the arguments of ``claim`` for what other scripts, which claimed some jobs, have left of a request."""
    return plain(
        {
            "types": list(request.leases),
            "leases": {type: pause(seconds) for type, seconds in request.leases.items()},
            "limit": request.limit - len(claimed),
            "max_bytes": max(0, request.max_bytes - sum(len(one.input) for one in claimed)),
            **_set(after=request.after_rank, begun=bool(claimed) or None),
            "holder": request.holder,
            "token": request.token,
            "limits": {type: limits_of_type(limits) for type, limits in request.limits.items()},
            "seed": randrange(1 << 31),
        }
    )


def leases(params: Iterable[Lease]) -> Arguments:
    """Return the arguments of ``release`` and ``lost_reasons``."""
    return plain([[one.job_id, one.token] for one in params])


def renewals(params: Iterable[Renewal]) -> Arguments:
    """Return the arguments of ``renew``."""
    return plain([
        [
            one.lease.job_id, one.lease.token, pause(one.seconds),
            *([] if one.progress is None else [one.progress, one.logs_progress]),
        ]
        for one in params
    ])  # fmt: skip


def _finish(finish: Finish, payloads: _Payloads) -> dict[str, Any]:
    output = finish.output
    if output is None and finish.kind == "complete":
        output = "null"
    following = finish.continuation
    short = failure_error(finish.error)
    fields = _set(
        id=finish.job.id,
        token=finish.job.token,
        kind=finish.kind.value,
        output=payloads.put(output),
        error=payloads.put(error_text(finish.error)),
        short_error=None if short is finish.error else payloads.put(error_text(short)),
        delay=pause(finish.delay) or None,
        crashed=finish.crashed or None,
        ttl=None if finish.result_ttl is None else pause(finish.result_ttl),
        trace=finish.job.attempt_trace_context,
        waits_for_event=True if finish.waits_for_event else None,
        continuation=None if following is None else _new_job(following, payloads),
        starts=[_new_job(job, payloads) for job in finish.starts],
        blockers=finish.blockers,
    )
    return fields if finish.run_at is None else {**fields, **_when(finish.run_at)}


def step(lease: Lease, step: NewStep) -> Arguments:
    """Return the arguments of ``record_step``."""
    payloads = _Payloads()
    payloads.put(step.result)
    payloads.put(step.progress)
    given = {"id": lease.job_id, "token": lease.token, "number": step.number, "name": step.name}
    started_at = None if step.started_at is None else str(microseconds(step.started_at))
    return payloads.behind({**given, "attempt": step.attempt, **_set(started_at=started_at), **_when(step.wake_at)})


def event_wait(lease: Lease, wait: EventWait) -> Arguments:
    """Return the arguments of ``wait_for_event``."""
    given = {"id": lease.job_id, "token": lease.token, "number": wait.number, "name": wait.name}
    return plain({**given, "attempt": wait.attempt, "event": wait.event, "timeout": pause(wait.timeout)})


def finish(finishes: Sequence[Finish]) -> Arguments:
    """Return the arguments of ``finish``."""
    payloads = _Payloads()
    return payloads.behind([_finish(one, payloads) for one in finishes])


def _policy(type: str, policy: RetryPolicy) -> dict[str, Any]:
    return {
        "type": type,
        "max_attempts": policy.max_attempts,
        "max_crashes": policy.max_crashes,
        "initial": policy.initial_delay,
        "multiplier": policy.multiplier,
        "maximum": policy.max_delay,
        "jitter": policy.jitter,
    }


def reap(policies_of: Mapping[str, RetryPolicy], limit: int) -> Arguments:
    """Return the arguments of ``reap`` for a part of a request."""
    policies = [_policy(type, policy) for type, policy in policies_of.items()]
    return plain({"policies": policies, "limit": limit, "seed": randrange(1 << 31)})


Flags: TypeAlias = Mapping[str, bool]
"""``check`` or ``checked``, or neither: see ``management.lua``."""


def trigger(ids: Sequence[str], flags: Flags) -> Arguments:
    """Return the arguments of ``trigger_jobs``."""
    return plain({"ids": list(ids), **flags})


def cancel(ids: Sequence[str], error: JobError, flags: Flags, *, deleting: Collection[str] | None = None) -> Arguments:
    """Return the arguments of ``cancel_chains``."""
    waiting = None if deleting is None else sorted(deleting)
    return [*plain({**_set(ids=list(ids), deleting=waiting), **flags}), error_text(error) or ""]


def retry(ids: Sequence[str], edit: InputEdit | None, flags: Flags) -> Arguments:
    """Return the arguments of ``retry_chains``."""
    payloads = _Payloads()
    return payloads.behind({**_set(ids=list(ids), edit=_edit(edit, payloads)), **flags})


def changes(
    ids: Sequence[str], run_at: RunAt | None, priority: int | None, edit: InputEdit | None, flags: Flags
) -> Arguments:
    """Return the arguments of ``change_waiting_jobs``."""
    payloads = _Payloads()
    params = {**_set(ids=list(ids), priority=priority, edit=_edit(edit, payloads)), **flags}
    return payloads.behind({**params, **_when(run_at)})


def _edit(edit: InputEdit | None, payloads: _Payloads) -> dict[str, Any] | None:
    return None if edit is None else {"job": edit.job_id, "input": payloads.put(edit.input)}


def pause_types(types: Sequence[str], reason: str | None, by: str | None) -> Arguments:
    """Return the arguments of ``pause_job_types``."""
    return plain(_set(types=list(types), reason=reason, by=by))


def completions(
    params: Sequence[WorkerlessCompletion],
    *,
    check: bool = False,
    refused: bool = False,
    cancel: Sequence[str] = (),
    error: JobError | None = None,
) -> Arguments:
    """Return the arguments of ``complete_chains``; ``error`` is that of the chains to cancel."""
    payloads = _Payloads()
    chains = [
        _set(
            chain=one.chain_id,
            tail=one.tail_id,
            output=payloads.put(one.output if one.continuation or one.output else "null"),
            continuation=None if one.continuation is None else _new_job(one.continuation, payloads),
        )
        for one in params
    ]
    cancelled = {"cancel": list(cancel), "error": payloads.put(error_text(error))} if cancel else {}
    return payloads.behind(_set(chains=chains, check=check or None, refused=refused or None, **cancelled))


_OUTCOMES = ("completed", "failed", "cancelled")


def prune(request: PruneRequest, limit: int) -> Arguments:
    """Return the arguments of ``prune`` for a part of the limit.

    Raises:
        InvalidCursorError: the cursor is not one of this operation.
    """
    phase, stayed = 0 if request.expired else 1, 0
    if request.cursor is not None:
        cursor = _CURSOR.fullmatch(request.cursor)
        if cursor is None:
            raise InvalidCursorError(request.cursor)
        phase, stayed = map(int, cursor.groups())
    policies = [
        _set(
            type=type,
            status=outcome,
            age=None if keep.seconds is None else pause(keep.seconds),
            count=keep.count,
            stale=None if keep.stale_seconds is None else pause(keep.stale_seconds),
        )
        for type, retention in sorted(request.policies.items())
        for outcome in _OUTCOMES
        if (keep := retention.bound(outcome)) is not None
    ]
    before = None if request.closed_before is None else microseconds(request.closed_before)
    only = request.only and {
        action: dict.fromkeys(ids, True)
        for action, ids in (("delete", request.only.chain_ids), ("mark", request.only.stale_ids))
    }
    position = {"policies": policies, "limit": limit, "phase": phase, "stayed": stayed}
    return plain({**position, **_set(preview=request.preview or None, only=only, before=before)})


def page(
    filter: ChainFilter | JobFilter,
    types: Sequence[str] | None,
    *,
    after: tuple[int, str],
    oldest_first: bool,
    limit: int,
    scan: int,
    most_types: int,
) -> Arguments:
    """Return the arguments of ``list_by_time``, for these types of the filter's."""
    return plain(
        _set(
            types=None if types is None else list(types),
            statuses=None if filter.statuses is None else [one.value for one in filter.statuses],
            since=None if filter.since is None else str(microseconds(filter.since)),
            before=None if filter.before is None else str(microseconds(filter.before)),
            after=list(map(str, after)),
            oldest_first=oldest_first or None,
            chains=isinstance(filter, ChainFilter) or None,
            attributes=filter.attributes if isinstance(filter, ChainFilter) else None,
            limit=limit,
            scan=scan,
            most=most_types,
        )
    )


def _schedule(schedule: ScheduleRecord, now: datetime) -> Mapping[str, Any]:
    next_at = schedule.spec.next_after(now)
    return {
        "name": schedule.name,
        "type": schedule.type,
        "input": schedule.input,
        "cron": schedule.cron,
        "every": None if schedule.every is None else repr(schedule.every),
        "time_zone": schedule.time_zone,
        "missed": schedule.missed.value,
        "priority": schedule.priority,
        "limit_key": schedule.limit_key,
        "paused": schedule.paused,
        "next_at": None if next_at is None else str(microseconds(next_at)),
        "last_at": None,
        "owner": schedule.owner,
        "overlap": schedule.overlap.value,
        "jitter": repr(schedule.jitter),
        "starts_at": None if schedule.starts_at is None else str(microseconds(schedule.starts_at)),
        "ends_at": None if schedule.ends_at is None else str(microseconds(schedule.ends_at)),
        "attributes": attributes_text(schedule.attributes),
        "result_ttl": None if schedule.result_ttl is None else repr(schedule.result_ttl),
    }


def schedules(records: Sequence[ScheduleRecord], now: datetime) -> Arguments:
    """Return the arguments of ``put_schedules``. The first tick of each schedule is the next one after ``now``."""
    return plain([_schedule(one, now) for one in records])


def fire(
    name: str, tick: datetime, next_at: datetime | None, last_at: datetime | None, jobs: Sequence[NewJob]
) -> Arguments:
    """Return the arguments of ``fire_schedule``."""
    return _fire(
        jobs,
        name=name,
        tick=str(microseconds(tick)),
        next_at=None if next_at is None else str(microseconds(next_at)),
        last_at=None if last_at is None else str(microseconds(last_at)),
    )


def run_schedule(name: str, jobs: Sequence[NewJob], *, overlap: bool) -> Arguments:
    """Return the arguments of ``fire_schedule`` for a start out of turn."""
    return _fire(jobs, name=name, overlap=overlap or None)


def _fire(jobs: Sequence[NewJob], **params: Any) -> Arguments:
    payloads = _Payloads()
    return payloads.behind(_set(**params, jobs=[{**_new_job(job, payloads), "beside": new_id()} for job in jobs]))
