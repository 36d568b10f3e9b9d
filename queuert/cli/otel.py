"""``queuert worker --otel``: OpenTelemetry's SDK for a worker process, by the standard environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from queuert.cli.exit_codes import PrerequisiteError
from queuert.optional_packages import needing_extras

if TYPE_CHECKING:
    from queuert.observability.otel_tracing import OTelMiddleware


@contextmanager
def exported() -> Iterator[None]:
    """Export spans by OTLP over HTTP, unless the application has set a provider; flush them at the end.

    Raises:
        PrerequisiteError: ``queuert[otel]`` is not installed.
    """
    from opentelemetry import trace  # Other commands need none of it.

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    try:
        with needing_extras():
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"--otel: {error}") from error
    os.environ.setdefault("OTEL_SERVICE_NAME", "queuert-worker")
    provider = TracerProvider(resource=Resource.create())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def middlewares(wanted: bool | None, parent: Literal["link", "creator"] | None = None) -> list[OTelMiddleware]:
    """Those of the worker's client."""
    if not wanted:
        return []
    from queuert.observability.otel_tracing import OTelMiddleware

    return [OTelMiddleware(parent=parent or "link")]
