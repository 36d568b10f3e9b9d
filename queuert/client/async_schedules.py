"""Recurring schedules and paused job types in an async client. ``sync_schedules.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queuert.client.async_base import AsyncClientBase
from queuert.client.schedules import JobTypeReference, checked_owner, schedule_names, schedule_records, type_names
from queuert.limits import PausedType
from queuert.notify.adapter import Topic
from queuert.schedules import RecurringSchedule, notification_key
from queuert.state.types import ScheduleRecord
from queuert.texts import check_text, checked_reason


class AsyncClientSchedules(AsyncClientBase):
    """Stores, lists and pauses recurring schedules, and pauses job types."""

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def put_schedules(self, schedules: Sequence[RecurringSchedule], *, owner: str | None = None) -> None:
        """Store recurring schedules; each replaces the schedule of the same name.

        A replaced schedule stays paused if it was, and keeps its next tick if its times are the same. The first tick of
        a new schedule is the first one after now. Workers of its job type start the chains; without such a worker, its
        ticks are missed. Other schedules are not affected.

        Args:
            schedules: all of them are stored, or none.
            owner: to whom they belong, as those of workers do; by default to nobody. A schedule is replaced only for
                the owner that it has.

        Raises:
            ScheduleOwnerError: a stored schedule of one of the names belongs to another owner, or to none.
            UnknownJobTypeError: a job type is not registered with this client.
            ConfigurationError: two schedules have the same name, or a priority is out of range.
            StateUnavailableError: the store cannot be reached, and it is unknown whether they were written. Call it
                again.

        Example::

            nightly = RecurringSchedule("nightly", report, "all", cron="0 3 * * *", time_zone="Europe/Berlin")
            await client.put_schedules([nightly])
        """
        records = schedule_records(self.job_types, schedules, checked_owner(owner))
        store = await self._open_store()
        await store.put_schedules(records)
        self.notify.publish(Topic.JOBS, {notification_key(record.type) for record in records})

    async def delete_schedules(self, names: Iterable[str]) -> int:
        """Delete schedules by name and return how many existed. The chains that they started remain.

        A worker whose code has the schedule stores it again when it starts.

        Raises:
            InvalidIdentifierError: a name is not valid, or ``names`` is a string.
        """
        return await (await self._open_store()).delete_schedules(schedule_names(names))

    async def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules by name, each with its next tick and the last one for which a chain was started."""
        return await (await self._open_store()).list_schedules()

    async def pause_schedules(self, names: Iterable[str]) -> int:
        """Pause schedules by name, so that they start no chains until resumed; return how many exist.

        Raises:
            InvalidIdentifierError: a name is not valid, or ``names`` is a string.
        """
        return await (await self._open_store()).set_schedules_paused(schedule_names(names), True)

    async def resume_schedules(self, names: Iterable[str]) -> int:
        """Resume paused schedules by name; return how many exist. Ticks during the pause count as missed.

        Raises:
            InvalidIdentifierError: a name is not valid, or ``names`` is a string.
        """
        resumed = schedule_names(names)
        store = await self._open_store()
        count = await store.set_schedules_paused(resumed, False)
        if count:
            types = {schedule.type for schedule in await store.list_schedules() if schedule.name in resumed}
            self.notify.publish(Topic.JOBS, {notification_key(type) for type in types})
        return count

    # --- pauses -------------------------------------------------------------------------------------------------------

    async def pause_job_types(
        self, types: Iterable[JobTypeReference], *, reason: str | None = None, by: str | None = None
    ) -> None:
        """Pause job types, so that no worker claims their jobs until they are resumed.

        Running jobs keep running, and chains can be started. A claim that is in progress may still take some jobs.
        Pausing a paused job type again changes only the reason, if there is one.

        Args:
            types: job types, or names, registered with this client or not.
            reason: a note for operators, shortened to 2,000 characters.
            by: who pauses them, 1 to 512 characters; shown wherever the pause is. Kept when somebody pauses them again.

        Raises:
            InvalidIdentifierError: ``by`` or the name of a job type is not valid, or ``types`` is a string.
            ConfigurationError: the reason is no string, or ``types`` is one object.
        """
        names = type_names(types)
        text = None if reason is None else checked_reason(reason)
        who = None if by is None else check_text(by, what="by")
        await (await self._open_store()).pause_job_types(names, reason=text, by=who)

    async def resume_job_types(self, types: Iterable[JobTypeReference]) -> list[str]:
        """Resume paused job types, and return the names of those that were paused.

        Raises:
            InvalidIdentifierError: the name of a job type is not valid, or ``types`` is a string.
        """
        resumed = await (await self._open_store()).resume_job_types(type_names(types))
        self.notify.publish(Topic.JOBS, resumed)
        return resumed

    async def list_paused_job_types(self) -> list[PausedType]:
        """Return the paused job types by name, with the time, who paused them, and the reason."""
        return await (await self._open_store()).list_paused_job_types()
