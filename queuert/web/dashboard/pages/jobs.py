"""Jobs: the list, and one job."""

from __future__ import annotations

import json

from starlette.responses import Response

from queuert.jobs import Job, JobStatus
from queuert.phases import phases_of
from queuert.web.dashboard.charts import gantt
from queuert.web.dashboard.pages.shared import (
    PAGE,
    client_type,
    known_types,
    live_workers,
    older,
    past_time,
    vanished_workers,
)
from queuert.web.dashboard.states import machine_of
from queuert.web.dashboard.visit import Part, Visit

_FILTERS = ("type", "status", "since", "before")


async def jobs(visit: Visit) -> Response:
    """Jobs by the time of their creation, the newest first."""
    given = visit.given(*_FILTERS)
    page = await visit.listed(
        lambda: visit.client.list_jobs(
            job_types=[given["type"]] if "type" in given else None,
            statuses=[given["status"]] if "status" in given else None,
            since=past_time(visit, "since", given["since"]) if "since" in given else None,
            before=past_time(visit, "before", given["before"]) if "before" in given else None,
            limit=PAGE,
            cursor=visit.query("cursor") or None,
        )
    )
    return visit.render(
        "jobs.html",
        jobs=page.items,
        given=given,
        statuses=list(JobStatus),
        types=known_types(visit, *(one.type for one in page.items)),
        older=older(given, page.next_cursor),
        later=bool(visit.query("cursor")),
    )


async def job(visit: Visit) -> Response:
    """A job: its states, attempts and errors, its lease, its steps, and its payloads."""
    found = await visit.client.get_job(visit.wanted("id"))
    steps = await visit.client.get_steps(found.id)
    blockers = await visit.part(Part.BLOCKERS, visit.client.get_blockers(found.id)) or []
    job_type = visit.client.job_types.get(found.type)
    workers = await live_workers(visit)
    running = [found] if found.status is JobStatus.RUNNING else []
    return visit.render(
        "job.html",
        job=found,
        by_client=await client_type(visit, found.type) if found.status is JobStatus.READY else None,
        live_chain=found.chain_id,
        vanished=bool(vanished_workers(running, workers)),
        phases=phases_of(tuple(job_type.phases) if job_type else (), found, steps),
        steps=[(step, visit.shown(found.type, step.result)) for step in steps],
        blockers=blockers,
        machine=machine_of(found, had_blockers=bool(blockers)),
        gantt=gantt([found], visit.now, visit.zone, errors=visit.payloads),
        traces=traces_of(visit, found),
        payloads=visit.payloads,
        input=visit.shown(found.type, found.input),
        output=visit.shown(found.type, found.output) if found.status is JobStatus.COMPLETED else None,
        message=_message(visit, found),
    )


def _message(visit: Visit, found: Job) -> str | None:
    """The message of the progress, without the quotes of JSON if it is a text."""
    if found.progress is None or found.progress.message is None:
        return None
    text = visit.shown(found.type, found.progress.message)
    return json.loads(text) if text is not None and text.startswith('"') and text.endswith('"') else text


def traces_of(visit: Visit, found: Job) -> list[tuple[str, str]]:
    """Where the traces of the job are shown: that of its creation, and that of its newest attempt."""
    if visit.app.trace_url is None:
        return []
    traces = {"creation": found.trace_id, "newest attempt": found.attempt_trace_id}
    return [(name, visit.app.trace_url.replace("{trace_id}", id)) for name, id in traces.items() if id]


async def trigger(visit: Visit) -> Response:
    """Make a scheduled job due now."""
    id = visit.wanted("id")
    await visit.client.trigger_job(id)
    return visit.go("/job", id=id, notice="triggered")
