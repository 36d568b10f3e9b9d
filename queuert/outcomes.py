"""The outcomes that a handler may return. They are values, not exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeAlias

from typing_extensions import TypeVar

from queuert.errors import ConfigurationError
from queuert.jobs import Attributes
from queuert.policies import LONGEST_PAUSE
from queuert.run_at import RunAt, at

R = TypeVar("R", default=Any, covariant=True)


@dataclass(frozen=True, slots=True)
class ContinueWith(Generic[R]):
    """Continues the chain with another job, which the statement that completes this one creates.

    :meth:`Attempt.continue_with` makes it, and checks the job type and the input. ``R`` is the result type of the
    chain, so that type checkers reject a continuation that leads to another result.
    """

    job_type: str
    input: str = field(repr=False)
    """The encoded input, JSON text."""
    id: str | None = None
    priority: int | None = None
    """The priority; None takes that of the job it continues."""
    run_at: RunAt | None = None
    blockers: tuple[str, ...] = ()
    """Ids of the chains that must close first."""
    output: str | None = field(default=None, repr=False)
    """JSON text that is kept as the output of the completed job."""
    limit_key: str | None = None
    inherit_limit_key: bool = False
    """Whether the next job has the limit key of the job it continues, if ``limit_key`` is None."""


@dataclass(frozen=True, slots=True)
class _ChainStart:
    """A chain that the finish of an attempt starts."""

    job_type: str
    input: str = field(repr=False)
    """The encoded input, JSON text."""
    id: str | None = None
    priority: int = 0
    run_at: RunAt | None = None
    limit_key: str | None = None
    result_ttl: float | None = None
    attributes: Attributes | None = field(default=None, hash=False)
    max_attempts: int | None = None
    inherit_limit_key: bool = False
    inherit_attributes: bool = False


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Runs the handler again when these chains have closed, and starts those of them that are new.

    :meth:`Attempt.wait_for` makes it, and checks the chains. The attempt does not count against the retry policy.
    """

    chains: tuple[_ChainStart | str, ...]
    """New chains, and ids of existing ones, in the order in which they are added to ``attempt.blockers``."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries the job after ``after`` seconds; None takes the delay of the retry policy.

    The attempt counts. If it was the last that the policy allows, the job fails with ``reason``.
    """

    after: float | None = None
    reason: str = "retry asked for by the handler"


@dataclass(frozen=True, slots=True)
class Snooze:
    """Makes the job due again at a time. The attempt does not count against the retry policy, and is no failure.

    :meth:`Attempt.snooze` makes it. ``waits_for_event`` is the name of the event for which
    ``Attempt.wait_for_event`` waits, which ends the attempt itself.
    """

    run_at: RunAt
    waits_for_event: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Fails the job and its chain with this reason, whatever attempts are left."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels the job and its chain with this reason."""

    reason: str = "cancelled by the handler"


@dataclass(frozen=True, slots=True)
class _Finished(Generic[R]):
    """Says that ``complete()`` has finished the attempt, with writes of the handler: return it from the handler."""

    outcome: Any = field(repr=False)


Inherited: TypeAlias = Literal["attributes", "limit_key", "priority"]
"""What a chain that a job waits for may have from that job and its chain."""

Outcome: TypeAlias = R | ContinueWith[R] | WaitFor | Retry | Snooze | Fail | Cancel | _Finished[R]
"""What a handler of a ``JobType[I, R]`` returns: an output, or one of the values above."""


Continues: TypeAlias = ContinueWith[R] | WaitFor | Retry | Snooze | Fail | Cancel | _Finished[R]
"""What a handler returns that never completes its chain: as ``Outcome``, without an output."""


def checked_inherit(inherit: Iterable[str], allowed: Sequence[str]) -> frozenset[str]:
    """Return the names of what is inherited.

    Raises:
        ConfigurationError: one of them cannot be inherited, or it is a string.
    """
    names = None if isinstance(inherit, str) else frozenset(inherit)
    if names is None or not names.issubset(allowed):
        raise ConfigurationError(f"inherit must be a sequence of {', '.join(map(repr, allowed))}, got {inherit!r}")
    return names


def seconds(value: float | timedelta | None) -> float | None:
    """Return the seconds of a number or a timedelta; None stays None."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def pause(value: float | timedelta) -> float:
    """Return a pause in seconds that a store can add to a time.

    Raises:
        ConfigurationError: it is negative or longer than a hundred years.
    """
    wanted = seconds(value) or 0.0
    if not 0 <= wanted <= LONGEST_PAUSE:
        raise ConfigurationError(f"after must be between 0 seconds and a hundred years, got {wanted} s")
    return wanted


def pause_until(seconds: float | timedelta | None, until: datetime | None) -> RunAt:
    """Return the end of a pause, given by its length or by the moment of its end.

    Raises:
        ConfigurationError: both or none of them were given, the length is negative or longer than a hundred years, or
            the moment has no time zone.
    """
    if (seconds is None) == (until is None):
        given = "none" if seconds is None else "both"
        raise ConfigurationError(f"a pause needs either seconds or until=, got {given} of them")
    return RunAt(delay=pause(seconds)) if seconds is not None else at(until)  # type: ignore[arg-type]
