"""Job types: the list, and one of them."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from queuert.event_log import EventLevel
from queuert.web.dashboard.charts import (
    SPANS,
    histogram_chart,
    quantiles_chart,
    rates_chart,
    steps_of,
    total,
)
from queuert.web.dashboard.pages.shared import (
    activity,
    event_log,
    live_workers,
    ordered,
    running_jobs,
    span_of,
    stored_schedules,
    type_rows,
    unknown_row,
)
from queuert.web.dashboard.visit import Part, Visit
from queuert.web.problems import Problem

SHOWN = 20
"""The most running jobs that are shown."""

_KEYS = 20
"""The most limit keys that are shown."""


async def job_types(visit: Visit) -> Response:
    """All job types."""
    return visit.render("types.html", types=ordered(visit, await type_rows(visit)), sort=visit.query("sort"))


async def job_type(visit: Visit) -> Response:
    """A job type: its jobs, what workers did, how long jobs waited and ran, and who handles it."""
    name, span = visit.wanted("name"), span_of(visit)
    rows = {row.name: row for row in await type_rows(visit)}
    confirmed = name in rows or name in {one.name for one in visit.client.job_types}
    if not confirmed and visit.missing.isdisjoint((Part.COUNTS, Part.WORKERS)):
        raise Problem(404, "not-found", f"no job and no worker has the type {name!r}")
    steps = steps_of(await activity(visit, span, type=name), span, visit.now)
    sum = total(steps)
    running, more = await running_jobs(visit, name)
    workers, schedules = await live_workers(visit), await stored_schedules(visit)
    keys = Counter(job.limit_key for job in running or () if job.limit_key)
    return visit.render(
        "type.html",
        row=rows.get(name) or unknown_row(visit, name),
        confirmed=confirmed,
        span=span,
        spans=SPANS,
        sum=sum,
        rates=rates_chart(steps, span, visit.zone),
        waits=quantiles_chart(steps, span, visit.zone, "wait"),
        runs=quantiles_chart(steps, span, visit.zone, "run"),
        wait=histogram_chart(sum.wait),
        run=histogram_chart(sum.run),
        workers=None if workers is None else [one for one in workers if name in one.handled_types],
        running=None if running is None else running[:SHOWN],
        running_count=None if running is None else len(running),
        more_running=more,
        keys=keys.most_common(_KEYS),
        schedules=None if schedules is None else [one for one in schedules if one.type == name],
        level=await _event_level(visit, name),
        levels=list(EventLevel),
    )


async def _event_level(visit: Visit, name: str) -> tuple[str, bool] | None:
    """The event level of the type, and whether it is its own; None if there is no event log, or it is not known."""
    log = await event_log(visit)
    return None if log is None else (str(log.levels.get(name, log.level)), name in log.levels)


async def pause(visit: Visit) -> Response:
    """Pause a job type."""
    name, reason = visit.wanted("type"), visit.given("reason").get("reason")
    await visit.client.pause_job_types([name], reason=reason, by=visit.principal)
    return visit.go("/type", name=name, notice="paused")


async def resume(visit: Visit) -> Response:
    """Resume a job type."""
    name = visit.wanted("type")
    await visit.client.resume_job_types([name])
    return visit.go("/type", name=name, notice="resumed")


async def set_event_level(visit: Visit) -> Response:
    """Set which events of a job type are written."""
    name, level = visit.wanted("type"), visit.wanted("level")
    await visit.client.set_event_level(None if level == "default" else level, job_types=[name])
    return visit.go("/type", name=name, notice="level-set")
