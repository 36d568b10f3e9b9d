"""``queuert counts``: how many jobs there are, and how old the oldest is."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options, type_option
from queuert.cli.options import Commands, database_options
from queuert.cli.output import fields, print_page

_DESCRIPTION = """Count jobs by type and status. Up to 10,000 the number is exact; one with ~ is an estimate.
The age is that of the oldest, since it became due, or ended.
"""

_COLUMNS = ("type", "status", "count", "oldest_seconds")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "counts",
        help="count jobs by type and status",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug, database_options(), output_options()],
    )
    type_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the numbers."""
    with operator(args) as client:
        found = [fields(one) for one in client.count_jobs(args.types)]
    if not args.json:
        for one in found:
            one["count"] = f"{'~' if one['estimated'] else ''}{one['count']}"
    print_page(found, _COLUMNS, as_json=args.json)
    return Exit.DONE
