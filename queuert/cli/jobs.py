"""``queuert jobs``: list, show and trigger jobs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from typing import Any

from queuert.cli import why
from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import command_with_actions, list_arguments, list_options, operator, warn_of_unknown_types
from queuert.cli.options import Commands
from queuert.cli.output import fields, print_fields, print_json, print_page, print_table
from queuert.jobs import Blocker, Job, JobFailure, JobStatus, JobStep
from queuert.phases import JobPhase

_DESCRIPTION = """List, show and trigger jobs: the first jobs of chains and their continuations.

  queuert jobs list --type resize --status running
"""

_COLUMNS = ("id", "chain_id", "type", "status", "attempt", "created_at", "scheduled_at", "finished_at", "last_error")
_PHASE_COLUMNS = ("number", "name", "status", "attempt", "started_at", "completed_at", "progress", "error")
_STEP_COLUMNS = ("number", "name", "attempt", "recorded_at", "wake_at", "answered_at", "result")
_FAILURE_COLUMNS = ("attempt", "failed_at", "worker", "kind", "error")
_BLOCKER_COLUMNS = ("chain_id", "type", "status", "output", "error")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "jobs", help="list, show and trigger jobs", description=_DESCRIPTION
    )
    list_options(
        actions.add(
            "list",
            run_list,
            "list jobs",
            "A scheduled job that is due is listed as ready.",
        ),
        [status.value for status in JobStatus],
    )
    show = actions.add(
        "show", run_show, "show a job, its input and output, phases, steps, failed attempts, and blockers"
    )
    show.add_argument("id", metavar="ID", help="id of the job")
    trigger = actions.add(
        "trigger", run_trigger, "make scheduled jobs due now", "If one of them cannot be triggered, none is."
    )
    trigger.add_argument("ids", nargs="+", metavar="ID", help="id of a job")


def run_list(args: argparse.Namespace) -> int:
    """Print a page of jobs."""
    with operator(args) as client:
        page = client.list_jobs(**list_arguments(args))
        warn_of_unknown_types(client, args.types)
    rows = [fields(job) if args.json else _shallow(job) for job in page]
    print_page(rows, _COLUMNS, as_json=args.json, next_cursor=page.next_cursor)
    return Exit.DONE


def run_show(args: argparse.Namespace) -> int:
    """Print a job, its steps, its failed attempts and its blockers."""
    with operator(args) as client:
        job = client.get_job(args.id)
        steps = client.get_steps(args.id)
        phases = client.get_phases(args.id)
        blockers = client.get_blockers(args.id)
        explanation = why.of_open_chain(client, args.id)
    if args.json:
        lists: dict[str, Sequence[Any]] = {"phases": phases, "steps": steps, "blockers": blockers}
        print_json({**fields(job), **{name: list(map(fields, found)) for name, found in lists.items()}})
        return Exit.DONE
    print_fields({name: value for name, value in _shallow(job).items() if name != "failures"})
    if phases:
        print("\nphases:")
        print_table(list(map(_shallow, phases)), _PHASE_COLUMNS, indent="  ")
    if steps:
        print("\nsteps:")
        print_table(list(map(_shallow, steps)), _STEP_COLUMNS, indent="  ")
    if job.failures:
        print("\nfailed attempts:")
        rows = [{**_shallow(one), "kind": one.error.kind, "error": str(one.error)} for one in job.failures]
        print_table(rows, _FAILURE_COLUMNS, indent="  ")
    if blockers:
        print("\nblockers:")
        print_table([_shallow(blocker) for blocker in blockers], _BLOCKER_COLUMNS, indent="  ")
    if explanation is not None and explanation.job_id == job.id:
        why.print_below(explanation)
    if job.last_error is not None and job.last_error.traceback:
        print("\ntraceback of the last error:")
        for line in job.last_error.traceback.splitlines():
            print(f"  {''.join(one if one.isprintable() else ' ' for one in line)}")
    return Exit.DONE


def run_trigger(args: argparse.Namespace) -> int:
    """Make jobs due, and print how many."""
    with operator(args) as client:
        client.trigger_jobs(args.ids)
    count = len(dict.fromkeys(args.ids))
    if args.json:
        print_json({"triggered": count})
    else:
        print(f"triggered {count}")
    return Exit.DONE


def _shallow(value: Job | JobFailure | JobPhase | JobStep | Blocker) -> dict[str, Any]:
    # Unlike fields(), keeps an error whole, which is then shown in one line.
    return {one.name: getattr(value, one.name) for one in dataclass_fields(value)}
