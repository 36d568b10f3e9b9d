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
from queuert.web.dashboard.pages.shared import MOST_ROWS, known_types, named, past_time
from queuert.web.dashboard.visit import Visit
from queuert.web.problems import Problem

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_OLD = 600.0
"""Seconds for which a form starts the chain of the moment at which it was made: handlers see it as their tick."""

_NEXT = 3
"""The next ticks that are shown."""


_FILTERS = ("name", "type")


async def schedules(visit: Visit) -> Response:
    """Schedules by name: all, or those of a type, or with a name: it alone, or else those that have it in theirs."""
    given = visit.given(*_FILTERS)
    found = await visit.client.list_schedules()
    known = known_types(visit, *(one.type for one in found))
    if "type" in given:
        found = [one for one in found if one.type == given["type"]]
    if "name" in given:
        exact = [one for one in found if one.name == given["name"]]
        found = exact or [one for one in found if named(given["name"], one.name)]
    rows = [
        # The moment at which a form was made is no tick: that one has a chain of its own.
        (one, in_words(one), _next_ticks(visit, one), _is_late(visit, one), one.spec.beside(visit.now))
        for one in found[:MOST_ROWS]
    ]
    return visit.render("schedules.html", rows=rows, given=given, types=known, count=len(found))


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
    return visit.go_back("/schedules", notice)


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
    """Start the chain of a schedule now.

    Raises:
        Problem: 400, the form has a moment that cannot be read; 409, it is old, or the schedule's last chain is open.
    """
    # The form has the moment at which it was made, so that a second click on its button starts no second chain.
    given = visit.given("at").get("at")
    at = past_time(visit, "at", given) if given else None
    if at is not None and not -_OLD <= (visit.now - at).total_seconds() <= _OLD:
        raise Problem(409, "old-form", "this form is from another time: read the page again, and run the schedule then")
    started = await visit.client.run_schedule(visit.wanted("name"), at=at)
    if started is None:
        raise Problem(409, "overlap", "the schedule's last chain is open, and its overlap policy starts no other")
    notice = "schedule-run-before" if started.deduplicated else "schedule-run"
    return visit.go("/chain", id=started.id, notice=notice)


async def confirm_delete(visit: Visit) -> Response:
    """Ask before a schedule is deleted."""
    schedule = await _known(visit, visit.wanted("name"))
    return visit.render("confirm_schedule.html", schedule=schedule, back=visit.came_from("/schedules"))


async def delete(visit: Visit) -> Response:
    """Delete a schedule."""
    name = visit.wanted("name")
    if not await visit.client.delete_schedules([name]):
        await _known(visit, name)
    return visit.go_back("/schedules", "schedule-deleted")
