"""``queuert worker``: runs a worker as a process, one per container."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from queuert.cli import logs, otel
from queuert.cli.application import load_all, merged_job_types
from queuert.cli.exit_codes import MEANINGS, PrerequisiteError, UsageError, exit_code_text
from queuert.cli.list_options import age
from queuert.cli.options import (
    Commands,
    current_directory_is_importable,
    database_options,
    port,
    positive_int,
    positive_seconds,
    seconds,
    store,
)
from queuert.client import AsyncClient
from queuert.optional_packages import needing_extras
from queuert.worker import InProcessWorker
from queuert.worker.run import ExitCode

_log = logging.getLogger("queuert.worker")

_DESCRIPTION = """Run a worker until SIGTERM or Ctrl-C. Running jobs then have --shutdown-timeout
seconds to finish.

MODULE:ATTRIBUTE names a Processors, a sequence of them, an InProcessWorker, or
a function that returns one of these. Modules in the current directory can be
imported. Several targets make one worker of all their processors.

A function is called with those options that it has parameters for, such as
url, schema, otel or concurrency. A url without a default is that of --url or
QUEUERT_URL. Options of the worker override the settings of an InProcessWorker.
"""

_EXIT_CODES: Mapping[int, str] = {
    ExitCode.STOPPED: "stopped by a signal, all handlers finished",
    ExitCode.UNASKED: "a handler broke the event loop; the worker stopped",
    ExitCode.USAGE: MEANINGS[ExitCode.USAGE],
    ExitCode.UNAVAILABLE: "the database, its schema or a right is missing; no job was started",
    ExitCode.ABANDONED: "stopped by a signal, some handlers, or what they left, did not end",
    ExitCode.LIFESPAN: "the lifespan of processors failed; see the log",
}

_OF_THE_WORKER = {
    "concurrency": "--concurrency",
    "name": "--name",
    "shutdown_timeout": "--shutdown-timeout",
    "poll_interval": "--poll-interval",
    "claim_bytes": "--claim-bytes",
    "types": "--types",
    "exclude_types": "--exclude-types",
    "keep_schedules": "--keep-schedules",
}
_OF_THE_CLIENT = {"url": "--url", "schema": "--schema", "otel": "--otel", "otel_parent": "--otel-parent"}


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "worker",
        help="run a worker",
        description=_DESCRIPTION,
        epilog=exit_code_text(_EXIT_CODES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[debug, database_options()],
    )
    parser.add_argument(
        "applications", nargs="+", metavar="MODULE:ATTRIBUTE", help="the application, such as app.jobs:processors"
    )
    _add_settings(parser)
    _add_modes(parser)
    _add_process_options(parser)
    parser.set_defaults(run=run)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """The settings of the worker."""
    # Without a default here: InProcessWorker has the defaults.
    parser.add_argument(
        "--concurrency", type=positive_int, metavar="N", help="maximum number of handlers at once (default: 1)"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the worker (default: the host's name)")
    parser.add_argument(
        "--shutdown-timeout",
        type=seconds,
        metavar="SECONDS",
        help="time that running jobs have to finish (default: 30)",
    )
    parser.add_argument(
        "--poll-interval",
        type=seconds,
        metavar="SECONDS",
        help="maximum time between polls without a notification (default: 60)",
    )
    parser.add_argument(
        "--claim-bytes",
        type=positive_int,
        metavar="N",
        help="maximum total size of the inputs of claimed jobs (default: 67108864, 64 MiB)",
    )
    parser.add_argument(
        "--types", type=_names, metavar="NAMES", help="job types to handle, separated by commas (default: all)"
    )
    parser.add_argument(
        "--exclude-types", type=_names, metavar="NAMES", help="job types not to handle, separated by commas"
    )
    parser.add_argument(
        "--keep-schedules",
        action="store_true",
        default=None,
        help="keep schedules of this application that are not in its code any more",
    )


def _add_modes(parser: argparse.ArgumentParser) -> None:
    """When the worker ends, and when it starts again."""
    parser.add_argument("--once", action="store_true", help="exit with 0 when no job and no schedule is due any more")
    parser.add_argument(
        "--budget",
        type=_span,
        metavar="TIME",
        help="with --once: begin no jobs after this time, such as 20s or 5m (default: without end)",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: stop and start again when a Python file below the current directory changes; needs "
        "queuert[reload]",
    )


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    """The health file, the endpoints, the event loop and the log."""
    parser.add_argument("--health-file", type=Path, metavar="PATH", help="write a health file for queuert health")
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve /metrics, /live and /ready on this port; needs queuert[prometheus]",
    )
    parser.add_argument("--metrics-host", metavar="HOST", help="address of that port (default: 0.0.0.0)")
    parser.add_argument(
        "--stale-after",
        type=positive_seconds,
        metavar="SECONDS",
        help="time without progress after which /live fails (default: 30)",
    )
    parser.add_argument(
        "--event-loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="event loop of the handlers; uvloop needs queuert[uvloop] (default: asyncio)",
    )
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        help="lowest level that is logged (default: info, or what the application configures)",
    )
    parser.add_argument("--log-json", action="store_true", help="log JSON, one object per line")
    parser.add_argument(
        "--otel",
        action="store_true",
        default=None,
        help="trace with OpenTelemetry, and export by OTLP as the OTEL_* variables say; needs queuert[otel]",
    )
    parser.add_argument(
        "--otel-parent",
        choices=("link", "creator"),
        help="with --otel: each attempt is a trace of its own with a link to what created the job, or belongs to the "
        "creator's trace (default: link)",
    )


def _names(text: str) -> list[str]:
    """Names of job types, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return names


