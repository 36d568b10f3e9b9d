"""The directory and the files of a run, checked before anything starts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queuert.embedded.workspace import Workspace
from queuert.errors import ConfigurationError
from queuert.testing.chaos.profiles import ChaosSettings


@contextmanager
def directory_of(settings: ChaosSettings) -> Iterator[Path]:
    """The directory of the settings, or a temporary one for the length of the block.

    Raises:
        ConfigurationError: it is not empty, is none, or cannot be written to.
    """
    if settings.directory is not None:
        yield _empty(settings.directory).absolute()
        return
    workspace = Workspace(in_memory=not settings.profile.durable)
    try:
        yield workspace.path
    finally:
        workspace.remove()


def _empty(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        occupied = any(directory.iterdir())
    except OSError as error:
        raise ConfigurationError(f"the directory of a run must be writable, got {directory}: {_why(error)}") from error
    if occupied:
        # Otherwise clients would read the starts of another run as their own.
        raise ConfigurationError(f"the directory of a run must be empty, got {directory}")
    return directory


def try_paths(**paths: Path | None) -> None:
    """Check that the files of the end can be written; this changes and leaves nothing.

    Args:
        paths: where to, by what it is.

    Raises:
        ConfigurationError: one of them cannot be written.
    """
    for what, path in paths.items():
        if path is not None:
            try:
                _try(path)
            except OSError as error:
                raise ConfigurationError(f"cannot write the {what} to {path}: {_why(error)}") from error


def _try(path: Path) -> None:
    there = path.exists()
    if there and not (path.is_file() or path.is_dir()):
        return  # A pipe has one reader, which would take the test's opening and closing for the whole output.
    with path.open("ab"):
        pass
    if not there:
        path.unlink()


def write(path: Path, text: str) -> tuple[str, ...]:
    """Write a file; on failure return a message instead of raising, because the run is over and its result must not be
    lost."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return (f"{path}: {_why(error)}",)
    return ()


def _why(error: OSError) -> str:
    return error.strerror or str(error)
