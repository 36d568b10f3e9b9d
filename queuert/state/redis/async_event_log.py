"""The event log on Redis. ``sync_event_log.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queuert.event_log import (
    EventFilter,
    EventLevel,
    EventLog,
    EventLogEnd,
    EventLogMaintenance,
    JobEvent,
    checked_keep,
    checked_max_events,
)
from queuert.state.paging import Page, PageRequest
from queuert.state.redis import event_log
from queuert.state.redis.encode import Arguments, plain
from queuert.state.redis.event_log import ReadLog


class AsyncRedisEventLog:
    """Reads and maintains the event log."""

    if TYPE_CHECKING:

        async def _run(self, name: str, arguments: Arguments) -> Any: ...

    async def list_events(self, filter: EventFilter, page: PageRequest) -> Page[JobEvent]:
        """List events by their numbers. What is visible was written, and so was all before it."""
        return ReadLog.of(await self._run("read_events", event_log.read(filter, page))).page(filter, page)

    async def event_log_end(self) -> EventLogEnd:
        """Return the end of the event log."""
        return ReadLog.of(await self._run("read_events", event_log.read_end())).end()

    async def get_event_log(self) -> EventLog:
        """Return the settings of the log, which has no partitions."""
        return event_log.settings(await self._run("event_log_settings", []))

    async def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> None:
        """Set the level of these types, or the default; None removes the level of the types."""
        params: dict[str, Any] = {} if level is None else {"level": level.value}
        params.update({} if types is None else {"types": list(types)})
        await self._run("set_event_level", plain(params))

    async def set_event_retention(self, days: int | None = None, *, max_events: int | None = None) -> None:
        """Set for how many days events are kept, and how many at most."""
        params = {} if days is None else {"days": checked_keep(days)}
        params.update({} if max_events is None else {"most": checked_max_events(max_events)})
        await self._run("set_event_retention", plain(params))

    async def maintain_event_log(self) -> EventLogMaintenance:
        """Drop events that are too old, or too many, some at a time."""
        return event_log.maintained(await self._run("maintain_event_log", plain({"limit": event_log.CHUNK})))
