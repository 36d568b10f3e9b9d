# Generated from queuert/state/async_unread.py, do not edit: see scripts/unasync.py
"""What the dispatcher of webhooks has not read yet of the log of events. ``sync_unread.py`` is generated from this
module."""

from __future__ import annotations

import json
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

    Without webhooks there is none.
    """
    found = store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    if not found:
        return None
    now = datetime.now(UTC)
    end = store.event_log_end()
    unread = first_event(store, json.loads(found[0].body)["cursor"])
    if unread is not None:
        return unread.happened_at - _OUT_OF_ORDER
    return now - (_OUT_OF_ORDER if end.settled < end.written else _CLOCKS)


def first_event(store: Store, cursor: str | None) -> JobEvent | None:
    """Return the first event after a place; after what is lost of the log, if this is, as the dispatcher goes on."""
    try:
        page = store.list_events(EventFilter(), PageRequest(1, cursor, oldest_first=True))
    except EventsLostError as error:
        if error.cursor is None:
            return None
        page = store.list_events(EventFilter(), PageRequest(1, error.cursor, oldest_first=True))
    return page.items[0] if page.items else None
