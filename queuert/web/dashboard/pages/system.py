"""What ``queuert doctor`` finds, and the settings of the event log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.responses import Response

from queuert.errors import StateUnavailableError
from queuert.state.diagnosis import Diagnosable, Finding, Severity
from queuert.web.dashboard.pages.shared import event_log
from queuert.web.dashboard.visit import Part, Visit

AGE = 60.0
"""Seconds for which the findings are shown to everybody who asks: the checks open connections of their own."""

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.SKIPPED, Severity.OK)


async def system(visit: Visit) -> Response:
    """The findings, the worst first, and the event log."""
    findings = await visit.part(Part.CHECKS, visit.shared("doctor", AGE, lambda: _diagnosed(visit)))
    ordered = sorted(findings or (), key=lambda one: _ORDER.index(one.severity))
    return visit.render(
        "system.html",
        store=type(visit.client.state).__name__,
        capabilities=sorted(str(one) for one in visit.client.state.capabilities),
        findings=ordered,
        counts={
            str(severity): None if findings is None else sum(one.severity is severity for one in findings)
            for severity in _ORDER
        },
        log=await event_log(visit),
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
