"""Passwords that expire, such as tokens of a cloud: a function that returns the current one for each connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from queuert.errors import ConfigurationError, StateUnavailableError

Password: TypeAlias = Callable[[], str]
"""Returns the current password. It is called in any thread, before each connection is made, and may block."""


def checked_password(password: Any) -> Password | None:
    """Return a password that an adapter was given, if it is a function.

    Raises:
        ConfigurationError: it is not.
    """
    if password is None or callable(password):
        return cast("Password | None", password)
    raise ConfigurationError(
        f"password must be a function that returns the current password, got {type(password).__name__}: one that does "
        "not expire belongs into the address"
    )


def current_password(password: Password) -> str:
    """Return the current password.

    Raises:
        StateUnavailableError: the function raised.
        ConfigurationError: it returned no text.
    """
    try:
        found: object = password()
    except Exception as error:
        raise StateUnavailableError(
            f"the function that returns the password raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, str):
        raise ConfigurationError(f"the function that returns the password must return text, got {type(found).__name__}")
    return found
