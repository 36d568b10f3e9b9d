"""``queuert worker``: a worker as a process, one per container."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queuert.cli import logs
from queuert.cli.application import load, merged_job_types
from queuert.cli.exit_codes import PrerequisiteError, UsageError
from queuert.cli.options import (
    Commands,
    current_directory_is_importable,
    database_options,
    positive_int,
    seconds,
    store,
)
from queuert.client import AsyncClient
from queuert.optional_packages import needing_extras
from queuert.worker import InProcessWorker, Processors
from queuert.worker.run import ExitCode

_DESCRIPTION = """Run a worker until SIGTERM or Ctrl-C, then let running jobs finish within the grace.

MODULE:ATTRIBUTE names a Processors, a sequence of them, an InProcessWorker that is ready to run, or a function that
returns one of these. The current directory is importable.
"""

_EPILOG = """exit codes:
  0  asked to stop, and all handlers ended
  2  the command line, or the application, is wrong
  3  the database cannot be reached, or has no schema: nothing was begun
  4  asked to stop, and some handlers would not end within the grace; their jobs were released
"""

_OF_THE_WORKER = {
    "concurrency": "--concurrency",
    "name": "--name",
    "shutdown_timeout": "--shutdown-timeout",
    "poll_interval": "--poll-interval",
    "claim_bytes": "--claim-bytes",
}
_OF_THE_CLIENT = {"url": "--url", "schema": "--schema"}


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "worker",
        help="run a worker",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug, database_options()],
    )
    parser.add_argument("application", metavar="MODULE:ATTRIBUTE", help="what to run, such as app.jobs:processors")
    # What is not given is left to the worker, so that its defaults are written down once.
    parser.add_argument("--concurrency", type=positive_int, metavar="N", help="handlers at once (default: 1)")
    parser.add_argument("--name", help="shown with its jobs (default: the host's name)")
    parser.add_argument(
        "--shutdown-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long running jobs may take to finish (default: 30)",
    )
    parser.add_argument(
        "--poll-interval", type=seconds, metavar="SECONDS", help="between looks without a notification (default: 60)"
    )
    parser.add_argument(
        "--claim-bytes",
        type=positive_int,
        metavar="N",
        help="memory for the inputs of all jobs that it has claimed (default: 67108864, 64 MB)",
    )
    parser.add_argument("--health-file", type=Path, metavar="PATH", help="keep a file for queuert health")
    parser.add_argument(
        "--event-loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="what coroutines run on; uvloop needs queuert[uvloop] (default: asyncio)",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info", help="(default: info)")
    parser.add_argument("--log-json", action="store_true", help="log one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the worker; returns its exit code."""
    from queuert.worker.run import run as run_worker

    with _stopped_before_it_began():
        worker = build(args)
        health_file = _checked_health_file(args.health_file)
        loop_factory = _loop_factory(args.event_loop)
        logs.configure(args.log_level, as_json=args.log_json)
        return run_worker(worker, health_file=health_file, loop_factory=loop_factory)


@contextmanager
def _stopped_before_it_began() -> Iterator[None]:
    """Let SIGTERM end the process with 0 while the application is imported; the worker's own handler follows."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        # At once: an exception could be raised inside a callback that swallows it, and nothing was begun.
        os._exit(ExitCode.STOPPED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, before)


def build(args: argparse.Namespace) -> InProcessWorker:
    """The worker that the arguments describe.

    Raises:
        UsageError: the application, or an option, does not fit.
    """
    current_directory_is_importable()
    application = load(args.application)
    if isinstance(application, InProcessWorker):
        _refuse_settings(args)
        return application
    return _new_worker(application, args)


def _new_worker(groups: list[Processors], args: argparse.Namespace) -> InProcessWorker:
    state = store(args, application_name="queuert worker")
    client = AsyncClient(state, merged_job_types(groups))
    return InProcessWorker(client, groups, **_given(args, _OF_THE_WORKER))


def _given(args: argparse.Namespace, names: dict[str, str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _refuse_settings(args: argparse.Namespace) -> None:
    options = {**_OF_THE_WORKER, **_OF_THE_CLIENT}
    given = [options[name] for name in _given(args, options)]
    if given:
        raise UsageError(f"{args.application!r} is a worker with settings of its own: leave out {', '.join(given)}")


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "asyncio":
        return None
    try:
        with needing_extras():
            import uvloop
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"--event-loop uvloop: {error}") from error
    return uvloop.new_event_loop


def _checked_health_file(path: Path | None) -> Path | None:
    """A file that cannot be written would show much later, as a container that is restarted again and again."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"--health-file {path}: there is no directory {path.parent}")
    return path
