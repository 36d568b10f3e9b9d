"""Validates the arguments of operations on schedules and paused job types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.job_types import JobType, JobTypes, not_registered
from queuert.new_chain import checked_priority
from queuert.payloads import check_text
from queuert.schedules import RecurringSchedule
from queuert.state.types import ScheduleRecord

JobTypeReference: TypeAlias = str | JobType[Any, Any]
"""A job type, or its name."""


def schedule_records(job_types: JobTypes, schedules: Iterable[RecurringSchedule]) -> list[ScheduleRecord]:
    """Return the schedules as a store keeps them.

    Raises:
        UnknownJobTypeError: a job type is not registered with the client.
        ConfigurationError: an element is not a ``RecurringSchedule``, two have the same name, or a priority is out of
            range.
    """
    records: dict[str, ScheduleRecord] = {}
    for schedule in schedules:
        if not isinstance(schedule, RecurringSchedule):
            raise ConfigurationError(
                f"schedules must be RecurringSchedule(name, job_type, input, ...) objects, got {schedule!r}"
            )
        if schedule.job_type not in job_types:
            raise not_registered(schedule.job_type, job_types)
        if schedule.name in records:
            raise ConfigurationError(f"names of schedules must be unique, got {schedule.name!r} twice")
        records[schedule.name] = _record(schedule)
    return list(records.values())


def _record(schedule: RecurringSchedule) -> ScheduleRecord:
    return ScheduleRecord(
        name=schedule.name,
        type=schedule.job_type.name,
        input=schedule.input_text,
        cron=schedule.spec.cron,
        every=schedule.spec.every,
        time_zone=schedule.spec.time_zone,
        missed=schedule.missed,
        priority=checked_priority(schedule.priority),
        limit_key=schedule.limit_key,
    )


def type_names(types: Iterable[JobTypeReference]) -> list[str]:
    """Return the names of job types, each once.

    Raises:
        InvalidIdentifierError: a name is not valid, or ``types`` is a string.
    """
    if isinstance(types, str):
        raise InvalidIdentifierError("job types must be a sequence, got a string; write [name]")
    names = (type.name if isinstance(type, JobType) else check_text(type, what="job type") for type in types)
    return list(dict.fromkeys(names))


def schedule_names(names: Iterable[str]) -> list[str]:
    """Return the names of schedules, each once.

    Raises:
        InvalidIdentifierError: a name is not valid, or ``names`` is a string.
    """
    if isinstance(names, str):
        raise InvalidIdentifierError("names of schedules must be a sequence, got a string; write [name]")
    return list(dict.fromkeys(check_text(name, what="schedule name") for name in names))
