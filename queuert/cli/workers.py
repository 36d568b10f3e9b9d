"""``queuert workers``: who is at work."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options
from queuert.cli.options import Commands, database_options
from queuert.cli.output import fields, print_page

_DESCRIPTION = """List the workers that told of themselves within the last minute, the longest running first.

The id is what stands in the jobs that a worker holds. A worker that was killed is listed for up to a minute more.
"""

_COLUMNS = ("id", "host", "pid", "version", "state", "running", "concurrency", "started_at", "seen_at", "job_types")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "workers",
        help="list the workers that are alive",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug, database_options(), output_options()],
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the workers."""
    with operator(args) as client:
        found = client.list_workers()
    print_page(map(fields, found), _COLUMNS, as_json=args.json)
    return Exit.DONE
