"""``queuert chains``: list, show, cancel, retry and delete chains; send events to them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queuert.chain_trees import MAX_CHAINS, MAX_DEPTH, ChainTree
from queuert.cli import why
from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    attribute_option,
    attributes_of,
    chain_not_found,
    command_with_actions,
    list_arguments,
    list_options,
    operator,
    priority,
    run_at,
    run_at_options,
    say_missing,
    warn_of_unknown_types,
)
from queuert.cli.options import Commands, existing_store, integer
from queuert.cli.output import columns_of, document_of, print_fields, print_json, print_page, print_table, print_values
from queuert.client import Chain, Client
from queuert.documents import ChainDocument, ChainTreeDocument, JobDocument
from queuert.errors import ChainNotFoundError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainStatus
from queuert.state.paging import MAX_PAGE

_DESCRIPTION = """List, show, cancel, retry and delete chains. For example, find the chains that
failed today, and retry them:

  queuert chains list --status failed --since 24h
  queuert chains retry ID ...

Find chains by the attributes that they were started with:

  queuert chains list --attribute user=17
"""

_COLUMNS = ("id", "type", "status", "created_at", "closed_at", "stale_at", "attributes", "error")
_TREE_COLUMNS = ("chain", "type", "status", "created_at", "seconds", "error")
_JOB_COLUMNS = ("chain_index", "id", "type", "status", "attempt", "created_at", "finished_at", "last_error")
_DEPENDENT_COLUMNS = ("id", "type", "status", "created_at")
_TREE = """Each chain is followed by those that its jobs wait for or waited for, indented.
seconds is the time from its start to its end."""
_CHANGE = """Chains whose jobs run, and closed ones, are not changed.
If one of them does not exist, none is changed."""
_NOT_CHANGED: Mapping[int, str] = {Exit.FAILED: "a chain does not exist, or is closed, or its job runs"}
_INPUT = """The input must be JSON. Whether the model of the job type accepts it is seen
when a worker decodes it, and not here: this command does not know the models.
On Postgres only the role of workers may change inputs."""
_EDIT = f"""A chain whose job runs, or that is closed, is not changed: chains retry --input
is for one that has failed.

{_INPUT}"""
_RETRY = f"""If one of them cannot be retried, none is. To retry all that failed, by type,
time or error: queuert operations start retry.

--input retries one chain, with another input of its last job.
{_INPUT}"""


_SEND_EVENT = """A handler of the chain that waits for the event gets its payload. The event
is kept until there is such a handler. Job types whose payloads are encrypted
need a client that has their keys."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "chains", help="list, show, cancel, retry and delete chains", description=_DESCRIPTION
    )
    chains = actions.add("list", run_list, "list chains")
    list_options(chains, [status.value for status in ChainStatus])
    attribute_option(chains)
    show = actions.add("show", run_show, "show a chain, its jobs and its dependents")
    show.add_argument("id", metavar="ID", nargs="?", help="id of the chain")
    _key_options(show, "show the newest chain")
    tree = actions.add("tree", run_tree, "show a chain with the chains that it waited for", _TREE)
    tree.add_argument("id", metavar="ID", help="id of the chain")
    tree.add_argument("--depth", type=_depth, default=10, metavar="N", help="levels below it (default: 10)")
    tree.add_argument("--limit", type=_most_chains, default=100, metavar="N", help="chains altogether (default: 100)")
    cancel = actions.add(
        "cancel", run_cancel, "cancel open chains", "If one of them does not exist, none is cancelled."
    )
    cancel.add_argument("ids", nargs="*", metavar="ID", help="id of a chain")
    _key_options(cancel, "cancel the open chains")
    cancel.add_argument(
        "--cascade", action="store_true", help="also cancel children and blockers that no other job waits for"
    )
    cancel.add_argument("--reason", default="cancelled by an operator", help="recorded as the error of the chains")
    retry = actions.add("retry", run_retry, "reopen failed and cancelled chains", _RETRY)
    retry.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    retry.add_argument(
        "--cascade", action="store_true", help="also retry what failed because of them, and their failed blockers"
    )
    retry.add_argument("--input", type=json_input, metavar="JSON", help="the new input of the last job, of one chain")
    reschedule = actions.add(
        "reschedule", run_reschedule, "change the due time of jobs that wait", _CHANGE, exit_codes=_NOT_CHANGED
    )
    reschedule.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    run_at_options(reschedule)
    reprioritize = actions.add(
        "reprioritize", run_reprioritize, "change the priority of jobs that wait", _CHANGE, exit_codes=_NOT_CHANGED
    )
    reprioritize.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    reprioritize.add_argument("--priority", type=priority, required=True, metavar="N", help="higher is claimed sooner")
    edit = actions.add("edit", run_edit, "change the input of a job that waits", _EDIT, exit_codes=_NOT_CHANGED)
    edit.add_argument("id", metavar="ID", help="id of the chain")
    edit.add_argument("--input", type=json_input, required=True, metavar="JSON", help="the new input of its last job")
    send = actions.add("send-event", run_send_event, "send an event to an open chain", _SEND_EVENT)
    send.add_argument("id", metavar="ID", help="id of the chain")
    send.add_argument("name", metavar="NAME", help="name of the event")
    send.add_argument("--payload", default="null", metavar="JSON", help="what the handler gets (default: null)")
    send.add_argument(
        "--event-id", metavar="ID", help="an event of an id that was sent to the chain before is not sent"
    )
    delete = actions.add(
        "delete",
        run_delete,
        "delete chains with all their jobs",
        "If one of them cannot be deleted, none is.",
        exit_codes={Exit.FAILED: "some of these chains did not exist, or cannot be deleted"},
    )
    delete.add_argument("ids", nargs="+", metavar="ID", help="id of a chain")
    delete.add_argument(
        "--cascade", action="store_true", help="also delete the chains that their jobs waited for, recursively"
    )
    delete.add_argument("--yes", action="store_true", help="confirm the deletion, also of open chains")


