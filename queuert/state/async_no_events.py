"""A store without an event log. ``sync_no_events.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from queuert.errors import CapabilityMissingError
from queuert.event_log import EventFilter, EventLevel
from queuert.state.paging import PageRequest


def _refuse() -> NoReturn:
    raise CapabilityMissingError("events", "keep the jobs in Postgres, which has an event log")


class AsyncNoEvents:
    """The operations on the event log, each of which says that there is none."""

    async def list_events(self, filter: EventFilter, page: PageRequest) -> NoReturn:
        """Refused."""
        _refuse()

    async def event_log(self) -> NoReturn:
        """Refused."""
        _refuse()

    async def set_event_level(self, level: EventLevel | None, types: Sequence[str] | None = None) -> NoReturn:
        """Refused."""
        _refuse()

    async def keep_events(self, days: int) -> NoReturn:
        """Refused."""
        _refuse()

    async def tend_events(self) -> NoReturn:
        """Refused."""
        _refuse()
