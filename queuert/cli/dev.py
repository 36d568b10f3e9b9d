"""``queuert dev``: benchmark, demo, dashboard and chaos runs, for people who develop with Queuert or evaluate it."""

from __future__ import annotations

import argparse

from queuert.cli import bench, chaos, dashboard, demo
from queuert.cli.exit_codes import MEANINGS, exit_code_text
from queuert.cli.options import Commands

_DESCRIPTION = """Benchmark, demo, dashboard and chaos runs. No command here is needed to operate
a queue.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and those below it."""
    parser = commands.add_parser(
        "dev",
        help="run a benchmark, a demo, a dashboard or a chaos test",
        description=_DESCRIPTION,
        epilog=exit_code_text(MEANINGS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    nested = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="dev_command")
    for command in (bench, demo, dashboard, chaos):
        command.add_to(nested, debug)
