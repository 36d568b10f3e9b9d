# Generated from queuert/client/async_event_log.py, do not edit: see scripts/unasync.py
"""The event log in a sync client. ``sync_event_log.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable

from queuert.client.arguments import type_filter
from queuert.client.schedules import JobTypeReference
from queuert.client.sync_base import ClientBase
from queuert.errors import ConfigurationError
from queuert.event_log import (
    EventFilter,
    EventKind,
    EventLevel,
    EventLog,
    EventLogMaintenance,
    JobEvent,
    checked_keep,
    checked_level,
)
from queuert.new_chain import ChainReference, chain_ids
from queuert.state.paging import Page, PageRequest


class ClientEventLog(ClientBase):
    """Reads and configures the event log, which has one event per transition of a job, committed with it.

    All methods raise :class:`~queuert.errors.CapabilityMissingError` for stores without the capability ``events``.
    """

    def list_events(
        self,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        kinds: Iterable[EventKind | str] | None = None,
        chain: ChainReference | None = None,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> Page[JobEvent]:
        """Return a page of the event log, the newest event first.

        With ``oldest_first`` the log can be followed without missing an event: events become visible only when all
        older transactions have ended. To follow the log, continue from the ``cursor`` of the last event.

        A page reads at most 10,000 entries of the log. So with a filter it may be short or empty, and still have a
        ``next_cursor``.

        Args:
            job_types: only events of these job types, or names.
            kinds: only events of these kinds.
            chain: only events of this chain, by id or handle. The log has no index by chain, so events of long ago take
                some pages.
            limit: the most events of the page, between 1 and 1,000.
            cursor: the ``next_cursor`` of the previous page, or the ``cursor`` of an event.
            oldest_first: return the oldest event first.

        Raises:
            InvalidCursorError: the cursor does not belong to the event log.
            EventsLostError: retention dropped events after the cursor, or a failover lost the event of the cursor. The
                error says how to continue.
            DatabaseMovedError: the database was moved to another cluster: run ``queuert migrate adopt``.
            ConfigurationError: the limit is out of range, or ``kinds`` is a string.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        if isinstance(kinds, str):
            raise ConfigurationError(f"kinds must be a sequence of event kinds, got {str(kinds)!r}")
        filter = EventFilter(
            types=type_filter(job_types),
            kinds=None if kinds is None else tuple(str(kind) for kind in kinds),
            chain_id=None if chain is None else chain_ids([chain])[0],
        )
        request = PageRequest(limit, cursor, oldest_first)
        return (self._open_store()).list_events(filter, request)

    def get_event_log(self) -> EventLog:
        """Return the settings of the event log, and its partitions."""
        return (self._open_store()).get_event_log()

    def set_event_level(
        self, level: EventLevel | str | None, *, job_types: Iterable[JobTypeReference] | None = None
    ) -> None:
        """Set which events are written to the log from now on, by all clients and workers of the store.

        Args:
            level: ``all``, ``terminal`` (events that finish a job, and those that reopen or delete it) or ``off``; None
                removes the level of ``job_types``, so that the default applies to them.
            job_types: the job types whose level is set; without them, the default for all others.

        Raises:
            ConfigurationError: there is no such level, or both arguments are None.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        types = type_filter(job_types)
        if level is None and types is None:
            raise ConfigurationError("level=None removes the level of job types and needs them: pass job_types=")
        checked = None if level is None else checked_level(level)
        (self._open_store()).set_event_level(checked, types)

    def set_event_retention(self, days: int) -> None:
        """Set for how many days events are kept. Workers drop older ones, a day at a time.

        Raises:
            ConfigurationError: ``days`` is not between 1 and 36,500.
        """
        checked_keep(days)
        (self._open_store()).set_event_retention(days)

    def maintain_event_log(self) -> EventLogMaintenance:
        """Create the partitions of the days to come, and drop those that are too old. Running workers do so as well.

        Raises:
            StateError: the role of the connection does not own the tables.
        """
        return (self._open_store()).maintain_event_log()
