"""Records of webhooks and attempts at deliveries: parameters and rows. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.webhooks import NewWebhookAttempt, WebhookAttempt, WebhookWrite


def write(sql: Statements, change: WebhookWrite) -> tuple[bytes, Parameters]:
    """Return the statement that makes a change, and its parameters."""
    key = {"kind": change.kind, "id": change.id}
    if change.body is None:
        return sql.delete_webhook_record, {**key, "expected": change.expected}
    written = {**key, "tag": change.tag, "body": change.body}
    if change.expected is None:
        return sql.insert_webhook_record, written
    return sql.update_webhook_record, {**written, "expected": change.expected}


def new_attempts(attempts: Sequence[NewWebhookAttempt]) -> Parameters:
    """Return the parameters of ``record_webhook_attempts``."""
    return {
        "endpoints": [one.endpoint_id for one in attempts],
        "deliveries": [one.delivery_id for one in attempts],
        "events": [one.event_type for one in attempts],
        "attempts": [one.attempt for one in attempts],
        "statuses": [one.status for one in attempts],
        "errors": [one.error for one in attempts],
        "seconds": [one.seconds for one in attempts],
        "retries": [one.retry_in for one in attempts],
        "responses": [one.response for one in attempts],
    }


def attempt(row: Row) -> tuple[WebhookAttempt, str]:
    """Decode a row of ``list_webhook_attempts``: an attempt, and its number."""
    *fields, at, number = row
    values: list[Any] = [*fields, at]
    return WebhookAttempt(*values), str(number)
