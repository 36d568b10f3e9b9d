"""What several pages read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from queuert.activity import Activity
from queuert.bulk_operations import CLIENT_HOLDER
from queuert.errors import ConfigurationError
from queuert.event_log import EventLog
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus, Job, JobStatus
from queuert.limits import ClientType, PausedType
from queuert.new_chain import checked_priority
from queuert.run_at import RunAt, after, at
from queuert.state.adapter import Capability
from queuert.state.types import ScheduleRecord, TypeCount
from queuert.web.access import Action
from queuert.web.dashboard import formats
from queuert.web.dashboard.activity import Selection
from queuert.web.dashboard.charts import DEFAULT_SPAN, SPANS, Span, Spark, Sums, spark, steps_of, total
from queuert.web.dashboard.visit import Part, Visit
from queuert.web.problems import InvalidPart, Problem
from queuert.workers import WorkerRecord

PAGE = 50
"""Rows of a list."""

MOST_ROWS = 200
"""Rows of a list that has no pages: types, workers, schedules and webhooks."""

EXACT = 100
"""Number at which the counting of jobs ends, of each type and status: what a dashboard needs to know is exact."""

COUNTS_AGE = 2.0
WORKERS_AGE = 2.0
RUNNING_AGE = 2.0
SCHEDULES_AGE = 2.0
EVENT_LOG_AGE = 10.0
ACTIVITY_AGE = {"minute": 5.0, "hour": 60.0}
"""Seconds for which what was read is shown to everybody who asks."""

LOOKED_AT = 1_000
"""The newest failed chains that are grouped, and the oldest running jobs that are searched for those of a worker."""

COUNTED = 5_000
"""The most chains that are counted before a bulk operation is started."""

_LATE = 60.0
"""Seconds after which a ready job has waited for a worker for too long."""

NOTHING_SELECTED = "urn:queuert:problem:nothing-selected"
"""The type of the problem of a selection without rows: the list is shown again, to select some."""

CHAIN_FILTERS = ("type", "status", "attribute", "since", "before")


@dataclass(slots=True)
class TypeRow:
    """A job type: how many jobs of each status it has, who handles it, and what workers did in the last hour."""

    name: str
    counts: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    """By status: the number, None if it is not known, and whether it is an estimate."""
    oldest_ready: float | None = None
    paused: PausedType | None = None
    workers: int | None = 0
    """None if it is not known, as what follows."""
    by_clients: ClientType | None = None
    """What is known of it if clients complete its jobs."""
    hour: Sums | None = None
    spark: Spark | None = None
    rate: float | None = 0.0
    """Attempts that finished or failed a minute, in the last five whole minutes."""
    schedules: int = 0
    """How many schedules start chains of it, without those that are paused."""

    @property
    def unhandled(self) -> bool:
        """Whether no worker handles it, and jobs of it are ready or will be started."""
        ready = bool(self.counts.get("ready", (0, False))[0])
        return self.workers == 0 and self.by_clients is None and (ready or self.schedules > 0)

    @property
    def waits_for_workers(self) -> bool:
        """Whether its ready jobs wait for nothing but a worker."""
        return self.paused is None and self.by_clients is None

    @property
    def waits_too_long(self) -> bool:
        """Whether its oldest ready job has waited for longer than it should."""
        waited = self.oldest_ready or 0.0
        if self.by_clients is not None:
            return self.by_clients.overdue_after is not None and waited > self.by_clients.overdue_after
        return waited > _LATE and self.paused is None

    @property
    def failure_share(self) -> float | None:
        """The share of the attempts of the last hour that failed."""
        if self.hour is None or not self.hour.finished + self.hour.failed:
            return None
        return self.hour.failed / (self.hour.finished + self.hour.failed)


async def counts(visit: Visit) -> Sequence[TypeCount] | None:
    """The counts of all jobs; None if that took too long."""
    reading = visit.shared("counts", COUNTS_AGE, lambda: visit.client.count_jobs(exact_up_to=EXACT))
    return await visit.part(Part.COUNTS, reading)


async def live_workers(visit: Visit) -> list[WorkerRecord] | None:
    """The workers with a heartbeat in the last minute; None if that took too long."""
    return await visit.part(Part.WORKERS, visit.shared("workers", WORKERS_AGE, visit.client.list_workers))


async def stored_schedules(visit: Visit) -> list[ScheduleRecord] | None:
    """All schedules; None if that took too long."""
    return await visit.part(Part.SCHEDULES, visit.shared("schedules", SCHEDULES_AGE, visit.client.list_schedules))


async def event_log(visit: Visit) -> EventLog | None:
    """The settings of the event log; None if the store has none, or that took too long."""
    if Capability.EVENTS not in visit.client.state.capabilities:
        return None
    return await visit.part(Part.EVENT_LOG, visit.shared("event-log", EVENT_LOG_AGE, visit.client.get_event_log))


async def running_jobs(visit: Visit, type: str | None = None) -> tuple[Sequence[Job] | None, bool]:
    """The running jobs of a type, or of all: a thousand, those that were created first, and whether there are more.

    Those of a worker that has vanished are old ones. None if that took too long.
    """

    async def read() -> tuple[Sequence[Job], bool]:
        page = await visit.client.list_jobs(
            job_types=None if type is None else [type],
            statuses=[JobStatus.RUNNING],
            limit=LOOKED_AT,
            oldest_first=True,
        )
        # They are kept for a while: without what may be large, and no list of jobs shows.
        return [
            replace(one, input=None, progress=None, last_error=None, failures=()) for one in page.items
        ], page.next_cursor is not None

    return await visit.part(Part.RUNNING, visit.shared(("running", type), RUNNING_AGE, read)) or (None, False)


def worker_of(job: Job) -> str | None:
    """The worker that runs a job; None if a client does: it runs batches of bulk operations, and has no heartbeat."""
    by_client = job.type == BULK_OPERATION_TYPE and job.holder is not None and job.holder.startswith(CLIENT_HOLDER)
    return None if by_client else job.holder


def vanished_workers(jobs: Sequence[Job] | None, workers: list[WorkerRecord] | None) -> dict[str, list[Job]]:
    """The workers that are not alive and hold running jobs, with these; none while it is not known who is alive."""
    found: dict[str, list[Job]] = {}
    alive = {one.id for one in workers or ()}
    for job in jobs or () if workers is not None else ():
        name = worker_of(job)
        if name is not None and name not in alive:
            found.setdefault(name, []).append(job)
    return found


async def activity(visit: Visit, span: Span, **wanted: Any) -> Sequence[Activity]:
    """What workers did in a span, as the arguments of a selection say; nothing if that took too long: see ``missing``.

    Charts of it are empty then, and their numbers are not shown.
    """
    selection = Selection(span, **wanted)

    async def read() -> Sequence[Activity]:
        return await visit.database.activity.read(visit.client, selection, visit.now)

    return await visit.part(Part.ACTIVITY, visit.shared(selection, ACTIVITY_AGE[span.by], read)) or ()


def span_of(visit: Visit) -> Span:
    """The span that the request asks for.

    Raises:
        Problem: 400, there is no such span.
    """
    name = "" if visit.refused else visit.query("span")
    if name and name not in SPANS:
        raise Problem(400, "invalid-span", f"span must be one of {', '.join(SPANS)}, got {name!r}")
    return SPANS[name] if name else DEFAULT_SPAN


_BY: dict[str, Callable[[TypeRow], float]] = {
    **{
        status: lambda row, status=status: -(row.counts.get(status, (0, False))[0] or 0)  # type: ignore[misc]
        for status in ("ready", "running", "scheduled", "blocked", "failed")
    },
    "workers": lambda row: row.workers or 0,
    "oldest": lambda row: -(row.oldest_ready or 0.0),
    "rate": lambda row: -(row.rate or 0.0),
    "failing": lambda row: -(row.failure_share or 0.0),
    "wait": lambda row: -((row.hour and row.hour.wait.quantile(0.95)) or 0.0),
    "run": lambda row: -((row.hour and row.hour.run.quantile(0.95)) or 0.0),
}
"""What types can be ordered by, besides their names: the highest first, but the fewest workers."""


def ordered(visit: Visit, rows: list[TypeRow]) -> list[TypeRow]:
    """The types in the order that the request asks for.

    Raises:
        Problem: 400, there is no such order.
    """
    by = "" if visit.refused else visit.query("sort")
    if not by:
        return rows
    if by not in _BY:
        raise Problem(400, "invalid-sort", f"sort must be one of {', '.join(_BY)}, got {by[:64]!r}")
    return sorted(rows, key=_BY[by])


async def type_rows(visit: Visit) -> list[TypeRow]:
    """All job types that have jobs, workers or a pause, by name."""
    found, workers, hour = (
        await counts(visit),
        await live_workers(visit),
        await activity(visit, DEFAULT_SPAN, per_type=True),
    )
    paused = {one.type: one for one in await visit.client.list_paused_job_types()}
    by_clients = {one.type: one for one in await visit.client.list_client_types()}
    handled = {name for one in workers or () for name in one.job_types}
    by_type: dict[str, list[Activity]] = {}
    for one in hour:
        by_type.setdefault(one.type, []).append(one)
    scheduled = Counter(one.type for one in await stored_schedules(visit) or () if not one.paused)
    names = {one.type for one in found or ()}.union(paused, by_clients, handled, by_type, scheduled)
    rows = {name: unknown_row(visit, name) for name in sorted(names)}
    for name, row in rows.items():
        row.paused, row.by_clients, row.schedules = paused.get(name), by_clients.get(name), scheduled[name]
        if workers is not None:
            row.workers = sum(name in one.claimed_types for one in workers)
    for count in found or ():
        rows[count.type].counts[str(count.status)] = (count.count, count.estimated)
        if count.status is JobStatus.READY:
            rows[count.type].oldest_ready = count.oldest_seconds
    for name, row in rows.items() if Part.ACTIVITY not in visit.missing else ():
        steps = steps_of(by_type.get(name, ()), DEFAULT_SPAN, visit.now)
        row.hour, row.spark, row.rate = total(steps), spark(steps), rate_of(steps)
    return list(rows.values())


async def client_type(visit: Visit, name: str) -> ClientType | None:
    """What is known of a type if clients complete its jobs, for which no worker has a handler."""
    return next((one for one in await visit.client.list_client_types() if one.type == name), None)


def unknown_row(visit: Visit, name: str) -> TypeRow:
    """Return the row of a type of which nothing was found: zeros, and what was not read in time is not known."""
    row = TypeRow(name)
    if Part.COUNTS in visit.missing:
        row.counts = {str(status): (None, False) for status in JobStatus}
    if Part.WORKERS in visit.missing:
        row.workers = None
    if Part.ACTIVITY in visit.missing:
        row.rate = None
    return row


def rate_of(steps: Sequence[Sums]) -> float:
    """Return the attempts that ended a minute, in the last five whole minutes of steps of a minute."""
    return sum(one.finished + one.failed for one in steps[-6:-1]) / 5


def chain_filter(visit: Visit) -> dict[str, Any]:
    """The filter of a list of chains, as the client takes it.

    Raises:
        Problem: 400, an attribute is not ``name=value``, or a time cannot be read.
    """
    values = visit.given(*CHAIN_FILTERS)
    found: dict[str, Any] = {}
    if "type" in values:
        found["job_types"] = [values["type"]]
    if "status" in values:
        found["statuses"] = [values["status"]]
    if "attribute" in values:
        attributes: dict[str, list[str]] = {}
        for part in values["attribute"].split():
            name, equals, value = part.partition("=")
            if not equals:
                raise wrong("attribute", f"an attribute must be name=value, got {part!r}")
            attributes.setdefault(name, []).append(value)
        found["attributes"] = attributes
    for name in ("since", "before"):
        if name in values:
            found[name] = past_time(visit, name, values[name])
    return found


def wrong(field: str, detail: str, status: int = 400) -> Problem:
    """Return the problem of a field of a form or of a filter: its page is shown again, with the reason beside it."""
    return Problem(
        status, f"invalid-{field.replace('_', '-')}", detail, errors=[InvalidPart(path=field, reason=detail)]
    )


_UNITS = {"m": 60, "h": 3_600, "d": 86_400}
_DISTANCE = re.compile(r"([0-9]{1,6})([mhd])")
_NOW = "now"
_CONFIRMED = "confirmed"


def past_time(visit: Visit, field: str, text: str) -> datetime:
    """A time of what was, such as ``2026-11-25T03:00``, in the zone of the page, or ``8h`` ago.

    Raises:
        Problem: 400, it is neither.
    """
    return _time(visit, field, text, -1, "30m, 8h or 2d ago")


def _time(visit: Visit, field: str, text: str, sign: int, distances: str) -> datetime:
    distance = _DISTANCE.fullmatch(text)
    try:
        if distance is not None:
            return visit.now + sign * timedelta(seconds=int(distance[1]) * _UNITS[distance[2]])
        found = datetime.fromisoformat(text)
        # Not all that a calendar has can be told in another zone, such as the first hours of year 1.
        return (found if found.tzinfo is not None else found.replace(tzinfo=visit.zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        detail = f"a time must be such as 2026-11-25T03:00, or {distances}, got {text[:64]!r}"
        raise wrong(field, detail) from None


BULK_ACTIONS = {
    "retry": (Action.RETRY, (ChainStatus.FAILED, ChainStatus.CANCELLED)),
    "cancel": (Action.CANCEL, (ChainStatus.OPEN,)),
    "reschedule": (Action.CHANGE, (ChainStatus.OPEN,)),
    "reprioritize": (Action.CHANGE, (ChainStatus.OPEN,)),
    "delete": (Action.DELETE, (ChainStatus.COMPLETED, ChainStatus.FAILED, ChainStatus.CANCELLED)),
}
"""Of each change of all chains of a filter: the action of the access that it needs, and the statuses that it is for."""


def due_of(visit: Visit) -> datetime | None:
    """The due time that a form has: a time to come such as ``2026-11-25T03:00``, or in ``8h``, or now.

    Raises:
        Problem: 400, it cannot be read, or is in the past.
    """
    text = visit.given("run_at").get("run_at")
    if not text:
        return None
    if text.casefold() == _NOW:
        return visit.now
    if visit.form.get(_CONFIRMED):
        # It was to come when it was shown: later it is due at once.
        return max(visit.now, _time(visit, "run_at", text, 1, "a time"))
    due = _time(visit, "run_at", text, 1, "in 30m, 8h or 2d, or now")
    if due < visit.now:
        shown = f"{formats.clock(due, visit.zone)} {formats.zone_name(visit.zone, due)}"
        past = f"{text[:64]!r}, which is {shown}, {formats.between(due, visit.now)} ago"
        raise wrong("run_at", f"a due time must be to come, got {past}: write another, or now to make it due at once")
    return due


def run_at_of(visit: Visit, due: datetime | None) -> RunAt | None:
    """When a job with this due time should run: at once is by the clock of the store."""
    return None if due is None else after(seconds=0) if due <= visit.now else at(due)


def due_in_notice(due: datetime | None) -> dict[str, str]:
    """What the address of a notice has of a due time that was written."""
    return {} if due is None else {"due": due.isoformat()}


def checked_change(visit: Visit) -> dict[str, str]:
    """The due time and the priority that are shown before they are written, as the form that writes them has them.

    The due time is that which was shown, however much later the form is sent; if it has passed then, at once.

    Raises:
        Problem: 400, one cannot be read, or the due time is in the past.
    """
    given = visit.given("run_at", "priority")
    due = due_of(visit)
    priority_of(visit)
    if due is not None:
        given["run_at"] = _NOW if given["run_at"].casefold() == _NOW else due.isoformat()
        given[_CONFIRMED] = "1"
    return given


def priority_of(visit: Visit) -> int | None:
    """The priority that a form has.

    Raises:
        Problem: 400, it is not a whole number; 422, it is out of range.
    """
    text = visit.given("priority").get("priority")
    if text is not None and not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise wrong("priority", f"the priority must be a whole number, got {text[:64]!r}")
    try:
        return None if text is None else checked_priority(int(text))
    except ConfigurationError as error:
        raise wrong("priority", str(error), 422) from None


def reason_of(visit: Visit) -> str:
    """The reason that a form of a cancellation has; if it has none, who cancels."""
    return visit.given("reason").get("reason") or f"cancelled by {visit.principal}"


def older(given: dict[str, str], cursor: str | None, *, name: str = "cursor") -> str | None:
    """The query of the next page of a list, whose cursor has this name."""
    return urlencode({**given, name: cursor}) if cursor else None


def named(name: str, *texts: str | None) -> bool:
    """Whether a text that somebody looks for is in one of these, in whatever case."""
    return any(name.casefold() in text.casefold() for text in texts if text)


def known_types(visit: Visit, *seen: str) -> list[str]:
    """Names to suggest in filters: those that the client knows, and what was seen."""
    return sorted({one.name for one in visit.client.job_types} | set(seen))
