"""What the commands for operators share: a client without job types, and the options of lists."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from queuert.cli.exit_codes import MEANINGS, UsageError, exit_code_text
from queuert.cli.options import Commands, Run, add_command, database_options, existing_store, integer
from queuert.client import Client
from queuert.errors import ChainNotFoundError, JobNotFoundError, ScheduleNotFoundError
from queuert.job_types import BULK_OPERATION_TYPE, JobTypes
from queuert.new_chain import MAX_PRIORITY
from queuert.run_at import RunAt, after, at
from queuert.state.paging import MAX_PAGE
from queuert.webhooks.endpoints import DELIVERY_TYPE

_UNITS: Mapping[str, str] = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"(\d{1,6})([smhd])")
_MOST_NAMES = 10
"""How many names an error lists at most."""


@contextmanager
def operator(args: argparse.Namespace) -> Iterator[Client]:
    """A client without job types, of the database that the options name."""
    with Client(existing_store(args), JobTypes(), max_connections=1) as client:
        try:
            yield client
        except ChainNotFoundError as error:
            raise chain_not_found(client, error) from error
        except ScheduleNotFoundError as error:
            names = [schedule.name for schedule in client.list_schedules()]
            raise ScheduleNotFoundError(error.id, no_schedule(error.id, names)) from error


def chain_not_found(client: Client, error: ChainNotFoundError) -> ChainNotFoundError:
    """The error of an id that no chain has, which may be that of a job; one that says more already stays."""
    if str(error) != str(ChainNotFoundError(error.id)):
        return error
    try:
        job = client.get_job(error.id)
    except JobNotFoundError:
        return ChainNotFoundError(error.id, f"{error}; queuert chains list shows those that exist")
    return ChainNotFoundError(
        error.id, f"{error.id!r} is the id of a job, not of a chain: the chain of this job is {job.chain_id!r}"
    )


def say_missing(sentences: Iterable[str]) -> None:
    """Say on stderr what was given and does not exist, or was not done, beside what was done to the others."""
    for sentence in sentences:
        print(f"queuert: {sentence}", file=sys.stderr)


def no_schedule(name: str, existing: Iterable[str]) -> str:
    """A sentence about the name of a schedule that does not exist."""
    return f"schedule {name!r} does not exist: " + _alternatives(
        name, existing, "the schedules are", "there are no schedules"
    )


def _alternatives(name: str, known: Iterable[str], introduction: str, otherwise: str) -> str:
    """The names like this one, or else the first ones that there are."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {', '.join(close)}?"
    shown = ", ".join([*names[:_MOST_NAMES], *(["..."] if len(names) > _MOST_NAMES else [])])
    return f"{introduction} {shown}" if names else otherwise


def unknown_types(client: Client, names: Iterable[str] | None) -> list[str]:
    """Sentences about those of the names that nothing in the store has, with what there is."""
    if not names:
        return []
    known = {one.type for one in client.count_jobs()} | {one.type for one in client.list_paused_job_types()}
    known |= {one.type for one in client.list_client_types()}
    for worker in client.list_workers():
        known.update(worker.job_types)
    found = []
    for name in dict.fromkeys(names):
        # The library's own types are there before any job of them.
        if name not in known and name not in (BULK_OPERATION_TYPE, DELIVERY_TYPE):
            there_is = _alternatives(name, known, "the types are", "there are no types yet")
            found.append(f"no job and no live worker has type {name!r}: {there_is}")
    return found


def warn_of_unknown_types(client: Client, names: Iterable[str] | None) -> None:
    """Say on stderr which types nothing has: most are typing errors."""
    say_missing(unknown_types(client, names))


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


def payloads_option(parser: argparse.ArgumentParser) -> None:
    """Add --payloads."""
    parser.add_argument("--payloads", action="store_true", help="with --json: also inputs, outputs and the like")


def type_option(parser: argparse.ArgumentParser, help: str = "only this job type; may be repeated") -> None:
    """Add --type."""
    parser.add_argument("--type", action="append", metavar="NAME", dest="types", help=help)


def status_option(parser: argparse.ArgumentParser, statuses: list[str]) -> None:
    """Add --status."""
    parser.add_argument(
        "--status",
        action="append",
        choices=statuses,
        metavar="STATUS",
        dest="statuses",
        help=f"only this status: {', '.join(statuses)}; may be repeated",
    )


def by_option(parser: argparse.ArgumentParser, help: str) -> None:
    """Add --by."""
    parser.add_argument("--by", metavar="NAME", help=f"{help} (default: the login name)")


def by_of(args: argparse.Namespace) -> str:
    """Who gives the command: --by, or the login name."""
    if args.by is not None:
        return str(args.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may run under a number without a name.
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def run_at_options(parser: argparse.ArgumentParser, help: str = "") -> None:
    """Add --at and --after, of which :func:`run_at` reads one."""
    parser.add_argument("--at", type=exact_moment, metavar="TIME", help=f"{help}run at this time: 2024-12-31T18:00Z")
    parser.add_argument("--after", type=age, metavar="AGE", help=f"{help}run when this has passed: 90s, 15m, 2h, 7d")


def run_at(args: argparse.Namespace, *, required: bool) -> RunAt | None:
    """The time of --at or --after.

    Raises:
        UsageError: both were given, or none that is required.
    """
    if args.at is not None and args.after is not None:
        raise UsageError("--at and --after must not be given together")
    if args.at is not None:
        return at(args.at)
    if args.after is not None:
        return after(args.after)
    if required:
        raise UsageError("the time is missing: add --at TIME or --after AGE, as in --after 2h")
    return None


def attribute_option(parser: argparse.ArgumentParser) -> None:
    """Add --attribute, of which :func:`attributes_of` makes a filter."""
    parser.add_argument(
        "--attribute",
        action="append",
        type=_attribute,
        default=[],
        dest="attributes",
        metavar="NAME=VALUE",
        help="only with this attribute; if repeated, with all of them",
    )


def _attribute(text: str) -> tuple[str, str]:
    """A name and a value, separated by the first ``=``."""
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, such as user=17, got {text}")
    return name, value


def attributes_of(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of each name."""
    requested: dict[str, list[str]] = {}
    for name, value in pairs:
        requested.setdefault(name, []).append(value)
    return requested


def filter_options(parser: argparse.ArgumentParser, statuses: list[str]) -> None:
    """Which chains or jobs: --type, --status, --since and --before."""
    type_option(parser)
    status_option(parser, statuses)
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="created at this time or later: 2024-12-31T18:00Z, or an age: 90s, 15m, 2h, 7d",
    )
    parser.add_argument("--before", type=moment, metavar="TIME", help="created before this time")


def list_options(parser: argparse.ArgumentParser, statuses: list[str]) -> None:
    """The options of a list of chains or of jobs."""
    filter_options(parser, statuses)
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


def priority(text: str) -> int:
    """A priority of a job."""
    return integer(text, minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)


def moment(text: str) -> datetime:
    """A time: ISO 8601 with a time zone, or an age."""
    if _AGO.fullmatch(text):
        return datetime.now(UTC) - age(text)
    return exact_moment(text, " or an age such as 2h")


def exact_moment(text: str, otherwise: str = "") -> datetime:
    """A time: ISO 8601 with a time zone."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a time such as 2024-12-31T18:00Z{otherwise}, got {text}") from None
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
