"""Workers: the list, and one of them."""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response

from queuert.web.dashboard.charts import DEFAULT_SPAN, SPANS, quantiles_chart, rates_chart, spark, steps_of, total
from queuert.web.dashboard.pages.shared import LOOKED_AT, activity, live_workers, running_jobs, span_of
from queuert.web.dashboard.visit import Visit


async def workers(visit: Visit) -> Response:
    """The workers with a heartbeat in the last minute, and those that have vanished and hold leases."""
    found = await live_workers(visit)
    running, more = await running_jobs(visit)
    alive = {one.id for one in found or ()}
    did = await activity(visit, DEFAULT_SPAN, per_worker=True)
    sparks = {
        one.id: spark(steps_of((each for each in did if each.worker == one.id), DEFAULT_SPAN, visit.now))
        for one in found or ()
    }
    # Nobody is called vanished while it is not known who is alive.
    held = Counter(job.holder for job in running or () if job.holder and found is not None)
    return visit.render(
        "workers.html",
        workers=found,
        sparks=sparks,
        vanished={name: count for name, count in held.items() if name not in alive},
        expires={
            name: max(job.lease_expires_at for job in running or () if job.holder == name and job.lease_expires_at)
            for name in held
            if name not in alive
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
        held=None if running is None else [one for one in running if one.holder == name],
        span=span,
        spans=SPANS,
        sum=total(steps),
        rates=rates_chart(steps, span, visit.zone),
        runs=quantiles_chart(steps, span, visit.zone, "run"),
        more=more,
        looked_at=LOOKED_AT,
    )
