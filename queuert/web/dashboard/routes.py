"""All pages and changes, and the action that each needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from queuert.web.access import Action
from queuert.web.dashboard.pages import (
    chains,
    events,
    failures,
    jobs,
    operations,
    overview,
    schedules,
    system,
    types,
    webhooks,
    workers,
)
from queuert.web.dashboard.visit import Visit


@dataclass(frozen=True, slots=True)
class Page:
    """A route: what answers it, and the action that it needs."""

    method: str
    path: str
    action: Action
    handler: Callable[[Visit], Awaitable[Response]]
    shown_again: bool = False
    """Of a page with fields in its address: whether it is shown with the reason if one of them is refused."""


PAGES = (
    Page("GET", "/", Action.READ, overview.overview, shown_again=True),
    Page("GET", "/search", Action.READ, overview.search, shown_again=True),
    Page("GET", "/chains", Action.READ, chains.chains, shown_again=True),
    Page("GET", "/chain", Action.READ, chains.chain),
    Page("GET", "/chain/cancel", Action.CANCEL, chains.confirm_cancel),
    Page("POST", "/chain/cancel", Action.CANCEL, chains.cancel),
    Page("POST", "/chain/retry", Action.RETRY, chains.retry),
    Page("GET", "/chain/retry-together", Action.RETRY, chains.confirm_retry_together),
    Page("POST", "/chain/retry-together", Action.RETRY, chains.retry_together),
    Page("GET", "/chain/edit", Action.CHANGE, chains.edit),
    Page("POST", "/chain/edit", Action.CHANGE, chains.retry_with_input),
    Page("GET", "/chain/complete", Action.COMPLETE, chains.confirm_complete),
    Page("POST", "/chain/complete", Action.COMPLETE, chains.complete),
    Page("GET", "/chain/send-event", Action.COMPLETE, chains.confirm_event),
    Page("POST", "/chain/send-event", Action.COMPLETE, chains.send_event),
    Page("GET", "/chain/change", Action.CHANGE, chains.confirm_change, shown_again=True),
    Page("POST", "/chain/change", Action.CHANGE, chains.change),
    Page("GET", "/chain/delete", Action.DELETE, chains.confirm_delete),
    Page("POST", "/chain/delete", Action.DELETE, chains.delete),
    Page("GET", "/chains/selected", Action.READ, chains.confirm_selected),
    Page("POST", "/chains/selected", Action.READ, chains.change_selected),
    Page("GET", "/jobs", Action.READ, jobs.jobs, shown_again=True),
    Page("GET", "/job", Action.READ, jobs.job),
    Page("POST", "/job/trigger", Action.TRIGGER, jobs.trigger),
    Page("GET", "/failures", Action.READ, failures.failures, shown_again=True),
    Page("GET", "/failures/retry", Action.RETRY, failures.confirm_retry),
    Page("POST", "/failures/retry", Action.RETRY, failures.retry),
    Page("GET", "/types", Action.READ, types.job_types, shown_again=True),
    Page("GET", "/type", Action.READ, types.job_type, shown_again=True),
    Page("POST", "/types/pause", Action.PAUSE, types.pause),
    Page("POST", "/types/resume", Action.PAUSE, types.resume),
    Page("POST", "/types/event-level", Action.CHANGE, types.set_event_level),
    Page("GET", "/workers", Action.READ, workers.workers),
    Page("GET", "/worker", Action.READ, workers.worker, shown_again=True),
    Page("GET", "/schedules", Action.READ, schedules.schedules),
    Page("POST", "/schedules/pause", Action.PAUSE, schedules.pause),
    Page("POST", "/schedules/resume", Action.PAUSE, schedules.resume),
    Page("POST", "/schedules/run", Action.TRIGGER, schedules.run),
    Page("GET", "/schedules/delete", Action.DELETE, schedules.confirm_delete),
    Page("POST", "/schedules/delete", Action.DELETE, schedules.delete),
    Page("GET", "/webhooks", Action.READ, webhooks.webhooks),
    Page("GET", "/webhook", Action.READ, webhooks.webhook),
    Page("POST", "/webhooks/enable", Action.EDIT_WEBHOOKS, webhooks.enable),
    Page("POST", "/webhooks/disable", Action.EDIT_WEBHOOKS, webhooks.disable),
    Page("POST", "/webhooks/ping", Action.REPLAY_WEBHOOKS, webhooks.ping),
    Page("POST", "/webhooks/replay", Action.REPLAY_WEBHOOKS, webhooks.replay),
    Page("GET", "/operations", Action.READ, operations.operations, shown_again=True),
    Page("GET", "/operations/start", Action.READ, operations.confirm, shown_again=True),
    Page("POST", "/operations/start", Action.READ, operations.start),
    Page("GET", "/events", Action.READ, events.events, shown_again=True),
    Page("GET", "/system", Action.READ, system.system),
)
"""Changes of several chains at once need the action that they carry out besides: see ``Visit.check``."""

NAVIGATION = (
    (
        "Work",
        (("/", "Overview", "o"), ("/chains", "Chains", "c"), ("/jobs", "Jobs", "j"), ("/failures", "Failures", "f")),
    ),
    (
        "Infrastructure",
        (
            ("/types", "Types", "t"),
            ("/workers", "Workers", "w"),
            ("/schedules", "Schedules", "s"),
            ("/webhooks", "Webhooks", "h"),
        ),
    ),
    ("Operate", (("/operations", "Operations", "b"), ("/events", "Events", "e"), ("/system", "System", "y"))),
)
"""Sections of the navigation: path, name, and the key that goes there after ``g``."""
