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


_NO_LIBPQ = "no pq wrapper available"
"""How psycopg's error begins if it finds no libpq."""


def how_to_install(error: ImportError, extra: str | None = None) -> str | None:
    """Return the message for an import that failed; None if nothing is known that installs the package.

    ``extra`` is the extra to name where several install the package.
    """
    missing = f"{error.name}."
    if missing.startswith(("psycopg.", "psycopg_pool.")) or str(error).startswith(_NO_LIBPQ):
        # It is installed with queuert, but a slim image has no libpq, or leaves out what it does not need.
        return "Postgres needs psycopg with its pool and a libpq: pip install 'psycopg[binary,pool]'"
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
        ModuleNotFoundError: a package is not installed; the message says what installs it.
        ImportError: psycopg is installed, and finds no libpq.
    """
    try:
        yield
    except ImportError as error:
        message = how_to_install(error, extra)
        if message is None:
            raise
        raise type(error)(message, name=error.name or "psycopg") from error
