"""``queuert chains``: list, show, cancel, retry and delete chains."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from queuert.cli import why
from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    command_with_actions,
    list_arguments,
    list_options,
    operator,
    type_option,
    warn_of_unknown_types,
)
from queuert.cli.options import Commands
from queuert.cli.output import fields, print_fields, print_json, print_page, print_table
from queuert.client import Chain, Client
from queuert.errors import ChainNotFoundError, ChainNotRetriableError
from queuert.jobs import ChainStatus
from queuert.state.paging import MAX_PAGE

_DESCRIPTION = """List, show, cancel, retry and delete chains. For example, find the chains that
failed today, and retry them:

  queuert chains list --status failed --since 24h
  queuert chains retry --failed --type resize

Find chains by the attributes that they were started with:

  queuert chains list --attribute user=17
"""

_COLUMNS = ("id", "type", "status", "created_at", "closed_at", "error")
_JOB_COLUMNS = ("chain_index", "id", "type", "status", "attempt", "created_at", "finished_at", "last_error")
_DEPENDENT_COLUMNS = ("id", "type", "status", "created_at")
_RETRY = """Give their ids, or --failed and --type.
If one chain that is given by its id cannot be retried, none is."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "chains", help="list, show, cancel, retry and delete chains", description=_DESCRIPTION
    )
    chains = actions.add("list", run_list, "list chains")
    list_options(chains, [status.value for status in ChainStatus])
    chains.add_argument(
        "--attribute",
        action="append",
        type=attribute,
        default=[],
        dest="attributes",
        metavar="NAME=VALUE",
        help="only with this attribute; if repeated, with all of them",
    )
    show = actions.add("show", run_show, "show a chain, its jobs and its dependents")
    show.add_argument("id", metavar="ID", help="id of the chain")
    cancel = actions.add(
        "cancel", run_cancel, "cancel open chains", "If one of them does not exist, none is cancelled."
    )
    cancel.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    cancel.add_argument("--reason", default="cancelled by an operator", help="recorded as the error of the chains")
    retry = actions.add("retry", run_retry, "reopen failed and cancelled chains", _RETRY)
    retry.add_argument("ids", nargs="*", metavar="ID", help="id of a chain")
    retry.add_argument("--failed", action="store_true", help="retry all failed chains of the types that --type names")
    type_option(retry, "with --failed: chains of this job type; may be repeated")
    delete = actions.add(
        "delete", run_delete, "delete chains with all their jobs", "If one of them cannot be deleted, none is."
    )
    delete.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    delete.add_argument(
        "--cascade", action="store_true", help="also delete the chains that their jobs waited for, recursively"
    )
    delete.add_argument("--yes", action="store_true", help="confirm the deletion, also of open chains")


def run_list(args: argparse.Namespace) -> int:
    """Print a page of chains."""
    with operator(args) as client:
        page = client.list_chains(attributes=_attributes(args.attributes), **list_arguments(args))
        warn_of_unknown_types(client, args.types)
    print_page(map(_fields, page), _COLUMNS, as_json=args.json, next_cursor=page.next_cursor)
    return Exit.DONE


def run_show(args: argparse.Namespace) -> int:
    """Print a chain, its jobs and its dependents; of each, the first thousand."""
    with operator(args) as client:
        chain = client.get_chain(args.id)
        jobs = client.list_chain_jobs(chain, limit=MAX_PAGE)
        dependents = client.list_dependents(chain, limit=MAX_PAGE)
        explanation = why.of_open_chain(client, args.id)
    if args.json:
        documents: dict[str, Any] = {"jobs": list(map(fields, jobs)), "dependents": list(map(fields, dependents))}
        more = {"more_jobs": jobs.next_cursor is not None, "more_dependents": dependents.next_cursor is not None}
        print_json({**_fields(chain), **documents, **more})
        return Exit.DONE
    print_fields(_fields(chain))
    for title, page, columns in (("jobs", jobs, _JOB_COLUMNS), ("dependents", dependents, _DEPENDENT_COLUMNS)):
        print(f"\n{title}{f', the first {MAX_PAGE}' if page.next_cursor else ''}:")
        print_table([_job_fields(job) for job in page], columns, indent="  ")
    if explanation is not None:
        why.print_below(explanation)
    return Exit.DONE


def run_cancel(args: argparse.Namespace) -> int:
    """Cancel, and print how many were open."""
    with operator(args) as client:
        cancelled = client.cancel_chains(args.ids, reason=args.reason)
    return _print_changed(args, "cancelled", sum(cancelled), f"; {cancelled.count(False)} were closed already")


def run_retry(args: argparse.Namespace) -> int:
    """Retry the given chains, or all failed chains of some types."""
    if bool(args.ids) == args.failed:
        raise UsageError("chains retry needs either ids, or --failed and --type")
    if args.failed and not args.types:
        raise UsageError("chains retry --failed needs the job types: add --type NAME")
    if args.types and not args.failed:
        raise UsageError("chains retry accepts --type only with --failed")
    with operator(args) as client:
        if args.failed:
            warn_of_unknown_types(client, args.types)
            return _print_changed(args, "retried", retry_failed(client, args.types))
        client.retry_chains(args.ids)
    return _print_changed(args, "retried", len(dict.fromkeys(args.ids)))


def retry_failed(client: Client, types: Sequence[str]) -> int:
    """Retry all failed chains of some types, page by page, each once; returns how many."""
    count, cursor = 0, None
    while True:
        page = client.list_chains(
            job_types=types, statuses=[ChainStatus.FAILED], limit=MAX_PAGE, cursor=cursor, oldest_first=True
        )
        count += _retry_page(client, page.items)
        cursor = page.next_cursor
        if cursor is None:
            return count


def _retry_page(client: Client, chains: Sequence[Chain[Any]]) -> int:
    try:
        client.retry_chains(chains)
    except (ChainNotRetriableError, ChainNotFoundError):
        # Somebody else retried or deleted some of them meanwhile.
        if len(chains) == 1:
            return 0
        half = len(chains) // 2
        return _retry_page(client, chains[:half]) + _retry_page(client, chains[half:])
    return len(chains)


def run_delete(args: argparse.Namespace) -> int:
    """Delete if --yes was given, and print how many there were."""
    if not args.yes:
        raise UsageError("deleted chains cannot be restored: add --yes to confirm")
    with operator(args) as client:
        deleted = client.delete_chains(args.ids, cascade=args.cascade)
    return _print_changed(args, "deleted", len(deleted))


def attribute(text: str) -> tuple[str, str]:
    """A name and a value, separated by the first ``=``."""
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, such as user=17, got {text}")
    return name, value


def _attributes(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    requested: dict[str, list[str]] = {}
    for name, value in pairs:
        requested.setdefault(name, []).append(value)
    return requested


def _print_changed(args: argparse.Namespace, verb: str, count: int, more: str = "") -> int:
    if args.json:
        print_json({verb: count})
    else:
        print(f"{verb} {count}{more}")
    return Exit.DONE


def _fields(chain: Chain[Any]) -> dict[str, Any]:
    return {
        "id": chain.id,
        "type": chain.type,
        "status": chain.status,
        "created_at": chain.created_at,
        "closed_at": chain.closed_at,
        "error": chain.error,
        "attributes": chain.attributes or None,
    }


def _job_fields(job: Any) -> dict[str, Any]:
    # Unlike fields(), keeps an error whole, which is then shown in one line.
    return {name: getattr(job, name) for name in (*_JOB_COLUMNS, *_DEPENDENT_COLUMNS)}
