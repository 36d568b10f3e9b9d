"""Policies of retries, leases and retention: frozen values and pure arithmetic.

All durations are seconds, as floats.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from math import log
from random import random as _random
from typing import Any, Literal, TypeAlias

from queuert.errors import (
    BatchMismatchError,
    BlockerMismatchError,
    CapabilityMissingError,
    CompletionMissingError,
    CompletionMisuseError,
    ConfigurationError,
    DefinitionError,
    HandlerCallError,
    PayloadDecodeError,
    PayloadError,
    StateError,
    StepLimitError,
    StepMismatchError,
    StepMisuseError,
    UndeclaredContinuationError,
    Unrecoverable,
    UnsupportedConnectionError,
)

LONGEST_PAUSE = 100 * 365 * 86_400.0
"""A hundred years, in seconds: a pause that every store can add to a time."""


_NOT_THE_HANDLERS = (StateError, PayloadDecodeError)
"""Errors that pass through a handler, or occur before it, without being raised by its own code."""

_PROGRAMMING_ERRORS = (
    PayloadError, UndeclaredContinuationError, DefinitionError, CompletionMissingError, CompletionMisuseError,
    BatchMismatchError, HandlerCallError, StepLimitError, StepMismatchError, StepMisuseError,
    UnsupportedConnectionError, CapabilityMissingError,
)  # fmt: skip

_NOT_THE_PROGRAMS = (PayloadDecodeError, BlockerMismatchError)
"""Errors of rows that another version of the program wrote: after the deployment an attempt may succeed."""


def is_programming_error(error: BaseException) -> bool:
    """Whether the error, or a member of the exception group, says that the handler contradicts its job type.

    Such an error would be raised again by each further attempt of the same program.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_programming_error, error.exceptions))
    return isinstance(error, _PROGRAMMING_ERRORS) and not isinstance(error, _NOT_THE_PROGRAMS)


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _as_floats(policy: object, *names: str) -> None:
    """Converts these fields to floats, so that integers are accepted and stores receive floats."""
    for name in names:
        value = getattr(policy, name)
        if value is not None:
            object.__setattr__(policy, name, float(value))


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


def _check_classes(name: str, classes: object) -> None:
    fits = isinstance(classes, tuple) and all(
        isinstance(one, type) and issubclass(one, BaseException) for one in classes
    )
    _check(fits, f"{name} must be a tuple of exception classes, got {classes!r}")


