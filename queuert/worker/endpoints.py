"""The HTTP endpoints of a worker: ``/live``, ``/ready`` and ``/metrics``, answered by a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from queuert.observability.gauges import observe_worker
from queuert.observability.http import ALL_ADDRESSES, HttpServer, Route, health_response
from queuert.observability.prometheus import PrometheusMetrics
from queuert.worker.health import STALE_AFTER
from queuert.worker.worker import InProcessWorker


@contextmanager
def worker_endpoints(
    worker: InProcessWorker,
    *,
    port: int,
    host: str = ALL_ADDRESSES,
    stale_after: float = STALE_AFTER,
    messaging_metrics: bool = False,
) -> Iterator[int]:
    """Serve the health and the metrics of a worker, for the length of a ``with`` block; yields the port.

    Enter it before the worker starts, so that ``/ready`` says that it has not. ``queuert worker --metrics-port`` does
    this. Needs ``queuert[prometheus]``.

    Args:
        worker: the worker; all events of its client are counted.
        port: the port; 0 lets the system choose one.
        host: the address to listen on.
        stale_after: seconds of a blocked event loop, or of a loop that only fails, after which the worker is not live.
        messaging_metrics: also record the metrics of OpenTelemetry's messaging conventions.

    Raises:
        ConfigurationError: the address cannot be listened on.

    Example::

        with worker_endpoints(worker, port=9464):
            worker.run()
    """
    metrics = PrometheusMetrics(messaging_metrics=messaging_metrics)
    routes: dict[str, Route] = {
        "/live": lambda accept: health_response(worker.health_report(stale_after=stale_after).not_live),
        "/ready": lambda accept: health_response(worker.health_report(stale_after=stale_after).not_ready),
        "/metrics": metrics.response,
    }
    try:
        with HttpServer(routes, host=host, port=port) as server:
            worker.observers.add(metrics.observability)
            observe_worker(worker, metrics.provider)
            yield server.port
    finally:
        metrics.close()
