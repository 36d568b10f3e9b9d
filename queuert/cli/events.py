"""``queuert events``: read and maintain the event log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from time import sleep
from typing import Any

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import (
    command_with_actions,
    operator,
    page_options,
    payloads_option,
    type_option,
    warn_of_unknown_types,
)
from queuert.cli.options import Commands, positive_int
from queuert.cli.output import (
    document_of,
    print_fields,
    print_json,
    print_json_line,
    print_page,
    print_table,
    print_values,
)
from queuert.client import Client
from queuert.documents import EventDocument
from queuert.errors import ChainNotFoundError
from queuert.event_log import EventKind, EventLevel, JobEvent
from queuert.state.paging import MAX_PAGE

_DESCRIPTION = """Read and maintain the event log.

Each transition of a job writes an event in the same transaction. The level of
a job type says which: all, terminal (only the end of a job) or off. Workers
delete old events: on Postgres they create and drop daily partitions.
"""

_COLUMNS = ("happened_at", "kind", "status", "type", "job_id", "chain_id", "attempt", "worker", "error")
_POLL_SECONDS = 1.0
_SET_LEVEL = """all: every transition; terminal: only the end of a job; off: none; default:
remove the level of the types that --type names.
"""
_TAIL = "With --json each event is a document in a line of its own.\n"
_MAINTAIN = """Run it daily, as the owner of the tables, if the role of the workers is not."""
_DEFAULT = "default"
_LEVELS = [*(level.value for level in EventLevel), _DEFAULT]


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "events", help="read and maintain the event log", description=_DESCRIPTION
    )
    listed = actions.add("list", run_list, "list events")
    _filter_options(listed)
    page_options(listed)
    listed.add_argument("--oldest-first", action="store_true", help="list the oldest first (default: the newest)")
    tail = actions.add("tail", run_tail, "print events as they are committed, until interrupted", _TAIL)
    _filter_options(tail)
    tail.add_argument("--once", action="store_true", help="print the events that exist, then exit")
    actions.add("status", run_status, "show the levels, the retention and the partitions")
    level = actions.add("set-level", run_set_level, "set which events are written from now on", _SET_LEVEL)
    level.add_argument("level", choices=_LEVELS, metavar="LEVEL", help=", ".join(_LEVELS))
    type_option(level, "of this job type; may be repeated (default: of all types without a level)")
    retention = actions.add("set-retention", run_set_retention, "set for how many days events are kept")
    retention.add_argument("days", type=positive_int, nargs="?", metavar="DAYS", help="how many days")
    retention.add_argument(
        "--max-events", type=positive_int, metavar="N", help="how many events at most (Redis; default: 250,000)"
    )
    actions.add("maintain", run_maintain, "create and drop partitions of the event log; delete old events", _MAINTAIN)


def _filter_options(parser: argparse.ArgumentParser) -> None:
    type_option(parser)
    parser.add_argument(
        "--kind",
        action="append",
        choices=[kind.value for kind in EventKind],
        metavar="KIND",
        dest="kinds",
        help=f"only this kind: {', '.join(EventKind)}; may be repeated",
    )
    parser.add_argument("--chain", metavar="ID", help="only events of this chain")
    payloads_option(parser)


def run_list(args: argparse.Namespace) -> int:
    """Print a page."""
    with operator(args) as client:
        page = client.list_events(
            job_types=args.types,
            kinds=args.kinds,
            chain=args.chain,
            limit=args.limit,
            cursor=args.cursor,
            oldest_first=args.oldest_first,
        )
        if not page.items:
            _check_chain(client, args)
            warn_of_unknown_types(client, args.types)
    print_page(page, _COLUMNS, EventDocument, as_json=args.json, payloads=args.payloads, next_cursor=page.next_cursor)
    return Exit.DONE


def _check_chain(client: Client, args: argparse.Namespace) -> None:
    """Check that the chain of --chain exists, or has events still: those of a deleted chain stay for some days.

    Raises:
        ChainNotFoundError: neither.
    """
    if args.chain is None or client.get_chain_states([args.chain]):
        return
    if not client.list_events(chain=args.chain, limit=1).items:
        raise ChainNotFoundError(args.chain)


def run_tail(args: argparse.Namespace) -> int:
    """Print the events that exist, then new ones."""
    with operator(args) as client:
        cursor: str | None = None
        if args.once:
            _check_chain(client, args)
        while True:
            events, cursor = _following(client, args, cursor)
            _print_lines(events, args)
            if not events and args.once:
                return Exit.DONE
            if not events:
                sleep(_POLL_SECONDS)


def _following(client: Client, args: argparse.Namespace, cursor: str | None) -> tuple[Sequence[JobEvent], str | None]:
    """The next events that match, and the cursor after them. Pages without any are skipped."""
    while True:
        page = client.list_events(
            job_types=args.types, kinds=args.kinds, chain=args.chain, limit=MAX_PAGE, cursor=cursor, oldest_first=True
        )
        if page.items:
            return page.items, page.next_cursor or page.items[-1].cursor
        if page.next_cursor is None:
            return (), cursor
        cursor = page.next_cursor


def _print_lines(events: Sequence[JobEvent], args: argparse.Namespace) -> None:
    if args.json:
        for event in events:
            print_json_line(document_of(event, EventDocument, payloads=args.payloads))
    elif events:
        print_values(events, _COLUMNS, EventDocument, payloads=args.payloads)


def run_status(args: argparse.Namespace) -> int:
    """Print the levels, the retention and the partitions."""
    with operator(args) as client:
        log = client.get_event_log()
    if args.json:
        print_json({**asdict(log), "levels": dict(log.levels)})
        return Exit.DONE
    bound = {} if log.max_events is None else {"max_events": log.max_events}
    print_fields({"level": log.level, "keep_days": log.keep_days, **bound})
    print_table([{"type": type, "level": level} for type, level in log.levels.items()], ("type", "level"))
    print_table([asdict(one) for one in log.partitions], ("name", "day", "size"))
    return Exit.DONE


def run_set_level(args: argparse.Namespace) -> int:
    """Set a level."""
    level = None if args.level == _DEFAULT else EventLevel(args.level)
    with operator(args) as client:
        client.set_event_level(level, job_types=args.types)
        warn_of_unknown_types(client, args.types)
    return _print_values(args, {"level": args.level, "types": args.types})


def run_set_retention(args: argparse.Namespace) -> int:
    """Set the retention."""
    with operator(args) as client:
        client.set_event_retention(args.days, max_events=args.max_events)
    values = {"keep_days": args.days, "max_events": args.max_events}
    return _print_values(args, {name: value for name, value in values.items() if value is not None})


def run_maintain(args: argparse.Namespace) -> int:
    """Maintain the partitions until nothing is left to do."""
    made: list[str] = []
    dropped: list[str] = []
    deleted = 0
    with operator(args) as client:
        while True:
            done = client.maintain_event_log()
            made += map(str, done.made)
            dropped += map(str, done.dropped)
            deleted += done.deleted
            if not done.more:
                break
            print(f"so far: {len(dropped)} partitions dropped, {deleted:,} events deleted", file=sys.stderr)
    postponed = [*map(str, done.postponed)]
    return _print_values(args, {"made": made, "dropped": dropped, "postponed": postponed, "deleted": deleted})


def _print_values(args: argparse.Namespace, values: dict[str, Any]) -> int:
    if args.json:
        print_json(values)
    else:
        print_fields(values)
    return Exit.DONE
