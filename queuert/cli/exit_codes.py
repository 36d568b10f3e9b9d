"""Errors as a person at a terminal should see them: one line, the way out, and an exit code for scripts."""

from __future__ import annotations

import re
from enum import IntEnum

from queuert.embedded import EmbeddedServerError
from queuert.errors import (
    ConfigurationError,
    DefinitionError,
    InvalidCursorError,
    InvalidIdentifierError,
    QueuertError,
    SchemaMissingError,
    StateUnavailableError,
    UnknownJobTypeError,
)
from queuert.spark.java import JavaMissingError


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    """The command ran, and the answer is no; or something went wrong that no other code stands for."""
    USAGE = 2
    """The command line, or the application that it names, is wrong."""
    UNAVAILABLE = 3
    """Something that the command needs is not there: the database, its schema, Java, a package."""
    INTERRUPTED = 130
    """Ctrl-C."""


class UsageError(QueuertError):
    """The command line, or the application that it names, is wrong; the message says how to put it right."""


class PrerequisiteError(QueuertError):
    """Something that the command needs is not installed; the message says how to get it."""


_USAGE = (
    UsageError,
    ConfigurationError,
    DefinitionError,
    InvalidCursorError,
    InvalidIdentifierError,
    UnknownJobTypeError,
)
_UNAVAILABLE = (PrerequisiteError, StateUnavailableError, SchemaMissingError, EmbeddedServerError, JavaMissingError)

_SECRETS = (
    (re.compile(r"(://[^:/@\s]*:)[^@\s]*@"), r"\1***@"),
    (re.compile(r"(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE), r"\1***"),
)


def exit_code(error: BaseException) -> Exit:
    """The exit code that stands for an error."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, _USAGE):
        return Exit.USAGE
    return Exit.UNAVAILABLE if isinstance(error, _UNAVAILABLE) else Exit.FAILED


def one_line(error: BaseException) -> str:
    """What went wrong in one line, without passwords; of an error that nobody expected, its kind as well."""
    text = redacted(" ".join(str(error).split()))
    if isinstance(error, StateUnavailableError):
        return f"{text} (is the address right, and the server up?)"
    if isinstance(error, QueuertError | EmbeddedServerError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def redacted(text: str) -> str:
    """The text without the passwords of the connection strings in it."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
