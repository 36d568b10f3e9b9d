"""Phases: the parts of a job that its job type declares, and where each is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from queuert.errors import ConfigurationError, DefinitionError
from queuert.jobs import Job, JobError, JobProgress, JobStatus, JobStep
from queuert.texts import check_step_name

MAX_PHASES = 100
"""The most phases of a job type."""

PhaseDeclaration: TypeAlias = Mapping[str, float] | Sequence[str]
"""The names of phases in the order in which they run, and the weight of each; names alone weigh the same."""


class PhaseStatus(StrEnum):
    """Where a phase is.

    >>> PhaseStatus("active") is PhaseStatus.ACTIVE
    True
    """

    PENDING = "pending"
    """It has not begun; or its attempt was released or interrupted, and the next one begins it again."""
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its last attempt failed. If the job is retried, it is begun again."""
    CANCELLED = "cancelled"
    """The chain was cancelled while it ran."""
    SKIPPED = "skipped"
    """A later phase was begun, or the job ended, without it."""


@dataclass(frozen=True, slots=True)
class JobPhase:
    """A phase of a job, as it was when it was read. Times are UTC.

    Attributes:
        name: its name.
        number: 1 for the first phase that the job type declares.
        status: where it is.
        attempt: the number of the attempt that began it last; None if none has.
        started_at: when that attempt began it, by the store's clock; that of a phase that is not completed by the clock
            of the worker.
        completed_at: when it was completed, by the store's clock.
        progress: what its handler has recorded in it; None if it is completed, or nothing was recorded.
        error: why its last attempt failed, if the status says so.
        result: decoded JSON; for a job type with a format, decoded by it. None unless it is completed.

    Example::

        for phase in await client.get_phases(chain.id):
            print(phase.number, phase.name, phase.status, phase.error)
    """

    name: str
    number: int
    status: PhaseStatus
    attempt: int | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    progress: JobProgress | None = None
    error: JobError | None = None
    result: Any = None


def checked_phases(job_type: str, phases: object) -> Mapping[str, float]:
    """Return the names and weights of the phases that a job type declares.

    Raises:
        DefinitionError: a name or a weight is not valid, a name occurs twice, or there are more than 100.
    """
    if isinstance(phases, str) or not isinstance(phases, Mapping | Sequence):
        raise DefinitionError(
            f"phases of job type {job_type!r} must be a tuple of names, or a dict of names and weights, got {phases!r}"
        )
    weights: Mapping[Any, Any] = phases if isinstance(phases, Mapping) else dict.fromkeys(phases, 1.0)
    if len(weights) < len(phases) or len(weights) > MAX_PHASES:
        raise DefinitionError(
            f"job type {job_type!r} must have at most {MAX_PHASES} phases, and each name once, got {phases!r}"
        )
    try:
        return {check_step_name(name, what="a phase"): checked_weight(name, weight) for name, weight in weights.items()}
    except ConfigurationError as error:
        raise DefinitionError(f"job type {job_type!r}: {error}") from None


def checked_weight(name: str, weight: object) -> float:
    """Return the weight of a phase.

    Raises:
        ConfigurationError: it is not a finite number above 0.
    """
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not (0 < weight < math.inf):  # type: ignore[operator]
        raise ConfigurationError(f"the weight of phase {name!r} must be a finite number above 0, got {weight!r}")
    return float(weight)  # type: ignore[arg-type]


def phases_of(declared: Sequence[str], job: Job, steps: Sequence[JobStep]) -> list[JobPhase]:
    """Return the phases of a job: those that its job type declares, and those that it has run besides.

    The others are of another version of the program, which declares other phases.
    """
    completed = {step.name: step for step in steps if step.started_at is not None}
    current = None if job.progress is None or job.progress.phase is None else job.progress.phase.name
    begun_names = [*completed, *([] if current is None else [current])]
    names: list[str] = [*declared, *(name for name in dict.fromkeys(begun_names) if name not in declared)]
    begun = max((place for place, name in enumerate(names) if name in completed or name == current), default=-1)
    return list(_shown(names, begun, completed, current, job))


def _shown(
    names: Sequence[str], begun: int, completed: Mapping[str, JobStep], current: str | None, job: Job
) -> Iterator[JobPhase]:
    over = job.status in (JobStatus.COMPLETED, JobStatus.CONTINUED)
    for place, name in enumerate(names):
        if name in completed:
            step = completed[name]
            yield JobPhase(
                name,
                place + 1,
                PhaseStatus.COMPLETED,
                attempt=step.attempt,
                started_at=step.started_at,
                completed_at=step.recorded_at,
                result=step.result,
            )
        elif name == current:
            yield _begun(name, place + 1, job)
        else:
            yield JobPhase(name, place + 1, PhaseStatus.SKIPPED if over or place < begun else PhaseStatus.PENDING)


def _begun(name: str, number: int, job: Job) -> JobPhase:
    progress = job.progress
    assert progress is not None
    assert progress.phase is not None
    attempt = progress.phase.attempt
    status, error = PhaseStatus.PENDING, None
    if job.status is JobStatus.RUNNING and job.attempt == attempt:
        status = PhaseStatus.ACTIVE
    elif job.status is JobStatus.CANCELLED:
        status, error = PhaseStatus.CANCELLED, job.last_error
    else:
        failures = [one.error for one in job.failures if one.attempt == attempt]
        if failures or job.status in (JobStatus.FAILED, JobStatus.COMPLETED, JobStatus.CONTINUED):
            status, error = PhaseStatus.FAILED, failures[-1] if failures else job.last_error
    return JobPhase(
        name, number, status, attempt=attempt, started_at=progress.phase.started_at, progress=progress, error=error
    )