def run_list(args: argparse.Namespace) -> int:
    """Print a page of chains."""
    with operator(args) as client:
        page = client.list_chains(attributes=attributes_of(args.attributes), **list_arguments(args))
        warn_of_unknown_types(client, args.types)
    print_page(page, _COLUMNS, ChainDocument, as_json=args.json, next_cursor=page.next_cursor)
    return Exit.DONE


def run_show(args: argparse.Namespace) -> int:
    """Print a chain, its jobs and its dependents; of each, the first thousand."""
    with operator(args) as client:
        chain = _shown(client, args)
        jobs = client.list_chain_jobs(chain, limit=MAX_PAGE)
        dependents = client.list_dependents(chain, limit=MAX_PAGE)
        explanation = why.of_open_chain(client, chain.id)
    if args.json:
        lists = {"jobs": jobs, "dependents": dependents}
        shown = {name: [document_of(job, JobDocument) for job in page] for name, page in lists.items()}
        more = {f"more_{name}": page.next_cursor is not None for name, page in lists.items()}
        print_json({**document_of(chain, ChainDocument), **shown, **more})
        return Exit.DONE
    print_fields(columns_of(chain, _COLUMNS))
    for title, page, columns in (("jobs", jobs, _JOB_COLUMNS), ("dependents", dependents, _DEPENDENT_COLUMNS)):
        print(f"\n{title}{f', the first {MAX_PAGE}' if page.next_cursor else ''}:")
        print_values(page, columns, JobDocument, payloads=False, indent="  ")
    if explanation is not None:
        why.print_below(explanation)
    return Exit.DONE


def run_tree(args: argparse.Namespace) -> int:
    """Print a chain with those that it waited for."""
    with operator(args) as client:
        tree = client.get_chain_tree(args.id, max_depth=args.depth, max_chains=args.limit)
    if args.json:
        print_json(document_of(tree, ChainTreeDocument))
    else:
        print_table(list(_lines(tree, 0)), _TREE_COLUMNS)
    return Exit.DONE


def _depth(text: str) -> int:
    return integer(text, minimum=0, maximum=MAX_DEPTH)


def _most_chains(text: str) -> int:
    return integer(text, minimum=1, maximum=MAX_CHAINS)


def _lines(tree: ChainTree[Chain[Any]], depth: int) -> Iterator[dict[str, Any]]:
    chain, closed_at = tree.chain, tree.chain.closed_at
    seconds = None if closed_at is None else (closed_at - chain.created_at).total_seconds()
    name = f"{'  ' * depth}{chain.id}"
    if tree.repeated:
        yield {"chain": name, "type": chain.type, "status": f"{chain.status} (above)"}
        return
    yield {**columns_of(chain, _COLUMNS), "chain": name, "seconds": seconds}
    for blocker in tree.blockers:
        yield from _lines(blocker, depth + 1)
    if tree.incomplete:
        yield {"chain": f"{'  ' * (depth + 1)}... and more: --depth, --limit"}


def _key_options(action: argparse.ArgumentParser, help: str) -> None:
    action.add_argument("--key", metavar="KEY", help=f"{help} of this deduplication key, with --type")
    action.add_argument("--type", metavar="NAME", help="with --key: the job type that the chain begins with")


def _has_key(args: argparse.Namespace, action: str) -> bool:
    """Whether --key and --type name the chains.

    Raises:
        UsageError: only one of them was given.
    """
    if (args.key is None) != (args.type is None):
        raise UsageError(f"chains {action} needs --key and --type together, as keys of job types are independent")
    return args.key is not None


def _shown(client: Client, args: argparse.Namespace) -> Chain[Any]:
    """The chain of the id or of the deduplication key."""
    if (args.id is not None) == _has_key(args, "show"):
        raise UsageError("chains show needs either an id, or --key and --type")
    if args.id is not None:
        return client.get_chain(args.id)
    return _chain_of_key(client, args)


