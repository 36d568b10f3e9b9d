"""Checks of the settings of a worker."""

from __future__ import annotations

from queuert.errors import ConfigurationError
from queuert.policies import LONGEST_PAUSE

MOST = 2**31 - 1
"""The largest integer that the stores keep of a worker."""


def checked_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return an integer in range.

    Raises:
        ConfigurationError: it is not.
    """
    if type(value) is int and value >= least and (most is None or value <= most):
        return value
    where = f"of at least {least}" if most is None else f"between {least:,} and {most:,}"
    raise ConfigurationError(f"{name} must be an integer {where}, got {value!r}")


def checked_seconds(name: str, value: object, least: float) -> float:
    """Return seconds in range.

    Raises:
        ConfigurationError: they are not at least ``least`` and at most a hundred years.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= LONGEST_PAUSE:
        return value
    raise ConfigurationError(f"{name} must be at least {least:g} seconds and at most a hundred years, got {value!r}")


def checked_flag(name: str, value: object) -> bool:
    """Return True or False.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{name} must be True or False, got {value!r}")
