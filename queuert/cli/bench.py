"""``queuert dev bench``: measures Queuert against bare SQL on your database."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from queuert.cli.options import POSTGRES_FORMS, Commands, add_command, positive_int
from queuert.cli.output import print_json
from queuert.urls import postgres_from_url

_DESCRIPTION = """Measure starts, a drain and the latency of Queuert, and alternately the same
work as bare SQL through the same driver.

The benchmark creates a schema and drops it at the end, also after Ctrl-C. It
loads the database: do not run it against one in production. Without --url it
starts a temporary Postgres server.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "bench",
        run,
        help="measure Queuert against bare SQL on your database",
        description=_DESCRIPTION,
        parents=[debug],
    )
    # QUEUERT_URL is ignored: it names the database of an application, which must not get this load.
    parser.add_argument("--url", metavar="ADDRESS", help=f"the Postgres server to measure: {POSTGRES_FORMS}")
    parser.add_argument(
        "--jobs", type=positive_int, default=5_000, metavar="N", help="number of jobs (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=positive_int, default=3, metavar="N", help="number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency",
        type=positive_int,
        default=100,
        metavar="N",
        help="concurrency of the worker (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


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
