"""Where a handler runs: in the event loop, in a thread, or in a child process; and the checks of its definition."""

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
    """The process of a handler died by itself. The attempt has failed; it counts among the expired leases."""


class HandlerKilledError(Exception):
    """The process of a handler was killed, since the attempt was aborted; the abort signal has the reason."""


class HandlerProcessError(Exception):
    """Replaces an exception of a handler's process that cannot be pickled."""


class RemoteCauseError(Exception):
    """The cause of an exception from a handler's process: its traceback there, and whether the policy retries it."""

    def __init__(self, error: JobError, may_retry: bool) -> None:
        super().__init__(f"\n{error.traceback or error}")
        self.error = error
        self.may_retry = may_retry


def remote_cause(error: BaseException) -> RemoteCauseError | None:
    """Return the cause of an exception that came from a handler's process; None for other exceptions."""
    return error.__cause__ if isinstance(error.__cause__, RemoteCauseError) else None


def death(code: int | None) -> str:
    """Return a sentence that says how a process died, by its return code."""
    if code is None:
        return (
            "the process of the handler ended, and how is not known, since something else in the worker's process has "
            "waited for it: SIGCHLD must not be ignored there, nor os.wait() or os.waitpid(-1) be called"
        )
    if code >= 0:
        return f"the process of the handler ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process of the handler was killed by {name}"


# --- checks of a definition -------------------------------------------------------------------------------------------


def checked_timeout(name: str, value: float | timedelta | None) -> float | None:
    """Return a timeout in seconds.

    Raises:
        ConfigurationError: it is not above 0, or longer than a hundred years.
    """
    timeout = seconds(value)
    if timeout is not None and not 0 < timeout <= LONGEST_PAUSE:
        raise ConfigurationError(f"{name} must be above 0 seconds and at most a hundred years, got {value}")
    return None if timeout is None else float(timeout)


def chosen(name: str, handler: Callable[..., Any], requested: str | None, *, is_coroutine: bool) -> Executor:
    """Return the executor of a handler.

    Raises:
        DefinitionError: the handler cannot run there; the message says why.
    """
    allowed = (Executor.COROUTINE, Executor.PROCESS) if is_coroutine else (Executor.THREAD, Executor.PROCESS)
    if requested is not None and requested not in allowed:
        raise DefinitionError(f"executor of the handler of {name!r} must be {' or '.join(allowed)}, got {requested!r}")
    executor = allowed[0] if requested is None else Executor(requested)
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
    """Check what can be checked while the handler's module is being imported; ``pickled`` finds the rest."""
    if is_coroutine:
        raise DefinitionError(f"the handler of {name!r} is a coroutine: executor='process' runs plain functions")
    path = f"{getattr(handler, '__module__', None)}.{getattr(handler, '__qualname__', type(handler).__qualname__)}"
    if "<locals>" in path or "<lambda>" in path:
        raise DefinitionError(
            f"the handler of {name!r} is {path}: executor='process' imports it in another process, so define it at "
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
    """Pickle the handler, job type, policy and lifespan for a child process, which imports them by name.

    Raises:
        DefinitionError: one of them cannot be imported there; the message says which.
    """
    try:
        return pickle.dumps(parts)
    except Exception as error:
        raise DefinitionError(
            f"the handler of {name!r} cannot run in another process, which imports it, its job type, its retry policy "
            f"and its lifespan by name: {error}"
        ) from error


# --- a script that is imported by a child -----------------------------------------------------------------------------

_main_is_being_imported = False


def importing_main(importing: bool) -> None:
    """Record that this child process imports the worker's script, for the functions in it."""
    global _main_is_being_imported
    _main_is_being_imported = importing


def check_not_importing_main() -> None:
    """Raise DefinitionError in a script that would start another worker in each child process."""
    if _main_is_being_imported:
        raise DefinitionError(
            "a worker was started while a child process imported its script: put the start under "
            'if __name__ == "__main__"'
        )
