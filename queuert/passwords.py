"""Passwords that expire, such as tokens of a cloud: a function that returns the current one for each connection."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeAlias, cast

from queuert.errors import ConfigurationError, StateUnavailableError
from queuert.texts import text_reason

Password: TypeAlias = Callable[[], str]
"""Returns the current password. It is called in a thread of its own before each connection is made, and may block for
10 seconds."""

_SECONDS = 10.0
"""How long a connection waits for the function, and with it a call of the store, or the renewal of leases."""


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
        StateUnavailableError: the function raised, has not returned in time, or returned no text, or one with a NUL or
            a lone surrogate.
    """
    call = _call(password)
    wait([call], _SECONDS)
    return _result(call)


async def current_password_async(password: Password) -> str:
    """``current_password``, for coroutines: it takes no thread of the event loop's own, which handlers may have filled.

    One that is cancelled leaves no task and no thread but that of the function.
    """
    call, loop, ended = _call(password), asyncio.get_running_loop(), asyncio.Event()

    def end(_: Future[object]) -> None:
        with suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(ended.set)

    call.add_done_callback(end)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            await ended.wait()
    return _result(call)


def _result(call: Future[object]) -> str:
    if not call.done():
        raise StateUnavailableError(
            f"the function that returns the password has not returned within {_SECONDS:g} s: give what it waits for a "
            "timeout"
        )
    if (error := call.exception()) is not None:
        raise StateUnavailableError(
            f"the function that returns the password raised {type(error).__name__}: {error}"
        ) from error
    found = call.result()
    if not isinstance(found, str):
        # No mistake of whoever needs the connection, such as a request over HTTP.
        raise StateUnavailableError(
            f"the function that returns the password must return text, got {type(found).__name__}: correct it"
        )
    if (reason := text_reason(found)) is not None:
        # A driver would cut it there, or show it in its error.
        raise StateUnavailableError(f"the function that returns the password must return text without {reason}")
    return found


_calls: dict[int, tuple[Password, Future[object]]] = {}
"""The calls under way, by the identity of their functions."""
_lock = threading.Lock()


def _call(password: Password) -> Future[object]:
    """Return the call of a function that is under way, begun here if there is none.

    It has a thread of its own, so that one that hangs keeps no other. There is one of each function, so that one that
    hangs for ever takes one thread, however often a connection is tried.
    """
    with _lock:
        if id(password) in _calls:
            return _calls[id(password)][1]
        call = Future[object]()
        thread = threading.Thread(target=_run, args=(password, call), name="queuert-password", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # The process has as many threads as it may have.
            raise StateUnavailableError(f"the function that returns the password cannot be called: {error}") from error
        _calls[id(password)] = password, call
        return call


def _run(password: Password, call: Future[object]) -> None:
    try:
        found: object = password()
    except BaseException as error:
        _end(password)
        call.set_exception(error)
    else:
        _end(password)
        call.set_result(found)


def _end(password: Password) -> None:
    with _lock:
        _calls.pop(id(password), None)


def _forget() -> None:
    """In a forked child: the threads of its parent are not there."""
    global _lock
    _lock = threading.Lock()
    _calls.clear()


os.register_at_fork(after_in_child=_forget)