def _span(text: str) -> float:
    """A time above 0 in seconds, or with a unit."""
    if not text[-1:].isalpha():
        return positive_seconds(text)
    return positive_seconds(str(age(text).total_seconds()))


def run(args: argparse.Namespace) -> int:
    """Run the worker; returns its exit code."""
    from queuert.worker.run import run as run_worker

    if args.budget is not None and not args.once:
        raise UsageError("--budget needs --once: add it")
    if args.reload:
        return _run_reloading(args)
    with _stopped_before_it_began():
        worker = build(args)
        health_file = _checked_health_file(args.health_file)
        loop_factory = _loop_factory(args.event_loop)
        logs.configure(args.log_level, as_json=args.log_json)
        before = _what_keeps_a_process()
        with otel.exported() if args.otel else nullcontext(), _endpoints(worker, args):
            code = run_worker(
                worker, health_file=health_file, loop_factory=loop_factory, once=args.once, budget=args.budget
            )
        if args.owns_process:
            _limit_the_wait_for_leftovers(code, before)
        return code


_LEFTOVERS_TIMEOUT = 2.0
"""Seconds for threads and processes that handlers have left to end after the worker."""


def _what_keeps_a_process() -> set[threading.Thread | BaseProcess]:
    """The threads and child processes for whose end the interpreter waits without a timeout."""
    children = {child for child in multiprocessing.active_children() if not child.daemon}
    return children | {thread for thread in threading.enumerate() if not thread.daemon}


def _limit_the_wait_for_leftovers(code: int, before: set[threading.Thread | BaseProcess]) -> None:
    """Let the process end without the threads and processes that do not end in time. Call it when the process ends."""

    def end() -> None:
        # Idle threads of an executor end as soon as the interpreter begins to.
        time.sleep(_LEFTOVERS_TIMEOUT)
        left = sorted(one.name for one in _what_keeps_a_process() - before)
        others = [name for name in left if not name.startswith("queuert-")]
        if others:
            _log.warning(
                "threads or processes that handlers left behind do not end (%s): the process ends without them",
                ", ".join(others),
            )
        if left:
            logging.shutdown()
            os._exit(ExitCode.ABANDONED if others and code == ExitCode.STOPPED else code)

    threading.Thread(target=end, daemon=True).start()


_AFTER_SHUTDOWN = 15.0
"""Seconds beyond the shutdown timeout after which a worker that was told to stop is killed."""


def _run_reloading(args: argparse.Namespace) -> int:
    """Run the worker in a process of its own, and stop and start it when a Python file changes."""
    if args.once:
        raise UsageError("--reload and --once exclude each other: remove one")
    try:
        with needing_extras():
            from watchfiles import PythonFilter, run_process
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"--reload: {error}") from error
    # argparse takes an abbreviation of an option, too.
    options = [one for one in args.arguments if not (one.startswith("--rel") and "--reload".startswith(one))]
    logs.configure(args.log_level, as_json=args.log_json)
    run_process(
        Path.cwd(),
        target=shlex.join([sys.executable, "-m", "queuert", *options]),
        target_type="command",
        watch_filter=PythonFilter(),
        callback=lambda changes: _log.info("%d files have changed: the worker starts again", len(changes)),
        sigint_timeout=math.ceil((30.0 if args.shutdown_timeout is None else args.shutdown_timeout) + _AFTER_SHUTDOWN),
    )
    return ExitCode.STOPPED


@contextmanager
def _endpoints(worker: InProcessWorker, args: argparse.Namespace) -> Iterator[None]:
    """Serve health and metrics over HTTP, if a port was given."""
    settings = {"host": args.metrics_host, "stale_after": args.stale_after}
    given = {name: value for name, value in settings.items() if value is not None}
    if args.metrics_port is None:
        if given:
            raise UsageError("--metrics-host and --stale-after need --metrics-port: add it")
        yield
        return
    try:
        from queuert.worker.endpoints import worker_endpoints
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"--metrics-port: {error}") from error
    with worker_endpoints(worker, port=args.metrics_port, **given) as bound:
        _log.info("serving /metrics, /live and /ready on port %d", bound)
        yield


@contextmanager
def _stopped_before_it_began() -> Iterator[None]:
    """Exit with 0 on SIGTERM while the application is imported; later the worker has its own handler."""
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
        UsageError: an application or an option is wrong.
        DefinitionError: the processors contradict each other, or an option has a job type without a handler.
    """
    current_directory_is_importable()
    if args.otel_parent is not None and not args.otel:
        raise UsageError("--otel-parent needs --otel")
    settings, of_the_client = _given(args, _OF_THE_WORKER), _given(args, _OF_THE_CLIENT)
    application, passed = load_all(args.applications, {**settings, **of_the_client})
    if isinstance(application, InProcessWorker):
        if refused := [option for name, option in _OF_THE_CLIENT.items() if name in of_the_client.keys() - passed]:
            raise UsageError(
                f"{args.applications[0]!r} is an InProcessWorker with a client of its own: remove "
                f"{', '.join(refused)}, or name a function that has parameters for it and makes the client accordingly"
            )
        # What a function took, it has used as it saw fit.
        changed = {name: value for name, value in settings.items() if name not in passed}
        return application.with_settings(**changed) if changed else application
    state = store(args, application_name="queuert worker")
    client = AsyncClient(
        state, merged_job_types(application), middlewares=otel.middlewares(args.otel, args.otel_parent)
    )
    return InProcessWorker(client, application, **settings)


def _given(args: argparse.Namespace, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


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
    """Refuses a file that cannot be written: else the container would be restarted again and again."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"--health-file must be in an existing directory, got {path}: no directory {path.parent}")
    return path
