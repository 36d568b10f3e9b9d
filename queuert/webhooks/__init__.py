"""Webhooks: signatures, endpoints, and requests that reach only what they may.

A receiver needs :func:`verify` only, which needs nothing beside the standard library. A worker delivers with
:func:`queuert.worker.webhooks.webhook_processors`, and clients manage the endpoints: ``client.create_webhook(...)``.
"""

from queuert.webhooks.addresses import TargetPolicy
from queuert.webhooks.endpoints import CHAIN_WEBHOOKS, NewWebhook, Webhook, WebhookFilter
from queuert.webhooks.errors import ForbiddenTargetError, WebhookNotFoundError, WebhookVerificationError
from queuert.webhooks.signing import ReceivedWebhook, RecentIds, new_secret, signed_headers, verify

__all__ = [
    "verify",
    "ReceivedWebhook",
    "RecentIds",
    "new_secret",
    "signed_headers",
    "TargetPolicy",
    "CHAIN_WEBHOOKS",
    "NewWebhook",
    "Webhook",
    "WebhookFilter",
    "WebhookVerificationError",
    "WebhookNotFoundError",
    "ForbiddenTargetError",
]
