"""Optional packages, and the extras that install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "redis": "redis",
    "pyspark": "spark",
    "pyarrow": "spark",
    "uvloop": "uvloop",
    "prometheus_client": "prometheus",
    "opentelemetry.exporter.prometheus": "prometheus",
    "opentelemetry": "otel",
    "sentry_sdk": "sentry",
    "structlog": "structlog",
}
"""The optional packages, each with the extra that installs it."""


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """Return the message for an import that failed; None if no extra installs the package."""
    missing = f"{error.name}."
    package = next((package for package in EXTRAS if missing.startswith(f"{package}.")), None)
    if package is None:
        return None
    return f"the package {package!r} is not installed: pip install 'queuert[{EXTRAS[package]}]'"


@contextmanager
def needing_extras() -> Iterator[None]:
    """Wraps imports of optional packages.

    Raises:
        ModuleNotFoundError: a package is not installed; the message names the extra that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = how_to_install(error)
        if message is None:
            raise
        raise ModuleNotFoundError(message, name=error.name) from error
