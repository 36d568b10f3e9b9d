"""Webhooks in an async client. ``sync_webhooks.py`` is generated from this module."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.attributes import GivenAttributes
from queuert.client.async_base import AsyncClientBase
from queuert.client.schedules import JobTypeReference, expected_name, type_names
from queuert.client.webhooks import check_since, sealed_input
from queuert.envelope import is_envelope
from queuert.errors import CapabilityMissingError, ConfigurationError, StateError
from queuert.event_log import EventFilter, JobEvent
from queuert.ids import new_id, new_token
from queuert.job_types import RESERVED
from queuert.new_chain import ChainReference, chain_ids
from queuert.notify.adapter import Topic
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.paging import MAX_PAGE, Page, PageRequest
from queuert.state.records import json_value
from queuert.state.types import NewJob
from queuert.state.webhooks import (
    DISPATCHER,
    DISPATCHER_CURSOR,
    ENDPOINT,
    HEALTH,
    WebhookAttempt,
    WebhookRecord,
    WebhookWrite,
)
from queuert.texts import check_step_name, check_text
from queuert.webhooks.addresses import parsed
from queuert.webhooks.deliveries import KEY, MOST_PAYLOAD, STARTED_AT_ONCE, Delivery, delivery_id, event_body, ping_of
from queuert.webhooks.endpoints import (
    CHAIN_ATTRIBUTE,
    CHAIN_WEBHOOKS,
    CLOSED_EVENTS,
    DELIVERY_TYPE,
    OVERLAP,
    NewWebhook,
    StoredWebhook,
    Webhook,
    WebhookFilter,
    WebhookHealth,
    chain_webhooks,
    checked_headers,
    event_types,
    is_chain_url,
    new_webhook,
)
from queuert.webhooks.errors import WebhookNotFoundError
from queuert.webhooks.signing import checked_secret, new_secret

_TRIES = 20
_OUTPUTS_AT_ONCE = 20
_COMPLETED = CLOSED_EVENTS[0]
_LONG_TRANSACTION = timedelta(hours=1)
"""How much earlier than the events around it one may be in the log, whose order is that of transactions."""


class AsyncClientWebhooks(AsyncClientBase):
    """Makes and manages webhooks. Workers with :func:`~queuert.worker.webhooks.webhook_processors` deliver.

    They need a store with the capability ``events``; on Postgres the role of operators, and for pings and replays that
    of clients as well.
    """

    async def create_webhook(
        self,
        url: str,
        *,
        events: Iterable[str] | None = None,
        job_types: Iterable[JobTypeReference] | None = None,
        attributes: GivenAttributes | None = None,
        description: str = "",
        payloads: bool = False,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
    ) -> NewWebhook:
        """Make a webhook: its address is told of what happens from now on.

        Args:
            url: begins with ``https://``, or with ``http://`` where workers allow it. Workers decide at each delivery
                whether it is allowed: :class:`~queuert.webhooks.TargetPolicy`.
            events: names such as ``chain.completed`` and ``job.retried``; by default when chains close.
            job_types: only events of these types, or names: of the first job of a chain for events of chains.
            attributes: only chains that have all these attributes.
            description: for people.
            payloads: whether errors, and in ``chain.completed`` the output, up to 20 KiB, are sent as well. By default
                only ids, types, statuses and times are.
            headers: added to each request, such as ``{"authorization": "..."}``.
            secret: signs the deliveries; by default a new one. See :func:`~queuert.webhooks.new_secret`.

        Returns:
            The webhook with its secret, which is not shown again.

        Raises:
            ForbiddenTargetError: the URL is not valid.
            ConfigurationError: an event, header or secret is not valid.
            InvalidIdentifierError: an attribute or the name of a job type is not valid.
            CapabilityMissingError: the store has no event log.

        Example::

            made = await client.create_webhook("https://example.com/hook", events=["chain.failed"])
            print(made.webhook.id, made.secret)
        """
        self._check_events()
        types = None if job_types is None else type_names(job_types)
        filter = WebhookFilter.of(events, types, attributes)
        store = await self._open_store()
        await self._make_dispatcher_cursor(store)
        webhook = new_webhook(
            url,
            filter,
            from_tx=(await store.event_log_end()).settled,
            secret=secret,
            description=description,
            payloads=payloads,
            headers=headers,
        )
        if not await store.put_webhook_record(self.webhook_codec.write(webhook, None)):
            raise StateError(f"a webhook {webhook.id!r} exists already: repeat the call")
        return NewWebhook(webhook.shown(WebhookHealth()), webhook.secrets[0].value)

    async def list_webhooks(self) -> list[Webhook]:
        """Return all webhooks, by id. If this client cannot decrypt one, its secrets and headers are left out."""
        store = await self._open_store()
        found = await store.get_webhook_records(ENDPOINT)
        health = {one.id: WebhookHealth.decode(one.body) for one in await store.get_webhook_records(HEALTH)}
        webhooks = map(self.webhook_codec.read_if_possible, found)
        return [webhook.shown(health.get(webhook.id, WebhookHealth())) for webhook in webhooks]

    async def get_webhook(self, webhook: str) -> Webhook:
        """Return a webhook.

        Raises:
            WebhookNotFoundError: there is none of this id.
        """
        store = await self._open_store()
        record = await self._webhook_record(store, webhook)
        return await self._shown_webhook(store, self.webhook_codec.read_if_possible(record))

    async def change_webhook(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        job_types: Iterable[JobTypeReference] | None = None,
        attributes: GivenAttributes | None = None,
        description: str | None = None,
        payloads: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Webhook:
        """Change a webhook; what is left out stays. An empty ``job_types`` or ``attributes`` removes the restriction.

        Deliveries that wait go to the new address.

        Raises:
            WebhookNotFoundError: there is none of this id.

        It also raises the errors of :meth:`create_webhook`.
        """
        if url is not None:
            parsed(url)
        given_types = None if job_types is None else type_names(job_types)
        fields: dict[str, Any] = {
            "url": url,
            "description": check_text(description, what="description") if description else description,
            "payloads": payloads,
            "headers": None if headers is None else checked_headers(headers),
        }
        changes = {name: value for name, value in fields.items() if value is not None}
        checked = WebhookFilter.of(events, given_types or None, attributes)

        def change(found: StoredWebhook) -> StoredWebhook:
            filter = WebhookFilter(
                found.filter.events if events is None else checked.events,
                found.filter.job_types if given_types is None else checked.job_types,
                found.filter.attributes if attributes is None else checked.attributes,
            ).checked()
            return replace(found, filter=filter, **changes)

        store = await self._open_store()
        return await self._shown_webhook(store, await self._change_webhook(store, webhook, change))

    async def rotate_webhook_secret(
        self, webhook: str, *, secret: str | None = None, overlap: float = OVERLAP
    ) -> NewWebhook:
        """Give a webhook a new secret. The old one signs as well, for a day more, so that the receiver has time.

        Args:
            webhook: its id; :data:`~queuert.webhooks.CHAIN_WEBHOOKS` for the webhooks of single chains.
            secret: the new secret; by default a random one.
            overlap: seconds that the old secret signs; 0 if it has become known to others.

        Returns:
            The webhook with its new secret, which is not shown again.

        Raises:
            WebhookNotFoundError: there is none of this id.
            ConfigurationError: the secret is not valid, or the overlap is negative or longer than 30 days.
        """
        if not 0 <= overlap <= 30 * 86_400:
            raise ConfigurationError(f"overlap must be between 0 seconds and 30 days, got {overlap}")
        new = new_secret() if secret is None else secret
        checked_secret(new)
        store = await self._open_store()
        if webhook == CHAIN_WEBHOOKS:
            await self._make_chain_webhooks(store)
        now = datetime.now(UTC)
        changed = await self._change_webhook(store, webhook, lambda found: found.rotated(new, now, overlap))
        return NewWebhook(await self._shown_webhook(store, changed), new)

    async def disable_webhook(self, webhook: str, *, reason: str = "by hand") -> Webhook:
        """Send nothing to a webhook. Deliveries that wait are cancelled when they are due.

        Raises:
            WebhookNotFoundError: there is none of this id.
            InvalidIdentifierError: the reason cannot be stored.
        """
        check_text(reason, what="reason")
        store = await self._open_store()
        await self._change_webhook(
            store, webhook, lambda found: replace(found, enabled=False, disabled_reason=reason), secrets=False
        )
        return await self.get_webhook(webhook)

    async def enable_webhook(self, webhook: str) -> Webhook:
        """Send to a webhook again what happens from now on; :meth:`replay_webhook` sends what was missed.

        Raises:
            WebhookNotFoundError: there is none of this id.
        """
        store = await self._open_store()
        await self._make_dispatcher_cursor(store)
        from_tx = (await store.event_log_end()).settled
        await self._change_webhook(
            store,
            webhook,
            lambda found: (
                found if found.enabled else replace(found, enabled=True, disabled_reason=None, from_tx=from_tx)
            ),
            secrets=False,
        )
        for record in await store.get_webhook_records(HEALTH, [webhook]):
            await store.put_webhook_record(WebhookWrite(HEALTH, webhook, None, new_token(), record.tag))
        return await self.get_webhook(webhook)

    async def delete_webhook(self, webhook: str) -> None:
        """Delete a webhook. Deliveries that wait are cancelled when they are due; the log of deliveries stays.

        Raises:
            WebhookNotFoundError: there is none of this id.
        """
        id = check_text(webhook, what="webhook")
        store = await self._open_store()
        for kind in (ENDPOINT, HEALTH):
            for _ in range(_TRIES):
                found = await store.get_webhook_records(kind, [id])
                if not found and kind == ENDPOINT:
                    raise WebhookNotFoundError(id)
                if not found or await store.put_webhook_record(WebhookWrite(kind, id, None, new_token(), found[0].tag)):
                    break

    async def ping_webhook(self, webhook: str) -> str:
        """Have a worker send a delivery that tells of nothing, of the type ``webhook.ping``, and return its id.

        How it went is in :meth:`list_webhook_deliveries`.

        Raises:
            WebhookNotFoundError: there is none of this id.
            ConfigurationError: it is the one of single chains, which has no address.
        """
        store = await self._open_store()
        await self._webhook_record(store, webhook)
        if webhook == CHAIN_WEBHOOKS:
            raise ConfigurationError(f"the webhooks of single chains ({CHAIN_WEBHOOKS!r}) have no address to ping")
        delivery = ping_of(webhook, datetime.now(UTC))
        await self._start_deliveries(store, [delivery.job(await self._webhook_key(store))])
        return delivery.id

    async def replay_webhook_delivery(self, delivery: str, *, webhook: str | None = None) -> None:
        """Have a worker make a delivery again, now and once, with the same ``webhook-id``.

        Args:
            delivery: its id, as in :meth:`list_webhook_deliveries`.
            webhook: the id of its webhook: if the delivery is of another, it is refused.

        Raises:
            ConfigurationError: the delivery is of another webhook.
            ChainNotFoundError: the delivery is not kept any more; :meth:`replay_webhook` makes it from the event log.
            WebhookNotFoundError: its webhook was deleted.
        """
        if webhook is not None:
            check_text(webhook, what="webhook")
        store = await self._open_store()
        key = await self._webhook_key(store)
        [chain] = await store.get_chains([check_text(delivery, what="delivery")])
        opened = Delivery.opened(sealed_input(chain, delivery), key)
        await self._webhook_record(store, opened.webhook_id if webhook is None else webhook)
        if webhook not in (None, opened.webhook_id):
            raise ConfigurationError(
                f"the delivery must be one of webhook {webhook!r}, and {delivery!r} is of {opened.webhook_id!r}"
            )
        await self._start_deliveries(store, [replace(opened, once=True).job(key, copy=True)])

    async def replay_webhook(self, webhook: str, *, since: datetime, failed_only: bool = True) -> int:
        """Have workers deliver again, once each, what happened since a time, and return how many deliveries these are.

        It reads the event log, so it also finds what happened while the webhook was disabled. It reads all events since
        then, and the log of deliveries.

        Args:
            webhook: its id.
            since: a time with its zone.
            failed_only: leave out what the receiver has accepted.

        Raises:
            WebhookNotFoundError: there is none of this id.
            ConfigurationError: ``since`` has no time zone, or it is the one of single chains.
        """
        check_since(since)
        store = await self._open_store()
        record = await self._webhook_record(store, webhook)
        found = replace(self.webhook_codec.read(record, secrets=False), from_tx=0)
        if webhook == CHAIN_WEBHOOKS:
            raise ConfigurationError("the webhooks of single chains are replayed one by one: replay_webhook_delivery()")
        accepted = await self._accepted(store, webhook, since) if failed_only else frozenset()
        key, cursor, replayed, goes_on = await self._webhook_key(store), None, 0, True
        while goes_on:
            page = await store.list_events(EventFilter(), PageRequest(MAX_PAGE, cursor))
            cursor = page.next_cursor
            recent = [event for event in page if event.happened_at >= since]
            # Not in the order of their times: a long transaction's events come behind newer ones.
            goes_on = cursor is not None and any(event.happened_at >= since - _LONG_TRANSACTION for event in page)
            deliveries = await self._deliveries_of(store, [found], recent[::-1], once=True, without=accepted)
            jobs = [one.job(key, copy=True) for one in deliveries]
            await self._start_deliveries(store, jobs)
            replayed += len(jobs)
        return replayed

    async def list_webhook_deliveries(
        self, webhook: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[WebhookAttempt]:
        """Return a page of the attempts at deliveries to a webhook, the newest first. They are kept for 30 days.

        Args:
            webhook: its id; also of one that was deleted.
            limit: the most entries of the page, between 1 and 1,000.
            cursor: the ``next_cursor`` of the previous page.

        Raises:
            InvalidCursorError: the cursor does not belong to this listing.
            ConfigurationError: the limit is out of range.
        """
        check_text(webhook, what="webhook")
        return await (await self._open_store()).list_webhook_attempts(webhook, PageRequest(limit, cursor))

    # --- callbacks ----------------------------------------------------------------------------------------------------

    def callback_url(
        self,
        chain: ChainReference,
        *,
        expires: float | timedelta = 86_400.0,
        event: str | None = None,
        expecting: JobTypeReference | None = None,
    ) -> str:
        """Return an address by which another system completes or cancels this chain, or sends it an event, once.

        :class:`~queuert.web.CallbackApp` answers it. Everyone who has it may use it. It reads and writes nothing.

        Args:
            chain: its id, or a handle.
            expires: seconds or a timedelta until it is of no use any more, at most a year.
            event: the name of an event that a handler of the chain waits for with ``attempt.wait_for_event``; by
                default the chain itself is completed.
            expecting: the job type that the chain's last job must have when it is used, or its name.

        Raises:
            ConfigurationError: the client has no ``callbacks``, ``expires`` is out of range, or the name of the event
                is not valid, or none of the ``events`` of its ``CallbackUrls``.
            InvalidIdentifierError: the id is not valid, or ``expecting`` is neither a job type nor a valid name.

        Example::

            url = client.callback_url(chain, expires=3600, event="acknowledged")
        """
        if self.callbacks is None:
            raise ConfigurationError("the client must have callbacks=CallbackUrls(base, secret) to make an address")
        if event is not None:
            check_step_name(event, what="an event")
        [chain_id] = chain_ids([chain])
        last = None if expecting is None else expected_name(expecting)
        return self.callbacks.url(chain_id, expires=expires, id=new_id(), event=event, expecting=last)

    # --- deliveries ---------------------------------------------------------------------------------------------------

    async def _deliveries_of(
        self,
        store: AsyncStore,
        webhooks: Sequence[StoredWebhook],
        events: Iterable[JobEvent],
        *,
        of_chains: bool = False,
        once: bool = False,
        without: Container[str] = frozenset(),
    ) -> list[Delivery]:
        """Return the deliveries of events to webhooks, in the order of the events.

        Args:
            of_chains: whether chains are looked at for webhooks of their own.
            without: ids of deliveries that are left out.
        """
        named = [
            (event, name) for event in events if not event.type.startswith(RESERVED) for name in event_types(event)
        ]
        chosen = [
            (webhook, event, name)
            for event, name in named
            for webhook in webhooks
            if webhook.filter.selects(name, event) and event.tx >= webhook.from_tx
        ]
        closed = [(event, name) for event, name in named if of_chains and name in CLOSED_EVENTS]
        of_attributes = [event for webhook, event, _ in chosen if webhook.filter.attributes]
        ids = list(dict.fromkeys(event.chain_id for event in (*of_attributes, *(event for event, _ in closed))))
        read = await store.get_chain_attributes(ids) if ids else []
        attributes = {id: found or {} for id, found in zip(ids, read, strict=True)}
        outputs = await self._outputs(
            store, [event.chain_id for webhook, event, name in chosen if webhook.payloads and name == _COMPLETED]
        )

        def output_of(event: JobEvent, name: str) -> str | None:
            # Earlier events of a chain are often delivered when it has its output, which they must not tell.
            return outputs.get(event.chain_id) if name == _COMPLETED else None

        selected = [
            (webhook, event, name)
            for webhook, event, name in chosen
            if not webhook.filter.attributes or webhook.filter.selects_attributes(attributes[event.chain_id])
        ]
        urls = [(event, name, attributes[event.chain_id].get(CHAIN_ATTRIBUTE)) for event, name in closed]
        # Anybody who starts a chain may set the attribute: what is no address must not stop all deliveries.
        own = [(event, name, url) for event, name, url in urls if isinstance(url, str) and is_chain_url(url)]
        if not selected and not own:
            return []
        key = await self._webhook_key(store)
        found = [
            Delivery(
                webhook.id,
                delivery_id(key, event, name, webhook.id),
                name,
                event_body(event, name, payloads=webhook.payloads, output=output_of(event, name)),
                once=once,
            )
            for webhook, event, name in selected
        ]
        for event, name, url in own:
            id = delivery_id(key, event, name, CHAIN_WEBHOOKS)
            found.append(Delivery(CHAIN_WEBHOOKS, id, name, event_body(event, name, payloads=False), url=url))
        return [one for one in found if one.id not in without]

    async def _outputs(self, store: AsyncStore, chain_ids: Sequence[str]) -> dict[str, str]:
        """Return the outputs of completed chains, except those that are stored in another format than plain JSON."""
        found: dict[str, str] = {}
        ids = list(dict.fromkeys(chain_ids))
        for at in range(0, len(ids), _OUTPUTS_AT_ONCE):
            for chain in await store.get_chains(ids[at : at + _OUTPUTS_AT_ONCE]):
                if chain is not None and chain.output is not None and not is_envelope(json_value(chain.output)):
                    # A larger output is not sent: its beginning is enough to see that it is too large.
                    found[chain.id] = chain.output[: MOST_PAYLOAD + 1]
        return found

    # --- records ------------------------------------------------------------------------------------------------------

    def _check_events(self) -> None:
        if Capability.EVENTS not in self.state.capabilities:
            raise CapabilityMissingError(Capability.EVENTS, "webhooks tell of what is in the event log")

    async def _webhook_record(self, store: AsyncStore, webhook: str) -> WebhookRecord:
        found = await store.get_webhook_records(ENDPOINT, [check_text(webhook, what="webhook")])
        if not found:
            raise WebhookNotFoundError(webhook)
        return found[0]

    async def _shown_webhook(self, store: AsyncStore, webhook: StoredWebhook) -> Webhook:
        found = await store.get_webhook_records(HEALTH, [webhook.id])
        return webhook.shown(WebhookHealth.decode(found[0].body) if found else WebhookHealth())

    async def _change_webhook(
        self,
        store: AsyncStore,
        webhook: str,
        change: Callable[[StoredWebhook], StoredWebhook],
        *,
        secrets: bool = True,
    ) -> StoredWebhook:
        """Change a webhook; ``secrets`` says whether the change needs its secrets or headers."""
        for _ in range(_TRIES):
            record = await self._webhook_record(store, webhook)
            changed = change(self.webhook_codec.read(record, secrets=secrets))
            if await store.put_webhook_record(self.webhook_codec.write(changed, record.tag)):
                return changed
        raise StateError(f"others change webhook {webhook!r} again and again: repeat the call")

    async def _make_dispatcher_cursor(self, store: AsyncStore) -> None:
        """Store a place in the log, unless the dispatcher has one already.

        Called before a webhook is written, so that workers keep the chains that it is told of afterwards, though none
        delivers webhooks yet. The first dispatcher begins at the beginning of the log all the same.
        """
        if not await store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR]):
            body = json.dumps({"cursor": (await store.event_log_end()).cursor, "holder": None, "new": True})
            await store.put_webhook_record(WebhookWrite(DISPATCHER, DISPATCHER_CURSOR, body, new_token(), None))

    async def _make_chain_webhooks(self, store: AsyncStore) -> None:
        """Make the secret of the webhooks of single chains, if there is none."""
        self._check_events()
        if not await store.get_webhook_records(ENDPOINT, [CHAIN_WEBHOOKS]):
            await store.put_webhook_record(self.webhook_codec.write(chain_webhooks(), None))

    async def _webhook_key(self, store: AsyncStore) -> str:
        """Return the key that seals deliveries."""
        for _ in range(_TRIES):
            found = await store.get_webhook_records(DISPATCHER, [KEY])
            if found:
                return found[0].body
            await store.put_webhook_record(WebhookWrite(DISPATCHER, KEY, new_secret(), new_token(), None))
        raise StateError("the key of deliveries could not be stored: repeat the call")

    async def _accepted(self, store: AsyncStore, webhook: str, since: datetime) -> frozenset[str]:
        """Return the ids of the deliveries that were accepted since a time."""
        found: set[str] = set()
        cursor, goes_on = None, True
        while goes_on:
            page = await store.list_webhook_attempts(webhook, PageRequest(MAX_PAGE, cursor))
            recent = [one for one in page if one.at >= since]
            found.update(one.delivery_id for one in recent if one.delivered)
            cursor = page.next_cursor
            goes_on = cursor is not None and len(recent) == len(page)
        return frozenset(found)

    async def _start_deliveries(self, store: AsyncStore, jobs: list[NewJob]) -> None:
        for at in range(0, len(jobs), STARTED_AT_ONCE):
            await store.start_jobs(jobs[at : at + STARTED_AT_ONCE])
        if jobs:
            self.notify.publish(Topic.JOBS, {DELIVERY_TYPE})
