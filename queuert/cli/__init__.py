"""The command line: ``queuert migrate``, ``worker``, ``chains``, ``jobs``, ``counts`` and others.

One module a command. What is heavy (Alembic, Spark, rich) is imported by the command that needs it, when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from queuert.cli import (
    bench,
    chains,
    chaos,
    counts,
    demo,
    events,
    health,
    history,
    job_types,
    jobs,
    migrate,
    schedules,
    version,
    worker,
    workers,
)
from queuert.cli.exit_codes import Exit, exit_code, one_line
from queuert.cli.options import Parser, debug_option

_EPILOG = """exit codes:
  0  done
  1  the answer is no (revisions are pending, a worker is unhealthy, the demo's proof does not hold), or it failed
  2  the command line, or the application that it names, is wrong
  3  something that is needed is not there: the database, its schema, Java, a package
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments, without the program's name; by default those of this process.
    """
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:  # --help, --version and wrong arguments: argparse has said what there is to say
        return end.code if isinstance(end.code, int) else Exit.DONE
    try:
        return int(args.run(args))
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); the interpreter's own flush at the end must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (Exception, KeyboardInterrupt) as error:
        if getattr(args, "debug", False):
            raise
        print(f"queuert: {one_line(error) if isinstance(error, Exception) else 'interrupted'}", file=sys.stderr)
        return exit_code(error)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    debug = debug_option()
    parser = Parser(
        prog="queuert",
        description="Durable, typed chains of jobs on Postgres.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    parser.add_argument("--version", action="version", version=version.text())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    operating = (migrate, worker, workers, health, chains, jobs, counts, events, job_types, schedules)
    for command in (*operating, history, bench, demo, chaos, version):
        command.add_to(commands, debug)
    return parser
