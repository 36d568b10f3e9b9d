"""Recurring schedules and pauses, asynchronously. ``sync_recurrence.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queuert.client.async_base import AsyncClientBase
from queuert.client.schedules import JobTypeReference, schedule_names, schedule_records, type_names
from queuert.notify.adapter import Topic
from queuert.payloads import safe_text
from queuert.schedules import RecurringSchedule, notification_key
from queuert.state.types import PausedType, ScheduleRecord

_MAX_REASON = 2_000


class AsyncClientSchedules(AsyncClientBase):
    """Recurring schedules and pauses."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def put_schedules(self, schedules: Sequence[RecurringSchedule]) -> None:
        """Write recurring schedules: new ones, and those that replace another of their name.

        One that is replaced stays paused if it is, and, if its times are the same, keeps its next tick. The first tick
        of a new one is the first after now. Workers of its job type start its chains; without any, its ticks are
        missed. Schedules that are not named stay as they are.

        Raises:
            UnknownJobTypeError: a job type is not registered with this client.
            ConfigurationError: two have one name, or a priority is out of range.
            StateUnavailableError: the store cannot be reached; whether they were written is unknown. Put them again.

        Example::

            nightly = RecurringSchedule("nightly", report, "all", cron="0 3 * * *", time_zone="Europe/Berlin")
            await client.put_schedules([nightly])
        """
        records = schedule_records(self.job_types, schedules)
        store = await self._opened()
        await store.put_schedules(records)
        self.notify.publish(Topic.JOBS, {notification_key(record.type) for record in records})

    async def delete_schedules(self, names: Iterable[str]) -> int:
        """Delete schedules by name; how many there were. Chains that they started stay.

        A worker that was given one with ``schedules=`` puts it again when it starts.

        Raises:
            InvalidIdentifierError: no schedule can have such a name.
        """
        return await (await self._opened()).delete_schedules(schedule_names(names))

    async def list_schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name, each with its next tick and the last one that got a chain."""
        return await (await self._opened()).list_schedules()

    async def pause_schedules(self, names: Iterable[str]) -> int:
        """Start no more chains of these schedules until they are resumed; how many there are of these names.

        Raises:
            InvalidIdentifierError: no schedule can have such a name.
        """
        return await (await self._opened()).set_schedules_paused(schedule_names(names), True)

    async def resume_schedules(self, names: Iterable[str]) -> int:
        """Let paused schedules go on; how many there are of these names. Ticks that came meanwhile count as missed.

        Raises:
            InvalidIdentifierError: no schedule can have such a name.
        """
        given = schedule_names(names)
        store = await self._opened()
        count = await store.set_schedules_paused(given, False)
        if count:
            types = {one.type for one in await store.list_schedules() if one.name in given}
            self.notify.publish(Topic.JOBS, {notification_key(type) for type in types})
        return count

    # --- pauses -------------------------------------------------------------------------------------------------------

    async def pause_job_types(self, types: Iterable[JobTypeReference], *, reason: str | None = None) -> None:
        """Let no worker claim jobs of these types any more, until they are resumed. Running jobs go on, starts too.

        A claim that is under way at this moment may still take some. To pause again what is paused changes nothing but
        the reason, if there is one.

        Args:
            types: job types, or their names; of all types, also such as this client does not know.
            reason: for those who wonder, the first 2,000 characters of it.

        Raises:
            InvalidIdentifierError: no job type can have such a name.
        """
        names = type_names(types)
        text = None if reason is None else safe_text(reason, _MAX_REASON)
        await (await self._opened()).pause_job_types(names, reason=text)

    async def resume_job_types(self, types: Iterable[JobTypeReference]) -> list[str]:
        """Let workers claim jobs of these types again; the names of those that were paused.

        Raises:
            InvalidIdentifierError: no job type can have such a name.
        """
        resumed = await (await self._opened()).resume_job_types(type_names(types))
        self.notify.publish(Topic.JOBS, resumed)
        return resumed

    async def list_paused_job_types(self) -> list[PausedType]:
        """The paused job types, by name: since when, and why."""
        return await (await self._opened()).list_paused_job_types()
