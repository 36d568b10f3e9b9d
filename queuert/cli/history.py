"""``queuert history``: rollups of the event log, an archive of closed chains, and a report, by Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from queuert.cli.exit_codes import Exit, PrerequisiteError
from queuert.cli.list_options import age, command_with_actions, type_option
from queuert.cli.options import Commands, positive_int, postgres
from queuert.cli.output import print_fields, print_json
from queuert.optional_packages import needing_extras

if TYPE_CHECKING:
    from queuert.spark.history import Progress

_DESCRIPTION = """Write the history of a queue to files with Spark, which runs in this process.

Run "queuert history run" every night. It writes rollups by type and hour,
copies closed chains older than --older-than to Parquet files by date, counts
them there, deletes them from the database, and writes report.html. Completed
work is not repeated, and the next run continues one that failed. Needs
Postgres, the package queuert[spark] and Java.
"""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "history", help="roll up, archive and report with Spark", description=_DESCRIPTION
    )
    whole = actions.add("run", run_all, "roll up, archive and delete old chains, and report")
    only_rollup = actions.add("rollup", run_rollup, "write rollups by type and hour, of complete hours")
    only_archive = actions.add("archive", run_archive, "archive and delete chains that closed long ago")
    only_report = actions.add("report", run_report, "write report.html again from the rollups")
    for parser in (whole, only_rollup, only_archive, only_report):
        _common_options(parser)
    for parser in (whole, only_archive):
        _archive_options(parser)
    for parser in (whole, only_report):
        parser.add_argument(
            "--days",
            type=positive_int,
            default=14,
            metavar="N",
            help="days that the report shows (default: %(default)s)",
        )
    for parser in (whole, only_rollup):
        parser.add_argument(
            "--current-hour",
            action="store_true",
            help="include the current hour; a later run writes it again",
        )
    for parser in (whole, only_rollup, only_archive):
        parser.add_argument(
            "--partitions",
            type=positive_int,
            default=4,
            metavar="N",
            help="partitions to read tables in (default: %(default)s)",
        )


def _common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", required=True, metavar="PATH", help="a directory or URL, used for this database and schema only"
    )
    parser.add_argument("--cores", type=positive_int, metavar="N", help="cores for Spark (default: all)")
    parser.add_argument("--quiet", action="store_true", help="do not print progress")


def _archive_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        required=True,
        type=age,
        metavar="AGE",
        help="archive chains that closed longer ago than this: 30d, 12h, 90m or 0s",
    )
    type_option(parser, "only chains whose first job has this type; may be repeated")
    parser.add_argument("--no-events", action="store_true", help="do not archive the events of the chains")
    parser.add_argument(
        "--batch",
        type=positive_int,
        default=1_000,
        metavar="N",
        help="chains to delete at once (default: %(default)s)",
    )


def run_all(args: argparse.Namespace) -> int:
    """Do all of it."""
    address = _address(args)
    with _session(args) as spark:
        from queuert.spark.history import run_history

        chosen = {"days": args.days, "current_hour": args.current_hour}
        done = run_history(spark, output=args.output, **chosen, **address, **_archiving(args), **_shared(args))
    _print(args, asdict(done))
    return Exit.DONE


def run_rollup(args: argparse.Namespace) -> int:
    """Write the rollups."""
    address = _address(args)
    with _session(args) as spark:
        from queuert.spark.history import run_rollup

        done = run_rollup(spark, output=args.output, current_hour=args.current_hour, **address, **_shared(args))
    _print(args, asdict(done))
    return Exit.DONE


def run_archive(args: argparse.Namespace) -> int:
    """Archive and delete."""
    address = _address(args)
    with _session(args) as spark:
        from queuert.spark.history import run_archive

        done = run_archive(spark, output=args.output, **address, **_archiving(args), **_shared(args))
    _print(args, {"archives": [asdict(one) for one in done]})
    return Exit.DONE


def run_report(args: argparse.Namespace) -> int:
    """Write the report."""
    with _session(args) as spark:
        from queuert.spark.history import run_report

        path = run_report(spark, args.output, days=args.days, on_progress=_progress_printer(args))
    _print(args, {"report": path})
    return Exit.DONE


@contextmanager
def _session(args: argparse.Namespace) -> Iterator[Any]:
    """A Spark session in this process, stopped at the end."""
    try:
        with needing_extras():
            for name in ("pyspark", "pyarrow"):
                import_module(name)
    except ModuleNotFoundError as error:
        raise PrerequisiteError(str(error)) from error
    from queuert.spark.session import local_session

    spark = local_session("*" if args.cores is None else args.cores, app_name="queuert history")
    try:
        yield spark
    finally:
        spark.stop()


def _address(args: argparse.Namespace) -> dict[str, Any]:
    dsn, schema = postgres(args)
    return {"url": dsn, "schema": schema}


def _shared(args: argparse.Namespace) -> dict[str, Any]:
    return {"partitions": args.partitions, "on_progress": _progress_printer(args)}


def _archiving(args: argparse.Namespace) -> dict[str, Any]:
    older_than: timedelta = args.older_than
    return {"older_than": older_than, "types": args.types, "events": not args.no_events, "batch": args.batch}


def _progress_printer(args: argparse.Namespace) -> Any:
    def report(progress: Progress) -> None:
        if not args.quiet:
            of = "" if progress.total is None else f" (of {progress.total:,})"
            print(f"{progress.text}{of}", file=sys.stderr, flush=True)

    return report


def _print(args: argparse.Namespace, values: Mapping[str, Any]) -> None:
    if args.json:
        print_json(values)
        return
    for name, value in values.items():
        entries = value if isinstance(value, list | tuple) else [value]
        for entry in entries:
            print_fields(
                {f"{name} {key}": one for key, one in entry.items()} if isinstance(entry, dict) else {name: entry}
            )
