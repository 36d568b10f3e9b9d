"""``queuert dev demo``: Queuert end to end, with real processes and a real database."""

from __future__ import annotations

import argparse
from pathlib import Path

from queuert.cli.exit_codes import Exit
from queuert.cli.options import POSTGRES_FORMS, Commands, add_command, positive_int, seconds

_DESCRIPTION = """Index the standard library of this Python. A Spark driver starts a chain of jobs
for each source file, and two worker processes run them. Half way, one worker is
killed and a third one takes over. The driver receives the results as a
DataFrame and rolls up the event log into a page with charts. At the end, SQL
queries prove that no job was lost and none was committed twice.

Without --url it starts a temporary Postgres server.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "demo",
        run,
        help="run a Spark driver and workers, and kill a worker half way",
        description=_DESCRIPTION,
        parents=[debug],
        exit_codes={Exit.DONE: "the proof holds", Exit.FAILED: "the proof does not hold, or the demo failed"},
    )
    # QUEUERT_URL is ignored: it names the database of an application.
    parser.add_argument(
        "--url",
        metavar="ADDRESS",
        help=f"the Postgres server to use, in a schema that is dropped at the end: {POSTGRES_FORMS}",
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="run the same chains without Spark, and without the history"
    )
    parser.add_argument("--files", type=positive_int, metavar="N", help="maximum number of files (default: all)")
    parser.add_argument(
        "--workers", type=positive_int, default=2, metavar="N", help="number of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency",
        type=positive_int,
        default=8,
        metavar="N",
        help="concurrency of each worker (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=seconds,
        default=3.0,
        metavar="SECONDS",
        help="lease per job, renewed after a third of it (default: %(default)g)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="write the report there, as Markdown, and next to it the run as -run.html and the history as .html",
    )
    parser.add_argument("--no-dashboard", action="store_true", help="do not serve the dashboard while it runs")
    parser.add_argument("--keep", action="store_true", help="keep the database, and print how to open it")


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns its exit code."""
    from queuert.demo.settings import DemoSettings
    from queuert.demo.show import run as run_demo
    from queuert.migrations import checked_dsn

    if args.url is not None:
        checked_dsn(args.url)
    settings = DemoSettings(
        url=args.url,
        spark=not args.no_spark,
        files=args.files,
        workers=args.workers,
        concurrency=args.concurrency,
        lease=args.lease,
        report=None if args.report is None else args.report.absolute(),
        keep=args.keep,
        dashboard=not args.no_dashboard,
    )
    return run_demo(settings)
