"""``queuert demo``: the main job, end to end, on real parts."""

from __future__ import annotations

import argparse
from pathlib import Path

from queuert.cli.options import POSTGRES_FORMS, Commands, positive_int, seconds
from queuert.migrations import checked_dsn

_DESCRIPTION = """Index the standard library of this Python: a Spark driver starts a chain of jobs for each source file,
two worker processes run them, one of them is killed half way, a third takes over, and SQL proves that nothing was
lost and nothing was committed twice. The driver waits for the answers, which come back to it as a DataFrame, and rolls
up the event log into a page with charts.

Without --url it runs on a Postgres of its own, which is gone afterwards.
"""

_EPILOG = """exit codes:
  0    the proof holds
  1    it does not
  2    the command line is wrong
  3    something that is needed is not there; the message says how to get it
  130  Ctrl-C
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="run the main job end to end, with a kill",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    # Not from the environment: what is there is an address for work, not for play.
    parser.add_argument(
        "--url",
        metavar="ADDRESS",
        help=f"a Postgres to use, in a schema of the demo's own that is dropped at the end: {POSTGRES_FORMS}",
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="without Spark, and without the history; the chains are the same"
    )
    parser.add_argument("--files", type=positive_int, metavar="N", help="at most so many files (default: all)")
    parser.add_argument("--workers", type=positive_int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=positive_int, default=8, metavar="N", help="of each worker (default: %(default)s)"
    )
    parser.add_argument(
        "--lease", type=seconds, default=3.0, metavar="SECONDS", help="of a job, renewed thrice (default: %(default)g)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="keep the report, a Markdown file, and beside it the history as .html",
    )
    parser.add_argument("--keep", action="store_true", help="leave the database, and say how to look at it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns its exit code."""
    from queuert.demo.settings import DemoSettings
    from queuert.demo.show import run as run_demo

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
    )
    return run_demo(settings)
