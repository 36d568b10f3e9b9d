"""The event log, asynchronously. ``sync_events.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable

from queuert.client.arguments import type_filter
from queuert.client.async_base import AsyncClientBase
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
)
from queuert.new_chain import ChainReference, chain_ids
from queuert.state.paging import Page, PageRequest


class AsyncClientEventLog(AsyncClientBase):
    """What happened to jobs: one event for each transition, durable with it. Of stores with the capability ``events``.

    All raise :class:`~queuert.errors.CapabilityMissingError` for other stores.
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
        """A page of the event log, the newest first.

        With ``oldest_first`` events come in the order in which they can be followed: those of transactions beside which
        older ones are still open wait for these, so that nothing comes in behind a reader. Who follows the log goes on
        from the ``cursor`` of the last event that it has.

        No more than ten thousand entries are looked at for a page. So one with few of many events may be short, or
        empty, and still have a ``next_cursor``.

        Args:
            job_types: of the jobs: job types, or names.
            kinds: what happened.
            chain: only of this chain: its id, or a handle. Events are found by their place in the log alone, so what is
                long past takes some pages.
            limit: events of the page at most, from 1 to 1,000.
            cursor: the ``next_cursor`` of the page before, or the ``cursor`` of an event.
            oldest_first: the oldest first.

        Raises:
            InvalidCursorError: the cursor is not one of such a list.
            EventsLostError: the log does not go on from the cursor: retention took events that come behind it, or a
                failover lost the event of the cursor. The error says how to go on.
            DatabaseMovedError: the database was moved to another cluster: run ``queuert migrate adopt``.
            ConfigurationError: the limit is out of range, or ``kinds`` is a string.
            InvalidIdentifierError: a name is none that a job type can have.
        """
        if isinstance(kinds, str):
            raise ConfigurationError(f"kinds is {str(kinds)!r}: a sequence of kinds of events")
        filter = EventFilter(
            types=type_filter(job_types),
            kinds=None if kinds is None else tuple(str(kind) for kind in kinds),
            chain_id=None if chain is None else chain_ids([chain])[0],
        )
        request = PageRequest(limit, cursor, oldest_first)
        return await (await self._opened()).list_events(filter, request)

    async def get_event_log(self) -> EventLog:
        """What is written to the event log, how long it is kept, and its days."""
        return await (await self._opened()).get_event_log()

    async def set_event_level(
        self, level: EventLevel | str | None, *, job_types: Iterable[JobTypeReference] | None = None
    ) -> None:
        """Say how much is written to the event log from now on, by all clients and workers of the store.

        Args:
            level: ``all``, ``terminal`` (what ends a job, and what takes that back) or ``off``; None for job types that
                are to have what holds for all.
            job_types: only of these; by default of all that have no level of their own.

        Raises:
            ConfigurationError: there is no such level, or none is given and no job types are.
            InvalidIdentifierError: a name is none that a job type can have.
        """
        types = type_filter(job_types)
        if level is None and types is None:
            raise ConfigurationError("level=None takes away the level of job types: name them")
        checked = None if level is None else checked_level(level)
        await (await self._opened()).set_event_level(checked, types)

    async def set_event_retention(self, days: int) -> None:
        """Say for how many days events are kept. Workers drop those that are older, a day at a time.

        Raises:
            ConfigurationError: not from 1 to 36,500.
        """
        checked_keep(days)
        await (await self._opened()).set_event_retention(days)

    async def maintain_event_log(self) -> EventLogMaintenance:
        """Make room in the log for the days to come, and drop what is too old. Workers do it as long as they run.

        Raises:
            StateError: the role does not own the tables.
        """
        return await (await self._opened()).maintain_event_log()
