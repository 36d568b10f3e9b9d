"""What answers the routes of webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuert.documents import NewWebhookDocument, WebhookAttemptDocument, WebhookDocument
from queuert.web.answers import Deleted, Pinged, Replayed, WebhookAttemptsPage, Webhooks
from queuert.web.bodies import DisableBody, PageQuery, ReplayBody, RotateBody, WebhookBody
from queuert.web.problems import Problem

if TYPE_CHECKING:
    from queuert.web.api import Call


async def list_webhooks(call: Call) -> Webhooks:
    """All webhooks."""
    return Webhooks(items=[WebhookDocument.of(one) for one in await call.client.list_webhooks()])


async def create_webhook(call: Call) -> NewWebhookDocument:
    """Make a webhook; the answer has its secret."""
    body: WebhookBody = call.body
    made = await call.client.create_webhook(
        body.url,
        events=body.events,
        job_types=body.job_types,
        attributes=body.attributes,
        description=body.description,
        payloads=body.payloads,
        headers=body.headers,
    )
    return NewWebhookDocument.of(made)


async def get_webhook(call: Call) -> WebhookDocument:
    """A webhook."""
    return WebhookDocument.of(await call.client.get_webhook(call.id))


async def rotate_webhook(call: Call) -> NewWebhookDocument:
    """Give a webhook a new secret, which the answer has."""
    body: RotateBody = call.body
    return NewWebhookDocument.of(await call.client.rotate_webhook_secret(call.id, overlap=body.overlap))


async def enable_webhook(call: Call) -> WebhookDocument:
    """Send to a webhook again."""
    return WebhookDocument.of(await call.client.enable_webhook(call.id))


async def disable_webhook(call: Call) -> WebhookDocument:
    """Send nothing to a webhook."""
    body: DisableBody = call.body
    return WebhookDocument.of(await call.client.disable_webhook(call.id, reason=body.reason))


async def delete_webhook(call: Call) -> Deleted:
    """Delete a webhook."""
    await call.client.delete_webhook(call.id)
    return Deleted(deleted=call.id)


async def ping_webhook(call: Call) -> Pinged:
    """Have a worker send a delivery that tells of nothing."""
    return Pinged(delivery=await call.client.ping_webhook(call.id))


async def replay_webhook(call: Call) -> Replayed:
    """Have deliveries made again."""
    body: ReplayBody = call.body
    if (body.delivery is None) == (body.since is None):
        raise Problem(422, "invalid-body", "the body must have either delivery or since")
    if body.delivery is not None:
        await call.client.replay_webhook_delivery(body.delivery, webhook=call.id)
        return Replayed(replayed=1)
    assert body.since is not None
    replayed = await call.client.replay_webhook(call.id, since=body.since, failed_only=body.failed_only)
    return Replayed(replayed=replayed)


async def list_deliveries(call: Call) -> WebhookAttemptsPage:
    """A page of the attempts at deliveries to a webhook."""
    query: PageQuery = call.query
    page = await call.client.list_webhook_deliveries(call.id, limit=query.limit, cursor=query.cursor)
    items = [WebhookAttemptDocument.of(one, payloads=call.payloads) for one in page]
    return WebhookAttemptsPage(items=items, next_cursor=page.next_cursor)
