"""``queuert workers``: the workers that are alive."""

from __future__ import annotations

import argparse

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import print_page
from queuert.documents import WorkerDocument

_DESCRIPTION = """List the workers that sent a heartbeat within the last minute, the longest
running first.

The id is the holder of the jobs that a worker runs. A worker that was killed
is listed for up to a minute.
"""

_COLUMNS = ("id", "host", "pid", "version", "state", "running", "concurrency", "started_at", "seen_at", "job_types")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    add_command(
        commands,
        "workers",
        run,
        help="list the workers that are alive",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )


def run(args: argparse.Namespace) -> int:
    """Print the workers."""
    with operator(args) as client:
        workers = client.list_workers()
    print_page(workers, _COLUMNS, WorkerDocument, as_json=args.json)
    return Exit.DONE
