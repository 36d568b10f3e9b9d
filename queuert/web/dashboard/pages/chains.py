"""Chains: the list, one chain, and what an operator changes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from queuert.client import AsyncChain
from queuert.client.async_cascades import closing_types, failed_together
from queuert.errors import ChainNotFoundError
from queuert.event_log import JobEvent
from queuert.explanations import Cause, Explanation
from queuert.ids import new_id
from queuert.jobs import Blocker, ChainState, ChainStatus, Job, JobStatus
from queuert.state.adapter import Capability
from queuert.web.access import Action
from queuert.web.bodies import checked_json, read_payload
from queuert.web.dashboard.charts import gantt
from queuert.web.dashboard.graph import MOST_JOBS, Related, graph_of
from queuert.web.dashboard.pages.jobs import traces_of
from queuert.web.dashboard.pages.shared import (
    BULK_ACTIONS,
    CHAIN_FILTERS,
    PAGE,
    chain_filter,
    checked_change,
    client_type,
    due_in_notice,
    due_of,
    known_types,
    older,
    priority_of,
    reason_of,
    run_at_of,
    wrong,
)
from queuert.web.dashboard.visit import Part, Visit
from queuert.web.problems import Problem

AROUND = 100
"""The most jobs, blockers and dependents of a chain on its page."""

MOST_BLOCKERS = 1_000
"""Number of blockers of a chain's last jobs at which its page reads those of no earlier job."""

EVENTS = 100
"""The most events of a chain that its page reads at once."""

EXPLAINED = 5
"""The most chains for which a page says what they wait for: the chain itself, and blockers that are open."""

_REOPENED = (ChainStatus.FAILED, ChainStatus.CANCELLED)
"""Chains that a retry opens again."""

_SELECTED = {
    "retry": (Action.RETRY, _REOPENED),
    "cancel": (Action.CANCEL, (ChainStatus.OPEN,)),
    "delete": (Action.DELETE, tuple(ChainStatus)),
}
"""Of each change of selected chains: the action of the access that it needs, and the statuses that it is for."""


async def chains(visit: Visit) -> Response:
    """Chains by the time of their start, the newest first."""
    page = await visit.listed(
        lambda: visit.client.list_chains(**chain_filter(visit), limit=PAGE, cursor=visit.query("cursor") or None)
    )
    given = visit.given(*CHAIN_FILTERS)
    states = {one.id: one for one in page.items}
    last_jobs = await _last_jobs(visit, [one for one in page.items if one.status is ChainStatus.OPEN])
    return visit.render(
        "chains.html",
        chains=page.items,
        last_jobs=last_jobs,
        given=given,
        statuses=list(ChainStatus),
        bulk=[
            name
            for name, (needed, statuses) in BULK_ACTIONS.items()
            if given.get("status") in statuses and visit.access.allows(needed) and not visit.filter_refused
        ],
        changes={
            name: statuses
            for name, (needed, statuses) in _SELECTED.items()
            if visit.access.allows(needed) and given.get("status", statuses[0]) in statuses
        },
        types=known_types(visit, *(one.type for one in states.values())),
        older=older(given, page.next_cursor),
        later=bool(visit.query("cursor")),
    )


async def _last_jobs(visit: Visit, open_chains: Sequence[AsyncChain[Any]]) -> dict[str, ChainState]:
    """The jobs at which open chains stand, by chain."""
    if not open_chains:
        return {}
    states = await visit.client.get_chain_states(open_chains)
    return {one.id: one for one in states}


