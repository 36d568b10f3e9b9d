"""``queuert webhooks``: make and manage webhooks, and look at their deliveries."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from queuert.cli.exit_codes import Exit, UsageError
from queuert.cli.list_options import (
    attribute_option,
    attributes_of,
    command_with_actions,
    moment,
    operator,
    page_options,
    payloads_option,
    type_option,
)
from queuert.cli.options import Commands
from queuert.cli.output import document_of, print_fields, print_json, print_page, print_table
from queuert.client import Client
from queuert.documents import NewWebhookDocument, WebhookAttemptDocument, WebhookDocument
from queuert.errors import ChainNotFoundError
from queuert.webhooks.endpoints import CHAIN_WEBHOOKS, OVERLAP, NewWebhook, Webhook

_DESCRIPTION = """Make and manage webhooks, which tell other systems what happens to jobs.

Workers with webhook_processors(client) deliver. Secrets are printed once, when
a webhook is made and when its secret is rotated. Webhooks whose secrets are
encrypted (webhook_format) are managed by a client that has the keys.
"""

_REPLAY = """With a delivery, that one is made again. With --since, all that happened since
then and was not accepted, also while the webhook was disabled.
"""

_COLUMNS = ("id", "url", "events", "enabled", "circuit", "failures", "failing_since", "disabled_reason", "description")
_ATTEMPT_COLUMNS = ("at", "delivery_id", "event_type", "attempt", "status", "error", "seconds", "retry_in", "response")


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command and its actions."""
    actions = command_with_actions(
        commands, debug, "webhooks", help="make and manage webhooks", description=_DESCRIPTION
    )
    actions.add("list", run_list, "list all webhooks")
    create = actions.add("create", run_create, "make a webhook, and print its secret")
    create.add_argument("address", metavar="ADDRESS", help="where deliveries are sent, beginning with https://")
    create.add_argument(
        "--event", action="append", metavar="NAME", dest="events", help="such as chain.failed; may be repeated"
    )
    type_option(create, "only events of this job type; may be repeated")
    attribute_option(create)
    create.add_argument("--description", default="", help="for people")
    create.add_argument("--payloads", action="store_true", help="send outputs and errors as well")
    rotate = actions.add("rotate", run_rotate, "give a webhook a new secret, and print it")
    rotate.add_argument(
        "--overlap",
        type=float,
        default=OVERLAP,
        metavar="SECONDS",
        help="how long the old secret signs (default: a day)",
    )
    disable = actions.add("disable", run_disable, "send nothing to a webhook")
    disable.add_argument("--reason", default="by hand", help="why, for those who look")
    enable = actions.add("enable", run_enable, "send to a webhook again what happens from now on")
    delete = actions.add("delete", run_delete, "delete a webhook; the log of its deliveries stays")
    delete.add_argument("--yes", action="store_true", help="confirm the deletion")
    ping = actions.add("ping", run_ping, "have a worker send a delivery that tells of nothing")
    deliveries = actions.add("deliveries", run_deliveries, "list the attempts at deliveries, the newest first")
    page_options(deliveries)
    payloads_option(deliveries)
    replay = actions.add("replay", run_replay, "deliver again", _REPLAY)
    replay.add_argument("--delivery", metavar="ID", help="the delivery, as in webhooks deliveries")
    replay.add_argument("--since", type=moment, metavar="TIME", help="a time, or an age: 90s, 15m, 2h, 7d")
    replay.add_argument("--all", action="store_true", help="with --since: also what was accepted")
    for action in (rotate, disable, enable, delete, ping, deliveries, replay):
        action.add_argument("id", metavar="ID", help="id of a webhook")


def run_list(args: argparse.Namespace) -> int:
    """Print the webhooks."""
    with operator(args) as client:
        found = client.list_webhooks()
    rows = [document_of(one, WebhookDocument) for one in found]
    if args.json:
        print_json({"items": rows, "next_cursor": None})
    else:
        print_table(rows, _COLUMNS)
    return Exit.DONE


def run_create(args: argparse.Namespace) -> int:
    """Make a webhook and print its secret."""
    with operator(args) as client:
        made = client.create_webhook(
            args.address,
            events=args.events,
            job_types=args.types,
            attributes=attributes_of(args.attributes) or None,
            description=args.description,
            payloads=args.payloads,
        )
    return _print_new(args, made)


def run_rotate(args: argparse.Namespace) -> int:
    """Print a new secret."""
    with operator(args) as client:
        return _print_new(args, client.rotate_webhook_secret(args.id, overlap=args.overlap))


def run_disable(args: argparse.Namespace) -> int:
    """Disable."""
    return _change(args, lambda client: client.disable_webhook(args.id, reason=args.reason))


def run_enable(args: argparse.Namespace) -> int:
    """Enable."""
    return _change(args, lambda client: client.enable_webhook(args.id))


def run_delete(args: argparse.Namespace) -> int:
    """Delete if --yes was given."""
    if not args.yes:
        raise UsageError("webhooks delete needs a confirmation: add --yes")
    with operator(args) as client:
        client.delete_webhook(args.id)
    _say(args, {"deleted": args.id}, f"deleted {args.id}")
    return Exit.DONE


def run_ping(args: argparse.Namespace) -> int:
    """Ping, and print the id of the delivery."""
    with operator(args) as client:
        delivery = client.ping_webhook(args.id)
    _say(args, {"delivery": delivery}, f"delivery {delivery}: see queuert webhooks deliveries {args.id}")
    return Exit.DONE


def run_deliveries(args: argparse.Namespace) -> int:
    """Print attempts."""
    with operator(args) as client:
        page = client.list_webhook_deliveries(args.id, limit=args.limit, cursor=args.cursor)
        if not page.items and args.id != CHAIN_WEBHOOKS:
            client.get_webhook(args.id)  # Raises. One that was deleted may have deliveries still.
    print_page(
        page,
        _ATTEMPT_COLUMNS,
        WebhookAttemptDocument,
        as_json=args.json,
        payloads=args.payloads,
        next_cursor=page.next_cursor,
    )
    return Exit.DONE


def run_replay(args: argparse.Namespace) -> int:
    """Replay one delivery, or all since a time."""
    if (args.delivery is None) == (args.since is None):
        raise UsageError("webhooks replay needs either --delivery or --since")
    with operator(args) as client:
        if args.delivery is not None:
            _replay_delivery(client, args)
            count = 1
        else:
            count = client.replay_webhook(args.id, since=args.since, failed_only=not args.all)
    _say(args, {"replayed": count}, f"{count} deliveries are made again")
    return Exit.DONE


def _replay_delivery(client: Client, args: argparse.Namespace) -> None:
    try:
        client.replay_webhook_delivery(args.delivery, webhook=args.id)
    except ChainNotFoundError as error:
        raise ChainNotFoundError(
            args.delivery,
            f"delivery {args.delivery!r} does not exist: queuert webhooks deliveries {args.id} shows those that do; "
            "one that is not kept any more is made again by --since",
        ) from error


def _print_new(args: argparse.Namespace, made: NewWebhook) -> int:
    _print(args, document_of(made, NewWebhookDocument))
    return Exit.DONE


def _change(args: argparse.Namespace, change: Callable[[Client], Webhook]) -> int:
    with operator(args) as client:
        webhook = change(client)
    _print(args, document_of(webhook, WebhookDocument))
    return Exit.DONE


def _print(args: argparse.Namespace, shown: dict[str, Any]) -> None:
    if args.json:
        print_json(shown)
    else:
        print_fields(shown)


def _say(args: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    if args.json:
        print_json(document)
    else:
        print(text)
