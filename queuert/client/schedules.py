"""Validates the arguments of operations on schedules and paused job types."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.job_types import JobType, JobTypes, not_registered
from queuert.new_chain import checked_priority, listed
from queuert.run_at import RunAt
from queuert.schedules import RecurringSchedule, jitter_of, tick_id
from queuert.state.types import NewJob, ScheduleRecord
from queuert.texts import check_text

JobTypeReference: TypeAlias = str | JobType[Any, Any]
"""A job type, or its name."""


def schedule_records(
    job_types: JobTypes, schedules: Iterable[RecurringSchedule], owner: str | None = None
) -> list[ScheduleRecord]:
    """Return the schedules as a store keeps them.

    Raises:
        UnknownJobTypeError: a job type is not registered with the client.
        ConfigurationError: an element is not a ``RecurringSchedule``, two have the same name, or a priority is out of
            range.
    """
    records: dict[str, ScheduleRecord] = {}
    for schedule in checked_schedules(schedules):
        if schedule.job_type not in job_types:
            raise not_registered(schedule.job_type, job_types)
        records[schedule.name] = _record(schedule, owner)
    return list(records.values())


def checked_schedules(schedules: Iterable[RecurringSchedule]) -> tuple[RecurringSchedule, ...]:
    """Return the schedules.

    Raises:
        ConfigurationError: an element is not a ``RecurringSchedule``, or two have the same name.
    """
    names: set[str] = set()
    given = tuple(listed(schedules, "schedules must be a sequence of RecurringSchedule objects"))
    for schedule in given:
        if not isinstance(schedule, RecurringSchedule):
            raise ConfigurationError(
                f"schedules must be RecurringSchedule(name, job_type, input, ...) objects, got {schedule!r}"
            )
        if schedule.name in names:
            raise ConfigurationError(f"names of schedules must be unique, got {schedule.name!r} twice")
        names.add(schedule.name)
    return given


def checked_owner(owner: str | None) -> str | None:
    """Return the owner of schedules.

    Raises:
        InvalidIdentifierError: it cannot be stored, or has more than 200 characters.
    """
    return None if owner is None else check_text(owner, what="owner of schedules", max_chars=200)


def _record(schedule: RecurringSchedule, owner: str | None) -> ScheduleRecord:
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
        owner=owner,
        overlap=schedule.overlap,
        jitter=schedule.jitter,
        starts_at=schedule.spec.starts_at,
        ends_at=schedule.spec.ends_at,
        attributes=schedule.attributes,
        result_ttl=schedule.result_ttl,
    )


def tick_job(schedule: ScheduleRecord, tick: datetime, *, at_once: bool = False) -> NewJob:
    """Return the first job of the chain of a tick, due when the jitter of the schedule says, or at once."""
    late = jitter_of(schedule.name, tick, schedule.jitter) if schedule.jitter and not at_once else None
    return NewJob(
        id=tick_id(schedule.name, tick),
        type=schedule.type,
        input=schedule.input,
        priority=schedule.priority,
        id_chosen=True,
        limit_key=schedule.limit_key,
        run_at=None if late is None else RunAt(moment=tick + late),
        attributes=schedule.attributes or None,
        result_ttl=schedule.result_ttl,
    )


def superseded(schedule: ScheduleRecord) -> str:
    """Return why a chain is cancelled for the next one."""
    return f"the next chain of schedule {schedule.name!r} takes its place (overlap='cancel')"


def type_names(types: Iterable[JobTypeReference]) -> list[str]:
    """Return the names of job types, each once.

    Raises:
        InvalidIdentifierError: a name is not valid, or ``types`` is a string.
        ConfigurationError: ``types`` is one object.
    """
    if isinstance(types, str):
        raise InvalidIdentifierError("job types must be a sequence, got a string; write [name]")
    given = listed(types, "job types must be a sequence of job types or names")
    names = (type.name if isinstance(type, JobType) else check_text(type, what="job type") for type in given)
    return list(dict.fromkeys(names))


def expected_name(expecting: JobTypeReference) -> str:
    """Return the name of the job type that a chain's last job must have.

    Raises:
        InvalidIdentifierError: it is neither a job type nor a valid name.
    """
    if isinstance(expecting, JobType):
        return expecting.name
    if not isinstance(expecting, str):
        raise InvalidIdentifierError(
            f"expecting must be a JobType or the name of one, got {type(expecting).__name__}: "
            "pass the job type that the chain's last job must have"
        )
    return check_text(expecting, what="expecting")


def schedule_names(names: Iterable[str]) -> list[str]:
    """Return the names of schedules, each once.

    Raises:
        InvalidIdentifierError: a name is not valid, or ``names`` is a string.
    """
    if isinstance(names, str):
        raise InvalidIdentifierError("names of schedules must be a sequence, got a string; write [name]")
    return list(dict.fromkeys(check_text(name, what="schedule name") for name in names))