async def chain(visit: Visit) -> Response:
    """A chain: why it is not closed, its jobs and attempts, what it waits for, and what waits for it."""
    client = visit.client
    found = await client.get_chain(visit.wanted("id"))
    earlier = visit.query("jobs") or None
    page = await client.list_chain_jobs(found, limit=AROUND, cursor=earlier, oldest_first=False)
    if not page.items:
        raise ChainNotFoundError(found.id)
    # Of a long chain the end, which is where it stands, in the order in which its jobs ran.
    jobs = page.items[::-1]
    tail = jobs[-1] if earlier is None else await _last_job(visit, found)
    first = jobs[0] if page.next_cursor is None else await client.get_job(found.id)
    drawn = jobs[-MOST_JOBS:]
    blockers = await visit.part(Part.BLOCKERS, _blockers(visit, drawn)) or {}
    dependents = await client.list_dependents(found, limit=AROUND)
    before, children = await _before_and_after(visit, jobs, blockers)
    graph = graph_of(
        jobs,
        before,
        children,
        [Related(one.chain_id, one.type, str(one.status)) for one in dependents.items if earlier is None],
        more_dependents=dependents.next_cursor is not None and earlier is None,
    )
    # Its jobs and its events are turned apart from each other.
    events = visit.given("events", "cursor")
    at_jobs = {"id": found.id, **visit.given("jobs")}
    shown_events = await _events(visit, found)
    why = None
    if found.status is ChainStatus.OPEN:
        why = await visit.part(Part.EXPLANATION, client.explain(found, max_chains=EXPLAINED))
    reopened = [one for one in blockers.get(tail.id, ()) if found.status in _REOPENED and one.status in _REOPENED]
    failing = await _retried_with_it(visit, reopened)
    return visit.render(
        "chain.html",
        chain=found,
        live_chain=found.id,
        jobs=jobs,
        older=older({"id": found.id, **events}, page.next_cursor, name="jobs"),
        newest={"id": found.id, **events},
        later=earlier is not None,
        later_jobs=tail.chain_index - jobs[-1].chain_index,
        tail=tail,
        why=why if why is None or visit.payloads else _without_errors(why),
        event=_awaited_event(why),
        by_client=why is not None and Cause.WAITS_FOR_CLIENT in why.causes,
        traces=traces_of(visit, tail),
        graph=graph if len(graph.nodes) > 1 else None,
        blockers=[(job, blockers[job.id]) for job in jobs if blockers.get(job.id)],
        blockers_left_out=Part.BLOCKERS not in visit.missing and any(job.id not in blockers for job in drawn),
        dependents=dependents.items,
        more_dependents=dependents.next_cursor is not None,
        failed_for_it=_failed_for(found, dependents.items),
        failing_blockers=failing,
        cancelled_blockers=[one for one in reopened if one not in failing],
        gantt=gantt(jobs, visit.now, visit.zone, errors=visit.payloads),
        events=shown_events,
        all_events=urlencode({**at_jobs, "events": "1"}),
        older_events=older({**at_jobs, "events": "1"}, None if shown_events is None else shown_events[1]),
        # The stored JSON, also of job types that this program does not know.
        input=visit.shown(found.type, first.input),
        output=visit.shown(found.type, tail.output) if found.status is ChainStatus.COMPLETED else None,
        error=found.error if visit.payloads else None,
        error_hidden=found.error is not None and not visit.payloads,
    )


async def _retried_with_it(visit: Visit, blockers: Sequence[Blocker]) -> list[Blocker]:
    """Those of the failed or cancelled blockers of a chain that are retried with it: see ``failed_together``."""
    closing: set[str] = set()
    if any(one.status is ChainStatus.CANCELLED for one in blockers):
        store = await visit.client._open_store()
        closing = closing_types(await store.list_type_traits(), visit.client.job_types)
    return [one for one in blockers if one.status is ChainStatus.FAILED or one.type in closing]


def _failed_for(found: AsyncChain[Any], dependents: Sequence[Job]) -> list[Job]:
    """Those of the jobs that failed since this chain had failed or was cancelled."""
    closed_at = found.closed_at if found.status in _REOPENED else None
    return [
        one
        for one in dependents
        if closed_at is not None
        and one.status is JobStatus.FAILED
        and one.last_error is not None
        and one.last_error.kind == "blocker_failed"
        and one.finished_at is not None
        and one.finished_at >= closed_at
    ]


