"""The earlier jobs of the chain of an attempt, with their inputs and outputs. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from queuert.job_types import JobType
from queuert.jobs import Job
from queuert.state.paging import PageRequest, Position
from queuert.state.types import ClaimedJob

I = TypeVar("I")  # noqa: E741


@dataclass(frozen=True, slots=True)
class EarlierJob(Generic[I]):
    """An earlier job of the chain, of a known type.

    Attributes:
        id: the job's id.
        chain_index: its position in the chain: 0 for the first job.
        input: its input, in the model of its job type.
        output: what ``continue_with(..., output=...)`` has kept, in the model of its job type if that declares one,
            else plain JSON; None if nothing was kept.
    """

    id: str
    chain_index: int
    input: I = field(repr=False)
    output: Any = field(repr=False)


class EarlierJobs:
    """The jobs of the chain before the job of an attempt, as :meth:`Attempt.read_earlier_jobs_sync` returns them.

    It has a length, and iterates over values of :class:`queuert.jobs.Job`, the first job of the chain first.
    """

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = tuple(jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_type: JobType[I, Any]) -> EarlierJob[I] | None:
        """Return the newest of the jobs of this type, decoded; None if there is none.

        Raises:
            PayloadDecodeError: its stored input or output is not valid for the model.
        """
        newest = next((job for job in reversed(self._jobs) if job.type == job_type.name), None)
        return None if newest is None else _decoded(job_type, newest)

    def get_all(self, job_type: JobType[I, Any]) -> list[EarlierJob[I]]:
        """Return all of the jobs of this type, decoded, the earliest first.

        Raises:
            PayloadDecodeError: a stored input or output is not valid for the model.
        """
        return [_decoded(job_type, job) for job in self._jobs if job.type == job_type.name]


def page_before(job: ClaimedJob, limit: int) -> PageRequest:
    """Return the page of the ``limit`` newest jobs of the chain before this one.

    Raises:
        ConfigurationError: the limit is out of range.
    """
    return PageRequest(limit, Position(str(job.chain_index), job.id).encode())


def _decoded(job_type: JobType[I, Any], job: Job) -> EarlierJob[I]:
    output = None if job.output is None else job_type.decode_kept_output(json.dumps(job.output))
    return EarlierJob(job.id, job.chain_index, job_type.decode_input(json.dumps(job.input)), output)
