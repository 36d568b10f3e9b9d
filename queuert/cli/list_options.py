"""What the commands of operators have in common: a client that knows no job types, and the options of lists."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.cli.options import Commands, Run, database_options, store
from queuert.client import Client
from queuert.job_types import JobTypes
from queuert.state.paging import MAX_PAGE

_UNITS: Mapping[str, str] = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"(\d{1,6})([smhd])")


@contextmanager
def operator(args: argparse.Namespace) -> Iterator[Client]:
    """A client of the database that was named, for what needs no job types."""
    with Client(store(args), JobTypes(), max_connections=1) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Actions:
    """A command that has actions of its own, as ``chains list`` and ``chains show``."""

    parsers: argparse._SubParsersAction[argparse.ArgumentParser]
    shared: list[argparse.ArgumentParser]

    def add(self, name: str, run: Run, help: str, description: str | None = None) -> argparse.ArgumentParser:
        """Add an action, with the options of the database and of the output."""
        text = description or f"{help[0].upper()}{help[1:]}."
        action = self.parsers.add_parser(name, help=help, description=text, parents=self.shared)
        action.set_defaults(run=run)
        return action


def command_with_actions(
    commands: Commands, debug: argparse.ArgumentParser, name: str, *, help: str, description: str
) -> Actions:
    """Add a command that is to have actions."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    return Actions(actions, [debug, database_options(), output_options()])


def output_options() -> argparse.ArgumentParser:
    """The parent of what prints results."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--json", action="store_true", help="print one JSON document")
    return parent


def type_option(parser: argparse.ArgumentParser, help: str = "only of this job type; again for more") -> None:
    """Let job types be named."""
    parser.add_argument("--type", action="append", metavar="NAME", dest="types", help=help)


def list_options(parser: argparse.ArgumentParser, statuses: list[str]) -> None:
    """The options of a list of chains or of jobs."""
    type_option(parser)
    parser.add_argument(
        "--status", action="append", choices=statuses, dest="statuses", help="only of this status; again for more"
    )
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="then or later: 2024-12-31T18:00Z, or 90s, 15m, 2h, 7d ago"
    )
    parser.add_argument("--before", type=moment, metavar="TIME", help="earlier than that")
    page_options(parser)
    parser.add_argument("--oldest-first", action="store_true", help="the oldest first (default: the newest)")


def page_options(parser: argparse.ArgumentParser) -> None:
    """The options of a page."""
    parser.add_argument(
        "--limit", type=page_limit, default=50, metavar="N", help=f"entries at most, up to {MAX_PAGE} (default: 50)"
    )
    parser.add_argument("--cursor", help="go on where another page has ended, which named it")


def list_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of a list are for a client."""
    return {
        "job_types": args.types,
        "statuses": args.statuses,
        "since": args.since,
        "before": args.before,
        "limit": args.limit,
        "cursor": args.cursor,
        "oldest_first": args.oldest_first,
    }


def page_limit(text: str) -> int:
    """A number of entries that a page may have."""
    value = int(text)
    if not 1 <= value <= MAX_PAGE:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MAX_PAGE}")
    return value


def moment(text: str) -> datetime:
    """A time: ISO 8601 with a zone, or so long ago."""
    if _AGO.fullmatch(text):
        return datetime.now(UTC) - age(text)
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} names no time zone: add Z for UTC, or +02:00")
    return value


def age(text: str) -> timedelta:
    """How long ago: a number and its unit, such as 90m or 30d."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not an age such as 90s, 15m, 2h or 30d")
    span = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if span > datetime.now(UTC) - datetime.min.replace(tzinfo=UTC):
        raise argparse.ArgumentTypeError(f"{text} ago is before the year 1")
    return span


# argparse names the function in its message when the text is nothing of the kind.
page_limit.__name__ = "number"
moment.__name__ = "time"
