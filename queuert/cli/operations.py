"""``queuert operations``: change all chains of a filter, by bulk operations."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from queuert.bulk_operations import BulkAction, BulkOperation, BulkPreview
from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    attribute_option,
    attributes_of,
    by_of,
    by_option,
    command_with_actions,
    filter_options,
    operator,
    page_options,
    priority,
    run_at,
    run_at_options,
    say_missing,
    status_option,
    unknown_types,
)
from queuert.cli.options import Commands
from queuert.cli.output import document_of, print_fields, print_json, print_page, print_preview
from queuert.cli.why import of_open_chain, text
from queuert.client import Client
from queuert.documents import BulkOperationDocument
from queuert.errors import ChainNotFoundError, QueuertError, RightMissingError
from queuert.explanations import Cause, Explanation
from queuert.jobs import ChainStatus

_DESCRIPTION = """Change all chains of a filter: retry, cancel, delete, reschedule or
reprioritize. For example, see how many it would be, and then do it:

  queuert operations start retry --type resize --since 24h
  queuert operations start retry --type resize --since 24h --yes

An operation works in batches of 500. It goes on, carried out by workers, if
this command ends.
"""

_START = """Without --yes it only counts the chains. With --yes it starts the operation,
does its batches beside the workers, and waits for its end. Chains of the
library's own types (queuert.*) are meant only if --type names theirs.
"""

_RUN = """Workers do this as well. A batch whose process died can be claimed after 15
seconds.
"""

_COLUMNS = ("id", "action", "requested_by", "status", "seen", "changed", "skipped", "created_at", "closed_at")

_PROGRESS = 10.0
"""Seconds between two lines about the progress, where they do not go to a terminal."""

_POLL = 0.5
"""Seconds between two looks at an operation that others carry out."""

_FILTERS = "--type, --attribute, --since, --before or --error"

_SILENCE = 5.0
"""Seconds between two looks at what holds an operation up."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "operations", help="change all chains of a filter", description=_DESCRIPTION
    )
    start = actions.add("start", run_start, "start a bulk operation, or count what it would change", _START)
    changes = [action.value for action in BulkAction]
    start.add_argument("change", choices=changes, metavar="ACTION", help=f"what to do: {', '.join(changes)}")
    filter_options(start, [status.value for status in ChainStatus])
    attribute_option(start)
    start.add_argument("--error", metavar="TEXT", help="only chains with this error, whole and as chains list shows it")
    start.add_argument("--reason", help="of cancel: recorded as the error of the chains")
    start.add_argument("--priority", type=priority, metavar="N", help="of reprioritize: the new priority")
    run_at_options(start, "of reschedule: ")
    by_option(start, "who asks for it")
    start.add_argument(
        "--all", action="store_true", help="instead of a filter: chains of every type but the library's own"
    )
    start.add_argument("--yes", action="store_true", help="confirm the operation")
    start.add_argument("--no-wait", action="store_true", help="leave all batches to workers")
    listed = actions.add("list", run_list, "list the operations, the newest first")
    status_option(listed, [status.value for status in ChainStatus])
    listed.add_argument(
        "--action",
        action="append",
        choices=changes,
        metavar="ACTION",
        dest="changes",
        help=f"only this action: {', '.join(changes)}; may be repeated",
    )
    page_options(listed)
    show = actions.add("show", run_show, "show an operation and what it has done")
    show.add_argument("id", metavar="ID", help="id of the operation")
    actions.add("run", run_batches, "do batches of open operations here, until none is left to claim", _RUN)
    cancel = actions.add("cancel", run_cancel, "cancel an operation; what it has changed stays changed")
    cancel.add_argument("id", metavar="ID", help="id of the operation")
    by_option(cancel, "who cancels it")


