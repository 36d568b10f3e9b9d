"""``queuert demand``: how many slots the jobs could use now, for an autoscaler."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options, type_option, warn_of_unknown_types
from queuert.cli.options import Commands, add_command, database_options, integer
from queuert.cli.output import print_json, print_table
from queuert.client.sync_listing import MAX_COUNTED
from queuert.state.types import COUNTED_DEMAND

_DESCRIPTION = """Show how many slots the jobs of each type could use now, for an autoscaler:

wanted = ready + due + running

ready jobs could be claimed now; due jobs were scheduled, and their time has
come. held_back are due jobs that limits or a pause of their type hold back,
or that clients complete: more workers would not run them. Counting ends at
--most, of each type and status.
"""

_COLUMNS = ("type", "wanted", "ready", "due", "running", "held_back", "oldest_seconds")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "demand",
        run,
        help="show how many slots jobs could use, for an autoscaler",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    type_option(parser)
    parser.add_argument(
        "--most",
        type=_most,
        default=COUNTED_DEMAND,
        metavar="N",
        help=f"number at which counting ends, up to {MAX_COUNTED:,} (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the numbers."""
    with operator(args) as client:
        found = client.get_demand(args.types, counted_up_to=args.most)
        warn_of_unknown_types(client, args.types)
    rows = [{**asdict(one), "wanted": one.wanted} for one in found]
    if args.json:
        print_json({"items": rows, "wanted": sum(one.wanted for one in found)})
    else:
        print_table(rows, _COLUMNS)
    return Exit.DONE


def _most(text: str) -> int:
    return integer(text, minimum=1, maximum=MAX_COUNTED)