async def _blockers(visit: Visit, jobs: Sequence[Job]) -> dict[str, list[Blocker]]:
    """The chains that jobs wait for, or waited for, by job: of the last jobs, until they are many."""
    found: dict[str, list[Blocker]] = {}
    count = 0
    for job in reversed(jobs):
        if count >= MOST_BLOCKERS:
            break
        found[job.id] = await visit.client.get_blockers(job.id)
        count += len(found[job.id])
    return found


async def _before_and_after(
    visit: Visit, jobs: Sequence[Job], blockers: dict[str, list[Blocker]]
) -> tuple[dict[str, list[Related]], dict[str, list[Related]]]:
    """Blockers that there were before their job, and those that were started after it: its children."""
    ids = list({one.chain_id for found in blockers.values() for one in found})[:MOST_BLOCKERS]
    started = {one.id: one.created_at for one in await visit.client.get_chains(ids)} if ids else {}
    before: dict[str, list[Related]] = {}
    children: dict[str, list[Related]] = {}
    for job in jobs:
        for one in blockers.get(job.id, ()):
            at = started.get(one.chain_id)
            side = children if at is not None and at > job.created_at else before
            side.setdefault(job.id, []).append(Related(one.chain_id, one.type, str(one.status)))
    return before, children


def _without_errors(why: Explanation) -> Explanation:
    """Return what holds a chain, without the texts of errors."""
    reasons = [
        replace(one, text=one.text.partition(" failed:")[0] + " failed") if one.cause is Cause.RETRY_DELAYED else one
        for one in why.reasons
    ]
    return replace(why, reasons=tuple(reasons), blockers=tuple(map(_without_errors, why.blockers)))


def _awaited_event(why: Explanation | None) -> str | None:
    """The event that the chain waits for, if it waits for one."""
    if why is None or Cause.WAITS_FOR_EVENT not in why.causes:
        return None
    [reason] = [one for one in why.reasons if one.cause is Cause.WAITS_FOR_EVENT]
    return reason.text.partition("'")[2].rpartition("'")[0]


async def _events(visit: Visit, found: AsyncChain[Any]) -> tuple[Sequence[JobEvent], str | None] | None:
    """The events of the chain, if they are asked for; and where to continue."""
    if not visit.query("events") or Capability.EVENTS not in visit.client.state.capabilities:
        return None
    reading = visit.client.list_events(chain=found, limit=EVENTS, cursor=visit.query("cursor") or None)
    page = await visit.part(Part.EVENTS, reading)
    return ((), None) if page is None else (page.items, page.next_cursor)


# --- one chain: changes -----------------------------------------------------------------------------------------------


async def confirm_cancel(visit: Visit) -> Response:
    """Ask before a chain is cancelled."""
    return await _confirm(visit, "cancel")


async def confirm_delete(visit: Visit) -> Response:
    """Ask before a chain is deleted."""
    return await _confirm(visit, "delete")


async def _confirm(visit: Visit, action: str) -> Response:
    found = await visit.client.get_chain(visit.wanted("id"))
    dependents = await visit.client.list_dependents(found, limit=AROUND)
    return visit.render(
        "confirm.html",
        action=action,
        chain=found,
        dependents=dependents.items,
        more_dependents=dependents.next_cursor is not None,
    )


async def cancel(visit: Visit) -> Response:
    """Cancel a chain."""
    id = visit.wanted("id")
    done = await visit.client.cancel_chain(id, cascade="cascade" in visit.form, reason=reason_of(visit))
    return visit.go("/chain", id=id, notice="cancelled" if done else "not-cancelled")


async def retry(visit: Visit) -> Response:
    """Retry a failed or cancelled chain."""
    id = visit.wanted("id")
    await visit.client.retry_chain(id)
    return visit.go("/chain", id=id, notice="retried")


