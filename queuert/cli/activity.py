"""``queuert activity``: what workers did, by job type."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.activity import Activity, Histogram, summed
from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import moment, operator, output_options, type_option, warn_of_unknown_types
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import print_json, print_table

_DESCRIPTION = """Show what workers did of each job type: how many attempts started a minute, how
many jobs completed, failed or are tried again, and how long half of the
attempts, and 95 percent, waited and ran at most.

Workers report every 20 seconds. Durations are right within a factor of 1.42.
Older than six hours there are only whole hours.
"""

_COLUMNS = (
    "type", "started/min", "started", "completed", "failed", "retried", "wait p50", "wait p95", "run p50", "run p95",
)  # fmt: skip

_UNITS = ((1.0, 0.001, "ms"), (120.0, 1.0, "s"), (7_200.0, 60.0, "min"), (float("inf"), 3_600.0, "h"))
"""Below so many seconds, the seconds of the unit, and its name."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "activity",
        run,
        help="show what workers did, by job type",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    type_option(parser)
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="from this time on: 2024-12-31T18:00Z, or an age: 15m, 2h, 7d (default: 1h)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the sums."""
    now = datetime.now(UTC)
    since = args.since or now - timedelta(hours=1)
    with operator(args) as client:
        found = client.get_activity(args.types, since=since)
        if not found:
            warn_of_unknown_types(client, args.types)
    seconds = max(1.0, (now - since).total_seconds())
    sums = summed(found, lambda one: (since, round(seconds), one.type, None))
    if args.json:
        print_json({"since": since, "seconds": seconds, "items": [_fields(one) for one in sums]})
    else:
        print_table([_row(one, seconds) for one in sums], _COLUMNS)
    return Exit.DONE


def _row(one: Activity, seconds: float) -> dict[str, Any]:
    return {
        "type": one.type,
        "started/min": one.started * 60 / seconds,
        **{name: getattr(one, name) for name in ("started", "completed", "failed", "retried")},
        "wait p50": _shown(one.wait.quantile(0.5)),
        "wait p95": _shown(one.wait.quantile(0.95)),
        "run p50": _shown(one.run.quantile(0.5)),
        "run p95": _shown(one.run.quantile(0.95)),
    }


def _fields(one: Activity) -> dict[str, Any]:
    """All counts, and of each histogram the buckets and the quantiles in seconds."""
    return {**asdict(one), "wait": _histogram(one.wait), "run": _histogram(one.run)}


def _histogram(one: Histogram) -> dict[str, Any]:
    quantiles = {f"p{share:g}": one.quantile(share / 100) for share in (50, 95, 99)}
    return {"buckets": one.buckets, **quantiles}


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    unit, name = next((unit, name) for below, unit, name in _UNITS if seconds < below)
    value = seconds / unit
    return f"{value:.0f} {name}" if value >= 9.95 else f"{value:.2g} {name}"
