"""The operations of a store on its event log. ``sync_events.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queuert.event_log import EventFilter, EventLevel, EventLog, EventUpkeep, JobEvent
from queuert.state.paging import Page, PageRequest


class AsyncEventStore(Protocol):
    """What happened to jobs, for stores with the capability ``events``.

    Other stores raise :class:`~queuert.errors.CapabilityMissingError` from all of these.
    """

    async def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """Events by ``(tx, seq)``. With ``oldest_first`` only those before which no other can come in any more.

        A page may hold fewer than were asked for, or none, and still name where the next begins: that is how far was
        looked.

        Raises:
            InvalidCursorError: the cursor is not one of this listing.
            EventsLostError: the log does not go on from the cursor: retention, or a failover, took events.
            DatabaseMovedError: the log has numbers of another cluster: run ``queuert migrate adopt``.
        """
        ...

    async def event_log(self) -> EventLog:
        """What is written to the log, and how long it is kept."""
        ...

    async def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or of all that have none of their own; None takes away that of the types."""
        ...

    async def keep_events(self, days: int) -> None:
        """Set for how many days events are kept."""
        ...

    async def tend_events(self) -> EventUpkeep:
        """Make room for the days to come and drop what is too old, a bounded amount of it; wait for nobody for long.

        If the result says ``more``, something is left: call it again.

        Whoever comes while another is at it does nothing.
        """
        ...
