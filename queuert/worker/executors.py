"""Where a handler runs: in the event loop, in a thread, or in a child process; and what is checked beforehand."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from queuert.errors import ConfigurationError, DefinitionError
from queuert.jobs import JobError
from queuert.outcomes import seconds
from queuert.policies import LONGEST_PAUSE


class Executor(StrEnum):
    """Where a handler runs."""

    COROUTINE = "coroutine"
    """In the worker's event loop."""
    THREAD = "thread"
    """In a thread of the worker."""
    PROCESS = "process"
    """In a child process, which can be killed."""


class HandlerCrashedError(Exception):
    """The process of a handler died by itself. The attempt has failed; it counts with the expired leases."""


class HandlerKilledError(Exception):
    """The process of a handler was killed, since the attempt had to stop; the abort signal says why."""


class HandlerProcessError(Exception):
    """What a handler raised in its process, where that cannot be sent as it was."""


class RemoteCauseError(Exception):
    """The cause of what a handler raised in another process: its traceback, and what the policy says of it there."""

    def __init__(self, error: JobError, may_retry: bool) -> None:
        super().__init__(f"\n{error.traceback or error}")
        self.error = error
        self.may_retry = may_retry


def remote_cause(error: BaseException) -> RemoteCauseError | None:
    """What is known from the handler's process of an exception that came from there."""
    return error.__cause__ if isinstance(error.__cause__, RemoteCauseError) else None


def death(code: int) -> str:
    """How a process died, by its return code."""
    if code >= 0:
        return f"the process of the handler ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process of the handler was killed by {name}"


# --- checks of a definition -------------------------------------------------------------------------------------------


def checked_timeout(name: str, value: float | timedelta | None) -> float | None:
    """A timeout in seconds.

    Raises:
        ConfigurationError: it is not above 0, or longer than a hundred years.
    """
    wanted = seconds(value)
    if wanted is not None and not 0 < wanted <= LONGEST_PAUSE:
        raise ConfigurationError(f"{name} must be above 0 seconds and at most a hundred years, got {value}")
    return None if wanted is None else float(wanted)


def chosen(name: str, handler: Callable[..., Any], requested: str | None, *, is_coroutine: bool) -> Executor:
    """The executor of a handler.

    Raises:
        DefinitionError: the handler cannot run there; the message says why.
    """
    fits = (Executor.COROUTINE, Executor.PROCESS) if is_coroutine else (Executor.THREAD, Executor.PROCESS)
    if requested is not None and requested not in fits:
        raise DefinitionError(f"executor of the handler of {name!r} must be {' or '.join(fits)}, got {requested!r}")
    executor = fits[0] if requested is None else Executor(requested)
    if executor is Executor.PROCESS:
        _check_importable(name, handler, is_coroutine)
    return executor


def check_hard_timeout(name: str, executor: Executor, timeout: float | None, hard_timeout: float | None) -> None:
    """Raise DefinitionError or ConfigurationError unless the hard timeout fits."""
    if hard_timeout is None:
        return
    if executor is not Executor.PROCESS:
        raise DefinitionError(f"hard_timeout of {name!r}: a {executor} cannot be killed; add executor='process'")
    if timeout is not None and hard_timeout <= timeout:
        raise ConfigurationError(
            f"hard_timeout of {name!r} must be above its timeout of {timeout:g} s, got {hard_timeout:g} s"
        )


def _check_importable(name: str, handler: Callable[..., Any], is_coroutine: bool) -> None:
    """What can be known while the module of the handler is still being imported; ``pickled`` finds the rest."""
    if is_coroutine:
        raise DefinitionError(f"the handler of {name!r} is a coroutine: executor='process' runs plain functions")
    place = f"{getattr(handler, '__module__', None)}.{getattr(handler, '__qualname__', type(handler).__qualname__)}"
    if "<locals>" in place or "<lambda>" in place:
        raise DefinitionError(
            f"the handler of {name!r} is {place}: executor='process' imports it in another process, so define it at "
            "the top of a module"
        )
    if getattr(handler, "__module__", None) == "__main__":
        _check_main(name)


def _check_main(name: str) -> None:
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is None and getattr(main, "__file__", None) is None:
        raise DefinitionError(
            f"the handler of {name!r} lives in __main__, which is no file that another process could import: "
            "move it to a module"
        )


def pickled(name: str, *parts: object) -> bytes:
    """What a child process needs to know of a job type, by import paths.

    Raises:
        DefinitionError: something in it cannot be imported over there; the message says what.
    """
    try:
        return pickle.dumps(parts)
    except Exception as error:
        raise DefinitionError(
            f"the handler of {name!r} cannot run in another process, which imports it, its job type and its retry "
            f"policy by name: {error}"
        ) from error


# --- a script that is imported by a child -----------------------------------------------------------------------------

_main_is_being_imported = False


def importing_main(whether: bool) -> None:
    """Say that this process is a handler's child, and runs the script of its worker for the sake of its functions."""
    global _main_is_being_imported
    _main_is_being_imported = whether


def check_not_importing_main() -> None:
    """Raise DefinitionError in a script that would start a worker of its own in each child."""
    if _main_is_being_imported:
        raise DefinitionError(
            "a worker was started while a child process imported its script: put the start under "
            'if __name__ == "__main__"'
        )
