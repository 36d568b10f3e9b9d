"""``queuert schedules``: list, pause, resume, run, backfill and delete recurring schedules."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    command_with_actions,
    moment,
    no_schedule,
    operator,
    payloads_option,
    say_missing,
)
from queuert.cli.options import Commands
from queuert.cli.output import print_changed, print_json, print_page
from queuert.client import Client
from queuert.documents import ScheduleDocument
from queuert.errors import ScheduleNotFoundError

Change: TypeAlias = Callable[[Iterable[str]], int]

_DESCRIPTION = """List, pause, resume, run, backfill and delete recurring schedules.

A worker stores the schedules of its code when it starts, and removes those of
their owner that left the code.
"""

_COLUMNS = ("name", "type", "cron", "every", "time_zone", "overlap", "owner", "paused", "next_at", "last_at")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands,
        debug,
        "schedules",
        help="list, pause, resume, run, backfill and delete schedules",
        description=_DESCRIPTION,
    )
    payloads_option(actions.add("list", run_list, "list all schedules"))
    codes: Mapping[int, str] = {Exit.FAILED: "some of these schedules do not exist"}
    pause = actions.add("pause", run_pause, "start no more chains of these schedules", exit_codes=codes)
    resume = actions.add("resume", run_resume, "resume these schedules", exit_codes=codes)
    delete = actions.add("delete", run_delete, "delete these schedules, but not their chains", exit_codes=codes)
    one = actions.add(
        "run",
        run_now,
        "start a chain of these schedules now",
        "The ticks stay as they are. If the last chain of a schedule is open, its overlap\ndecides.\n",
        exit_codes={Exit.FAILED: "a schedule does not exist, or started no chain, since one is open"},
    )
    for action in (pause, resume, delete, one):
        action.add_argument("names", nargs="+", metavar="NAME", help="name of a schedule")
    backfill = actions.add(
        "backfill",
        run_backfill,
        "start the chains of a schedule's ticks in a range of the past",
        "Ticks that have a chain get no second one. At most 1,000 ticks.\n",
    )
    backfill.add_argument("name", metavar="NAME", help="name of a schedule")
    backfill.add_argument(
        "--since",
        type=moment,
        required=True,
        metavar="TIME",
        help="ticks at this time or later: 2024-12-31T18:00Z, or an age: 90s, 15m, 2h, 7d",
    )
    backfill.add_argument(
        "--before", type=moment, metavar="TIME", help="ticks before this time (default: a second ago)"
    )
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")


def run_list(args: argparse.Namespace) -> int:
    """Print the schedules."""
    with operator(args) as client:
        schedules = client.list_schedules()
    print_page(schedules, _COLUMNS, ScheduleDocument, as_json=args.json, payloads=args.payloads)
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


def run_now(args: argparse.Namespace) -> int:
    """Start chains now; 1 if a schedule does not exist or started none."""
    started: dict[str, str | None] = {}
    missing: list[str] = []
    with operator(args) as client:
        for name in dict.fromkeys(args.names):
            try:
                chain = client.run_schedule(name)
            except ScheduleNotFoundError:
                missing.append(name)
            else:
                started[name] = None if chain is None else chain.id
        existing = [schedule.name for schedule in client.list_schedules()] if missing else []
    say_missing([no_schedule(name, existing) for name in missing])
    if not started:
        return Exit.FAILED
    if args.json:
        print_json({"started": started})
    else:
        for name, chain_id in started.items():
            print(f"started {chain_id}" if chain_id else f"skipped {name}: its last chain is open")
    return Exit.DONE if all(started.values()) and not missing else Exit.FAILED


def run_backfill(args: argparse.Namespace) -> int:
    """Start the chains of ticks of a range."""
    before = datetime.now(UTC) - timedelta(seconds=1) if args.before is None else args.before
    with operator(args) as client:
        chains = client.backfill_schedule(args.name, since=args.since, before=before)
    started = [chain.id for chain in chains if not chain.deduplicated]
    if args.json:
        print_json({"started": started, "existing": [chain.id for chain in chains if chain.deduplicated]})
    else:
        others = "" if len(started) == len(chains) else ": the others had a chain"
        print(f"started the chains of {len(started)} of {len(chains)} ticks{others}")
    return Exit.DONE


def _change(args: argparse.Namespace, verb: str, change: Callable[[Client], Change]) -> int:
    """Change schedules and print which; 1 if some do not exist."""
    names = list(dict.fromkeys(args.names))
    with operator(args) as client:
        existing = [schedule.name for schedule in client.list_schedules()]
        changed = [name for name in names if name in existing]
        count = change(client)(names)
    missing = [name for name in names if name not in existing]
    say_missing([no_schedule(name, existing) for name in missing])
    if changed:
        print_changed(verb, changed, as_json=args.json)
    # Fewer if somebody has deleted one since it was listed.
    return Exit.DONE if count == len(names) else Exit.FAILED
