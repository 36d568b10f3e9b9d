"""Webhooks: the list with their circuits, one with its last deliveries, and what an operator changes of them."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from queuert.web.dashboard.pages.shared import MOST_ROWS, PAGE, named, older
from queuert.web.dashboard.visit import Visit

REPLAYED = timedelta(days=7)
"""How far back a replay of the dashboard goes."""


async def webhooks(visit: Visit) -> Response:
    """Webhooks by id: all, or those with a text in their address, description or id."""
    given = visit.given("name")
    found = await visit.client.list_webhooks()
    if "name" in given:
        found = [one for one in found if named(given["name"], one.id, one.url, one.description)]
    return visit.render("webhooks.html", rows=found[:MOST_ROWS], given=given, count=len(found))


async def webhook(visit: Visit) -> Response:
    """A webhook and its last deliveries."""
    found = await visit.client.get_webhook(visit.wanted("id"))
    cursor = visit.query("cursor") or None
    page = await visit.client.list_webhook_deliveries(found.id, limit=PAGE, cursor=cursor)
    return visit.render(
        "webhook.html",
        webhook=found,
        attempts=page.items,
        older=older({"id": found.id}, page.next_cursor),
        later=cursor is not None,
    )


async def enable(visit: Visit) -> Response:
    """Send to a webhook again."""
    found = await visit.client.enable_webhook(visit.wanted("id"))
    return visit.go("/webhook", id=found.id, notice="webhook-enabled")


async def disable(visit: Visit) -> Response:
    """Send nothing to a webhook."""
    found = await visit.client.disable_webhook(visit.wanted("id"), reason=f"by {visit.principal}"[:500])
    return visit.go("/webhook", id=found.id, notice="webhook-disabled")


async def ping(visit: Visit) -> Response:
    """Have a worker send a delivery that tells of nothing."""
    id = visit.wanted("id")
    await visit.client.ping_webhook(id)
    return visit.go("/webhook", id=id, notice="webhook-pinged")


async def replay(visit: Visit) -> Response:
    """Deliver again: one delivery, or all of the last week that was not accepted."""
    id = visit.wanted("id")
    delivery = visit.given("delivery").get("delivery")
    if delivery is not None:
        await visit.client.replay_webhook_delivery(delivery, webhook=id)
    else:
        await visit.client.replay_webhook(id, since=visit.now - REPLAYED)
    return visit.go("/webhook", id=id, notice="webhook-replayed")
