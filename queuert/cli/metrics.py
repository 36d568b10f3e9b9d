"""``queuert metrics``: the gauges of the database, once or for Prometheus to scrape."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from queuert.cli import logs
from queuert.cli.exit_codes import Exit, PrerequisiteError, UsageError
from queuert.cli.options import Commands, add_command, database_options, existing_store, port, positive_seconds

_log = logging.getLogger("queuert.observability")

_INTERVAL = 15.0

_DESCRIPTION = """Print the gauges of the database in the text format of Prometheus.

Without --serve it reads the database once, as for the textfile collector of the
node exporter: write to a file beside, and rename it. With --serve it serves
/metrics, /live and /ready until SIGTERM or Ctrl-C. Run it once for a database.
The metrics of workers are served by queuert worker --metrics-port.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "metrics",
        run,
        help="print or serve the gauges of the database for Prometheus",
        description=_DESCRIPTION,
        parents=[debug, database_options()],
    )
    parser.add_argument("--serve", type=port, metavar="PORT", help="serve the gauges on this port")
    parser.add_argument("--host", metavar="HOST", help="address to serve on, with --serve (default: 0.0.0.0)")
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        metavar="SECONDS",
        help=f"time between two readings of the database, with --serve (default: {_INTERVAL:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Print or serve the gauges."""
    if args.serve is None and not (args.host is None and args.interval is None):
        raise UsageError("--host and --interval need --serve PORT: add it")
    try:
        from queuert.observability.gauges import StoreGauges
        from queuert.observability.http import ALL_ADDRESSES, HttpServer, health_response
        from queuert.observability.prometheus import PrometheusMetrics
    except ModuleNotFoundError as error:
        raise PrerequisiteError(str(error)) from error
    metrics = PrometheusMetrics()
    gauges = StoreGauges(
        existing_store(args, application_name="queuert metrics"), metrics.provider, interval=args.interval or _INTERVAL
    )
    if args.serve is None:
        try:
            gauges.read()
        finally:
            gauges.close()
        sys.stdout.write(metrics.exposition()[0].decode())
        return Exit.DONE

    logs.configure("info", as_json=False)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    routes = {
        "/metrics": metrics.response,
        "/live": lambda accept: health_response(()),
        "/ready": lambda accept: health_response(gauges.not_ready()),
    }
    with HttpServer(routes, host=args.host or ALL_ADDRESSES, port=args.serve) as server, gauges:
        _log.info("serving the gauges of the database on port %d", server.port)
        stopped.wait()
    return Exit.DONE
