"""What happens to chains from outside of their handlers: values of the contract.

The operations are the methods of :class:`~queuert.state.async_outside.AsyncOutsideStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from queuert.jobs import ChainStatus, JobStatus
from queuert.state.adapter import NewJob


@dataclass(frozen=True, slots=True)
class OutsideCompletion:
    """End the last job of a chain over its head: with an output, or by a continuation. Exactly one of them is set."""

    chain_id: str
    tail_id: str
    """The last job that the caller saw: if the chain has gone on meanwhile, nothing is written."""
    output: str | None = field(default=None, repr=False)
    """JSON text."""
    continuation: NewJob | None = None


@dataclass(frozen=True, slots=True)
class Intervention:
    """What became of one chain. Written, unless ``met`` is final, or, for a completion, ``job_id`` is another tail."""

    chain_id: str
    chain_type: str
    """Type of its first job."""
    status: ChainStatus
    """Of the chain now."""
    job_id: str
    """Its last job, as it was met."""
    job_type: str
    met: JobStatus
    """How that job stood before. RUNNING: its holder must be told."""
    written: bool
    readied: tuple[str, ...] = ()
    """Types of the jobs that became due by it, or by another of the same call."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The chains that were deleted, in the order asked and then those of the cascade; unknown ones are left out."""

    chain_ids: Sequence[str]
    running_job_ids: Sequence[str]
    """Jobs that were running: their holders must be told."""


@dataclass(frozen=True, slots=True)
class TriggeredJob:
    """A job that was made due."""

    id: str
    type: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Jobs that waited for nothing any more and were released, and where the next sweep begins."""

    released: Sequence[TriggeredJob]
    cursor: str | None
    """Give it to the next call; None when the end was reached."""
