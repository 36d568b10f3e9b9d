"""What a store takes and returns for the steps of jobs, and for the events that are sent to chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from queuert.run_at import RunAt
from queuert.state.types import TriggeredJob


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step of an attempt, to be recorded."""

    number: int
    """1 for the first step of the job."""
    name: str
    attempt: int
    """The number of the attempt that records it."""
    result: str | None = field(default=None, repr=False)
    """JSON text; None for a sleep."""
    wake_at: RunAt | None = None
    """When a sleep ends; None for any other step."""
    started_at: datetime | None = None
    """Of a phase: when it was begun, as ``begin_phase`` has returned it; None for any other step."""
    progress: str | None = field(default=None, repr=False)
    """Of a phase: the progress of the job at its end, JSON text."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step of a job, as stored. Times are UTC, by the store's clock."""

    number: int
    name: str
    attempt: int
    recorded_at: datetime
    result: str | None = field(repr=False)
    """JSON text; None for a sleep."""
    wake_at: datetime | None = None
    """When a sleep ends, or when a wait for an event times out; None for any other step."""
    seconds_left: float = field(default=0.0, compare=False)
    """The seconds until ``wake_at`` when the step was read, or 0."""
    event: str | None = None
    """Of a wait: the name of the event. ``result`` is then its payload, or None if there is none (yet)."""
    answered_at: datetime | None = None
    """Of a wait: when it took an event or timed out; None while it waits."""
    started_at: datetime | None = None
    """Of a phase: when its attempt began it; None for any other step."""

    @property
    def waits(self) -> bool:
        """Whether it is a wait that has neither taken an event nor timed out."""
        return self.event is not None and self.answered_at is None


@dataclass(frozen=True, slots=True)
class EventWait:
    """A step of an attempt that waits for an event which is sent to the chain of the job."""

    number: int
    """1 for the first step of the job."""
    name: str
    """The name of the step: that of the event, with a key if it has one."""
    attempt: int
    """The number of the attempt that records it."""
    event: str
    """The name of the event."""
    timeout: float
    """Seconds from when the wait is recorded until it times out."""


MAX_EVENTS = 1_000
"""The most events that a chain keeps until a job takes them. Lua has the same number."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The most bytes that the payloads of these events may have together. Lua has the same number."""


def event_limit(too_many: bool) -> str:
    """Return what a chain may keep at most: the number of events, or the bytes of their payloads."""
    return f"{MAX_EVENTS:,} events" if too_many else f"{MAX_EVENT_BYTES:,} bytes of events"


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is sent to a chain."""

    id: str
    """A chain takes only one event of an id."""
    name: str
    payload: str = field(repr=False)
    """JSON text."""

    @property
    def size(self) -> int:
        """The bytes of the payload."""
        return len(self.payload.encode())


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of ``send_event``."""

    chain_id: str
    chain_type: str
    """The type of the chain's first job."""
    written: bool
    """False if an event of the same id was sent to the chain before."""
    woken: tuple[TriggeredJob, ...] = ()
    """The job that waited for the event and is due now, if there is one."""
