"""Where the file is, and what of it can be found wrong before anything is written."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from queuert.errors import ConfigurationError

MEMORY = ":memory:"


def checked(path: str | Path) -> str:
    """The absolute path of the file, or ``":memory:"``.

    Raises:
        ConfigurationError: there can be no such file, or it cannot be written.
    """
    given = os.fspath(path)
    if given == MEMORY:
        return MEMORY
    if not given or "\0" in given:
        raise ConfigurationError(f"{given!r} is no path of a file")
    if given.startswith("file:"):
        raise ConfigurationError(f"{given!r} is a URI: give the path of the file")
    absolute = str(Path(given).absolute())
    check_writable(absolute)
    return absolute


def check_writable(path: str) -> None:
    """Check that the file, and what SQLite keeps beside it, can be written.

    Raises:
        ConfigurationError: they cannot.
    """
    file = Path(path)
    folder = file.parent
    if file.is_dir():
        raise ConfigurationError(f"{path!r} is a directory: give the path of a file")
    if not folder.is_dir():
        raise ConfigurationError(f"the directory {str(folder)!r} does not exist: make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"the directory {str(folder)!r} cannot be written: SQLite keeps files beside its own")
    if file.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise ConfigurationError(f"the file {path!r} cannot be written")


def uri_of(path: str) -> str:
    """The path as SQLite takes it."""
    # The two slashes say that no machine is named: what a path begins with could be taken for one.
    return f"file:{MEMORY}" if path == MEMORY else f"file://{quote(path)}"