def checked_attempts(name: str, value: object) -> int:
    """Return a number of attempts.

    Raises:
        ConfigurationError: it is not an integer between 1 and 1,000,000.
    """
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise ConfigurationError(f"{name} must be an integer between 1 and 1,000,000, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides whether and when a failed attempt is retried.

    The n-th failed attempt is followed by a pause of ``initial_delay * multiplier ** (n - 1)`` seconds, at most
    ``max_delay``, lengthened by a random share of up to ``jitter``, so that jobs that failed together are not retried
    together. After ``max_attempts`` failed attempts the job is ``failed``; the start of a chain may set another number
    for its first job. A stop of its worker never fails a job by this number.

    ``max_crashes`` protects workers from a job that kills them: after this many crashes the job is ``failed``, whatever
    attempts are left. A crash is a lease that expired, a process that died under its handler, or a handler that had
    begun and did not end when its worker stopped.

    ``fail_on`` lists exception classes that are never retried. ``retry_on``, if set, lists the only ones that are
    retried; an empty tuple retries none. Subclasses match, and ``fail_on`` takes precedence. An exception group matches
    ``fail_on`` if any of its members does, and ``retry_on`` if all of them do. Both apply to what handlers raise:
    timeouts and crashes are retried by the counts alone, and so are errors of the store and inputs that could not be
    read, whatever ``retry_on`` says.

    Programming errors are not retried, since each attempt would repeat them, and what the handler did before: an output
    that is not valid for the job type, a continuation that it does not declare, a wrong use of ``complete()``, what the
    store does not have, such as a transaction on Redis, or a handler that cannot be called with its attempt.
    ``retry_programming_errors=True`` retries them as other errors.

    Raises:
        ConfigurationError: a value is out of range.

    Example:
        >>> RetryPolicy(initial_delay=10, jitter=0).delay(3)
        40.0
    """

    max_attempts: int = 25
    initial_delay: float = 10.0
    multiplier: float = 2.0
    max_delay: float = 300.0
    jitter: float = 0.1
    max_crashes: int = 5
    retry_on: tuple[type[BaseException], ...] | None = None
    fail_on: tuple[type[BaseException], ...] = ()
    retry_programming_errors: bool = False

    def __post_init__(self) -> None:
        _as_floats(self, "initial_delay", "multiplier", "max_delay", "jitter")
        for name in ("max_attempts", "max_crashes"):
            checked_attempts(name, getattr(self, name))
        _check_classes("fail_on", self.fail_on)
        if self.retry_on is not None:
            _check_classes("retry_on", self.retry_on)
        flag = self.retry_programming_errors
        _check(isinstance(flag, bool), f"retry_programming_errors must be True or False, got {flag!r}")
        _check(self.initial_delay >= 0, f"initial_delay must be at least 0 seconds, got {self.initial_delay}")
        _check(1 <= self.multiplier <= 1e6, f"multiplier must be between 1 and 1,000,000, got {self.multiplier}")
        _check(
            self.max_delay >= self.initial_delay,
            f"max_delay must be at least initial_delay ({self.initial_delay} s), got {self.max_delay} s",
        )
        _check(self.max_delay <= LONGEST_PAUSE, f"max_delay must be at most a hundred years, got {self.max_delay} s")
        _check(0 <= self.jitter <= 1, f"jitter must be between 0 and 1, got {self.jitter}")

    def base_delay(self, attempt: int) -> float:
        """Return the pause after failed attempt ``attempt`` (1 is the first), in seconds, without jitter."""
        if self.initial_delay == 0:
            return 0.0
        # e ** 100 is beyond any maximum, and a float overflows at e ** 709.
        if (attempt - 1) * log(self.multiplier) > 100:
            return self.max_delay
        return min(self.initial_delay * self.multiplier ** (attempt - 1), self.max_delay)

    def delay(self, attempt: int) -> float:
        """Return the pause after failed attempt ``attempt``, in seconds, with jitter."""
        return self.base_delay(attempt) * (1.0 + self.jitter * _random())

    def allows_another(self, attempts_counted: int, crashes: int = 0, *, max_attempts: int | None = None) -> bool:
        """Whether a job with this many counted failed attempts, this many of them crashes, may be retried.

        ``max_attempts`` of the job's start replaces that of the policy.
        """
        return attempts_counted < (max_attempts or self.max_attempts) and crashes < self.max_crashes

    def allows_after(self, error: BaseException) -> bool:
        """Whether an attempt may be retried after its handler raised this error."""
        if not self.retry_programming_errors and is_programming_error(error):
            return False
        return not self._is_final(error) and self._is_passing(error)

    def _is_final(self, error: BaseException) -> bool:
        return isinstance(error, (Unrecoverable, *self.fail_on)) or any(map(self._is_final, _members(error)))

    def _is_passing(self, error: BaseException) -> bool:
        if self.retry_on is None or isinstance(error, (*self.retry_on, *_NOT_THE_HANDLERS)):
            return True
        members = _members(error)
        return bool(members) and all(map(self._is_passing, members))


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How many seconds a lease lasts, and how often it is renewed while the handler runs.

    After a crash another worker takes over the job when the lease has expired, at most ``seconds`` later. A short lease
    means a quick take-over; a long one survives longer outages of the database. ``renew_every`` defaults to a third of
    ``seconds``.

    Raises:
        ConfigurationError: a value is out of range, or ``renew_every`` is not below half of ``seconds``, so that one
            failed renewal would lose the lease.

    Example:
        >>> LeasePolicy(seconds=30).renewal_interval
        10.0
    """

    seconds: float = 60.0
    renew_every: float | None = None
    renewal_interval: float = field(init=False, repr=False, compare=False)
    """Seconds between two renewals."""

    def __post_init__(self) -> None:
        _as_floats(self, "seconds", "renew_every")
        object.__setattr__(self, "renewal_interval", self.seconds / 3 if self.renew_every is None else self.renew_every)
        _check(
            0.1 <= self.seconds <= 86_400 * 7,
            f"seconds of a lease must be between 0.1 and 604,800 (a week), got {self.seconds}",
        )
        _check(self.renewal_interval > 0, f"renew_every must be above 0 seconds, got {self.renew_every}")
        _check(
            self.renewal_interval < self.seconds / 2,
            f"renew_every must be below half of the lease ({self.seconds} s), got {self.renew_every} s",
        )


def checked_ttl(name: str, seconds: object, *, zero: bool = False) -> float:
    """Return a time to live in seconds; ``zero`` says whether it may be 0.

    Raises:
        ConfigurationError: it is not a number or timedelta above 0 and at most a hundred years.
    """
    given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given <= LONGEST_PAUSE or (given == 0 and not zero):  # type: ignore[operator]
        least = "at least" if zero else "above"
        raise ConfigurationError(
            f"{name} must be seconds or a timedelta, {least} 0 and at most a hundred years, got {as_given(seconds)}"
        )
    return float(given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Keep:
    """Bounds the closed chains of one status that are kept, by age, by number, or both.

    A chain is kept if it closed at most ``age`` ago and is among the ``count`` most recently started. None sets no
    bound; ``count=0`` keeps no chain. A chain that is no longer kept is deleted. With ``stale_for`` it first becomes
    stale, which everybody can see (``chain.stale_at``, an event ``stale``), and is deleted so much later.

    Args:
        age: seconds since the chain closed, or a timedelta.
        count: the number of chains, at most 1,000,000.
        stale_for: seconds from the time at which a chain became stale until it is deleted, or a timedelta. None: it is
            deleted without a warning.

    Raises:
        ConfigurationError: a value is out of range, or ``age`` and ``count`` are both missing.

    Example:
        >>> Keep(age=86_400, count=1_000)
        Keep(age=86400.0, count=1000, stale_for=None)
    """

    age: float | timedelta | None = None
    count: int | None = None
    stale_for: float | timedelta | None = None

    def __post_init__(self) -> None:
        _check(self.age is not None or self.count is not None, "Keep needs an age, a count, or both")
        if self.age is not None:
            object.__setattr__(self, "age", checked_ttl("age", self.age))
        if self.count is not None:
            fits = type(self.count) is int and 0 <= self.count <= 1_000_000
            _check(fits, f"count must be an integer between 0 and 1,000,000, got {self.count!r}")
        if self.stale_for is not None:
            object.__setattr__(self, "stale_for", checked_ttl("stale_for", self.stale_for))

    @property
    def seconds(self) -> float | None:
        """The age, in seconds; None if it is not bounded."""
        return self.age  # type: ignore[return-value]

    @property
    def stale_seconds(self) -> float | None:
        """For how many seconds a chain is stale before it is deleted; None if it is deleted at once."""
        return self.stale_for  # type: ignore[return-value]


Kept: TypeAlias = Keep | Literal["forever"]
"""How long the closed chains of one status are kept."""

DEFAULT_KEPT = Keep(age=14 * 86_400)
"""For completed and cancelled chains, unless a :class:`Retention` says otherwise."""


RetentionHook: TypeAlias = Callable[[Any], Awaitable[bool | None] | bool | None]
"""Called with the handle of a closed chain, of the worker's client. ``async def`` runs in the event loop, a plain
``def`` in a thread. It returns False to hold the chain back: it is called again in a minute or so."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Says which closed chains of a job type are kept, by their status.

    Completed and cancelled chains are kept for 14 days by default. Failed ones are kept until somebody retries or
    deletes them. A chain that was started with a ``result_ttl`` is kept for that time instead, and still counts towards
    ``count``. A chain that is a blocker of an unfinished job is kept until that job has finished.

    Args:
        completed: a :class:`Keep`, or ``"forever"``.
        failed: the same.
        cancelled: the same.
        before_stale: called before a chain becomes stale, and may hold it back by returning False; see
            :data:`RetentionHook`.
        before_delete: called before a chain is deleted that is no longer kept, for example to delete its files. It may
            hold it back. A chain with a ``result_ttl`` is deleted without it, by any worker.

    A hook is called by the maintenance of the workers that have this policy, ten at once in each: at least once before
    its chain becomes stale or is deleted, and again if the worker dies before it has written, or if another worker does
    the same page at that moment. It is called for closed chains that no open job needs; if a chain is retried, or
    becomes a blocker, while its hook runs, the chain stays all the same. If the hook raises, or takes more than a
    minute, the chain stays until the next round.

    Raises:
        ConfigurationError: a value is neither, or a hook is no function.

    Example:
        >>> print(Retention(completed=Keep(age=3_600, count=100)))
        completed for 1 hour, the last 100; failed forever; cancelled for 14 days
    """

    completed: Kept = DEFAULT_KEPT
    failed: Kept = "forever"
    cancelled: Kept = DEFAULT_KEPT
    before_stale: RetentionHook | None = None
    before_delete: RetentionHook | None = None

    def __post_init__(self) -> None:
        for name in ("completed", "failed", "cancelled"):
            value = getattr(self, name)
            fits = isinstance(value, Keep) or value == "forever"
            _check(fits, f"{name} must be Keep(age=..., count=...) or 'forever', got {value!r}")
        for name in ("before_stale", "before_delete"):
            _check_hook(name, getattr(self, name))

    @classmethod
    def forever(cls) -> Retention:
        """Return a retention that keeps all chains. Without a ``result_ttl`` they fill the disk."""
        return cls("forever", "forever", "forever")

    def bound(self, status: str) -> Keep | None:
        """Return what bounds the chains of a status; None if they are kept forever."""
        kept: Kept = getattr(self, status)
        return kept if isinstance(kept, Keep) else None

    def __str__(self) -> str:
        return "; ".join(f"{name} {_kept(getattr(self, name))}" for name in ("completed", "failed", "cancelled"))


def _check_hook(name: str, hook: object) -> None:
    if hook is None:
        return
    _check(callable(hook), f"{name} must be a function of a chain, got {hook!r}")
    try:
        signature = inspect.signature(hook)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return  # A function of an extension module may have none.
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"{name} must be a function of a chain, but its parameters are {signature} ({error})"
        ) from None


def _kept(kept: Kept) -> str:
    if not isinstance(kept, Keep):
        return "forever"
    parts = [] if kept.seconds is None else [f"for {_span(kept.seconds)}"]
    if kept.count is not None:
        parts.append(f"the last {kept.count:,}")
    if kept.stale_seconds is not None:
        parts.append(f"then stale for {_span(kept.stale_seconds)}")
    return ", ".join(parts)


def _span(seconds: float) -> str:
    for name, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            number = int(seconds // length)
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{seconds:g} s"


def as_given(value: object) -> str:
    """A number or timedelta as a message shows it: the ``repr`` of a timedelta names neither its unit nor its sum."""
    return _span(value.total_seconds()) if isinstance(value, timedelta) else repr(value)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between the failures of a supervised loop: doubled each time, capped, jittered, reset by a success."""

    initial_delay: float = 0.1
    max_delay: float = 10.0

    def delay(self, failures: int) -> float:
        """Return the seconds to pause after this many failures in a row (1 or more), jittered by up to half."""
        ceiling = min(self.initial_delay * 2.0 ** min(failures - 1, 30), self.max_delay)
        return ceiling * (0.5 + 0.5 * _random())
