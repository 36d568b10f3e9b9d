"""Schedules: the list, and what an operator changes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import islice

from cronsim import CronSim, CronSimError
from starlette.responses import Response

from queuert.state.types import ScheduleRecord
from queuert.web.dashboard import formats
from queuert.web.dashboard.pages.overview import LATE
from queuert.web.dashboard.visit import Visit
from queuert.web.problems import Problem

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_NEXT = 3
"""The next ticks that are shown."""


async def schedules(visit: Visit) -> Response:
    """All schedules, by name."""
    found = await visit.client.list_schedules()
    rows = [(one, in_words(one), _next_ticks(visit, one), _is_late(visit, one)) for one in found]
    return visit.render("schedules.html", rows=rows)


def in_words(schedule: ScheduleRecord) -> str:
    """When the schedule has its ticks, as a sentence."""
    if schedule.cron is None:
        return f"Every {formats.duration(schedule.every)}"
    try:
        return CronSim(schedule.cron, schedule.next_at or schedule.last_at or _EPOCH).explain()
    except (CronSimError, ValueError):
        return ""


def _next_ticks(visit: Visit, schedule: ScheduleRecord) -> list[str]:
    """The ticks after the next one, in the zone of the page."""
    if schedule.next_at is None or schedule.paused:
        return []
    ticks = islice(schedule.spec.after(max(schedule.next_at, visit.now)), _NEXT)
    return [formats.clock(one, visit.zone, "%a %d %b %H:%M:%S") for one in ticks]


def _is_late(visit: Visit, schedule: ScheduleRecord) -> bool:
    late = schedule.next_at is not None and (visit.now - schedule.next_at).total_seconds() > LATE
    return late and not schedule.paused


async def pause(visit: Visit) -> Response:
    """Pause a schedule."""
    return await _change(visit, visit.client.pause_schedules, "schedule-paused")


async def resume(visit: Visit) -> Response:
    """Resume a schedule."""
    return await _change(visit, visit.client.resume_schedules, "schedule-resumed")


async def _change(visit: Visit, change: Callable[[list[str]], Awaitable[int]], notice: str) -> Response:
    name = visit.wanted("name")
    if not await change([name]):
        await _known(visit, name)
    return visit.go("/schedules", notice=notice)


async def _known(visit: Visit, name: str) -> ScheduleRecord:
    """The schedule of a name.

    Raises:
        Problem: 404, there is none.
    """
    for one in await visit.client.list_schedules():
        if one.name == name:
            return one
    raise Problem(404, "not-found", f"no schedule has the name {name!r}")


async def run(visit: Visit) -> Response:
    """Start the chain of a schedule now."""
    started = await visit.client.run_schedule(visit.wanted("name"))
    if started is None:
        raise Problem(409, "overlap", "the schedule's last chain is open, and its overlap policy starts no other")
    return visit.go("/chain", id=started.id, notice="schedule-run")


async def confirm_delete(visit: Visit) -> Response:
    """Ask before a schedule is deleted."""
    return visit.render("confirm_schedule.html", schedule=await _known(visit, visit.wanted("name")))


async def delete(visit: Visit) -> Response:
    """Delete a schedule."""
    name = visit.wanted("name")
    if not await visit.client.delete_schedules([name]):
        await _known(visit, name)
    return visit.go("/schedules", notice="schedule-deleted")
