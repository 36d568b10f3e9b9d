"""The first page, and the search for an id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from starlette.responses import Response

from queuert.errors import ChainNotFoundError, InvalidIdentifierError, JobNotFoundError
from queuert.web.dashboard.charts import DEFAULT_SPAN, SPANS, quantiles_chart, rates_chart, spark, steps_of, total
from queuert.web.dashboard.pages.shared import (
    TypeRow,
    activity,
    live_workers,
    ordered,
    running_jobs,
    span_of,
    type_rows,
)
from queuert.web.dashboard.visit import Visit
from queuert.web.problems import Problem
from queuert.workers import WorkerRecord

SLOW = 60.0
"""Seconds that a ready job may wait before the first page says so."""

LATE = 60.0
"""Seconds after its tick when a schedule is late."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers at the top of the first page."""

    statuses: Counter[str]
    estimated: frozenset[str]
    workers: int
    slots: int


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
        totals=_totals(types, workers),
        span=span,
        spans=SPANS,
        sum=total(steps),
        rate=sum(one.finished + one.failed for one in hour[-6:-1]) / 5,
        hour=total(hour),
        spark=spark(hour),
        rates=rates_chart(steps, span, visit.zone),
        waits=quantiles_chart(steps, span, visit.zone, "wait"),
        runs=quantiles_chart(steps, span, visit.zone, "run"),
        slow=[row for row in types if row.workers and row.waits_for_workers and (row.oldest_ready or 0) > SLOW],
        late=await _late_schedules(visit),
        vanished=await _vanished(visit, {one.id for one in workers}),
        overdue=[row for row in types if row.by_clients is not None and row.waits_too_long],
        oldest=max((row.oldest_ready or 0.0 for row in types if row.by_clients is None), default=0.0),
    )  # fmt: skip


def _totals(types: list[TypeRow], workers: list[WorkerRecord]) -> Totals:
    statuses: Counter[str] = Counter()
    estimated: set[str] = set()
    for row in types:
        for status, (count, is_estimate) in row.counts.items():
            statuses[status] += count
            if is_estimate:
                estimated.add(status)
    return Totals(statuses, frozenset(estimated), len(workers), sum(one.concurrency for one in workers))


async def _late_schedules(visit: Visit) -> list[str]:
    late_since = visit.now - timedelta(seconds=LATE)
    found = await visit.part("schedules", visit.shared("schedules", 2.0, visit.client.list_schedules), [])
    return [one.name for one in found if not one.paused and one.next_at is not None and one.next_at < late_since]


async def _vanished(visit: Visit, alive: set[str]) -> dict[str, int]:
    """The workers that are not alive and still hold leases, with the number of their jobs."""
    jobs, _ = await running_jobs(visit)
    return dict(Counter(job.holder for job in jobs if job.holder and job.holder not in alive))


async def search(visit: Visit) -> Response:
    """Go to the chain or the job of an id, or to what else has this name."""
    text = visit.query("q")
    if not text:
        raise Problem(
            400, "missing-parameter", "the parameter 'q' must be there: an id, a worker, a type or name=value"
        )
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
    if any(text in (one.id, one.name) for one in await live_workers(visit)):
        found = next(one.id for one in await live_workers(visit) if text in (one.id, one.name))
        return visit.go("/worker", name=found)
    if "=" in text.strip("="):
        return visit.go("/chains", attribute=text)
    raise Problem(404, "not-found", f"no chain, job, job type or worker is called {text!r}")
