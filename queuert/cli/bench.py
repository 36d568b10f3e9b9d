"""``queuert bench``: how close to bare SQL this library comes on a database of yours."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from queuert.cli.options import POSTGRES_FORMS, Commands, positive_int
from queuert.cli.output import print_json
from queuert.urls import postgres_from_url

_DESCRIPTION = """Measure starts, a drain and the latency, and in turn the same work as bare SQL by the same driver.

It makes a schema of its own and drops it at the end, also after Ctrl-C. The database has to work for it: not while
others depend on it. Without --url it runs on a Postgres of its own, which is gone afterwards.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure against bare SQL on a database of yours",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    # Not from the environment: what is there is an address for work, not for load.
    parser.add_argument("--url", metavar="ADDRESS", help=f"the Postgres to measure: {POSTGRES_FORMS}")
    parser.add_argument("--jobs", type=positive_int, default=5_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=positive_int, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=positive_int, default=100, metavar="N", help="of our worker (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    from queuert.testing.bench import BenchSettings
    from queuert.testing.bench import run as measure

    settings = BenchSettings(jobs=args.jobs, rounds=args.rounds, concurrency=args.concurrency)
    with _database(args.url) as dsn:
        report = measure(dsn, settings, lambda line: print(line, file=sys.stderr))
    if args.json:
        print_json(report.as_json())
    else:
        print(report.text())
    return 0


@contextlib.contextmanager
def _database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield postgres_from_url(url)[0]
        return
    from queuert.embedded import EmbeddedPostgres

    with EmbeddedPostgres() as server:
        yield server.dsn()
