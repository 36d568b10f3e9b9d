"""Errors on a terminal: one line that says what to do, and an exit code for scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from queuert.errors import ConfigurationError, ErrorKind, QueuertError, StateUnavailableError
from queuert.optional_packages import how_to_install
from queuert.store_addresses import what_to_check


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    """The command failed, or what it checked does not hold."""
    USAGE = 2
    """The arguments, the configuration or the application is wrong."""
    UNAVAILABLE = 3
    """A prerequisite is missing: the database, its schema, Java or a package."""
    WARNINGS = 4
    """Of ``queuert doctor`` alone: there are warnings, and no errors."""
    INTERRUPTED = 130
    """Ctrl-C."""


MEANINGS: Mapping[int, str] = {
    Exit.DONE: "success",
    Exit.FAILED: "the command failed",
    Exit.USAGE: "the arguments, the configuration or the application is wrong",
    Exit.UNAVAILABLE: "the database, its schema, Java or a package is missing",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}


def exit_code_text(meanings: Mapping[int, str]) -> str:
    """The list of exit codes as each ``--help`` ends with it."""
    return "\n".join(["exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in meanings.items())])


class UsageError(QueuertError):
    """The arguments or the application are wrong; the message says how to correct them."""

    kind = ErrorKind.USAGE


class PrerequisiteError(QueuertError):
    """A package or a program is not installed; the message says how to install it."""

    kind = ErrorKind.UNAVAILABLE


_CODES = {ErrorKind.USAGE: Exit.USAGE, ErrorKind.UNAVAILABLE: Exit.UNAVAILABLE}
"""Of errors of these kinds. Of all others it is 1."""

_SECRETS = (
    (re.compile(r"(://[^:/@\s]*:)[^@\s]*@"), r"\1***@"),
    (re.compile(r"(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE), r"\1***"),
)


def exit_code(error: BaseException) -> Exit:
    """The exit code that stands for an error."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    # The store of an address needs a package, or the command itself does.
    missing = error.__cause__ if isinstance(error, ConfigurationError) else error
    if isinstance(missing, ImportError) and how_to_install(missing):
        return Exit.UNAVAILABLE
    return _CODES.get(error.kind, Exit.FAILED) if isinstance(error, QueuertError) else Exit.FAILED


def one_line(error: BaseException) -> str:
    """The error in one line, without passwords; an unexpected error also shows its class."""
    text = redacted(" ".join(str(error).split()))
    if isinstance(error, StateUnavailableError):
        return f"{text}{what_to_check(error)}"
    if isinstance(error, QueuertError):
        return text
    if isinstance(error, ImportError) and (remedy := how_to_install(error)):
        return remedy
    return f"{type(error).__name__}: {text} (--debug shows where)"


def redacted(text: str) -> str:
    """The text without the passwords of the connection strings in it."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