def run_start(args: argparse.Namespace) -> int:
    """Count, or start and carry out."""
    _check_options(args)
    filter: dict[str, Any] = {
        "job_types": args.types,
        "statuses": args.statuses,
        "attributes": attributes_of(args.attributes),
        "since": args.since,
        "before": args.before,
        "error": args.error,
    }
    with operator(args) as client:
        unknown = unknown_types(client, args.types)
        say_missing(unknown)
        if not args.yes:
            preview = client.preview_bulk_operation(args.change, **filter)
            if not (unknown or preview.count or preview.more):
                _say_that_nothing_matches(args)
            confirm = "--yes" if args.all or _is_filtered(args) else "--all --yes"
            print_preview(f"{args.change} would concern", preview, confirm=confirm, as_json=args.json)
            return Exit.DONE
        operation = client.start_bulk_operation(
            args.change,
            requested_by=by_of(args),
            reason=args.reason,
            run_at=run_at(args, required=False),
            priority=args.priority,
            **filter,
        )
        print(f"queuert: operation {operation.id} is started", file=sys.stderr)
        try:
            if not args.no_wait:
                operation = _carried_out(client, operation, _counted(client, operation, filter))
                matches = operation.seen > 0 or operation.status is not ChainStatus.COMPLETED
            else:
                # An error is easily not given as it is stored; nothing else needs the count.
                matches = args.error is None or _any_matches(client, operation, filter)
        except KeyboardInterrupt:
            look, end = (f"queuert operations {action} {operation.id}" for action in ("show", "cancel"))
            message = f"interrupted: workers carry on with operation {operation.id}"
            say_missing([f"{message}; {look} says how far it is, and {end} ends it"])
            return Exit.INTERRUPTED
        if not (unknown or matches):
            _say_that_nothing_matches(args)
    _print(args, operation)
    return Exit.DONE if operation.status in (ChainStatus.OPEN, ChainStatus.COMPLETED) else Exit.FAILED


def _counted(client: Client, operation: BulkOperation, filter: Mapping[str, Any]) -> BulkPreview | None:
    """Count what a started operation has still to change. None if that fails, for the operation goes on without it."""
    before = filter["before"]
    concerned = operation.created_at if before is None else min(before, operation.created_at)
    try:
        return client.preview_bulk_operation(operation.action, **{**filter, "before": concerned})
    except QueuertError as error:
        say_missing([f"the chains of operation {operation.id} could not be counted: {error}"])
        return None


def _any_matches(client: Client, operation: BulkOperation, filter: Mapping[str, Any]) -> bool:
    """Whether an operation that workers carry out has a chain to change, or had one: they have begun, perhaps."""
    preview = _counted(client, operation, filter)
    if preview is not None and not (preview.count or preview.more):
        with suppress(QueuertError):
            return client.get_bulk_operation(operation.id).seen > 0
    return True


def _say_that_nothing_matches(args: argparse.Namespace) -> None:
    """Say on stderr that no chain matches: an error that is not given as it is stored, for one, matches none."""
    what = "no chain matches"
    if args.error is not None:
        what += ": --error must be the whole error, as queuert chains list shows it"
    say_missing([what])


class _Progress:
    """Says on stderr how far an operation is: on a terminal in one line, elsewhere in a line every ten seconds."""

    def __init__(self, preview: BulkPreview | None) -> None:
        # Workers may have begun before the counting did: it is a total only as long as no more were seen.
        self._count = 0 if preview is None else preview.count
        self._total = f"{self._count:,} or more" if preview is not None and preview.more else f"about {self._count:,}"
        self._on_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (0.0 if self._on_terminal else _PROGRESS)
        self._open_line = False

    def show(self, operation: BulkOperation) -> None:
        """Show how far it is, if that is due."""
        if time.monotonic() < self._next or operation.status is not ChainStatus.OPEN:
            return
        self._next = time.monotonic() + (0.0 if self._on_terminal else _PROGRESS)
        of = f" of {self._total}" if operation.seen <= self._count > 0 else ""
        line = f"queuert: {operation.seen:,}{of} chains seen, {operation.changed:,} changed"
        print(f"\r{line}\x1b[K" if self._on_terminal else f"{line}\n", end="", file=sys.stderr, flush=True)
        self._open_line = self._on_terminal

    def end(self) -> None:
        """End the line, so that another text can follow."""
        if self._open_line:
            print(file=sys.stderr)
            self._open_line = False


