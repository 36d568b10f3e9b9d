"""The first page, and the search for an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from starlette.responses import Response

from queuert.errors import ChainNotFoundError, InvalidIdentifierError, JobNotFoundError, RightMissingError
from queuert.jobs import JobStatus
from queuert.web.dashboard.charts import DEFAULT_SPAN, SPANS, quantiles_chart, rates_chart, spark, steps_of, total
from queuert.web.dashboard.pages.shared import (
    TypeRow,
    activity,
    live_workers,
    ordered,
    rate_of,
    running_jobs,
    span_of,
    stored_schedules,
    type_rows,
    vanished_workers,
)
from queuert.web.dashboard.visit import Part, Visit
from queuert.web.problems import Problem
from queuert.webhooks import Webhook
from queuert.workers import WorkerRecord

SLOW = 60.0
"""Seconds that a ready job may wait before the first page says so."""

LATE = 60.0
"""Seconds after its tick when a schedule is late."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers at the top of the first page."""

    statuses: dict[str, int | None]
    """None if they are not known."""
    estimated: frozenset[str]
    workers: int | None
    """None if it is not known."""
    slots: int | None


async def overview(visit: Visit) -> Response:
    """What needs attention, what happens, and all job types."""
    span = span_of(visit)
    types, workers = await type_rows(visit), await live_workers(visit)
    # The last hour of each type was read for the table.
    hour = steps_of(await activity(visit, DEFAULT_SPAN, per_type=True), DEFAULT_SPAN, visit.now)
    steps = hour if span is DEFAULT_SPAN else steps_of(await activity(visit, span), span, visit.now)
    return visit.render(
        "overview.html",
        types=ordered(visit, types),
        sort=visit.query("sort"),
        totals=_totals(visit, types, workers),
        span=span,
        spans=SPANS,
        sum=total(steps),
        rate=None if Part.ACTIVITY in visit.missing else rate_of(hour),
        hour=total(hour),
        spark=spark(hour),
        rates=rates_chart(steps, span, visit.zone),
        waits=quantiles_chart(steps, span, visit.zone, "wait"),
        runs=quantiles_chart(steps, span, visit.zone, "run"),
        slow=[row for row in types if row.workers and row.waits_for_workers and (row.oldest_ready or 0) > SLOW],
        late=await _late_schedules(visit),
        vanished=await _vanished(visit, workers),
        overdue=[row for row in types if row.by_clients is not None and row.waits_too_long],
        oldest=None if Part.COUNTS in visit.missing else _oldest(types),
    )  # fmt: skip


def _oldest(types: list[TypeRow]) -> float:
    """Return for how many seconds the oldest job that a worker may take is ready; 0 if there is none."""
    return max((row.oldest_ready or 0.0 for row in types if row.by_clients is None), default=0.0)


def _totals(visit: Visit, types: list[TypeRow], workers: list[WorkerRecord] | None) -> Totals:
    statuses: Counter[str] = Counter({str(status): 0 for status in JobStatus})
    estimated: set[str] = set()
    for row in types:
        for status, (count, is_estimate) in row.counts.items():
            statuses[status] += count or 0
            if is_estimate:
                estimated.add(status)
    return Totals(
        {status: None if Part.COUNTS in visit.missing else count for status, count in statuses.items()},
        frozenset(estimated),
        None if workers is None else len(workers),
        None if workers is None else sum(one.concurrency for one in workers),
    )


async def _late_schedules(visit: Visit) -> list[str]:
    late_since = visit.now - timedelta(seconds=LATE)
    found = await stored_schedules(visit)
    return [one.name for one in found or () if not one.paused and one.next_at is not None and one.next_at < late_since]


async def _vanished(visit: Visit, workers: list[WorkerRecord] | None) -> dict[str, int]:
    """The workers that are not alive and still hold leases, with the number of their jobs."""
    jobs, _ = await running_jobs(visit)
    return {name: len(held) for name, held in vanished_workers(jobs, workers).items()}


async def search(visit: Visit) -> Response:
    """Go to the chain or the job of an id, or to what else has this name."""
    text = visit.query("q")
    if visit.refused:
        # Ids, names and attributes that somebody may have meant who writes "order 21".
        words = text.split()
        likely = ["-".join(words), "=".join(words)] if len(words) == 2 else []
        return visit.render("search.html", text=text, likely=likely)
    if not text:
        raise Problem(400, "missing-parameter", "the parameter 'q' must be there: an id, a name or name=value")
    try:
        return visit.go("/chain", id=(await visit.client.get_chain(text)).id)
    except (ChainNotFoundError, InvalidIdentifierError):
        pass
    try:
        return visit.go("/job", id=(await visit.client.get_job(text)).id)
    except (JobNotFoundError, InvalidIdentifierError):
        pass
    if any(row.name == text for row in await type_rows(visit)):
        return visit.go("/type", name=text)
    for one in await live_workers(visit) or ():
        if text in (one.id, one.name):
            return visit.go("/worker", name=one.id)
    is_attribute = "=" in text.strip("=")
    # The address of a webhook may have a query, with such a sign, too.
    if is_attribute and not text.startswith(("http://", "https://")):
        return visit.go("/chains", attribute=text)
    if any(one.name == text for one in await stored_schedules(visit) or ()):
        return visit.go("/schedules", name=text)
    for hook in await _webhooks(visit):
        if text in (hook.id, hook.url):
            return visit.go("/webhook", id=hook.id)
    if is_attribute:
        return visit.go("/chains", attribute=text)
    if visit.missing:
        read = ", ".join(sorted(visit.missing))
        raise Problem(503, "unavailable", f"not everything was read in time: {read}. Search again")
    raise Problem(404, "not-found", f"no chain, job, job type, worker, schedule or webhook is called {text!r}")


async def _webhooks(visit: Visit) -> Sequence[Webhook]:
    """All webhooks; none if the login of the database may not read them, or that took too long."""
    try:
        return await visit.part(Part.WEBHOOKS, visit.client.list_webhooks()) or ()
    except RightMissingError:
        return ()
