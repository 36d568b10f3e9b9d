"""``queuert chaos``: break workers, clients and their store by a seeded plan, and check that nothing was lost."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from queuert.cli.exit_codes import PrerequisiteError
from queuert.cli.options import Commands, current_directory_is_importable, positive_int, seconds

_DESCRIPTION = """Start a server, workers and clients, break all of them by a plan that is made of the seed, and check
the history of every job: nothing lost, nothing done twice.

The same seed gives the same starts and the same faults at the same moments. How processes interleave is not repeated.
Everything that it starts is its own, and is gone afterwards.
"""

_EPILOG = """exit codes:
  0    all invariants hold, and all that the profile asks for has happened
  1    an invariant does not hold; the report says which, and of which jobs
  2    the command line is wrong, or the workload that it names cannot be started
  3    something that must happen for the run to count did not, or took too long, or something leaks; or there is no
       server to run, the run itself failed, or a file could not be written at the end
  130  Ctrl-C (SIGINT), some seconds after it: everything that was started is ended first
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chaos",
        help="break everything by a seeded plan, and check that nothing was lost",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    parser.add_argument(
        "--profile", choices=("smoke", "full", "soak"), default="smoke", help="the size (default: %(default)s)"
    )
    parser.add_argument(
        "--store", choices=("postgres", "redis", "sqlite"), default="postgres", help="(default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the plan (default: %(default)s)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="starts, instead of the profile's")
    parser.add_argument("--faults", type=positive_int, metavar="K", help="faults, instead of the profile's")
    parser.add_argument("--seconds", type=seconds, metavar="SECONDS", help="over which they are spread")
    parser.add_argument(
        "--workload",
        metavar="MODULE:ATTRIBUTE",
        help="a queuert.testing.chaos.Workload: handlers of yours",
    )
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the report there, as JSON")
    parser.add_argument("--timeline", type=Path, metavar="PATH", help="write a page of HTML with the timeline there")
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="PATH",
        help="keep logs, records and the history in this directory, an empty one",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from queuert.testing.chaos import PROFILES, ChaosSettings, run_chaos
    from queuert.testing.chaos.display import Display
    from queuert.testing.chaos.processes import ChaosError

    current_directory_is_importable()
    # Connections break all the time, on purpose.
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    settings = ChaosSettings(
        profile=PROFILES[args.profile],
        seed=args.seed,
        store=args.store,
        jobs=args.jobs,
        faults=args.faults,
        seconds=args.seconds,
        workload=args.workload,
        directory=args.directory,
    )
    try:
        report = run_chaos(settings, display=Display(), timeline_file=args.timeline, report_file=args.report)
    except ChaosError as error:
        raise PrerequisiteError(f"the run itself failed: {error}") from error
    print(report.summary())
    return report.exit_code