def _check_options(args: argparse.Namespace) -> None:
    """Check, also for a preview, that an action has the options that it needs, and no others.

    Raises:
        UsageError: it has not.
    """
    if args.no_wait and not args.yes:
        raise UsageError("operations start accepts --no-wait only with --yes")
    moment = args.at is not None or args.after is not None
    for option, given, action, required in (
        ("--at or --after", moment, BulkAction.RESCHEDULE, True),
        ("--priority", args.priority is not None, BulkAction.REPRIORITIZE, True),
        ("--reason", args.reason is not None, BulkAction.CANCEL, False),
    ):
        if given and args.change != action:
            raise UsageError(f"operations start accepts {option} only with {action}, got {args.change}: remove it")
        if required and not given and args.change == action:
            raise UsageError(f"operations start {action} needs {option}: add it")
    if args.all and _is_filtered(args):
        raise UsageError(f"operations start accepts --all only without {_FILTERS}")
    if args.yes and not args.all and not _is_filtered(args):
        raise UsageError(
            f"operations start {args.change} --yes would {args.change} chains of every type: add {_FILTERS}, or --all"
        )


def _is_filtered(args: argparse.Namespace) -> bool:
    """Whether it names chains: by their status alone, those of every type are meant."""
    return any((args.types, args.attributes, args.since, args.before, args.error is not None))


def _carried_out(client: Client, operation: BulkOperation, preview: BulkPreview | None) -> BulkOperation:
    """Do batches until the operation is closed, and say how far it is."""
    progress = _Progress(preview)
    try:
        return _closed(client, operation, progress)
    finally:
        # What follows, such as an error, is to be in a line of its own.
        progress.end()


def _closed(client: Client, operation: BulkOperation, progress: _Progress) -> BulkOperation:
    """Do batches until the operation is closed, by this process or by others. Say what holds it up, if nobody does."""
    may_run, waited = True, 0.0
    looked: Explanation | None = None
    said: tuple[Cause, ...] = ()
    while operation.status is ChainStatus.OPEN:
        try:
            done = may_run and client.run_bulk_operations(batches=1)
        except RightMissingError:
            # The role of operators starts operations, and workers carry them out.
            done = may_run = False
        operation = client.get_bulk_operation(operation.id)
        progress.show(operation)
        if done:
            waited, looked = 0.0, None
            continue
        time.sleep(_POLL)
        waited += _POLL
        if waited > _SILENCE:
            waited = 0.0
            before, looked = looked, of_open_chain(client, operation.id)
            # Each batch is a job. The texts have times in them, so the causes say whether it is the same again.
            stands = looked is not None and before is not None and looked.job_id == before.job_id
            if looked is not None and stands and looked.causes != said:
                said = looked.causes
                progress.end()
                print(f"queuert: operation {operation.id} makes no progress:", *text(looked), sep="\n", file=sys.stderr)
    return operation


def run_list(args: argparse.Namespace) -> int:
    """Print a page of operations."""
    with operator(args) as client:
        page = client.list_bulk_operations(
            actions=args.changes, statuses=args.statuses, limit=args.limit, cursor=args.cursor
        )
    print_page(page, _COLUMNS, BulkOperationDocument, as_json=args.json, next_cursor=page.next_cursor)
    return Exit.DONE


def run_show(args: argparse.Namespace) -> int:
    """Print an operation."""
    with operator(args) as client:
        operation = _given(client, args)
    _print(args, operation)
    return Exit.DONE


def run_batches(args: argparse.Namespace) -> int:
    """Do batches, and print how many."""
    with operator(args) as client:
        done = client.run_bulk_operations()
    if args.json:
        print_json({"batches": done})
    else:
        print(f"did {done} batches")
    return Exit.DONE


def run_cancel(args: argparse.Namespace) -> int:
    """Cancel an operation, and print what it has done."""
    with operator(args) as client:
        _given(client, args)
        cancelled = client.cancel_chain(args.id, reason=f"cancelled by {by_of(args)}")
        operation = client.get_bulk_operation(args.id)
    if not cancelled:
        say_missing([f"operation {operation.id} is {operation.status} already: nothing was cancelled"])
    _print(args, operation)
    return Exit.DONE


def _given(client: Client, args: argparse.Namespace) -> BulkOperation:
    """The operation of the id.

    Raises:
        ChainNotFoundError: there is none.
    """
    try:
        return client.get_bulk_operation(args.id)
    except ChainNotFoundError as error:
        raise ChainNotFoundError(
            args.id, f"operation {args.id!r} does not exist: queuert operations list shows those that do"
        ) from error


def _print(args: argparse.Namespace, operation: BulkOperation) -> None:
    shown = document_of(operation, BulkOperationDocument)
    if args.json:
        print_json(shown)
        return
    print_fields(shown)
