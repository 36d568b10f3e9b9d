"""Metrics in the text format of Prometheus: OpenTelemetry's exporter over the instruments of this package.

Needs ``queuert[prometheus]``. Each :class:`PrometheusMetrics` has a registry of its own, so that nothing else of the
process is shown, and no other exporter is in its way.
"""

from __future__ import annotations

import threading
from http import HTTPStatus

from queuert.observability.http import Response
from queuert.observability.otel import OTelObservability
from queuert.optional_packages import needing_extras

with needing_extras("prometheus"):
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder


class PrometheusMetrics:
    """Instruments, and their exposition.

    Give ``observability`` to a client, and ``provider`` to :func:`~queuert.observability.gauges.observe_worker` or
    :class:`~queuert.observability.gauges.StoreGauges`.

    Args:
        messaging_metrics: also record the metrics of OpenTelemetry's messaging conventions.

    Example::

        metrics = PrometheusMetrics()
        client = AsyncClient(state, job_types, observability=[LogObservability(), metrics.observability])
    """

    def __init__(self, *, messaging_metrics: bool = False) -> None:
        self._registry = CollectorRegistry()
        # Labels that are the same on each line: whoever wants to know the scope or the process asks the target.
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self.provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        """Makes instruments that this object shows."""
        self.observability = OTelObservability(self.provider, messaging_metrics=messaging_metrics)
        """The adapter of a client or worker."""
        self._lock = threading.Lock()

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return all metrics, and their content type: OpenMetrics if the Accept header asks for it, or plain text."""
        encode, content_type = choose_encoder(accept or "")
        # The exporter hands readings over by a queue: of two scrapes at once, one would get both.
        with self._lock:
            return encode(self._registry), content_type

    def response(self, accept: str | None = None) -> Response:
        """The answer to a scrape."""
        body, content_type = self.exposition(accept)
        return Response(HTTPStatus.OK, body, content_type)

    def close(self) -> None:
        """Let go of the instruments."""
        self.provider.shutdown()
