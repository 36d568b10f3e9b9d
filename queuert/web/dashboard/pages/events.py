"""The newest events of the log."""

from __future__ import annotations

from starlette.responses import Response

from queuert.errors import CapabilityMissingError
from queuert.event_log import EventKind
from queuert.state.adapter import Capability
from queuert.web.dashboard.pages.shared import known_types, older
from queuert.web.dashboard.visit import Part, Visit

EVENTS = 100
"""Events of a page."""

_FILTERS = ("type", "kind")


async def events(visit: Visit) -> Response:
    """The newest events, the newest first.

    Raises:
        CapabilityMissingError: the store has no event log.
    """
    if Capability.EVENTS not in visit.client.state.capabilities:
        raise CapabilityMissingError("events", "this store has no event log: see docs/stores.md")
    given = visit.given(*_FILTERS)
    reading = visit.listed(
        lambda: visit.client.list_events(
            job_types=[given["type"]] if "type" in given else None,
            kinds=[given["kind"]] if "kind" in given else None,
            limit=EVENTS,
            cursor=visit.query("cursor") or None,
        )
    )
    page = await visit.part(Part.EVENTS, reading)
    found = () if page is None else page.items
    return visit.render(
        "events.html",
        events=found,
        payloads=visit.payloads,
        given=given,
        kinds=list(EventKind),
        types=known_types(visit, *(one.type for one in found)),
        older=older(given, None if page is None else page.next_cursor),
        later=bool(visit.query("cursor")),
    )
