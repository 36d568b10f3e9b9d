"""``queuert check``: whether the handlers, job types and schedules of an application fit together."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuert.cli.application import imported, load
from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import output_options
from queuert.cli.options import Commands, add_command
from queuert.cli.output import print_json
from queuert.client import AsyncClient, Client
from queuert.job_types import JobType, JobTypes
from queuert.schedules import RecurringSchedule
from queuert.worker import InProcessWorker, Processors
from queuert.worker.handler_signature import name_of

_DESCRIPTION = """Check that the handlers, job types and schedules of an application fit together.

It reads the Processors, JobTypes, schedules, clients and workers of modules, or
what MODULE:ATTRIBUTE names, and connects to nothing. Name all modules that one
fleet of workers runs: what a job type needs may be in any of them.
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit."""

    kind: str
    """``type_without_handler``, ``handler_without_type``, ``continuation_without_handler``,
    ``blocker_without_handler``, ``schedule_of_unknown_type`` or ``two_handlers``."""
    name: str
    """Of the job type, or of the schedule."""
    text: str


@dataclass(slots=True)
class Found:
    """What the targets have."""

    groups: dict[int, Processors] = field(default_factory=dict)
    declared: dict[str, JobType[Any, Any]] = field(default_factory=dict)
    """The job types of ``JobTypes`` and clients that stand on their own, by name."""
    of_groups: dict[str, JobType[Any, Any]] = field(default_factory=dict)
    """The job types that processors may handle."""
    schedules: dict[int, RecurringSchedule] = field(default_factory=dict)

    def add(self, value: object) -> None:
        """Add a value of an application; others are left out."""
        if isinstance(value, Processors):
            self.groups[id(value)] = value
            self.of_groups.update({one.name: one for one in value.job_types})
            self.add(value.schedules)
        elif isinstance(value, JobTypes):
            self.declared.update({one.name: one for one in value})
        elif isinstance(value, AsyncClient | Client):
            self.add(value.job_types)
        elif isinstance(value, InProcessWorker):
            self.add(value.client)
            self.add(value.processors)
            self.add(value.schedules)
        elif isinstance(value, RecurringSchedule):
            self.schedules[id(value)] = value
        elif isinstance(value, list | tuple):
            for one in value:
                if isinstance(one, Processors | RecurringSchedule):
                    self.add(one)

    @property
    def known(self) -> dict[str, JobType[Any, Any]]:
        """All job types, by name."""
        return {**self.of_groups, **self.declared}

    @property
    def handlers(self) -> dict[str, list[str]]:
        """The names of the handlers of each job type."""
        found: dict[str, list[str]] = {}
        for group in self.groups.values():
            for processor in group:
                found.setdefault(processor.job_type.name, []).append(name_of(processor.handler))
        return found


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "check",
        run,
        help="check handlers, job types and schedules of an application",
        description=_DESCRIPTION,
        parents=[debug, output_options()],
        exit_codes={Exit.FAILED: "something does not fit"},
    )
    parser.add_argument(
        "targets", nargs="+", metavar="MODULE[:ATTRIBUTE]", help="a module, such as app.jobs, or app.jobs:processors"
    )


def run(args: argparse.Namespace) -> int:
    """Print what does not fit; 1 if there is anything."""
    found = read(args.targets)
    problems = list(problems_of(found))
    handled = len(found.handlers)
    names = sorted(schedule.name for schedule in found.schedules.values())
    if args.json:
        counts = {"types": len(found.known), "handlers": handled, "schedules": names}
        print_json({**counts, "problems": problems})
    else:
        for problem in problems:
            print(problem.text)
        listed = f" ({', '.join(names)})" if names else ""
        print(
            f"problems: {len(problems)}; job types: {len(found.known)}; with a handler: {handled}; "
            f"schedules: {len(names)}{listed}"
        )
    return Exit.FAILED if problems else Exit.DONE


def read(targets: Sequence[str]) -> Found:
    """Import the targets, and return what they have.

    Raises:
        UsageError: a target cannot be imported, or none of them has processors.
    """
    found = Found()
    for target in targets:
        if ":" in target:
            loaded = load(target)
            found.add(loaded)
        else:
            for value in list(vars(imported(target)).values()):
                found.add(value)
    if not found.groups:
        raise UsageError(f"the targets must have a Processors, got {', '.join(targets)} without any")
    return found


def problems_of(found: Found) -> Iterator[Problem]:
    """Yield what does not fit, by kind and name."""
    handlers, known = found.handlers, found.known
    ended = handlers.keys() | {name for name, job_type in known.items() if job_type.completed_by == "client"}
    for name in sorted(known.keys() - ended):
        yield Problem("type_without_handler", name, f"job type {name!r} has no handler: no worker runs its jobs")
    for name, several in sorted(handlers.items()):
        if len(several) > 1:
            text = f"job type {name!r} has several handlers, {', '.join(several)}: remove all but one"
            yield Problem("two_handlers", name, text)
        if found.declared and name not in found.declared:
            text = f"handler {several[0]} is of job type {name!r}, which no JobTypes of the modules has"
            yield Problem("handler_without_type", name, text)
    for name, job_type in sorted(known.items()):
        for following in job_type.continuations:
            if following not in ended:
                text = f"job type {name!r} continues with {following!r}, which has no handler: its chains stay open"
                yield Problem("continuation_without_handler", following, text)
        for blocker in sorted(_blockers(job_type)):
            if blocker not in ended:
                text = f"job type {name!r} waits for {blocker!r}, which has no handler: its jobs stay blocked"
                yield Problem("blocker_without_handler", blocker, text)
    for schedule in sorted(found.schedules.values(), key=lambda one: one.name):
        if schedule.job_type.name not in ended:
            text = f"schedule {schedule.name!r} starts job type {schedule.job_type.name!r}, which has no handler"
            yield Problem("schedule_of_unknown_type", schedule.name, text)


def _blockers(job_type: JobType[Any, Any]) -> set[str]:
    declared = job_type.blockers
    return set() if declared is None else set(declared.names)
