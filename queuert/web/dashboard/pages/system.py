"""What ``queuert doctor`` finds, and the settings of the event log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.responses import Response

from queuert.errors import StateUnavailableError
from queuert.event_log import EventLog
from queuert.state.adapter import Capability
from queuert.state.diagnosis import Diagnosable, Finding, Severity
from queuert.web.dashboard.visit import Visit

AGE = 60.0
"""Seconds for which the findings are shown to everybody who asks: the checks open connections of their own."""

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.SKIPPED, Severity.OK)


async def system(visit: Visit) -> Response:
    """The findings, the worst first, and the event log."""
    findings = await visit.part("the checks", visit.shared("doctor", AGE, lambda: _diagnosed(visit)), None)
    ordered = sorted(findings or (), key=lambda one: _ORDER.index(one.severity))
    return visit.render(
        "system.html",
        store=type(visit.client.state).__name__,
        capabilities=sorted(str(one) for one in visit.client.state.capabilities),
        findings=ordered,
        counts={str(severity): sum(one.severity is severity for one in ordered) for severity in _ORDER},
        log=await _event_log(visit),
        age=AGE,
    )


async def _diagnosed(visit: Visit) -> Sequence[Finding]:
    state = visit.client.state
    if not isinstance(state, Diagnosable):
        return ()
    try:
        return await asyncio.to_thread(state.diagnose)
    except StateUnavailableError as error:
        return [Finding("connection", Severity.ERROR, str(error), "the checks need a connection", "see the message")]


async def _event_log(visit: Visit) -> EventLog | None:
    if Capability.EVENTS not in visit.client.state.capabilities:
        return None
    return await visit.part("the event log", visit.shared("event-log", 10.0, visit.client.get_event_log), None)
