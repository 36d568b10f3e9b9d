"""``queuert health``: a container's health check."""

from __future__ import annotations

import argparse
from pathlib import Path

from queuert.cli.exit_codes import Exit
from queuert.cli.options import Commands, seconds
from queuert.worker.health import STALE_AFTER, UnhealthyError, check_health_file

_DESCRIPTION = """Say whether the worker that writes a health file (queuert worker --health-file) makes progress.

Exit codes: 0 it does, 1 it does not (the file is missing or stale, or its loops only fail).
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "health",
        help="check a worker by its health file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    parser.add_argument("--file", type=Path, required=True, metavar="PATH", help="the worker's health file")
    parser.add_argument(
        "--stale-after",
        type=seconds,
        default=STALE_AFTER,
        metavar="SECONDS",
        help="how old the file may be (default: %(default)g; a worker writes it every 5)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the file and say in one line what it says."""
    try:
        health = check_health_file(args.file, stale_after=args.stale_after)
    except UnhealthyError as error:
        print(f"unhealthy: {error}")
        return Exit.FAILED
    print(f"healthy: worker {health.worker}, {health.running} running{', stopping' if health.stopping else ''}")
    return Exit.DONE
