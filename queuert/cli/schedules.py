"""``queuert schedules``: list, pause, resume and delete recurring schedules."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import command_with_actions, operator
from queuert.cli.options import Commands
from queuert.cli.output import fields, print_json, print_page
from queuert.client import Client

Change: TypeAlias = Callable[[Iterable[str]], int]

_DESCRIPTION = """List, pause, resume and delete recurring schedules.

A worker creates the schedules of its own schedules=... again when it starts.
"""

_COLUMNS = ("name", "type", "cron", "every", "time_zone", "paused", "next_at", "last_at")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "schedules", help="list, pause, resume and delete schedules", description=_DESCRIPTION
    )
    actions.add("list", run_list, "list all schedules")
    codes: Mapping[int, str] = {Exit.FAILED: "some of these schedules do not exist"}
    pause = actions.add("pause", run_pause, "start no more chains of these schedules", exit_codes=codes)
    resume = actions.add("resume", run_resume, "resume these schedules", exit_codes=codes)
    delete = actions.add("delete", run_delete, "delete these schedules, but not their chains", exit_codes=codes)
    for action in (pause, resume, delete):
        action.add_argument("names", nargs="+", metavar="NAME", help="name of a schedule")
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")


def run_list(args: argparse.Namespace) -> int:
    """Print the schedules."""
    with operator(args) as client:
        schedules = client.list_schedules()
    print_page(map(fields, schedules), _COLUMNS, as_json=args.json)
    return Exit.DONE


def run_pause(args: argparse.Namespace) -> int:
    """Pause."""
    return _change(args, "paused", lambda client: client.pause_schedules)


def run_resume(args: argparse.Namespace) -> int:
    """Resume."""
    return _change(args, "resumed", lambda client: client.resume_schedules)


def run_delete(args: argparse.Namespace) -> int:
    """Delete if --yes was given."""
    if not args.yes:
        raise UsageError("schedules delete needs a confirmation: add --yes")
    return _change(args, "deleted", lambda client: client.delete_schedules)


def _change(args: argparse.Namespace, verb: str, change: Callable[[Client], Change]) -> int:
    """Change schedules and print how many; 1 if some do not exist."""
    names = list(dict.fromkeys(args.names))
    with operator(args) as client:
        count = change(client)(names)
    if args.json:
        print_json({verb: count})
    else:
        print(f"{verb} {count}" if count == len(names) else f"{verb} {count} of {len(names)}: the others do not exist")
    return Exit.DONE if count == len(names) else Exit.FAILED
