"""Workers: the list, and one of them."""

from __future__ import annotations

from starlette.responses import Response

from queuert.activity import Activity
from queuert.web.dashboard.charts import DEFAULT_SPAN, SPANS, quantiles_chart, rates_chart, spark, steps_of, total
from queuert.web.dashboard.pages.shared import (
    LOOKED_AT,
    MOST_ROWS,
    activity,
    live_workers,
    running_jobs,
    span_of,
    vanished_workers,
)
from queuert.web.dashboard.visit import Visit


async def workers(visit: Visit) -> Response:
    """The workers with a heartbeat in the last minute, and those that have vanished and hold leases."""
    found = await live_workers(visit)
    running, more = await running_jobs(visit)
    did: dict[str | None, list[Activity]] = {}
    for one in await activity(visit, DEFAULT_SPAN, per_worker=True):
        did.setdefault(one.worker, []).append(one)
    vanished = vanished_workers(running, found)
    shown = (found or [])[:MOST_ROWS]
    sparks = {one.id: spark(steps_of(did.get(one.id, ()), DEFAULT_SPAN, visit.now)) for one in shown}
    return visit.render(
        "workers.html",
        workers=None if found is None else shown,
        count=len(found or ()),
        sparks=sparks,
        vanished={name: len(held) for name, held in vanished.items()},
        expires={
            name: max((job.lease_expires_at for job in held if job.lease_expires_at), default=None)
            for name, held in vanished.items()
        },
        more=more,
        looked_at=LOOKED_AT,
    )


async def worker(visit: Visit) -> Response:
    """A worker, and the jobs whose leases it holds, also after it has vanished."""
    name, span = visit.wanted("name"), span_of(visit)
    (running, more), workers = await running_jobs(visit), await live_workers(visit)
    steps = steps_of(await activity(visit, span, worker=name), span, visit.now)
    return visit.render(
        "worker.html",
        name=name,
        alive=None if workers is None else [one for one in workers if one.id == name],
        vanished=name in vanished_workers(running, workers),
        held=None if running is None else [one for one in running if one.holder == name],
        span=span,
        spans=SPANS,
        sum=total(steps),
        rates=rates_chart(steps, span, visit.zone),
        runs=quantiles_chart(steps, span, visit.zone, "run"),
        more=more,
        looked_at=LOOKED_AT,
    )
