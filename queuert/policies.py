"""How long, how often, how many: frozen values and pure arithmetic.

All durations are seconds, as floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import log
from random import random as _random

from queuert.errors import ConfigurationError, PayloadDecodeError, StateError, Unrecoverable

LONGEST_PAUSE = 100 * 365 * 86_400.0
"""A hundred years, in seconds: what any store can add to a time."""


_NOT_THE_HANDLERS = (StateError, PayloadDecodeError)
"""They come through a handler, or before it, and are nothing that it raises."""


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _as_floats(policy: object, *names: str) -> None:
    """Whole numbers are welcome; stores are given floats."""
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
    _check(fits, f"{name} is {classes!r}: a tuple of exception classes")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed attempt is tried again, and when no more.

    The n-th failed attempt is followed by a pause of ``initial_delay * multiplier ** (n - 1)`` seconds, at most
    ``max_delay``,
    then stretched by a random share of up to ``jitter`` so that jobs that failed together do not come back together.
    After ``max_attempts`` failed attempts the job is ``failed``. An attempt that a worker released is not
    counted.

    ``max_crashes`` is the poison guard: a job that has cost this many workers their lives (leases that expired,
    processes that died under its handler) is ``failed`` before it costs another, whatever attempts are left.

    ``fail_on`` names exception classes after which another attempt is useless; ``retry_on``, if given, the only ones
    after which there is one (an empty tuple: none). Subclasses count, and ``fail_on`` goes first. An exception group
    fits ``fail_on`` if anything in it does, and ``retry_on`` if all of it does. They concern what handlers raise:
    timeouts and deaths are tried again by the counts alone, and ``retry_on`` does not keep a job from being tried again
    after trouble with the store, or with an input that could not be read.

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

    def __post_init__(self) -> None:
        _as_floats(self, "initial_delay", "multiplier", "max_delay", "jitter")
        _check(type(self.max_attempts) is int, f"max_attempts is {self.max_attempts!r}: a whole number")
        _check(1 <= self.max_attempts <= 1_000_000, f"max_attempts is {self.max_attempts}: from 1 to a million")
        _check(
            type(self.max_crashes) is int and self.max_crashes >= 1, f"max_crashes is {self.max_crashes!r}: from 1 up"
        )
        _check(self.max_crashes <= 1_000_000, f"max_crashes is {self.max_crashes}: at most a million")
        _check_classes("fail_on", self.fail_on)
        if self.retry_on is not None:
            _check_classes("retry_on", self.retry_on)
        _check(self.initial_delay >= 0, f"initial_delay is {self.initial_delay}: at least 0 seconds")
        _check(self.multiplier >= 1, f"multiplier is {self.multiplier}: at least 1")
        _check(self.multiplier <= 1e6, f"multiplier is {self.multiplier}: at most a million")
        _check(
            self.max_delay >= self.initial_delay,
            f"max_delay ({self.max_delay} s) is below initial_delay ({self.initial_delay} s)",
        )
        _check(self.max_delay <= LONGEST_PAUSE, f"max_delay is {self.max_delay} s: at most a hundred years")
        _check(0 <= self.jitter <= 1, f"jitter is {self.jitter}: between 0 and 1")

    def base_delay(self, attempt: int) -> float:
        """The pause after failed attempt ``attempt`` (1 is the first), in seconds, before jitter."""
        if self.initial_delay == 0:
            return 0.0
        # e ** 100 is beyond any maximum, and a float overflows at e ** 709.
        if (attempt - 1) * log(self.multiplier) > 100:
            return self.max_delay
        return min(self.initial_delay * self.multiplier ** (attempt - 1), self.max_delay)

    def delay(self, attempt: int) -> float:
        """The pause after failed attempt ``attempt``, in seconds, with jitter."""
        return self.base_delay(attempt) * (1.0 + self.jitter * _random())

    def allows_another(self, attempts_counted: int, crashes: int = 0) -> bool:
        """Whether a job with this many counted failed attempts, this many of them crashes, may be tried again."""
        return attempts_counted < self.max_attempts and crashes < self.max_crashes

    def allows_after(self, error: BaseException) -> bool:
        """Whether another attempt makes sense after what the handler raised."""
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
    """How long a claim lasts, and how often it is renewed while its handler runs.

    After a crash the job is taken over at most ``seconds`` (and the reaper's moment) later; a short lease means a
    quick take-over, a long one tolerates longer outages of the database. ``renew_every`` defaults to a third.

    Raises:
        ConfigurationError: ``renew_every`` is not below half of ``seconds``: one lost renewal would lose the lease.

    Example:
        >>> LeasePolicy(seconds=30).renewal_interval
        10.0
    """

    seconds: float = 60.0
    renew_every: float | None = None

    def __post_init__(self) -> None:
        _as_floats(self, "seconds", "renew_every")
        _check(self.seconds >= 0.1, f"a lease of {self.seconds} s is too short: at least 0.1 s")
        _check(self.seconds <= 86_400 * 7, f"a lease of {self.seconds} s is too long: at most a week")
        _check(self.renewal_interval > 0, f"renew_every is {self.renew_every}: above 0 seconds")
        _check(
            self.renewal_interval < self.seconds / 2,
            f"renew_every ({self.renew_every} s) must be below half of the lease ({self.seconds} s)",
        )

    @property
    def renewal_interval(self) -> float:
        """Seconds between two renewals."""
        return self.seconds / 3 if self.renew_every is None else self.renew_every


def checked_ttl(name: str, seconds: object) -> float:
    """How long something is kept, in seconds.

    Raises:
        ConfigurationError: it is no number of seconds and no timedelta, or not above 0, or more than a hundred years.
    """
    given = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given <= LONGEST_PAUSE:  # type: ignore[operator]
        raise ConfigurationError(f"{name} is {seconds!r}: seconds, above 0 and at most a hundred years")
    return float(given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Keep:
    """Which closed chains of one outcome are kept.

    Those that closed not longer ago than ``age``, and are among the newest ``count``, by when they were started. None
    sets no bound; ``count=0`` keeps none.

    Args:
        age: seconds since the chain closed, or a timedelta.
        count: how many.

    Raises:
        ConfigurationError: a value is out of range, or there is neither.

    Example:
        >>> Keep(age=86_400, count=1_000)
        Keep(age=86400.0, count=1000)
    """

    age: float | timedelta | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        _check(self.age is not None or self.count is not None, "Keep needs an age or a count")
        if self.age is not None:
            object.__setattr__(self, "age", checked_ttl("age", self.age))
        if self.count is not None:
            fits = type(self.count) is int and 0 <= self.count <= 1_000_000
            _check(fits, f"count is {self.count!r}: a whole number from 0 to a million")

    @property
    def seconds(self) -> float | None:
        """The age."""
        return self.age  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Retention:
    """Which chains of one type are kept after they closed, by their outcome. None keeps all of that outcome.

    A chain that was started with a ``result_ttl`` goes by that instead, and counts as one of the newest. One that a job
    which has not ended has as a blocker is kept until that job has ended.

    Raises:
        ConfigurationError: a value is no :class:`Keep`.

    Example:
        >>> Retention(completed=Keep(age=3_600), failed=Keep(age=7 * 86_400)).cancelled is None
        True
    """

    completed: Keep | None = None
    failed: Keep | None = None
    cancelled: Keep | None = None

    def __post_init__(self) -> None:
        for name in ("completed", "failed", "cancelled"):
            value = getattr(self, name)
            _check(isinstance(value, Keep | None), f"{name} is {value!r}: use Keep(age=..., count=...)")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses of a supervised loop between failures: doubling, capped, jittered, reset by a healthy run."""

    initial_delay: float = 0.1
    max_delay: float = 10.0

    def delay(self, failures: int) -> float:
        """Seconds to pause after this many failures in a row (1 or more); full jitter above half."""
        ceiling = min(self.initial_delay * 2.0 ** min(failures - 1, 30), self.max_delay)
        return ceiling * (0.5 + 0.5 * _random())
