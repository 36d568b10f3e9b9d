"""What the commands for operators share: a client without job types, and the options of lists."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from queuert.cli.exit_codes import MEANINGS, exit_code_text
from queuert.cli.options import Commands, Run, add_command, database_options, integer, store
from queuert.client import Client
from queuert.job_types import JobTypes
from queuert.state.paging import MAX_PAGE

_UNITS: Mapping[str, str] = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"(\d{1,6})([smhd])")


@contextmanager
def operator(args: argparse.Namespace) -> Iterator[Client]:
    """A client without job types, of the database that the options name."""
    with Client(store(args), JobTypes(), max_connections=1) as client:
        yield client


def unknown_types(client: Client, names: Iterable[str] | None) -> list[str]:
    """Sentences about those of the names that no job, no live worker and no pause has, with names like them."""
    if not names:
        return []
    known = {one.type for one in client.count_jobs()} | {one.type for one in client.list_paused_job_types()}
    for worker in client.list_workers():
        known.update(worker.job_types)
    found = []
    for name in dict.fromkeys(names):
        if name not in known:
            close = get_close_matches(name, sorted(known), n=3)
            suggestion = f": did you mean {', '.join(close)}?" if close else ""
            found.append(f"no job and no live worker has type {name}{suggestion}")
    return found


def warn_of_unknown_types(client: Client, names: Iterable[str] | None) -> None:
    """Say on stderr which types nothing has: most are typing errors."""
    for sentence in unknown_types(client, names):
        print(f"queuert: {sentence}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Actions:
    """The actions of a command, such as ``chains list`` and ``chains show``."""

    parsers: argparse._SubParsersAction[argparse.ArgumentParser]
    shared: list[argparse.ArgumentParser]

    def add(
        self,
        name: str,
        run: Run,
        help: str,
        more: str = "",
        *,
        exit_codes: Mapping[int, str] | None = None,
    ) -> argparse.ArgumentParser:
        """Add an action, with the options of the database and of the output; ``more`` follows ``help`` in its help."""
        text = f"{help[0].upper()}{help[1:]}.\n{more}"
        return add_command(
            self.parsers, name, run, help=help, description=text, parents=self.shared, exit_codes=exit_codes
        )


def command_with_actions(
    commands: Commands, debug: argparse.ArgumentParser, name: str, *, help: str, description: str
) -> Actions:
    """Add a command with actions."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=exit_code_text(MEANINGS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    return Actions(actions, [debug, database_options(), output_options()])


def output_options() -> argparse.ArgumentParser:
    """The parent of commands that print results."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--json", action="store_true", help="print one JSON document")
    return parent


def type_option(parser: argparse.ArgumentParser, help: str = "only this job type; may be repeated") -> None:
    """Add --type."""
    parser.add_argument("--type", action="append", metavar="NAME", dest="types", help=help)


def list_options(parser: argparse.ArgumentParser, statuses: list[str]) -> None:
    """The options of a list of chains or of jobs."""
    type_option(parser)
    parser.add_argument(
        "--status",
        action="append",
        choices=statuses,
        metavar="STATUS",
        dest="statuses",
        help=f"only this status: {', '.join(statuses)}; may be repeated",
    )
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="created at this time or later: 2024-12-31T18:00Z, or an age: 90s, 15m, 2h, 7d",
    )
    parser.add_argument("--before", type=moment, metavar="TIME", help="created before this time")
    page_options(parser)
    parser.add_argument("--oldest-first", action="store_true", help="list the oldest first (default: the newest)")


def page_options(parser: argparse.ArgumentParser) -> None:
    """The options of a page."""
    parser.add_argument(
        "--limit",
        type=page_limit,
        default=50,
        metavar="N",
        help=f"maximum number of entries, up to {MAX_PAGE} (default: 50)",
    )
    parser.add_argument("--cursor", metavar="CURSOR", help="continue after the page that printed this cursor")


def list_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The options of a list as arguments of a client's method."""
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
    """How many entries a page may have."""
    return integer(text, minimum=1, maximum=MAX_PAGE)


def moment(text: str) -> datetime:
    """A time: ISO 8601 with a time zone, or an age."""
    if _AGO.fullmatch(text):
        return datetime.now(UTC) - age(text)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 2024-12-31T18:00Z or an age such as 2h, got {text}"
        ) from None
    if value.tzinfo is None:
        raise argparse.ArgumentTypeError(f"must have a time zone, such as Z or +02:00, got {text}")
    return value


def age(text: str) -> timedelta:
    """An age: a number and its unit, such as 90m or 30d."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be an age such as 90s, 15m, 2h or 30d, got {text}")
    span = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if span > datetime.now(UTC) - datetime.min.replace(tzinfo=UTC):
        raise argparse.ArgumentTypeError(f"must be an age that begins after the year 1, got {text}")
    return span