async def confirm_retry_together(visit: Visit) -> Response:
    """Ask before a chain is retried with what failed because of it, and what they waited for; say how many they are."""
    found = await visit.client.get_chain(visit.wanted("id"))
    together = await visit.part(Part.CASCADE, _failed_together(visit, found.id))
    shown = None if together is None else await visit.client.get_chains(together[:AROUND])
    return visit.render(
        "retry_together.html",
        chain=found,
        count=None if together is None else len(together),
        chains=shown,
        together=None if together is None else _digest(together),
    )


async def retry_together(visit: Visit) -> Response:
    """Retry a chain with those that the form was about.

    Raises:
        Problem: 409, they would be others now.
    """
    id = visit.wanted("id")
    if _digest(await _failed_together(visit, id)) != visit.wanted("together"):
        text = "other chains would be retried now than when the page was shown: look at them, and confirm again"
        raise Problem(409, "chains-changed", text)
    await visit.client.retry_chain(id, cascade=True)
    return visit.go("/chain", id=id, notice="retried-together")


async def _failed_together(visit: Visit, id: str) -> list[str]:
    return await failed_together(await visit.client._open_store(), [id], None, visit.client.job_types)


def _digest(ids: Sequence[str]) -> str:
    """What is different for other chains."""
    return hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()[:32]


async def delete(visit: Visit) -> Response:
    """Delete a chain.

    Raises:
        ChainNotFoundError: it does not exist.
    """
    id = visit.wanted("id")
    if not await visit.client.delete_chain(id):
        raise ChainNotFoundError(id)
    return visit.go("/chains", notice="deleted")


async def edit(visit: Visit) -> Response:
    """Show the input of the last job of a failed chain, to retry it with another one."""
    visit.check(Action.READ_PAYLOADS)
    found = await visit.client.get_chain(visit.wanted("id"))
    job = await _last_job(visit, found)
    hidden = visit.redacted(job.type, job.input) != job.input
    input = "" if hidden else json.dumps(job.input, indent=2, ensure_ascii=False)
    return visit.render("edit.html", chain=found, job=job, input=input, hidden=hidden)


async def retry_with_input(visit: Visit) -> Response:
    """Retry a failed or cancelled chain with another input of its last job."""
    visit.check(Action.READ_PAYLOADS)
    id = visit.wanted("id")
    found = await visit.client.get_chain(id)
    job = await _last_job(visit, found)
    job_type, input = visit.client.job_types.get(job.type), _json_of(visit, "input")
    await visit.client.retry_chain_with_input(id, input if job_type is None else read_payload(job_type, "input", input))
    return visit.go("/chain", id=id, notice="retried")


async def _last_job(visit: Visit, found: AsyncChain[Any]) -> Job:
    page = await visit.client.list_chain_jobs(found, limit=1, oldest_first=False)
    if not page.items:
        raise ChainNotFoundError(found.id)
    return page.items[0]


def _json_of(visit: Visit, name: str) -> Any:
    """The JSON of a field of the form.

    Raises:
        Problem: 400, it is not JSON.
    """
    try:
        return json.loads(checked_json(visit.form.get(name) or "null"))
    except ValueError as error:
        raise wrong(name, f"{name} must be JSON: {error}") from None


async def confirm_complete(visit: Visit) -> Response:
    """Ask for the output with which a chain is completed."""
    found = await visit.client.get_chain(visit.wanted("id"))
    job = await _last_job(visit, found)
    waits = found.status is ChainStatus.OPEN and job.status is JobStatus.READY
    known = visit.client.job_types.get(job.type)
    can_complete = known is not None and known.can_complete
    continuations = () if known is None else known.continuations
    return visit.render(
        "complete.html",
        chain=found,
        job=job,
        by_client=await client_type(visit, job.type) if waits else None,
        can_complete=can_complete,
        continuations=continuations,
    )


