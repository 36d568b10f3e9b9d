"""``queuert job-types``: pause and resume job types."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    by_of,
    by_option,
    command_with_actions,
    operator,
    unknown_types,
    warn_of_unknown_types,
)
from queuert.cli.options import Commands
from queuert.cli.output import print_changed, print_page
from queuert.documents import PausedTypeDocument

_DESCRIPTION = """Pause job types: workers claim no jobs of a paused type until it is resumed.

Running jobs continue, and chains can still be started.
"""

_COLUMNS = ("type", "paused_at", "by", "reason")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "job-types", help="pause and resume job types", description=_DESCRIPTION
    )
    actions.add("list", run_list, "list the paused job types")
    pause = actions.add("pause", run_pause, "stop claiming jobs of these types")
    pause.add_argument("names", nargs="+", metavar="NAME", help="name of a job type")
    pause.add_argument("--reason", help="shown by queuert job-types list and queuert why")
    by_option(pause, "who pauses them")
    pause.add_argument("--force", action="store_true", help="also a type that no job and no live worker has")
    resume = actions.add("resume", run_resume, "claim jobs of these types again")
    resume.add_argument("names", nargs="+", metavar="NAME", help="name of a job type")


def run_list(args: argparse.Namespace) -> int:
    """Print the paused types."""
    with operator(args) as client:
        paused = client.list_paused_job_types()
    print_page(paused, _COLUMNS, PausedTypeDocument, as_json=args.json)
    return Exit.DONE


def run_pause(args: argparse.Namespace) -> int:
    """Pause."""
    names = list(dict.fromkeys(args.names))
    with operator(args) as client:
        unknown = [] if args.force else unknown_types(client, names)
        if unknown:
            raise UsageError(f"{'; '.join(unknown)}; nothing was paused: to pause it all the same, add --force")
        client.pause_job_types(names, reason=args.reason, by=by_of(args))
    print_changed("paused", names, as_json=args.json)
    return Exit.DONE


def run_resume(args: argparse.Namespace) -> int:
    """Resume, and print which types were paused."""
    with operator(args) as client:
        resumed = client.resume_job_types(args.names)
        warn_of_unknown_types(client, args.names)
    print_changed("resumed", resumed, as_json=args.json)
    return Exit.DONE
