"""``queuert why``: what holds a chain or a job."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import document_of, print_json
from queuert.client import Client
from queuert.documents import ExplanationDocument
from queuert.errors import ChainNotFoundError
from queuert.explanations import Explanation
from queuert.jobs import ChainStatus

_DESCRIPTION = """Show why a chain is not closed yet: all that holds the job that it stands at.

A job that waits for other chains is followed to those that hold them. The
causes with --json are closed, running, lease_expired, blocked,
waits_in_circle, scheduled, waits_for_client, waits_for_event, retry_delayed,
type_paused, no_worker, workers_silent, workers_busy, concurrency_limit,
key_limit, rate_limit, key_order, key_turn, behind_others and due.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "why",
        run,
        help="show why a chain or a job does not run",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    parser.add_argument("id", metavar="ID", help="id of a chain or a job")


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    with operator(args) as client:
        explanation = client.explain(args.id)
    if args.json:
        print_json(document_of(explanation, ExplanationDocument))
    else:
        for line in text(explanation):
            print(line)
    return Exit.DONE


def text(explanation: Explanation) -> list[str]:
    """The lines of an explanation, without characters that a terminal would obey: errors and reasons are foreign."""
    return ["".join(one if one.isprintable() else " " for one in line) for line in str(explanation).split("\n")]


def of_open_chain(client: Client, id: str) -> Explanation | None:
    """The explanation of a chain or a job; None if the chain is closed or was deleted."""
    try:
        explanation = client.explain(id)
    except ChainNotFoundError:
        return None
    return explanation if explanation.chain_status is ChainStatus.OPEN else None


def print_below(explanation: Explanation) -> None:
    """Print an explanation below other output."""
    print("\nwhy it is not done:")
    for line in text(explanation):
        print(f"  {line}")
