"""Optional packages, and the extras that install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "redis": "redis",
    "pyspark": "spark",
    "pyarrow": "spark",
    "uvloop": "uvloop",
    "watchfiles": "reload",
    "prometheus_client": "prometheus",
    "opentelemetry.exporter": "otel",
    "opentelemetry.sdk": "otel",
    "sentry_sdk": "sentry",
    "structlog": "structlog",
    "sqlalchemy": "sqlalchemy",
    "itsdangerous": "web",
    "jinja2": "web",
    "starlette": "web",
    "sse_starlette": "web",
    "uvicorn": "web",
    "h11": "webhooks",
}
"""The optional packages, each with the extra that installs it."""


def how_to_install(error: ModuleNotFoundError, extra: str | None = None) -> str | None:
    """Return the message for an import that failed; None if no extra installs the package.

    ``extra`` is the extra to name where several install the package.
    """
    missing = f"{error.name}."
    package = next((package for package in EXTRAS if missing.startswith(f"{package}.")), None)
    if package is None:
        return None
    return f"the package {package!r} is not installed: pip install 'queuert[{extra or EXTRAS[package]}]'"


@contextmanager
def needing_extras(extra: str | None = None) -> Iterator[None]:
    """Wraps imports of optional packages.

    Args:
        extra: the extra to name where several install a package.

    Raises:
        ModuleNotFoundError: a package is not installed; the message names the extra that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = how_to_install(error, extra)
        if message is None:
            raise
        raise ModuleNotFoundError(message, name=error.name) from error
