"""Finds the started jobs that a test asserts, and makes the message if there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from queuert.job_types import JobType
from queuert.jobs import Job

_SHOWN = 20
_MISSING = object()


def matching(
    jobs: Iterable[Job], job_type: JobType[Any, Any], where: Callable[[Any], object] | None, fields: Mapping[str, Any]
) -> list[Job]:
    """Return the jobs of this type whose input matches: ``where`` returns true for it, and its fields have these
    values."""
    found = []
    for job in jobs:
        if job.type != job_type.name:
            continue
        input = job_type.decode_input(json.dumps(job.input))
        if _fits(input, fields) and (where is None or where(input)):
            found.append(job)
    return found


def _fits(input: Any, fields: Mapping[str, Any]) -> bool:
    if isinstance(input, Mapping):
        return all(name in input and input[name] == value for name, value in fields.items())
    return all(getattr(input, name, _MISSING) == value for name, value in fields.items())


def check_fields(job_type: JobType[Any, Any], fields: Mapping[str, Any], jobs: Iterable[Job]) -> None:
    """Reject names that no input of this type has: an assertion with them would find no job in any case.

    Raises:
        TypeError: a name is unknown.
    """
    for job in jobs:
        if job.type == job_type.name:
            input = job_type.decode_input(json.dumps(job.input))
            unknown = [name for name in fields if not isinstance(input, Mapping) and not hasattr(input, name)]
            if unknown:
                raise TypeError(f"inputs of {job_type.name!r} have no field {', '.join(map(repr, unknown))}")


def story(
    job_type: JobType[Any, Any],
    where: Callable[[Any], object] | None,
    fields: Mapping[str, Any],
    expected: str,
    found: Sequence[Job],
    jobs: Sequence[Job],
) -> str:
    """Return the message of a failed assertion: what was expected, what was found, and what was started instead."""
    wanted = [f"{name}={value!r}" for name, value in fields.items()]
    if where is not None:
        wanted.append(f"where {getattr(where, '__name__', repr(where))} says so")
    condition = f" with {', '.join(wanted)}" if wanted else ""
    fitting = [f"  {_line(job)}" for job in found]
    others = [f"  {_line(job)}" for job in jobs if job not in found]
    lines = [f"{expected} of type {job_type.name!r}{condition} expected, {len(found)} started"]
    if fitting:
        lines += ["these fit:", *_some(fitting)]
    lines += ["others that were started:", *_some(others)] if others else ["nothing else was started"]
    return "\n".join(lines)


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _line(job: Job) -> str:
    text = json.dumps(job.input, ensure_ascii=False, default=repr)  # Formats other than JSON may contain bytes.
    return f"{job.type} {text if len(text) <= 100 else text[:97] + '...'}: {job.status.value}, job {job.id}"
