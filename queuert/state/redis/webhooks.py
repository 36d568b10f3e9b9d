"""Records of webhooks and attempts at deliveries: arguments and answers of the scripts. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from queuert.attributes import attributes_of
from queuert.jobs import Attributes
from queuert.state.redis import decode
from queuert.state.redis.encode import Arguments, plain
from queuert.state.webhooks import NewWebhookAttempt, WebhookAttempt, WebhookRecord, WebhookWrite


def write(change: WebhookWrite) -> Arguments:
    """Return the arguments of ``put_webhook_record``."""
    params = {"kind": change.kind, "id": change.id, "tag": change.tag}
    if change.expected is not None:
        params["expected"] = change.expected
    return [*plain(params), *([] if change.body is None else [change.body])]


def record(kind: str, answer: Sequence[Any]) -> WebhookRecord:
    """Decode a record."""
    id, stored = map(decode.text, answer)
    tag, _, body = stored.partition("\n")
    return WebhookRecord(kind, id, tag, body)


def new_attempts(attempts: Sequence[NewWebhookAttempt]) -> Arguments:
    """Return the arguments of ``record_webhook_attempts``."""
    return [*plain([one.endpoint_id for one in attempts]), *(json.dumps(asdict(one)) for one in attempts)]


def attempt(answer: Sequence[Any]) -> tuple[WebhookAttempt, str]:
    """Decode an attempt, and its number."""
    number, at, stored = map(decode.text, answer)
    return WebhookAttempt(**json.loads(stored), at=decode.moment(at)), number


def attributes(answer: Any) -> Attributes | None:
    """Decode the attributes of a chain; None if it does not exist."""
    return None if answer == 0 else attributes_of(decode.text(answer))
