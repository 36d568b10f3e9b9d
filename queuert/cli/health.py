"""``queuert health``: a container's health check."""

from __future__ import annotations

import argparse
from pathlib import Path

from queuert.cli.exit_codes import Exit
from queuert.cli.options import Commands, add_command, seconds
from queuert.worker.health import STALE_AFTER, UnhealthyError, check_health_file

_DESCRIPTION = """Check the health file of a worker (queuert worker --health-file).

The worker is healthy if the file is recent and its loops succeed.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "health",
        run,
        help="check a worker by its health file",
        description=_DESCRIPTION,
        parents=[debug],
        exit_codes={
            Exit.DONE: "healthy",
            Exit.FAILED: "unhealthy: the file is missing or stale, or the loops fail",
        },
    )
    parser.add_argument("--file", type=Path, required=True, metavar="PATH", help="the worker's health file")
    parser.add_argument(
        "--stale-after",
        type=seconds,
        default=STALE_AFTER,
        metavar="SECONDS",
        help="maximum age of the file (default: %(default)g; a worker writes it every 5)",
    )


def run(args: argparse.Namespace) -> int:
    """Check the file and print the verdict in one line."""
    try:
        health = check_health_file(args.file, stale_after=args.stale_after)
    except UnhealthyError as error:
        print(f"unhealthy: {error}")
        return Exit.FAILED
    print(f"healthy: worker {health.worker}, {health.running} running{', stopping' if health.stopping else ''}")
    return Exit.DONE
