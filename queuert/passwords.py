"""Passwords that expire, such as tokens of a cloud: a function that returns the current one for each connection."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, cast

from queuert.errors import ConfigurationError, StateUnavailableError

Password: TypeAlias = Callable[[], str]
"""Returns the current password. It is called in a thread of its own before each connection is made, and may block for
10 seconds."""

_SECONDS = 10.0
"""How long the function may take. Calls that need a connection wait for it, and so does the renewal of leases."""


def checked_password(password: Any) -> Password | None:
    """Return a password that an adapter was given, if it is a plain function.

    Raises:
        ConfigurationError: it is not.
    """
    if password is None:
        return None
    if not callable(password):
        raise ConfigurationError(
            f"password must be a function that returns the current password, got {type(password).__name__}: write one "
            "that does not expire in the address"
        )
    if inspect.iscoroutinefunction(password) or inspect.iscoroutinefunction(getattr(password, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            "password must be a plain function, got a coroutine function: it is called in a thread, where it may block"
        )
    return cast("Password", password)


def current_password(password: Password) -> str:
    """Return the current password.

    Raises:
        StateUnavailableError: the function raised, or has not returned in time.
        ConfigurationError: it returned no text.
    """
    answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()

    def call() -> None:
        try:
            answers.put((password(), None))
        except BaseException as error:
            answers.put((None, error))

    # A function that hangs must not keep the thread that renews leases, or one of the event loop's few.
    threading.Thread(target=call, name="queuert-password", daemon=True).start()
    try:
        found, error = answers.get(timeout=_SECONDS)
    except Empty:
        raise StateUnavailableError(
            f"the function that returns the password has not returned within {_SECONDS:g} s: give what it waits for a "
            "timeout"
        ) from None
    if error is not None:
        raise StateUnavailableError(
            f"the function that returns the password raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, str):
        raise ConfigurationError(f"the function that returns the password must return text, got {type(found).__name__}")
    return found
