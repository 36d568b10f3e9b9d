"""What the dispatcher of webhooks deletes, and ids that nobody can know beforehand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from queuert.event_log import EventFilter, EventKind
from queuert.ids import new_token
from queuert.state.paging import PageRequest
from queuert.state.webhooks import HEALTH, WebhookWrite
from queuert.webhooks.deliveries import Delivery, delivery_id
from queuert.webhooks.endpoints import CHAIN_WEBHOOKS, WebhookHealth
from queuert.worker.webhooks import WebhookDispatcher
from tests.webhooks.deliveries import Deliveries, double


async def test_the_health_of_receivers_of_which_nothing_is_left_is_deleted(deliveries: Deliveries) -> None:
    client = deliveries.client
    made = await deliveries.webhook()
    store = await client._open_store()
    settings = deliveries.settings()
    now = datetime.now(UTC)
    old = now - timedelta(days=settings.keep_days + 1)
    written = {
        made.webhook.id: old,
        "wh_deleted": now,
        f"{CHAIN_WEBHOOKS}:failed-lately": now,
        f"{CHAIN_WEBHOOKS}:failed-long-ago": old,
    }
    for id, at in written.items():
        body = WebhookHealth().after_failure(at).encode()
        assert await store.put_webhook_record(WebhookWrite(HEALTH, id, body, new_token(), None))
    dispatcher = WebhookDispatcher(client, store, settings)
    assert await dispatcher._take()
    await dispatcher._prune()
    kept = {one.id for one in await store.get_webhook_records(HEALTH)}
    assert kept == {made.webhook.id, f"{CHAIN_WEBHOOKS}:failed-lately"}


@pytest.mark.parametrize(
    "url", ["https://example.com?order=1", "https://EXAMPLE.com./?order=2", "https://example.com:443/hooks"]
)
def test_single_chains_share_the_health_of_their_receiver(url: str) -> None:
    """However its address is spelled."""
    one = Delivery(CHAIN_WEBHOOKS, "id", "chain.completed", "{}", url="https://example.com/")
    assert replace(one, url=url).health_id == one.health_id
    for other in ("https://example.com:8443/", "http://example.com/", "https://www.example.com/"):
        assert replace(one, url=other).health_id != one.health_id


async def test_deliveries_have_ids_of_the_key(deliveries: Deliveries) -> None:
    client = deliveries.client
    made = await deliveries.webhook(events=["chain.started"])
    await client.start_chain(double, 1)
    await deliveries.work()
    [attempt] = await deliveries.attempted(made.webhook.id, 1)
    store = await client._open_store()
    events = await store.list_events(EventFilter(), PageRequest(100, None, oldest_first=True))
    [started] = [one for one in events if one.type == "double" and one.kind == EventKind.CREATED]
    key = await client._webhook_key(store)
    assert attempt.delivery_id == delivery_id(key, started, "chain.started", made.webhook.id)


async def test_the_id_of_a_delivery_is_the_same_again_and_known_to_nobody_without_the_key(
    deliveries: Deliveries,
) -> None:
    """A chain of that id that somebody else has started would take the place of the delivery."""
    client = deliveries.client
    await client.start_chain(double, 1)
    store = await client._open_store()
    page = await deliveries.until(
        lambda: store.list_events(EventFilter(), PageRequest(1, None, oldest_first=True)), lambda page: bool(page.items)
    )
    event = page.items[0]
    id = delivery_id("key", event, "chain.started", "wh_1")
    assert id == delivery_id("key", replace(event, worker="another"), "chain.started", "wh_1")
    others = [
        delivery_id("another key", event, "chain.started", "wh_1"),
        delivery_id("key", event, "job.created", "wh_1"),
        delivery_id("key", event, "chain.started", "wh_2"),
        delivery_id("key", replace(event, seq=event.seq + 1), "chain.started", "wh_1"),
    ]
    assert len({id, *others}) == 5
    assert "." not in id
