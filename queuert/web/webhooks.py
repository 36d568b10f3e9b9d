"""What answers the routes of webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuert.web.bodies import DisableBody, PageQuery, ReplayBody, RotateBody, WebhookBody
from queuert.web.problems import Problem
from queuert.web.resources import (
    DeletedResource,
    NewWebhookResource,
    PingResource,
    ReplayResource,
    WebhookAttemptResource,
    WebhookAttemptsPage,
    WebhookResource,
    WebhooksResource,
)

if TYPE_CHECKING:
    from queuert.web.api import Call


async def list_webhooks(call: Call) -> WebhooksResource:
    """All webhooks."""
    return WebhooksResource(items=[WebhookResource.of(one) for one in await call.client.list_webhooks()])


async def create_webhook(call: Call) -> NewWebhookResource:
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
    return NewWebhookResource.made(made)


async def get_webhook(call: Call) -> WebhookResource:
    """A webhook."""
    return WebhookResource.of(await call.client.get_webhook(call.id))


async def rotate_webhook(call: Call) -> NewWebhookResource:
    """Give a webhook a new secret, which the answer has."""
    body: RotateBody = call.body
    return NewWebhookResource.made(await call.client.rotate_webhook_secret(call.id, overlap=body.overlap))


async def enable_webhook(call: Call) -> WebhookResource:
    """Send to a webhook again."""
    return WebhookResource.of(await call.client.enable_webhook(call.id))


async def disable_webhook(call: Call) -> WebhookResource:
    """Send nothing to a webhook."""
    body: DisableBody = call.body
    return WebhookResource.of(await call.client.disable_webhook(call.id, reason=body.reason))


async def delete_webhook(call: Call) -> DeletedResource:
    """Delete a webhook."""
    await call.client.delete_webhook(call.id)
    return DeletedResource(deleted=call.id)


async def ping_webhook(call: Call) -> PingResource:
    """Have a worker send a delivery that tells of nothing."""
    return PingResource(delivery=await call.client.ping_webhook(call.id))


async def replay_webhook(call: Call) -> ReplayResource:
    """Have deliveries made again."""
    body: ReplayBody = call.body
    if (body.delivery is None) == (body.since is None):
        raise Problem(422, "invalid-body", "the body must have either delivery or since")
    if body.delivery is not None:
        await call.client.replay_webhook_delivery(body.delivery)
        return ReplayResource(replayed=1)
    assert body.since is not None
    replayed = await call.client.replay_webhook(call.id, since=body.since, failed_only=body.failed_only)
    return ReplayResource(replayed=replayed)


async def list_deliveries(call: Call) -> WebhookAttemptsPage:
    """A page of the attempts at deliveries to a webhook."""
    query: PageQuery = call.query
    page = await call.client.list_webhook_deliveries(call.id, limit=query.limit, cursor=query.cursor)
    items = [WebhookAttemptResource.of(one, payloads=call.payloads) for one in page]
    return WebhookAttemptsPage(items=items, next_cursor=page.next_cursor)
