"""What a worker and the child process of a handler say to each other.

Pickled, over a socket pair that nobody else has: both ends are one program. Nothing of it is ever stored.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any

from queuert.jobs import AbortReason, JobError
from queuert.state.types import ClaimedJob, Finish, FinishResult

HEADER = struct.Struct("!Q")
"""The length of the message that follows."""


def packed(message: object) -> bytes:
    """A message with its header."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


# --- to the child -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: what the worker's process knows and a fresh interpreter does not."""

    search_path: list[str]
    arguments: list[str]
    main: dict[str, Any]
    """How to import the worker's script, should a handler live in it."""
    levels: dict[str, int]
    """Of the loggers that have one."""
    worker: str
    types: tuple[str, ...]
    """The job types that the worker's client knows."""
    state: bytes | None = field(repr=False)
    """The state adapter; None where it cannot be sent."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler. ``spec`` is the handler, its job type and its retry policy, ``blockers`` a tuple of Blocker."""

    spec: bytes = field(repr=False)
    job: ClaimedJob
    blockers: bytes = field(repr=False)
    stopping: bool
    amends: bool = False
    """Finishes are shown to the worker before they are written."""
    trace_context: str | None = None
    """Of this attempt, if it is traced."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The attempt must stop."""

    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Cut:
    """The transaction that holds the job must end: its connection may be dead."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker has been asked to stop."""


@dataclass(frozen=True, slots=True)
class Amended:
    """The finish that the child asked about, as it is to be written."""

    finish: Finish


# --- from the child ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """All is imported and decoded; the handler begins."""


@dataclass(frozen=True, slots=True)
class Held:
    """A transaction holds the job."""


@dataclass(frozen=True, slots=True)
class AttemptFinish:
    """The finish of a ``complete()`` block; the child waits for it to come back."""

    finish: Finish


@dataclass(frozen=True, slots=True)
class Committing:
    """The finish is written in the transaction, and is committed next."""

    finish: Finish
    result: FinishResult


@dataclass(frozen=True, slots=True)
class Committed:
    """The finish stands."""

    finish: Finish
    result: FinishResult


@dataclass(frozen=True, slots=True)
class LetGo:
    """The transaction is over, and the job has no finish, or one whose commit was not answered."""

    doubtful: Finish | None


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far the attempt is, as it is to be stored."""

    progress: str = field(repr=False)


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
    """What the handler raised, pickled if it can be; as it is to be stored; and whether the policy tries again."""

    exception: bytes | None = field(repr=False)
    error: JobError
    may_retry: bool
