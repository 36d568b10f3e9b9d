"""What workers did, as charts show it: minutes and hours that are over are read once, not with each refreshing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from queuert.activity import HOUR, MINUTE, Activity
from queuert.client import AsyncClient
from queuert.web.dashboard.charts import Span

_LATE: Final = {"minute": 3 * MINUTE, "hour": HOUR}
"""Seconds after the end of a minute or hour for which it is read again: workers report with their heartbeats."""

_ALL_AGAIN: Final = {"minute": 10 * MINUTE, "hour": HOUR}
"""Seconds after which everything is read again: a worker without a connection may have reported much later."""

_MOST: Final = 50
"""The most selections that are kept."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which activity is read."""

    span: Span
    type: str | None = None
    worker: str | None = None
    per_worker: bool = False
    per_type: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    read_at: datetime
    all_read_at: datetime
    found: Sequence[Activity]


class KeptActivity:
    """The activity of a database."""

    def __init__(self) -> None:
        self._kept: dict[Selection, _Kept] = {}

    async def read(self, client: AsyncClient, wanted: Selection, now: datetime) -> Sequence[Activity]:
        """Return what workers did in a span; of the store, only what may have changed is read."""
        span = wanted.span
        begins = since = span.begins(now)
        kept = self._kept.pop(wanted, None)
        if kept is not None and kept.all_read_at > now - timedelta(seconds=_ALL_AGAIN[span.by]):
            since = max(begins, _floor(kept.read_at - timedelta(seconds=_LATE[span.by]), span.by))
        old = [one for one in kept.found if begins <= one.begins_at < since] if kept is not None else []
        found = await client.get_activity(
            None if wanted.type is None else [wanted.type],
            since=since,
            by=span.by,
            per_worker=wanted.per_worker,
            per_type=wanted.per_type,
            workers=None if wanted.worker is None else [wanted.worker],
        )
        every = [*old, *found]
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        all_read_at = now if since == begins or kept is None else kept.all_read_at
        self._kept[wanted] = _Kept(now, all_read_at, every)
        return every


def _floor(at: datetime, by: str) -> datetime:
    return at.replace(second=0, microsecond=0) if by == "minute" else at.replace(minute=0, second=0, microsecond=0)
