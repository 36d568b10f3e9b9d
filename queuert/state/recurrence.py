"""Recurring schedules and pauses as stored: values of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from queuert.schedules import MissedRuns, TickSpec


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A recurring schedule. Times are UTC."""

    name: str
    type: str
    input: str = field(repr=False)
    """JSON text."""
    cron: str | None
    every: float | None
    """Seconds."""
    time_zone: str
    missed: MissedRuns
    priority: int = 0
    limit_key: str | None = None
    paused: bool = False
    next_at: datetime | None = None
    """The next tick; None if none will come."""
    last_at: datetime | None = None
    """The latest tick that got a chain."""

    @property
    def spec(self) -> TickSpec:
        """When it ticks."""
        return TickSpec(cron=self.cron, every=self.every, time_zone=self.time_zone)


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules that are due, and how the store's clock stood."""

    now: datetime
    due: Sequence[ScheduleRecord]
    next_in: float | None
    """Seconds until the next one of the others is due; None without any."""


@dataclass(frozen=True, slots=True)
class PausedType:
    """A job type of which nothing is claimed."""

    type: str
    paused_at: datetime
    reason: str | None
