"""The event log in an async client. ``sync_event_log.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable

from queuert.client.arguments import decoded_event, type_filter
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_following import AsyncEventFollower
from queuert.client.schedules import JobTypeReference
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
    checked_max_events,
)
from queuert.new_chain import ChainReference, chain_ids
from queuert.state.paging import Page, PageRequest


class AsyncClientEventLog(AsyncClientBase):
    """Reads and configures the event log, which has one event per transition of a job, committed with it.

    All methods raise :class:`~queuert.errors.CapabilityMissingError` for stores without the capability ``events``.
    """

    async def list_events(
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
            EventsLostError: retention dropped events after the cursor, a failover lost the event of the cursor, or it
                is of another database. The error says how to continue.
            DatabaseMovedError: the database was moved to another cluster: run ``queuert migrate adopt``.
            ConfigurationError: the limit is out of range, ``kinds`` is a string, or has a text that is no kind.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        filter = _filter(job_types, kinds, chain)
        request = PageRequest(limit, cursor, oldest_first)
        page = await (await self._open_store()).list_events(filter, request)
        return Page(tuple(decoded_event(self.job_types, event) for event in page), page.next_cursor)

    def follow_events(
        self,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        kinds: Iterable[EventKind | str] | None = None,
        after: str | None = None,
    ) -> AsyncEventFollower:
        """Return an iterator of events, as they are committed: each once, in order, and none is skipped.

        See :class:`AsyncEventFollower`. It ends when it is closed. If the program stops, it can continue from the
        ``cursor`` of the last event, so that it misses none.

        Args:
            job_types: only events of these job types, or names.
            kinds: only events of these kinds.
            after: the ``cursor`` of an event, of another follower, or of :meth:`event_cursor`. By default it begins
                now, perhaps with events of the last seconds; with ``"beginning"`` at the oldest event of the log.

        Raises:
            ConfigurationError: ``kinds`` is a string, or has a text that is no kind.
            InvalidIdentifierError: the name of a job type is not valid.

        Example::

            async with client.follow_events(kinds=["failed"]) as events:
                event = await events.next(timeout=1)  # None if there was none in that time
        """
        return AsyncEventFollower(self, _filter(job_types, kinds, None), after)

    def follow(self, chain: ChainReference, *, after: str | None = None) -> AsyncEventFollower:
        """Return an iterator of the events of one chain, which ends when the chain is closed or deleted.

        It ends after the event that closed the chain. If the chain is closed already, and no event after the cursor
        says so, it ends at once. If somebody retries the chain afterwards, follow it again from the ``cursor``.

        To miss no event of a new chain, get the cursor before the chain is started, as below; by default it begins
        now.

        Args:
            chain: its id, or a handle, which is not updated.
            after: as for :meth:`follow_events`.

        Raises:
            InvalidIdentifierError: the id is not valid.

        The iterator raises ChainNotFoundError if there is no such chain; with a cursor it ends, as the chain may have
        been deleted.

        Example::

            cursor = await client.event_cursor()
            chain = await client.start_chain(resize, Resize(url=url, width=200))
            async for event in client.follow(chain, after=cursor):
                print(event.kind, event.type)
        """
        return AsyncEventFollower(self, _filter(None, None, chain), after)

    async def event_cursor(self) -> str:
        """Return the cursor of the end of the log: what happens from now on is after it.

        To show a state and then what changes it: get the cursor, read the state, and follow the log after the cursor.
        """
        return (await (await self._open_store()).event_log_end()).cursor

    async def get_event_log(self) -> EventLog:
        """Return the settings of the event log, and its partitions, which only Postgres has."""
        return await (await self._open_store()).get_event_log()

    async def set_event_level(
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
        await (await self._open_store()).set_event_level(checked, types)

    async def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how long events are kept. Workers drop older ones, a day at a time.

        Args:
            days: for how many days, between 1 and 36,500; None changes nothing.
            max_events: how many at most, on Redis, which keeps the log in memory; 250,000 by default.

        Raises:
            ConfigurationError: one is out of range, both are None, or the store does not bound the number of events.
        """
        if days is None and max_events is None:
            raise ConfigurationError("the retention of the event log needs days=, max_events=, or both")
        checked = None if days is None else checked_keep(days)
        bound = None if max_events is None else checked_max_events(max_events)
        await (await self._open_store()).set_event_retention(checked, max_events=bound)

    async def maintain_event_log(self) -> EventLogMaintenance:
        """Create the partitions of the days to come, and drop those that are too old. Running workers do so as well.

        SQLite and Redis have no partitions: some thousands of old events are deleted; repeat it while the result has
        ``more`` set.

        Raises:
            StateError: the role of the connection does not own the tables.
        """
        return await (await self._open_store()).maintain_event_log()


def _filter(
    job_types: Iterable[JobTypeReference] | None,
    kinds: Iterable[EventKind | str] | None,
    chain: ChainReference | None,
) -> EventFilter:
    if isinstance(kinds, str):
        raise ConfigurationError(f"kinds must be a sequence of event kinds, got {str(kinds)!r}")
    chosen = None if kinds is None else tuple(str(kind) for kind in kinds)
    known = {kind.value for kind in EventKind}
    for kind in chosen or ():
        if kind not in known:
            raise ConfigurationError(f"kinds must be kinds of events ({', '.join(EventKind)}), got {kind!r}")
    return EventFilter(
        types=type_filter(job_types),
        kinds=chosen,
        chain_id=None if chain is None else chain_ids([chain])[0],
    )
