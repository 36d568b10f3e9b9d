"""``queuert stats``: how many jobs there are, and how old the oldest is."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import operator, output_options, type_option, warn_of_unknown_types
from queuert.cli.options import Commands, add_command, database_options
from queuert.cli.output import print_json, print_table, shown
from queuert.jobs import JobStatus
from queuert.limits import PausedType
from queuert.workers import claimed_types, stopping_workers

_DESCRIPTION = """Count jobs by type and status.

Counts up to 10,000 are exact; ~ marks an estimate. oldest_seconds is the age of
the oldest job: of ready ones since it became due, of scheduled ones 0; of
others on Postgres alone, of up to 1,000 jobs: since it finished, or else since
it became due. Where it is not read there is a -. The note says what holds jobs
of the type: a pause, limits, that clients complete them, or that no live worker
handles it; queuert why ID says it of one job.
"""

_COLUMNS = ("type", "status", "count", "oldest_seconds", "note")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "stats",
        run,
        help="count jobs by type and status",
        description=_DESCRIPTION,
        parents=[debug, database_options(), output_options()],
    )
    type_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the numbers."""
    with operator(args) as client:
        paused = {one.type: one for one in client.list_paused_job_types()}
        workers = client.list_workers()
        handled = claimed_types(workers)
        held_back = {one.type: one.held_back for one in client.get_demand(args.types)}
        by_clients = {one.type: one.overdue_after for one in client.list_client_types()}
        counts = [
            {
                **asdict(count),
                **_pause(paused.get(count.type)),
                "handled": count.type in handled,
                "completed_by": "client" if count.type in by_clients else "worker",
                "overdue_after": by_clients.get(count.type),
                "held_back": held_back.get(count.type, 0) if count.status is JobStatus.READY else 0,
            }
            for count in client.count_jobs(args.types)
        ]
        warn_of_unknown_types(client, args.types)
    if args.json:
        print_json({"items": counts, "next_cursor": None})
        return Exit.DONE
    for count in counts:
        count["note"] = None if count["status"].final else _note(count, stopping_workers(workers, count["type"]))
        count["count"] = f"{'~' if count['estimated'] else ''}{count['count']}"
    print_table(counts, _COLUMNS)
    return Exit.DONE


def _pause(pause: PausedType | None) -> dict[str, Any]:
    if pause is None:
        return {"paused": False, "paused_at": None, "paused_by": None, "pause_reason": None}
    return {"paused": True, "paused_at": pause.paused_at, "paused_by": pause.by, "pause_reason": pause.reason}


def _note_of_clients(count: dict[str, Any]) -> str:
    waited, allowed = count["oldest_seconds"], count["overdue_after"]
    is_overdue = count["status"] is JobStatus.READY and allowed is not None and waited is not None and waited > allowed
    return "clients complete it; the oldest is overdue" if is_overdue else "clients complete it"


def _note(count: dict[str, Any], stopping: str) -> str | None:
    if count["completed_by"] == "client":
        return _note_of_clients(count)
    notes = []
    if count["paused"]:
        by = "" if count["paused_by"] is None else f" by {count['paused_by']}"
        why = "" if count["pause_reason"] is None else f": {count['pause_reason']}"
        notes.append(f"paused since {shown(count['paused_at'])}{by}{why}")
    elif count["held_back"]:
        notes.append(f"limits hold back {count['held_back']}")
    if not count["handled"]:
        notes.append("no live worker handles it")
        if stopping:
            notes.append(stopping)
    return "; ".join(notes) or None
