"""``queuert dev chaos``: breaks workers, clients and their store by a seeded plan, and checks all jobs."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path

from queuert.cli.exit_codes import Exit, PrerequisiteError
from queuert.cli.options import Commands, add_command, current_directory_is_importable, positive_int, seconds

_DESCRIPTION = """Start a server, workers and clients, break them by a plan made from the seed,
and check the history of every job: no job lost, none committed twice.

The same seed gives the same starts and the same faults at the same times. The
interleaving of the processes differs from run to run. The run uses only
processes and servers of its own, and stops them at the end.

Exit code 3 also means that a fault that the profile requires did not happen,
that a step took too long, that memory or connections leak, or that a report
could not be written. After Ctrl-C the run first stops what it has started.
"""

_EXIT_CODES: Mapping[int, str] = {
    Exit.DONE: "all invariants hold, and all required faults happened",
    Exit.FAILED: "an invariant does not hold; the report shows which jobs",
    Exit.USAGE: "the arguments or the workload are wrong",
    Exit.UNAVAILABLE: "a server is missing, or the run is incomplete (see above)",
}


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "chaos",
        run,
        help="break workers and stores by a seeded plan, and check every job",
        description=_DESCRIPTION,
        parents=[debug],
        exit_codes=_EXIT_CODES,
    )
    parser.add_argument(
        "--profile", choices=("smoke", "full", "soak"), default="smoke", help="size of the run (default: %(default)s)"
    )
    parser.add_argument(
        "--store",
        choices=("postgres", "redis", "sqlite"),
        default="postgres",
        help="store to test (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="SEED", help="seed of the plan (default: %(default)s)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="number of jobs (default: of the profile)")
    parser.add_argument("--faults", type=positive_int, metavar="N", help="number of faults (default: of the profile)")
    parser.add_argument(
        "--seconds", type=seconds, metavar="SECONDS", help="duration of the faults (default: of the profile)"
    )
    parser.add_argument(
        "--workload",
        metavar="MODULE:ATTRIBUTE",
        help="run your handlers: a queuert.testing.chaos.Workload",
    )
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the report there, as JSON")
    parser.add_argument("--timeline", type=Path, metavar="PATH", help="write the timeline there, as HTML")
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="PATH",
        help="keep logs, records and the history in this empty directory",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from queuert.testing.chaos import PROFILES, ChaosSettings, run_chaos
    from queuert.testing.chaos.display import Display
    from queuert.testing.chaos.processes import ChaosError

    current_directory_is_importable()
    # The run breaks connections on purpose.
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
        raise PrerequisiteError(f"the chaos run failed: {error}") from error
    print(report.summary())
    return report.exit_code
