# Generated from queuert/webhooks/async_unread.py, do not edit: see scripts/unasync.py
"""Which closed chains the dispatcher of webhooks may still have to read. ``sync_unread.py`` is generated from this
module."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from queuert.errors import EventsLostError
from queuert.event_log import EventFilter, JobEvent
from queuert.state.paging import PageRequest
from queuert.state.sync_store import Store
from queuert.state.webhooks import DISPATCHER, DISPATCHER_CURSOR

_OUT_OF_ORDER = timedelta(hours=1)
"""How much earlier than the first unread event an event can have happened that comes after it: for as long as the
transaction was open that wrote it."""
_CLOCKS = timedelta(minutes=1)
"""How much the clocks of this process and of the store may differ."""


def unread_since(store: Store) -> datetime | None:
    """Return the time from which on closed chains may have events that webhooks are still to be made of.

    Without webhooks there is none. What the log has lost is not read any more: this goes on from the cursor of the
    error, as the dispatcher does.
    """
    found = store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    if not found:
        return None
    now = datetime.now(UTC)
    end = store.event_log_end()
    cursor = json.loads(found[0].body)["cursor"]
    try:
        unread = _first(store, cursor)
    except EventsLostError as error:
        unread = _first(store, error.cursor or end.cursor)
    if unread:
        return unread[0].happened_at - _OUT_OF_ORDER
    return now - (_OUT_OF_ORDER if end.settled < end.written else _CLOCKS)


def _first(store: Store, cursor: str | None) -> Sequence[JobEvent]:
    return (store.list_events(EventFilter(), PageRequest(1, cursor, oldest_first=True))).items
