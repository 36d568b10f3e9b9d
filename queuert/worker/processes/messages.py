"""The messages between a worker and the child process of a handler.

They are pickled and sent over a socket pair that only these two processes have. They are never stored.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queuert.jobs import AbortReason, JobError
from queuert.state.steps import NewStep, StepRecord
from queuert.state.types import ClaimedJob, Finish, FinishResult
from queuert.worker.phases import PhaseReport

HEADER = struct.Struct("!Q")
"""The length of the message that follows."""


def packed(message: object) -> bytes:
    """Return a message with its header."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


# --- to the child -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: the state of the worker's process that a new interpreter lacks."""

    search_path: list[str]
    arguments: list[str]
    main: dict[str, Any]
    """How to import the worker's script, if a handler is defined in it."""
    levels: dict[str, int]
    """The levels of loggers that have one."""
    worker: str
    types: tuple[str, ...]
    """The job types that the worker's client knows."""
    state: bytes | None = field(repr=False)
    """The state adapter; None if it cannot be pickled."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler. ``spec`` is the handler, its job type, policy and lifespan, ``blockers`` a tuple of Blocker."""

    spec: bytes = field(repr=False)
    job: ClaimedJob
    blockers: bytes = field(repr=False)
    stopping: bool
    has_after_attempt: bool = False
    """Whether the child sends finishes to the worker before it writes them."""
    trace_context: str | None = None
    """The trace context of this attempt, if it is traced."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The attempt must stop."""

    reason: AbortReason


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """The transaction that has locked the job must end: its connection may be dead."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker has been asked to stop."""


@dataclass(frozen=True, slots=True)
class End:
    """Leave the lifespans, and end: no attempt runs. (If the worker dies instead, the guard kills the process.)"""


@dataclass(frozen=True, slots=True)
class FinishToWrite:
    """The answer to ``GetFinishToWrite``."""

    finish: Finish


@dataclass(frozen=True, slots=True)
class PhaseWritten:
    """The answer to ``BeginPhase`` and ``RecordPhase``: what the store has returned, or raised, pickled."""

    answer: datetime | StepRecord | None
    error: bytes | None = field(default=None, repr=False)


# --- from the child ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """The handler begins: everything is imported and decoded."""


@dataclass(frozen=True, slots=True)
class RenewalPaused:
    """A transaction has locked the job, so its lease cannot be renewed."""


@dataclass(frozen=True, slots=True)
class GetFinishToWrite:
    """The finish of a ``complete()`` block, as the handler made it; the child waits for ``FinishToWrite``."""

    finish: Finish


@dataclass(frozen=True, slots=True)
class Committing:
    """The finish is written in the transaction, and is committed next."""

    finish: Finish
    result: FinishResult


@dataclass(frozen=True, slots=True)
class Committed:
    """The finish is committed."""

    finish: Finish
    result: FinishResult


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """The transaction has ended without a finish, or with one whose commit was not answered."""

    indeterminate: Finish | None


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress of the attempt, as it is stored."""

    progress: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BeginPhase:
    """A phase begins with this progress; the child waits for ``PhaseWritten``."""

    progress: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RecordPhase:
    """A phase is completed; the child waits for ``PhaseWritten``."""

    step: NewStep


@dataclass(frozen=True, slots=True)
class PhaseReported:
    """What observers are to get of a phase."""

    report: PhaseReport


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The handler waits for chains that stand at jobs of these types."""

    job_types: frozenset[str]


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record of the handler, pickled."""

    record: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Returned:
    """What the handler returned, pickled."""

    outcome: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Raised:
    """What the handler raised: pickled, if it can be; as it is stored; and whether the retry policy retries it."""

    exception: bytes | None = field(repr=False)
    error: JobError
    may_retry: bool
