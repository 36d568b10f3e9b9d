"""The command line: ``queuert migrate``, ``worker``, ``chains``, ``jobs``, ``stats`` and others.

Each command has a module. Alembic, Spark and rich are imported only when a command that needs them runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from queuert.cli import (
    activity,
    boards,
    chains,
    check,
    demand,
    dev,
    doctor,
    events,
    health,
    history,
    job_types,
    jobs,
    metrics,
    migrate,
    operations,
    prune,
    schedules,
    stats,
    version,
    web,
    webhooks,
    why,
    worker,
    workers,
)
from queuert.cli.exit_codes import MEANINGS, Exit, exit_code, exit_code_text, one_line
from queuert.cli.options import Parser, debug_option
from queuert.cli.rights import of_command
from queuert.errors import RightMissingError

_EPILOG = f"""{exit_code_text(MEANINGS)}

queuert COMMAND --help shows the options and the exit codes of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments, without the program's name; by default those of this process.
    """
    try:
        args = build_parser().parsed(argv)
        args.arguments = list(sys.argv[1:] if argv is None else argv)
        args.owns_process = argv is None
    except SystemExit as end:  # --help, --version and wrong arguments: argparse has printed the message
        return end.code if isinstance(end.code, int) else Exit.DONE
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): keep the interpreter from flushing to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (Exception, KeyboardInterrupt) as error:
        if getattr(args, "debug", False):
            raise
        if isinstance(error, RightMissingError):
            error = of_command(error, args)
        print(f"queuert: {one_line(error) if isinstance(error, Exception) else 'interrupted'}", file=sys.stderr)
        return exit_code(error)


def build_parser() -> Parser:
    """The parser of the whole command line."""
    debug = debug_option()
    parser = Parser(
        prog="queuert",
        description="Durable, typed chains of jobs on Postgres, Redis or SQLite.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug],
    )
    parser.add_argument("--version", action="version", version=version.text(), help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    inspecting = (why, chains, operations, jobs, stats, demand, activity, events, job_types, schedules, webhooks, prune)
    operating = (migrate, doctor, check, worker, workers, web, health, *inspecting, metrics, boards)
    for command in (*operating, history, dev, version):
        command.add_to(commands, debug)
    return parser