async def complete(visit: Visit) -> Response:
    """Complete an open chain with an output, instead of its last job's handler."""
    id, expected = visit.wanted("id"), visit.wanted("type")
    job_type = visit.client.job_types[expected]
    output = read_payload(job_type, "output", _json_of(visit, "output"))
    await visit.client.complete_chain(id, output, expecting=job_type)
    return visit.go("/chain", id=id, notice="completed")


async def confirm_event(visit: Visit) -> Response:
    """Ask for the payload of an event that a chain waits for."""
    found = await visit.client.get_chain(visit.wanted("id"))
    why = await visit.client.explain(found) if found.status is ChainStatus.OPEN else None
    name = visit.given("name").get("name") or _awaited_event(why) or ""
    # The form names its event, so that a second click on its button sends no second one.
    event_id = visit.form.get("event_id") or new_id()
    return visit.render("send_event.html", chain=found, name=name, event_id=event_id)


async def send_event(visit: Visit) -> Response:
    """Send an event to a chain."""
    id = visit.wanted("id")
    event_id = visit.form.get("event_id") or None
    sent = await visit.client.send_event(id, visit.wanted("name"), _json_of(visit, "payload"), id=event_id)
    return visit.go("/chain", id=id, notice="event-sent" if sent else "event-not-sent")


async def confirm_change(visit: Visit) -> Response:
    """Ask for another due time or priority of what a chain waits with; then show them, before they are written."""
    found = await visit.client.get_chain(visit.wanted("id"))
    # A form that was refused is shown again to be corrected.
    checked = {} if visit.refused else checked_change(visit)
    return visit.render(
        "change.html",
        chain=found,
        job=await _last_job(visit, found),
        given=visit.given("run_at", "priority"),
        checked=checked,
        due=due_of(visit) if checked else None,
    )


async def change(visit: Visit) -> Response:
    """Give the waiting job of a chain another due time, or another priority.

    Raises:
        Problem: 400, neither is given, or one cannot be read; 409, no job of the chain waits.
    """
    id, due, priority = visit.wanted("id"), due_of(visit), priority_of(visit)
    if due is None and priority is None:
        raise Problem(400, "missing-parameter", "a due time or a priority must be given")
    # In one write: a job that is due earlier may run before a second one.
    if not all(await visit.client._change([id], run_at_of(visit, due), priority, None)):
        raise Problem(409, "not-waiting", "the chain does not wait any more: its job runs, or the chain is closed")
    return visit.go("/chain", id=id, notice="changed", **due_in_notice(due))


# --- several chains ---------------------------------------------------------------------------------------------------


def _selected(visit: Visit) -> tuple[str, list[str]]:
    """The action and the ids of a selection.

    Raises:
        Problem: 400, there is no such action, or nothing is selected; 403, it is not allowed.
    """
    action = visit.wanted("action")
    if action not in _SELECTED:
        raise Problem(400, "invalid-action", f"the action must be one of {', '.join(_SELECTED)}, got {action!r}")
    visit.check(_SELECTED[action][0])
    ids = visit.chosen("id")
    if not ids:
        raise Problem(400, "nothing-selected", "no chain is selected: mark some in the list")
    return action, ids[:PAGE]


async def confirm_selected(visit: Visit) -> Response:
    """Ask before the selected chains are changed."""
    action, ids = _selected(visit)
    found = await visit.client.get_chains(ids)
    return visit.render("confirm_selected.html", action=action, chains=found, back=visit.came_from("/chains"))


async def change_selected(visit: Visit) -> Response:
    """Change the selected chains, all or none."""
    action, ids = _selected(visit)
    if action == "retry":
        await visit.client.retry_chains(ids)
    elif action == "cancel":
        await visit.client.cancel_chains(ids, reason=reason_of(visit))
    else:
        await visit.client.delete_chains(ids)
    return visit.go_back("/chains", f"selected-{action}")
