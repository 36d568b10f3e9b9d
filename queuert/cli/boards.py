"""``queuert alerts`` and ``queuert grafana``: alerts and boards, to be put where Prometheus and Grafana read them."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files

from queuert.cli.exit_codes import MEANINGS, Exit, exit_code_text
from queuert.cli.list_options import Actions
from queuert.cli.options import Commands, schema_name
from queuert.schema_names import DEFAULT_SCHEMA, check_schema_name

_ALERTS = """Alerts for Prometheus, on the metrics of queuert worker --metrics-port and of
queuert metrics --serve.
"""

_GRAFANA = """Boards for Grafana: one on Prometheus, and one on Postgres through views that
the observer role may read.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add both commands."""
    alerts = _command(commands, debug, "alerts", "export alerts for Prometheus", _ALERTS)
    alerts.add("export", export_alerts, "print the alerts as rules of Prometheus")
    grafana = _command(commands, debug, "grafana", "export boards for Grafana", _GRAFANA)
    parser = grafana.add("export", export_board, "print a board as JSON")
    parser.add_argument(
        "--datasource",
        choices=("prometheus", "postgres"),
        default="prometheus",
        help="what the board reads (default: prometheus)",
    )
    parser.add_argument(
        "--schema", metavar="NAME", help=f"the schema that the board on Postgres reads (default: {DEFAULT_SCHEMA})"
    )


def _command(commands: Commands, debug: argparse.ArgumentParser, name: str, help: str, description: str) -> Actions:
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=exit_code_text(MEANINGS),
        parents=[debug],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    return Actions(actions, [debug])


def export_alerts(args: argparse.Namespace) -> int:
    """Print the alerts."""
    sys.stdout.write(shipped("alerts.yaml"))
    return Exit.DONE


def export_board(args: argparse.Namespace) -> int:
    """Print a board."""
    schema = check_schema_name(schema_name(args))
    sys.stdout.write(shipped(f"{args.datasource}.json").replace(f"FROM {DEFAULT_SCHEMA}.", f"FROM {schema}."))
    return Exit.DONE


def shipped(name: str) -> str:
    """A file of the boards, as it is in the package."""
    return (files("queuert.observability") / "boards" / name).read_text(encoding="utf-8")