def _chain_of_key(client: Client, args: argparse.Namespace) -> Chain[Any]:
    """The newest chain of the deduplication key, also if it is closed.

    Raises:
        ChainNotFoundError: there is none.
    """
    chain = client.find_chain(args.type, args.key, scope="any")
    if chain is None:
        raise ChainNotFoundError(
            args.key, f"no chain that begins with a job of type {args.type!r} has the deduplication key {args.key!r}"
        )
    return chain


def run_cancel(args: argparse.Namespace) -> int:
    """Cancel, and print how many were open."""
    if bool(args.ids) == _has_key(args, "cancel"):
        raise UsageError("chains cancel needs either ids, or --key and --type")
    with operator(args) as client:
        if args.key is not None:
            if args.cascade:
                raise UsageError("chains cancel accepts --cascade only with ids")
            closed = client.cancel_chains_of_key(args.type, args.key, reason=args.reason)
            if not closed:
                _chain_of_key(client, args)
            return _print_changed(args, "cancelled", closed)
        cancelled = client.cancel_chains(args.ids, cascade=args.cascade, reason=args.reason)
    return _print_changed(args, "cancelled", sum(cancelled), f"; closed already: {cancelled.count(False)}")


def run_retry(args: argparse.Namespace) -> int:
    """Retry the given chains."""
    if args.input is not None and (len(args.ids) > 1 or args.cascade):
        raise UsageError("chains retry accepts --input only with one id, and without --cascade")
    with operator(args) as client:
        if args.input is not None:
            [id] = args.ids
            client.retry_chain_with_input(id, args.input.value)
            return _print_changed(args, "retried", 1)
        retried = client.retry_chains(args.ids, cascade=args.cascade)
    return _print_changed(args, "retried", len(retried))


@dataclass(frozen=True, slots=True)
class Input:
    """A JSON value, which may be null."""

    value: Any


def json_input(text: str) -> Input:
    """An input in JSON."""
    try:
        return Input(json.loads(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'must be JSON, such as \'{{"url": "x"}}\': {error}') from None


def run_reschedule(args: argparse.Namespace) -> int:
    """Change when jobs may run, and print how many waited."""
    moment = run_at(args, required=True)
    assert moment is not None
    with operator(args) as client:
        changed = client.reschedule_chains(args.ids, moment)
    return _print_waiting(args, "rescheduled", changed)


def run_reprioritize(args: argparse.Namespace) -> int:
    """Change the priority of jobs, and print how many waited."""
    with operator(args) as client:
        changed = client.reprioritize_chains(args.ids, args.priority)
    return _print_waiting(args, "reprioritized", changed)


def run_edit(args: argparse.Namespace) -> int:
    """Change the input of a job that waits."""
    with operator(args) as client:
        changed = client.edit_chain_input(args.id, args.input.value)
    return _print_waiting(args, "edited", [changed])


def _print_waiting(args: argparse.Namespace, verb: str, changed: Sequence[bool]) -> int:
    """Print how many chains were changed, and how many not, since their jobs run or they are closed."""
    unchanged = changed.count(False)
    _print_changed(args, verb, sum(changed), f"; running or closed, so not changed: {unchanged}" if unchanged else "")
    return Exit.FAILED if unchanged else Exit.DONE


def run_send_event(args: argparse.Namespace) -> int:
    """Send the event, and print whether it was sent before."""
    try:
        payload = json.loads(args.payload)
    except ValueError as error:
        raise UsageError(f'--payload must be JSON, such as \'{{"by": "ada"}}\' or \'"yes"\': {error}') from error
    with operator(args) as client:
        states = client.get_chain_states([args.id])
        if not states:
            raise ChainNotFoundError(args.id)
    # The client encodes the payload as one of the job that may take it.
    last = JobType(states[0].job_type, input=Any, output=Any)
    with Client(existing_store(args), JobTypes(last), max_connections=1) as client:
        sent = client.send_event(args.id, args.name, payload, id=args.event_id)
    return _print_changed(args, "sent", int(sent), "" if sent else "; an event of this id was sent before")


def run_delete(args: argparse.Namespace) -> int:
    """Delete if --yes was given, and print how many there were."""
    if not args.yes:
        raise UsageError("deleted chains cannot be restored: add --yes to confirm")
    with operator(args) as client:
        deleted = client.delete_chains(args.ids, cascade=args.cascade)
        missing = [id for id in dict.fromkeys(args.ids) if id not in deleted]
        say_missing([str(chain_not_found(client, ChainNotFoundError(id))) for id in missing])
    if deleted:
        _print_changed(args, "deleted", len(deleted))
    # As with each command that is given a chain; the others are deleted, so that it can be repeated.
    return Exit.FAILED if missing else Exit.DONE


def _print_changed(args: argparse.Namespace, verb: str, count: int, more: str = "") -> int:
    if args.json:
        print_json({verb: count})
    else:
        print(f"{verb} {count}{more}")
    return Exit.DONE
