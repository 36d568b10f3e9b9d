"""Validates the path of the database file."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from queuert.errors import ConfigurationError

MEMORY = ":memory:"


def checked(path: str | Path) -> str:
    """Return the absolute path of the file, or ``":memory:"``.

    Raises:
        ConfigurationError: the path is not that of a file, or the file cannot be written.
    """
    given = os.fspath(path)
    if given == MEMORY:
        return MEMORY
    if not given or "\0" in given:
        raise ConfigurationError(f"path must be the path of a file, got {given!r}")
    if given.startswith("file:"):
        raise ConfigurationError(f"path must be the path of a file, got the URI {given!r}")
    absolute = str(Path(given).absolute())
    check_writable(absolute)
    return absolute


def check_writable(path: str) -> None:
    """Check that the file, and the files that SQLite keeps beside it, can be written.

    Raises:
        ConfigurationError: they cannot.
    """
    file = Path(path)
    folder = file.parent
    if file.is_dir():
        raise ConfigurationError(f"path must be the path of a file, got the directory {path!r}")
    if not folder.is_dir():
        raise ConfigurationError(f"the directory {str(folder)!r} does not exist: create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the directory {str(folder)!r} cannot be written, and SQLite creates files in it: change its permissions"
        )
    if file.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise ConfigurationError(f"the file {path!r} cannot be written: change its permissions")


def uri_of(path: str) -> str:
    """Return the path as a URI of SQLite."""
    # The two slashes are an empty host; without them the beginning of a path could be taken for a host.
    return f"file:{MEMORY}" if path == MEMORY else f"file://{quote(path)}"
