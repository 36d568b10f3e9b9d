"""``queuert stats``: how many jobs there are, and how old the oldest is."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options, type_option, warn_of_unknown_types
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import fields, print_page

_DESCRIPTION = """Count jobs by type and status.

Counts up to 10,000 are exact; ~ marks an estimate. oldest_seconds is the age of
the oldest job: since it became due, or since it finished. No worker claims
jobs of a paused type.
"""

_COLUMNS = ("type", "status", "count", "oldest_seconds", "paused")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "stats",
        run,
        help="count jobs by type and status",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    type_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the numbers."""
    with operator(args) as client:
        paused = {one.type for one in client.list_paused_job_types()}
        counts = [{**fields(count), "paused": count.type in paused} for count in client.count_jobs(args.types)]
        warn_of_unknown_types(client, args.types)
    if not args.json:
        for count in counts:
            count["paused"] = "paused" if count["paused"] else None
            count["count"] = f"{'~' if count['estimated'] else ''}{count['count']}"
    print_page(counts, _COLUMNS, as_json=args.json)
    return Exit.DONE
