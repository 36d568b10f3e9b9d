"""``queuert jobs``: list, show and trigger jobs."""

from __future__ import annotations

import argparse

from queuert.cli import why
from queuert.cli.exit_codes import Exit
from queuert.cli.list_options import (
    command_with_actions,
    list_arguments,
    list_options,
    operator,
    payloads_option,
    warn_of_unknown_types,
)
from queuert.cli.options import Commands
from queuert.cli.output import columns_of, document_of, print_fields, print_json, print_page, print_table, print_values
from queuert.documents import BlockerDocument, JobDocument, PhaseDocument, StepDocument
from queuert.jobs import JobStatus
from queuert.state.records import JOB

_DESCRIPTION = """List, show and trigger jobs: the first jobs of chains and their continuations.

  queuert jobs list --type resize --status running
"""

_COLUMNS = (
    "id",
    "chain_id",
    "type",
    "status",
    "attempt",
    "lease_expirations",
    "created_at",
    "scheduled_at",
    "finished_at",
    "last_error",
)
_FIELDS = [name for name in JOB if name != "failures"]
_PHASE_COLUMNS = ("number", "name", "status", "attempt", "started_at", "completed_at", "progress", "error")
_STEP_COLUMNS = ("number", "name", "attempt", "recorded_at", "wake_at", "answered_at", "result")
_FAILURE_COLUMNS = ("attempt", "failed_at", "worker", "kind", "error")
_BLOCKER_COLUMNS = ("chain_id", "type", "status", "output", "error")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "jobs", help="list, show and trigger jobs", description=_DESCRIPTION
    )
    listed = actions.add("list", run_list, "list jobs", "A scheduled job that is due is listed as ready.")
    list_options(listed, [status.value for status in JobStatus])
    payloads_option(listed)
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
    print_page(page, _COLUMNS, JobDocument, as_json=args.json, payloads=args.payloads, next_cursor=page.next_cursor)
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
        lists = {
            "phases": [document_of(one, PhaseDocument) for one in phases],
            "steps": [document_of(one, StepDocument) for one in steps],
            "blockers": [document_of(one, BlockerDocument) for one in blockers],
        }
        print_json({**document_of(job, JobDocument), **lists})
        return Exit.DONE
    print_fields(columns_of(job, _FIELDS))
    if phases:
        print("\nphases:")
        print_values(phases, _PHASE_COLUMNS, PhaseDocument, payloads=True, indent="  ")
    if steps:
        print("\nsteps:")
        print_values(steps, _STEP_COLUMNS, StepDocument, payloads=True, indent="  ")
    if job.failures:
        print("\nfailed attempts:")
        rows = [
            {**columns_of(one, _FAILURE_COLUMNS[:3]), "kind": one.error.kind, "error": str(one.error)}
            for one in job.failures
        ]
        print_table(rows, _FAILURE_COLUMNS, indent="  ")
    if blockers:
        print("\nblockers:")
        print_values(blockers, _BLOCKER_COLUMNS, BlockerDocument, payloads=True, indent="  ")
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
