"""``queuert prune``: delete closed chains by their age."""

from __future__ import annotations

import argparse
from typing import Any

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import age, operator, output_options, type_option, warn_of_unknown_types
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import print_json, print_preview
from queuert.jobs import ChainStatus

_DESCRIPTION = """Delete the chains that closed longer ago than an age, with all their jobs.

Without --yes it only counts them. Chains of the library's own types (queuert.*:
bulk operations, deliveries of webhooks) are meant only if --type names theirs.
Chains that other jobs wait for stay, and so do those with a result_ttl that is
not over. Chains whose result_ttl is over are deleted as well, and not counted
before. It works page by page: if it is interrupted, run it again. Workers
delete no chain that webhooks have still to read; this does.
"""

_STATUSES = [status.value for status in ChainStatus if status is not ChainStatus.OPEN]


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "prune",
        run,
        help="delete closed chains by their age",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    parser.add_argument("--older-than", type=age, required=True, metavar="AGE", help="such as 90m, 12h or 30d")
    type_option(parser)
    parser.add_argument(
        "--status",
        action="append",
        choices=_STATUSES,
        metavar="STATUS",
        dest="statuses",
        help=f"only this status: {', '.join(_STATUSES)}; may be repeated",
    )
    parser.add_argument("--yes", action="store_true", help="confirm the deletion")


def run(args: argparse.Namespace) -> int:
    """Count, or delete and print how many."""
    filter: dict[str, Any] = {"older_than": args.older_than, "job_types": args.types, "statuses": args.statuses}
    with operator(args) as client:
        warn_of_unknown_types(client, args.types)
        if not args.yes:
            print_preview("prune would delete", client.preview_prune(**filter), confirm="--yes", as_json=args.json)
            return Exit.DONE
        deleted = client.prune_chains(**filter)
    if args.json:
        print_json({"deleted": deleted})
    else:
        print(f"deleted {deleted}")
    return Exit.DONE
