"""What a handler may return: values, not exceptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from queuert.errors import ConfigurationError
from queuert.policies import LONGEST_PAUSE
from queuert.run_at import RunAt

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class ContinueWith(Generic[R]):
    """The chain goes on with another job, created in the statement that completes this one.

    Made by :meth:`Attempt.continue_with`, which checks the job type and the input; ``R`` is the result type of the
    chain, so that a continuation that leads to another result is refused by the type checkers.
    """

    job_type: str
    input: str = field(repr=False)
    """The encoded input, JSON text."""
    id: str | None = None
    priority: int | None = None
    """None: that of the job it continues."""
    run_at: RunAt | None = None
    blockers: tuple[str, ...] = ()
    """Ids of the chains that must close first."""
    output: str | None = field(default=None, repr=False)
    """JSON text that is kept with the job that ends here."""
    limit_key: str | None = None


@dataclass(frozen=True, slots=True)
class _ChainStart:
    """A chain that is started by the finish of an attempt."""

    job_type: str
    input: str = field(repr=False)
    """The encoded input, JSON text."""
    id: str | None = None
    priority: int = 0
    run_at: RunAt | None = None
    limit_key: str | None = None
    result_ttl: float | None = None


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Run the handler again when these chains have closed; those that are to be started are started with it.

    Made by :meth:`Attempt.wait_for`, which checks them. The attempt does not count.
    """

    chains: tuple[_ChainStart | str, ...]
    """In the order of ``attempt.blockers``, to which they are added; ids of those that exist."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the job again after ``after`` seconds; None takes the pause of the retry policy.

    The attempt counts. When it was the last that the policy allows, the job fails with ``reason``.
    """

    after: float | None = None
    reason: str = "retry asked for by the handler"


@dataclass(frozen=True, slots=True)
class Fail:
    """Give up: the job and its chain are ``failed`` with this reason, whatever attempts are left."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is no longer wanted: it and its chain are ``cancelled``."""

    reason: str = "cancelled by the handler"


@dataclass(frozen=True, slots=True)
class _Finished(Generic[R]):
    """The attempt was finished inside ``complete()``, with the caller's own writes: return it from the handler."""

    outcome: Any = field(repr=False)


Outcome: TypeAlias = R | ContinueWith[R] | WaitFor | Retry | Fail | Cancel | _Finished[R]
"""What a handler of a ``JobType[I, R]`` returns: an output, or one of the values above."""


def seconds(value: float | timedelta | None) -> float | None:
    """Seconds of a number or a timedelta; None stays None."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def pause(value: float | timedelta) -> float:
    """Seconds that a store can add to a time.

    Raises:
        ConfigurationError: they are negative, more than a hundred years, or no number.
    """
    wanted = seconds(value) or 0.0
    if not 0 <= wanted <= LONGEST_PAUSE:
        raise ConfigurationError(f"a pause of {wanted} seconds: between 0 and a hundred years")
    return wanted
