"""Packages that only some need, and how to get them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {"redis": "redis", "pyspark": "spark", "pyarrow": "spark", "uvloop": "uvloop"}
"""Packages that may be missing, and the extra that brings each."""


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """What to say of an import that failed; None if no extra would help."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"the package {package!r} is not installed: pip install 'queuert[{EXTRAS[package]}]'"


@contextmanager
def needing_extras() -> Iterator[None]:
    """Around an import of what an extra brings.

    Raises:
        ModuleNotFoundError: a package is not installed; the message names the extra that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = how_to_install(error)
        if message is None:
            raise
        raise ModuleNotFoundError(message, name=error.name) from error
